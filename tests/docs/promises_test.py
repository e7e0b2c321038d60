#!/usr/bin/python3
"""The tests that docs/promises.md names exist."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MACRO = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
NAME = re.compile(r"`([A-Z]\w+)\.(\w+|\*)`")


def tests_of_sources():
    found = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        found.update(MACRO.findall(path.read_text()))
    return found


class Promises(unittest.TestCase):
    def test_every_test_that_is_named_exists(self):
        tests = tests_of_sources()
        suites = {suite for suite, _ in tests}
        named = NAME.findall((ROOT / "docs/promises.md").read_text())
        self.assertGreater(len(named), 50)
        missing = [f"{suite}.{name}" for suite, name in named
                   if (suite not in suites if name == "*" else (suite, name) not in tests)]
        self.assertEqual(missing, [])

    def test_every_row_names_a_test(self):
        rows = [line for line in (ROOT / "docs/promises.md").read_text().splitlines()
                if line.startswith("|") and not line.startswith(("|---", "| promise"))]
        self.assertEqual([row for row in rows if not NAME.search(row)], [])


if __name__ == "__main__":
    unittest.main()
