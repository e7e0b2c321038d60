#!/usr/bin/env python3
"""Reports tests that were skipped, and tests that failed first and were repeated.

    ledger.py LOG [--console FILE] [--machine FILE] [--machine-first FILE] [--skips FILE] [--repeats FILE]

LOG is ctest's Testing/Temporary/LastTest.log; --console: the output of ctest; --machine: the rows of ./dev test-vm;
--machine-first: the rows of a machine that failed before. Prints a line for each test with its reason. Exit code 1: one
of them is not on the lists.

A list has a line for each test or pattern: `PATTERN: reason`. A test within a program that is a single test for ctest is named
`NAME/Suite.Test`; a test in the virtual machine is named `vm/Suite.Test`.
"""
import argparse
import fnmatch
import os
import re
import sys
from collections import namedtuple

HERE = os.path.dirname(os.path.abspath(__file__))
Run = namedtuple("Run", "test passed output")
Row = namedtuple("Row", "test why")

ENTRY = re.compile(
    r"^\d+/\d+ Testing: (?P<test>[^\n]*)\n.*?^Command: (?P<command>[^\n]*)\n.*?^Output:\n-+\n(?P<output>.*?)^<end of output>\n"
    r".*?^-+\n(?P<verdict>.*?)^\"", re.S | re.M)
SKIPPED = re.compile(r"^\[  SKIPPED \] (?!\d+ tests?\b)(\S+?),?(?: .*)?$")
RESULT = re.compile(r"^ *(?:\d+/\d+)? *Test +#\d+: (\S+) \.*\**(.*?) +[\d.]+ sec", re.M)


def runs_of(log):
    """Returns each run of each test, in the order in which they ended."""
    return [Run(m["test"], m["verdict"].startswith("Test Pass"), m["output"] if m["command"] != '""' else None)
            for m in ENTRY.finditer(log)]


def reasons_of(output):
    """Returns the reasons that a GoogleTest program prints for skipped tests: name -> reason."""
    found, answer = {}, []
    for line in output.splitlines():
        skipped = SKIPPED.match(line)
        if line.startswith(("[ RUN      ]", "[       OK ]", "[  FAILED  ]")) or line.endswith(": Skipped"):
            answer = []
        elif skipped:
            found.setdefault(skipped[1], " ".join(answer) or "no reason was given")
            answer = []
        elif line.strip():
            answer.append(line.strip())
    return found


def skipped(runs):
    """Returns rows for all tests that were skipped in the last run of their program."""
    rows = []
    for test, run in {run.test: run for run in runs}.items():
        if run.output is None:
            rows.append(Row(test, "it was not started"))
            continue
        for name, why in reasons_of(run.output).items():
            rows.append(Row(name if name == test or same(name, test) else f"{test}/{name}", why))
        if re.search(r"^\[=+\] Running 0 tests", run.output, re.M):
            rows.append(Row(test, "no test of the program was chosen"))
        count = re.search(r"^OK \((?:.*, )?skipped=(\d+)", run.output, re.M)
        if count:
            rows.append(Row(test, f"{count[1]} skipped by unittest"))
    return sorted(rows)


def same(name, test):
    """Reports whether ctest uses the name `test`: ctest has a parameter's value where GoogleTest has its number."""
    return name.rpartition("/")[0] != "" and name.rpartition("/")[0] == test.rpartition("/")[0]


def failure_of(output):
    """Returns the first failure in the output of a test, in one line."""
    lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
    for at, line in enumerate(lines):
        if re.search(r": Failure$|^(FAIL|ERROR): |\bError\b", line):
            where = re.sub(r"^\S*/tests/", "tests/", line).removesuffix(": Failure")
            return cut(" ".join([where] + lines[at + 1:at + 5]))
    return cut(lines[-1]) if lines else ""


def cut(text, most=200):
    return text if len(text) <= most else text[:most - 3] + "..."


def repeated(runs, console=""):
    """Returns rows for tests that failed and were repeated, with their first failure."""
    kinds = {}
    for test, kind in RESULT.findall(console):
        kinds.setdefault(test, kind)
    rows, first = [], {}
    for run in runs:
        if run.test not in first:
            first[run.test] = run
        elif not first[run.test].passed:
            ended = "then passed" if run.passed else "failed again"
            kind = kinds.get(run.test, "Failed")
            rows.append(Row(run.test, f"{kind}, {ended}: {failure_of(first[run.test].output)}".removesuffix(": ")))
    return sorted(rows)


def repeated_in_machine(rows, first=""):
    """The virtual machine repeats failed tests and names them; `first`: the rows of a machine that failed."""
    again = [Row(f"vm/{test}", "failed in the machine, then passed")
             for tests in re.findall(r"at the second try ((?:[\w/]+\.[\w/]+ ?)+)", rows) for test in tests.split()]
    return again + [Row(f"vm/{name}", "in the first machine: " + cut(why))
                    for name, why in re.findall(r"^FAILED ([^:\n]+): (.*)$", first, re.M)]


def read_list(text):
    """Returns (pattern, reason) of each line; a line without a reason is an error."""
    entries = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, why = line.partition(": ")
        if not why.strip():
            raise ValueError(f"the list has no reason for {line.strip()}")
        entries.append((pattern.strip(), why.strip()))
    return entries


def unlisted(rows, entries):
    return [row for row in rows if not any(fnmatch.fnmatchcase(row.test, pattern) for pattern, _ in entries)]


def reported(title, rows, entries, file):
    """Returns the ledger's lines of one kind, with marks on those that are on no list, and the number of marked lines."""
    wrong = unlisted(rows, entries)
    lines = [f"{title}: {len(rows)}" + (f", {len(wrong)} of them not in {file}" if wrong else "")]
    lines += [f"  {'NOT LISTED ' if row in wrong else ''}{row.test}: {row.why}" for row in rows]
    return lines, len(wrong)


def text_of(path):
    if not path or not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    for name in ("console", "machine", "machine-first"):
        parser.add_argument("--" + name)
    for name in ("skips", "repeats"):
        parser.add_argument("--" + name, default=os.path.join(HERE, name + ".txt"))
    given = parser.parse_args(words)
    runs = runs_of(text_of(given.log))
    if not runs:
        print(f"ledger: {given.log} has no test that ran")
        return 1
    in_machine = repeated_in_machine(text_of(given.machine), text_of(given.machine_first))
    wrong = 0
    for title, rows, path in (
            ("tests that were skipped", skipped(runs), given.skips),
            ("tests that failed and were repeated", repeated(runs, text_of(given.console)) + in_machine, given.repeats)):
        lines, more = reported(title, rows, read_list(text_of(path)), os.path.relpath(path, os.path.join(HERE, "../..")))
        print("\n".join(lines))
        wrong += more
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
