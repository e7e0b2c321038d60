#!/usr/bin/env python3
"""Deletes each kind of the program's keys from a context, and compares the effect of doctor --rebuild with the tables of keys.

    lost_keys_test.py SOURCE BIN

The kinds of keys are in agent/store/keys.cpp. A row in agent/store/key_losses.cpp describes the loss of a kind, or doctor
--rebuild restores its keys. A new kind of key fails here until it has a row there, or is part of the scenario."""

import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

# Kinds of keys that this scenario does not contain, and the tests of their loss.
ELSEWHERE = {
    "mj:leases": "tests/contract/verify/verify_planted_test.cpp",
    "mj:held:<concurrency key>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:running:<concurrency key>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:ended": "tests/contract/verify/verify_planted_test.cpp",
    "mj:priority:<queue>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:delayed": "tests/contract/verify/verify_planted_test.cpp",
    "mj:waits:<job key>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:dependents:<job key>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:prerequisites": "tests/contract/verify/verify_planted_test.cpp",
    "mj:overdue": "tests/contract/verify/verify_planted_test.cpp",
    "mj:actor-keys": "tests/contract/verify/verify_actors_test.cpp",
    "mj:came": "tests/messages",
    "mj:inbox": "tests/contract/verify/verify_planted_test.cpp",
    "mj:outbox": "tests/contract/verify/verify_planted_test.cpp",
    "mj:messages": "tests/messages",
    "mj:worlds": "tests/worlds/planted_test.cpp",
    "mj:worlds:due": "tests/worlds/planted_test.cpp",
    "mj:world-full:<world>": "tests/worlds/planted_test.cpp",
    "mj:world-head:<world>": "tests/worlds/planted_test.cpp",
    "mj:queue:runner<id>": "tests/contract/verify/verify_planted_test.cpp: the list of a queue",
    "mj:queue:router:<host>": "tests/contract/verify/verify_planted_test.cpp: the list of a queue",
    "mj:queue:router": "tests/contract/verify/verify_planted_test.cpp: the list of a queue",
    "mj:osis:ids:<namespace>:<kind>": "tests/contract/objects_test.cpp",
    "mj:osis:index:<namespace>:<kind>:<field>": "tests/contract/objects_test.cpp",
    "mj:osis:words:<namespace>:<kind>": "tests/contract/objects_test.cpp",
    "mj:osis:kinds": "tests/contract/objects_test.cpp",
    "mj:events:<flow>": "tests/contract/flows/flows_verify_test.cpp",
    "mj:flows:ended": "tests/contract/flows/flows_verify_test.cpp",
    "mj:flow-waits:<flow>": "tests/contract/flows/flows_verify_test.cpp",
}
# Keys that may be missing after a rebuild, because they contain no due entries.
MAY_STAY_AWAY = {"mj:flows:due"}

FLOW = """name: release
jobs:
  a: {type: python, script: "pass"}
  b: {needs: a, type: python, script: "pass"}
"""


def patterns(source, file, pattern):
    return re.findall(pattern, (source / "agent/store" / file).read_text())


class LostKeys(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.at = pathlib.Path(cls.folder.name)
        cls.socket = str(cls.at / "redis.sock")
        cls.server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", cls.socket, "--dir", cls.folder.name, "--save", ""],
            stdout=subprocess.DEVNULL)
        while not pathlib.Path(cls.socket).exists():
            time.sleep(0.05)

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait()
        cls.folder.cleanup()

    def redis(self, *words):
        done = subprocess.run(["redis-cli", "-s", self.socket, "-n", "1", *words], capture_output=True, text=True,
                              check=True)
        return done.stdout.strip()

    def run_program(self, *words):
        return subprocess.run([str(BIN / "mycojobs"), *words, "--redis", "unix://" + self.socket],
                              capture_output=True, text=True, cwd=self.at)

    def expect(self, code, *words):
        done = self.run_program(*words)
        self.assertEqual(done.returncode, code, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def populate(self):
        (self.at / "flow.yaml").write_text(FLOW)
        (self.at / "job.py").write_text("pass\n")
        self.expect(0, "flow", "start", "flow.yaml")
        self.expect(0, "flow", "schedule", "add", "nightly", "flow.yaml", "--cron", "0 3 * * *", "--zone", "UTC")
        self.expect(0, "job", "submit", "job.py", "--idempotency-key", "once")
        return self.redis("KEYS", "mj:*").split()

    def states(self):
        keys = sorted(self.redis("KEYS", "mj:claim:*").split())
        return {key: self.redis("HGET", key, "state") for key in keys}

    def test_each_is_rebuilt_or_documented(self):
        own = patterns(SOURCE, "keys.cpp", r'InternalKey\{\s*"(mj:[^"]+)"')
        losses = set(patterns(SOURCE, "key_losses.cpp", r'\{"(mj:[^"]+)",'))
        self.assertGreater(len(own), 80)
        self.assertEqual(losses - set(own), set(), "rows of key_losses.cpp that name no key")
        there = self.populate()
        missing = []
        for pattern in own:
            begins = pattern.split("<")[0]
            keys = [each for each in there if (each.startswith(begins) if "<" in pattern else each == pattern)]
            if not keys and pattern not in losses and pattern not in ELSEWHERE:
                missing.append(pattern)
            for key in keys:
                with self.subTest(key=key):
                    self.lose(key, pattern, pattern in losses)
        self.assertEqual(missing, [], "neither in the scenario nor in a table")

    def lose(self, key, pattern, is_lost):
        before = self.states()
        self.redis("COPY", key, "backup", "REPLACE")
        self.redis("DEL", key)
        done = self.run_program("doctor", "--rebuild")
        left = self.run_program("verify")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertEqual(self.states(), before, done.stdout)  # no planned job was cancelled
        if not is_lost:
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(left.returncode, 0, left.stdout)
            if pattern not in MAY_STAY_AWAY:
                self.assertEqual(self.redis("EXISTS", key), "1", done.stdout)
        elif left.returncode != 0:
            self.assertEqual(done.returncode, 1, "a violation is left: " + left.stdout)
        self.redis("COPY", "backup", key, "REPLACE")
        self.redis("DEL", "backup")
        self.run_program("doctor", "--rebuild")


if __name__ == "__main__":
    SOURCE, BIN = (pathlib.Path(each).resolve() for each in sys.argv[1:3])
    del sys.argv[1:3]
    unittest.main()
