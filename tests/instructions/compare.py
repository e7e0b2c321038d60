#!/usr/bin/python3
"""Counts the instructions of each operation and compares them with counts.txt. Exit code 1: a count differs by more than its tolerance.

Usage: compare.py PROGRAM [--write]. --write stores the counts as the expected counts; `./dev counts` builds and does that.
A count that is too low fails too: an unrecorded gain would hide the next loss.
"""
import argparse
import os
import sys

from counts import Expected, compare, count, table

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "counts.txt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with open(FILE, encoding="utf-8") as file:
        expected = Expected(file.read())
    got = count(options.program)
    rows = compare(expected, got)
    print(table(rows))
    if options.write:
        with open(FILE, "w", encoding="utf-8") as file:
            file.write(expected.text(got))
        return 0
    if any(wrong for *_, wrong in rows):
        print(f"\nMore than {expected.tolerance:g} % off. If it is meant: `./dev counts` writes tests/instructions/counts.txt; commit it with its reason.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
