#!/usr/bin/python3
"""That ./dev compat sees what differs and what does not; and one module of the suite, where it is installed, as a job."""
import importlib.util
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import compat  # noqa: E402

MYCOJOBS = os.path.join(sys.argv.pop(1) if len(sys.argv) > 1 else os.path.join(compat.ROOT, "build/bin"), "mycojobs")
IS_INSTALLED = importlib.util.find_spec("test.test_bisect") is not None


def result(differ, name="test_some"):
    return {"module": name, "comparable": True, "tests": 3, "differ": differ}


class Causes(unittest.TestCase):
    def test_what_a_policy_refuses_is_reported_by_its_name(self):
        differ = {"test.a": ["failed", "self.pid = _fork_exec( PermissionError: [Errno 1] Operation not permitted"],
                  "test.b": ["failed", "OSError: [Errno 97] Address family not supported by protocol"]}
        self.assertEqual(compat.causes_of(result(differ)), {"policy: no process (exec)": 1, "policy: no network (net)": 1})

    def test_what_nothing_explains_is_reported_as_such(self):
        wrong = result({"test.c": ["failed", "AssertionError: 1 != 2"]})
        self.assertEqual(compat.causes_of(wrong), {None: 1})
        self.assertIn("| test_some | 1 of 3 | **unexplained** 1 |", compat.page([wrong, result({}, "test_good")]))

    def test_the_answer_of_a_module_is_its_last_line(self):
        self.assertEqual(compat.ends_of(b'noise\n\x1ecompat {"a": ["ok", ""]}\nmore\n'), {"a": ["ok", ""]})
        self.assertIsNone(compat.ends_of(b"noise"))
        self.assertIsNone(compat.ends_of(b"\x1ecompat {\n"))


@unittest.skipUnless(IS_INSTALLED, "libpython3.11-testsuite is not installed")
class Module(unittest.TestCase):
    def test_one_that_needs_nothing_is_alike(self):
        found = compat.compare("test_bisect", MYCOJOBS, 60)
        self.assertEqual((found["comparable"], found.get("differ")), (True, {}), found)
        self.assertGreater(found["tests"], 5)

    def test_one_that_starts_processes_differs_by_policy_alone(self):
        found = compat.compare("test_atexit", MYCOJOBS, 60)
        self.assertTrue(found["differ"], found)
        self.assertNotIn(None, compat.causes_of(found), found)


if __name__ == "__main__":
    unittest.main()
