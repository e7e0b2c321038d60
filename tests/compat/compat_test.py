#!/usr/bin/python3
"""`./dev compat` reports real differences only; and one module of the suite, if it is installed, runs as a job."""
import importlib.util
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import compat  # noqa: E402
import shell  # noqa: E402

MYCOJOBS = os.path.join(sys.argv.pop(1) if len(sys.argv) > 1 else os.path.join(compat.ROOT, "build/bin"), "mycojobs")
IS_INSTALLED = importlib.util.find_spec("test.test_bisect") is not None


def result(differ, name="test_some"):
    return {"module": name, "comparable": True, "tests": 3, "differ": differ}


class Causes(unittest.TestCase):
    def test_denial_by_a_policy_is_reported_by_its_name(self):
        differ = {"test.a": ["failed", "self.pid = _fork_exec( PermissionError: [Errno 1] Operation not permitted"],
                  "test.b": ["failed", "OSError: [Errno 97] Address family not supported by protocol"]}
        self.assertEqual(compat.causes_of(result(differ)), {"policy: no process (exec)": 1, "policy: no network (net)": 1})

    def test_unexplained_difference_is_reported(self):
        wrong = result({"test.c": ["failed", "AssertionError: 1 != 2"]})
        self.assertEqual(compat.causes_of(wrong), {None: 1})
        self.assertIn("| test_some | 1 of 3 | **unexplained** 1 |", compat.page([wrong, result({}, "test_good")]))

    def test_the_answer_of_a_module_is_its_last_line(self):
        self.assertEqual(compat.ends_of(b'noise\n\x1ecompat {"a": ["ok", ""]}\nmore\n'), {"a": ["ok", ""]})
        self.assertIsNone(compat.ends_of(b"noise"))
        self.assertIsNone(compat.ends_of(b"\x1ecompat {\n"))


class ShellResults(unittest.TestCase):
    def test_entries_of_a_list_are_parsed(self):
        self.assertEqual(shell.parse_list("noise\nt a: rc=0 x\n\nt b: rc=1 \n"), {"a": "rc=0 x", "b": "rc=1 "})

    def test_tests_of_bats_are_parsed(self):
        self.assertEqual(shell.parse_tap("1..3\nok 1 one\nnot ok 2 two in 5ms\nok 3 three # skip no reason\n"), {"one": "ok", "two": "not ok", "three": "skipped"})

    def test_tests_of_shunit2_are_parsed(self):
        found = shell.parse_shunit2("file a with sh\ntestOne\ntestTwo\nASSERT:no\n\nRan 2 tests.\n")
        self.assertEqual(found, {"a with sh: testOne": "ok", "a with sh: testTwo": "ASSERT:no", "a with sh: all": "Ran 2 tests."})

    def test_difference_without_explanation_fails(self):
        unexplained = {"suite": "idioms", "entries": 2, "differ": {"grepnull": ("rc=0 ", "rc=2 grep: Function not implemented")}}
        explained = {"suite": "idioms", "entries": 2, "differ": {"ulimit": ("rc=0 1024", "rc=0 256")}}
        self.assertFalse(shell.report(unexplained))
        self.assertTrue(shell.report(explained))
        self.assertFalse(shell.report({"suite": "idioms", "entries": 0, "differ": {}}))
        self.assertIn("**unexplained**", shell.page([unexplained]))


class ShellIdioms(unittest.TestCase):
    """Idioms that all scripts may use: splice (grep), set*id (make, Python), RLIMIT_CORE."""

    def test_idioms_end_as_outside_or_by_a_known_policy(self):
        found = shell.compare("idioms", MYCOJOBS, "", 300)
        self.assertGreater(found["entries"], 140, found)
        unexplained = {name: ends for name, ends in found["differ"].items() if shell.explanation_of("idioms", name, ends[1]) is None}
        self.assertEqual(unexplained, {})


@unittest.skipUnless(IS_INSTALLED, "libpython3.11-testsuite is not installed")
class Module(unittest.TestCase):
    def test_script_without_needs_behaves_the_same(self):
        found = compat.compare("test_bisect", MYCOJOBS, 60)
        self.assertEqual((found["comparable"], found.get("differ")), (True, {}), found)
        self.assertGreater(found["tests"], 5)

    def test_script_with_processes_differs_only_by_policy(self):
        found = compat.compare("test_atexit", MYCOJOBS, 60)
        self.assertTrue(found["differ"], found)
        self.assertNotIn(None, compat.causes_of(found), found)


if __name__ == "__main__":
    unittest.main()
