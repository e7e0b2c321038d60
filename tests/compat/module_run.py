# Runs one module of CPython's test suite and prints the result of each test as a line of JSON after a mark. python3 and
# a job run the same text, with MODULE defined at its start.
import json
import sys
import unittest

MARK = "\x1ecompat "


class Ends(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.ends = {}

    def say(self, test, end, why=""):
        name = test if isinstance(test, str) else test.id()
        if self.ends.get(name, [""])[0] != "failed":  # errors of the clean-up are caused by the first failure
            self.ends[name] = [end, " ".join(why.split())[-300:]]

    def addSuccess(self, test):
        self.say(test, "ok")

    def addError(self, test, error):
        self.say(test, "failed", self._exc_info_to_string(error, test))

    addFailure = addError

    def addSkip(self, test, reason):
        self.say(test, "skipped", reason)

    def addExpectedFailure(self, test, error):
        self.say(test, "ok")

    def addUnexpectedSuccess(self, test):
        self.say(test, "failed", "unexpected success")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.say(test, "failed", self._exc_info_to_string(error, test))


def run(name):
    from test import support

    support.use_resources = []  # as a run of the suite without -u
    ends = Ends()
    try:
        unittest.defaultTestLoader.loadTestsFromName("test." + name).run(ends)
    except unittest.SkipTest as skipped:
        ends.say(name, "skipped", str(skipped))
    except BaseException as error:
        ends.say(name, "failed", f"{type(error).__name__}: {error}")
    return ends.ends


ends = run(MODULE)  # noqa: F821
sys.stdout.flush()
sys.__stdout__.write("\n" + MARK + json.dumps(ends) + "\n")
