#!/usr/bin/python3
"""A soak detects growth, and reports nothing else as growth."""
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench"))
from soak_verdict import judge, table  # noqa: E402

SAMPLES, JOBS = 120, 150_000


def run(value, name="agent anonymous, MiB", samples=SAMPLES):
    """Returns a run of ten minutes whose series is value(elapsed share of the run)."""
    return [{"at": 5.0 * i, "jobs": JOBS * i // samples, "series": {name: value(i / samples)}} for i in range(samples)]


def verdict(samples):
    row, = judge(samples)
    return row["verdict"]


def noisy(value, spread, seed=1):
    chance = random.Random(seed)
    return lambda at: value(at) + chance.uniform(-spread, spread)


class Verdict(unittest.TestCase):
    def test_constant_series_is_flat(self):
        self.assertEqual(verdict(run(lambda at: 12.0)), "flat")
        for seed in range(20):
            self.assertEqual(verdict(run(noisy(lambda at: 12.0, 2.0, seed))), "flat")

    def test_a_leak_of_twenty_bytes_a_job_is_found(self):
        leak = JOBS * 20 / (1 << 20)  # MiB at the end
        self.assertEqual(verdict(run(lambda at: 12.0 + leak * at)), "grows")
        for seed in range(20):
            self.assertEqual(verdict(run(noisy(lambda at: 12.0 + leak * at, 0.3, seed))), "grows")

    def test_one_descriptor_is_enough(self):
        self.assertEqual(verdict(run(lambda at: 40 + int(at * 2), "agent descriptors")), "grows")

    def test_a_step_after_the_second_quarter_is_found(self):
        self.assertEqual(verdict(run(lambda at: 12.0 if at < 0.6 else 14.0)), "grows")

    def test_growth_during_warm_up_is_ignored(self):
        self.assertEqual(verdict(run(lambda at: min(12.0, 48 * at))), "flat")

    def test_single_samples_decide_nothing(self):
        self.assertEqual(verdict(run(lambda at: 90.0 if int(at * SAMPLES) % 20 == 7 else 12.0)), "flat")

    def test_sawtooth_is_flat_unless_it_climbs(self):
        self.assertEqual(verdict(run(lambda at: 12 + at * 30 % 1)), "flat")
        self.assertEqual(verdict(run(lambda at: 12 + at * 30 % 1 + 3 * at)), "grows")

    def test_falling_series_is_flat(self):
        self.assertEqual(verdict(run(lambda at: 12 - 4 * at)), "flat")

    def test_unmeasured_series_is_not_called_flat(self):
        self.assertEqual(verdict(run(lambda at: 12, samples=8)), "too few samples")
        gone = [{**each, "series": {}} if each["at"] > 300 else each for each in run(lambda at: 12)]
        self.assertEqual(verdict(gone), "too few samples")

    def test_shared_memory_is_shown_but_not_judged(self):
        self.assertEqual(verdict(run(lambda at: 12 + 9 * at, "agent pss, MiB")), "not judged")

    def test_the_rise_is_given_for_a_million_jobs(self):
        row, = judge(run(lambda at: 12.0 + 3 * at))
        self.assertAlmostEqual(row["per_million"], 20, delta=0.5)
        self.assertAlmostEqual(row["unseen_per_million"], row["allowed"] / 0.075, delta=0.5)

    def test_growing_series_are_first_in_the_table(self):
        samples = [{**a, "series": {**a["series"], **b["series"]}} for a, b in zip(run(lambda at: 1, "a"), run(lambda at: 9 * at, "b threads"))]
        self.assertRegex(table(judge(samples)).splitlines()[2], r"^\| b threads .*grows \|$")


if __name__ == "__main__":
    unittest.main()
