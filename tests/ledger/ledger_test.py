#!/usr/bin/env python3
"""The ledger finds skipped and repeated tests, and its lists have no row without a reason."""
import contextlib
import io
import os
import re
import tempfile
import unittest

import ledger

PROGRAM = """[==========] Running 3 tests from 1 test suite.
[ RUN      ] Ids.Overlap
noise
/place/tests/sandbox/ids_test.cpp:44: Skipped
an ordinary user has one id

[  SKIPPED ] Ids.Overlap (0 ms)
[ RUN      ] Ids.Free
[       OK ] Ids.Free (1 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Ids.Overlap
"""
FAILED = """[ RUN      ] Lease.IsRenewed
/place/tests/contract/lease_test.cpp:12: Failure
Expected equality of these values:
  1
  2
[  FAILED  ] Lease.IsRenewed (3 ms)
"""


def entry(test, output="", verdict="Test Passed.", command='"/place/bin/x"'):
    return f"""3/7 Testing: {test}
3/7 Test: {test}
Command: {command}
Directory: /place
"{test}" start time: Nov 23 00:55 UTC
Output:
----------------------------------------------------------
{output}<end of output>
Test time =   0.00 sec
----------------------------------------------------------
{verdict}
"{test}" end time: Nov 23 00:55 UTC
"{test}" time elapsed: 00:00:00
----------------------------------------------------------

"""


def skips(log):
    return [tuple(row) for row in ledger.skipped(ledger.runs_of(log))]


def repeats(log, console=""):
    return [tuple(row) for row in ledger.repeated(ledger.runs_of(log), console)]


SKIP = "Test Pass Reason:\nSkip regular expression found in output. Regex=[\\[  SKIPPED \\]]"


class Skips(unittest.TestCase):
    def test_separate_test_is_named_with_its_reason(self):
        self.assertEqual(skips(entry("Ids.Overlap", PROGRAM, SKIP)), [("Ids.Overlap", "an ordinary user has one id")])

    def test_test_within_a_program_is_named_below_it(self):
        self.assertEqual(skips(entry("as_user", PROGRAM)), [("as_user/Ids.Overlap", "an ordinary user has one id")])

    def test_a_parameter_may_be_a_number_for_one_and_a_value_for_the_other(self):
        output = "[  SKIPPED ] Of/Points.Hold/3, where GetParam() = two (0 ms)\n"
        self.assertEqual(skips(entry("Of/Points.Hold/two", output, SKIP))[0][0], "Of/Points.Hold/3")

    def test_passed_test_is_not_skipped(self):
        self.assertEqual(skips(entry("Ids.Free", "[ RUN      ] Ids.Free\n[       OK ] Ids.Free (1 ms)\n")), [])

    def test_program_without_tests_is_skipped(self):
        output = "[==========] Running 0 tests from 0 test suites.\n[  PASSED  ] 0 tests.\n"
        self.assertEqual(skips(entry("as_user", output)), [("as_user", "no test of the program was chosen")])

    def test_disabled_test_is_skipped(self):
        self.assertEqual(skips(entry("Ids.Off", command='""')), [("Ids.Off", "it was not started")])

    def test_skips_of_unittest_are_counted(self):
        self.assertEqual(skips(entry("Compat", "Ran 9 tests in 0.1s\n\nOK (skipped=2)\n")),
                         [("Compat", "2 skipped by unittest")])

    def test_the_last_run_counts(self):
        log = entry("Ids.Overlap", FAILED, "Test Failed.") + entry("Ids.Overlap", PROGRAM, SKIP)
        self.assertEqual(len(skips(log)), 1)


