#!/usr/bin/python3
"""A soak accounts for every job: it reports jobs with another end, missing jobs, and jobs that never end."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench"))
from soak_jobs import CALLER, Load  # noqa: E402

ENDS = {"raise": ("error", "exception"), "syscall": ("error", "violation"), "time.sleep": ("error", "timeout")}


class FakeRedis:
    """Stores records, and ends jobs as their scripts say when the test requests it."""

    def __init__(self):
        self.records = {}

    def pipeline(self, commands):
        return [self.perform(*command) for command in commands]

    def perform(self, name, key, *words):
        if name == "HSET":
            self.records[key] = dict(zip(words[::2], words[1::2]))
        elif name == "HMGET":
            return [value.encode() if isinstance(value := self.records.get(key, {}).get(field), str) else None for field in words]
        return None

    def end_all(self):
        for record in self.records.values():
            end = next((end for part, end in ENDS.items() if part in record["script"]), ("finished", "ok"))
            record["status"], record["detail"] = end


class Account(unittest.TestCase):
    def setUp(self):
        self.redis = FakeRedis()
        self.load = Load(self.redis, 1, slots=100, rate=0)
        self.load.submit()

    def look(self):
        self.load.whole_due = 0
        self.load.look()

    def test_jobs_that_end_as_they_should_leave_nothing_to_say(self):
        self.look()
        self.assertEqual((self.load.done(), len(self.load.open)), (0, 1600))
        self.redis.end_all()
        self.look()
        rows, wrong = self.load.account()
        self.assertEqual((self.load.done(), self.load.open, wrong), (1600, {}, []))
        self.assertEqual(sum(right for *_, right in rows), 1600)

    def test_another_end_is_reported(self):
        self.redis.end_all()
        self.redis.records[f"job:{CALLER}:7"].update(status="error", detail="crash_loop", error="three times")
        self.look()
        wrong = self.load.account()[1]
        self.assertRegex(wrong[0], f"^job:{CALLER}:7 .*: error crash_loop, expected .*; three times$")
        self.assertEqual(len(wrong), 2)

    def test_a_record_that_is_gone_is_reported(self):
        self.redis.end_all()
        del self.redis.records[f"job:{CALLER}:9"]
        self.look()
        self.assertIn("no record", self.load.account()[1][0])

    def test_a_job_that_never_ends_is_reported(self):
        self.redis.end_all()
        self.redis.records[f"job:{CALLER}:3"]["status"] = "started"
        self.look()
        self.assertEqual(list(self.load.open), [3])
        self.assertEqual(len(self.load.account()[1]), 1)


if __name__ == "__main__":
    unittest.main()
