#!/usr/bin/env python3
"""Deletes each kind of the program's keys from a context, and compares the effect of doctor --rebuild with the tables of keys.

    lost_keys_test.py SOURCE BIN

The kinds of keys are in agent/store/keys.toml. The field `loss` describes the loss of a kind, or doctor --rebuild restores
its keys. A new kind of key fails here until it has this field, or is part of the scenario."""

import pathlib
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

# Kinds of keys that this scenario does not contain, and the tests of their loss.
TESTED_ELSEWHERE = {
    "mj:leases": "tests/contract/verify/verify_planted_test.cpp",
    "mj:held:<concurrency key>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:running:<concurrency key>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:ended": "tests/contract/verify/verify_planted_test.cpp",
    "mj:priority:<queue>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:delayed": "tests/contract/verify/verify_planted_test.cpp",
    "mj:dependencies:<job key>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:dependents:<job key>": "tests/contract/verify/verify_planted_test.cpp",
    "mj:prerequisites": "tests/contract/verify/verify_planted_test.cpp",
    "mj:queue-deadlines": "tests/contract/verify/verify_planted_test.cpp",
    "mj:actor-keys": "tests/contract/verify/verify_actors_test.cpp",
    "mj:received": "tests/messages",
    "mj:inbox": "tests/contract/verify/verify_planted_test.cpp",
    "mj:outbox": "tests/contract/verify/verify_planted_test.cpp",
    "mj:messages": "tests/messages",
    "mj:deployments": "tests/worlds/planted_test.cpp",
    "mj:deployments:due": "tests/worlds/planted_test.cpp",
    "mj:deployment-full:<deployment>": "tests/worlds/planted_test.cpp",
    "mj:deployment-head:<deployment>": "tests/worlds/planted_test.cpp",
    "mj:queue:runner<id>": "tests/contract/verify/verify_planted_test.cpp: the list of a queue",
    "mj:queue:router:<host>": "tests/contract/verify/verify_planted_test.cpp: the list of a queue",
    "mj:queue:router": "tests/contract/verify/verify_planted_test.cpp: the list of a queue",
    "mj:osis:ids:<namespace>:<kind>": "tests/contract/objects_test.cpp",
    "mj:osis:index:<namespace>:<kind>:<field>": "tests/contract/objects_test.cpp",
    "mj:osis:words:<namespace>:<kind>": "tests/contract/objects_test.cpp",
    "mj:osis:kinds": "tests/contract/objects_test.cpp",
    "mj:flow-events:<flow>": "tests/contract/flows/flows_verify_test.cpp",
    "mj:flows:ended": "tests/contract/flows/flows_verify_test.cpp",
    "mj:flow-dependents:<flow>": "tests/contract/flows/flows_verify_test.cpp",
}
# Keys that may be missing after a rebuild, because they contain no due entries.
MAY_BE_MISSING = {"mj:flows:due"}

FLOW = """name: release
jobs:
  a: {type: python, script: "pass"}
  b: {needs: a, type: python, script: "pass"}
"""


def read_key_table(source):
    keys = tomllib.loads((source / "agent/store/keys.toml").read_text())
    return [key for key in keys.values() if key["type"] != "channel"]


class LostKeys(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.socket = str(cls.path / "redis.sock")
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
        result = subprocess.run(["redis-cli", "-s", self.socket, "-n", "1", *words], capture_output=True, text=True,
                              check=True)
        return result.stdout.strip()

    def run_program(self, *words):
        return subprocess.run([str(BIN / "mycojobs"), *words, "--redis", "unix://" + self.socket],
                              capture_output=True, text=True, cwd=self.path)

    def expect(self, code, *words):
        result = self.run_program(*words)
        self.assertEqual(result.returncode, code, f"{words}: {result.stdout}{result.stderr}")
        return result.stdout

    def populate(self):
        (self.path / "flow.yaml").write_text(FLOW)
        (self.path / "job.py").write_text("pass\n")
        self.expect(0, "flow", "start", "flow.yaml")
        self.expect(0, "flow", "schedule", "add", "nightly", "flow.yaml", "--cron", "0 3 * * *", "--zone", "UTC")
        self.expect(0, "job", "submit", "job.py", "--idempotency-key", "once")
        return self.redis("KEYS", "mj:*").split()

    def read_states(self):
        keys = sorted(self.redis("KEYS", "mj:claim:*").split())
        return {key: self.redis("HGET", key, "state") for key in keys}

    def test_each_is_rebuilt_or_documented(self):
        table = read_key_table(SOURCE)
        own = [key["pattern"] for key in table]
        losses = {key["pattern"] for key in table if key.get("loss")}
        self.assertGreater(len(own), 80)
        existing_keys = self.populate()
        missing = []
        for pattern in own:
            prefix = pattern.split("<")[0]
            keys = [key for key in existing_keys if (key.startswith(prefix) if "<" in pattern else key == pattern)]
            if not keys and pattern not in losses and pattern not in TESTED_ELSEWHERE:
                missing.append(pattern)
            for key in keys:
                with self.subTest(key=key):
                    self.check_loss(key, pattern, pattern in losses)
        self.assertEqual(missing, [], "neither in the scenario nor in a table")

    def check_loss(self, key, pattern, is_lost):
        states_before = self.read_states()
        self.redis("COPY", key, "backup", "REPLACE")
        self.redis("DEL", key)
        result = self.run_program("doctor", "--rebuild")
        verify_result = self.run_program("verify")
        self.assertIn(result.returncode, (0, 1), result.stderr)
        self.assertEqual(self.read_states(), states_before, result.stdout)  # no planned job was cancelled
        if not is_lost:
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertEqual(verify_result.returncode, 0, verify_result.stdout)
            if pattern not in MAY_BE_MISSING:
                self.assertEqual(self.redis("EXISTS", key), "1", result.stdout)
        elif verify_result.returncode != 0:
            self.assertEqual(result.returncode, 1, "a violation is left: " + verify_result.stdout)
        self.redis("COPY", "backup", key, "REPLACE")
        self.redis("DEL", "backup")
        self.run_program("doctor", "--rebuild")


if __name__ == "__main__":
    SOURCE, BIN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    del sys.argv[1:3]
    unittest.main()