class Repeats(unittest.TestCase):
    LOG = entry("A.Good") + entry("Lease.IsRenewed", FAILED, "Test Failed.") + entry("B.Good") + entry("Lease.IsRenewed")

    def test_repeated_pass_is_reported_with_its_first_failure(self):
        self.assertEqual(repeats(self.LOG), [
            ("Lease.IsRenewed",
             "Failed, then passed: tests/contract/lease_test.cpp:12 Expected equality of these values: 1 2 "
             "[  FAILED  ] Lease.IsRenewed (3 ms)")])

    def test_kind_of_failure_is_that_of_ctest(self):
        console = " 3/7 Test  #4: Lease.IsRenewed ......***Exception: SegFault  0.01 sec\n" \
                  "     Test  #4: Lease.IsRenewed ......   Passed    0.00 sec\n"
        self.assertTrue(repeats(self.LOG, console)[0][1].startswith("Exception: SegFault, then passed: "))

    def test_repeated_failure_is_reported(self):
        log = entry("A", "", "Test Failed.") * 2
        self.assertEqual(repeats(log), [("A", "Failed, failed again")])

    def test_first_pass_is_not_repeated(self):
        self.assertEqual(repeats(entry("A") + entry("B")), [])

    def test_machine_names_its_repeats(self):
        rows = "ok the suite (9 s): 16 tests of cgroup_tests, at the second try Waiting.Spins Slots.Turn\nok other: x\n"
        self.assertEqual([row.test for row in ledger.repeated_in_machine(rows)], ["vm/Waiting.Spins", "vm/Slots.Turn"])

    def test_second_machine_reports_failures_of_the_first(self):
        self.assertEqual(ledger.repeated_in_machine("ok a: b\n", "ok a: b\nFAILED the unit starts: too late\n    more\n"),
                         [("vm/the unit starts", "in the first machine: too late")])


class Lists(unittest.TestCase):
    def test_a_row_without_a_reason_is_refused(self):
        self.assertEqual(ledger.read_list("# why\n\nA.*: it may\n"), [("A.*", "it may")])
        for text in ("A.B", "A.B: ", "A.B : \n"):
            self.assertRaises(ValueError, ledger.read_list, text)

    def test_lists_of_the_repository_are_valid(self):
        for name in ("skips.txt", "repeats.txt"):
            self.assertTrue(ledger.read_list(ledger.text_of(os.path.join(ledger.HERE, name))), name)

    def test_sandbox_tests_for_root_alone_are_listed(self):
        """sandbox_tests_as_user runs these tests as an ordinary user, where they are skipped."""
        folder = os.path.join(ledger.HERE, "..", "sandbox")
        tests = []
        for name in sorted(os.listdir(folder)):
            if name.endswith(".cpp"):
                bodies = re.findall(r"^TEST(?:_F)?\((\w+), (\w+)\) \{\n(.*?)^\}", ledger.text_of(os.path.join(folder, name)), re.S | re.M)
                tests += [f"{suite}.{test}" for suite, test, body in bodies if "if (::geteuid() != 0) GTEST_SKIP()" in body]
        self.assertGreater(len(tests), 10)
        entries = ledger.read_list(ledger.text_of(os.path.join(ledger.HERE, "skips.txt")))
        rows = [ledger.Row(f"sandbox_tests_as_user/{test}", "") for test in tests]
        self.assertEqual([row.test for row in ledger.unlisted(rows, entries)], [])


class Verdict(unittest.TestCase):
    def verdict(self, log, skips="", repeats=""):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as answer:
            paths = {}
            for name, text in (("log", log), ("skips", skips), ("repeats", repeats)):
                paths[name] = os.path.join(folder, name)
                with open(paths[name], "w", encoding="utf-8") as file:
                    file.write(text)
            code = ledger.main([paths["log"], "--skips", paths["skips"], "--repeats", paths["repeats"]])
        return code, answer.getvalue()

    def test_empty_ledger_passes(self):
        self.assertEqual(self.verdict(entry("A")),
                         (0, "tests that were skipped: 0\ntests that failed and were repeated: 0\n"))

    def test_unlisted_test_fails(self):
        code, answer = self.verdict(entry("as_user", PROGRAM))
        self.assertEqual(code, 1)
        self.assertIn("  NOT LISTED as_user/Ids.Overlap: an ordinary user has one id\n", answer)
        self.assertEqual(self.verdict(Repeats.LOG)[0], 1)

    def test_listed_test_passes(self):
        self.assertEqual(self.verdict(entry("as_user", PROGRAM), skips="as_user/Ids.*: one id\n")[0], 0)
        self.assertEqual(self.verdict(Repeats.LOG, skips="*: all\n")[0], 1)
        self.assertEqual(self.verdict(Repeats.LOG, repeats="Lease.*: its clock\n")[0], 0)

    def test_a_log_without_tests_fails(self):
        self.assertEqual(self.verdict("")[0], 1)


if __name__ == "__main__":
    unittest.main()
