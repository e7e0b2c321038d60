"""Tests of the bench itself, by ctest as bench_selftest. They need neither the peers nor the program."""
import contextlib
import io
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

from . import figures, plan, results, run, svg, tables
from .delivery import Ledger, Skipped, check
from .page import Page
from .targets import TARGETS

MACHINE = {
    "cpus": 2,
    "cpus_of_machine": 2,
    "cpu": "a",
    "memory_mib": 1024,
    "kernel": "6",
    "user": "root",
    "date": "today",
    "load_at_start": 0.0,
}


def row(workload, system, round_=0, variant="", **figures_):
    return {
        "workload": workload,
        "variant": variant,
        "system": system,
        "aof": True,
        "round": round_,
        "figures": figures_,
    }


def made(rows, problems=()):
    settings = {"quick": False, "rounds": 2, "seconds": 60}
    return results.Results(
        {"machine": MACHINE, "versions": {"x": "1"}, "settings": settings, "problems": list(problems), "rows": rows}
    )


class Delivery(unittest.TestCase):
    def test_every_id_once_is_exact_in_any_order(self):
        self.assertTrue(check(range(1, 4), [3, 1, 2]).exact)

    def test_lost_doubled_and_unknown_ids_are_found_and_named(self):
        verdict = check(range(1, 6), [1, 2, 2, 4, 5, 9])
        self.assertFalse(verdict.exact)
        self.assertEqual(([3], [2], [9]), (verdict.lost, verdict.doubled, verdict.unknown))
        self.assertEqual("of 5: 1 lost (3), 1 doubled (2), 1 unknown (9)", verdict.text())

    def test_as_many_runs_as_jobs_do_not_hide_a_lost_one(self):
        self.assertFalse(check([1, 2], [1, 1]).exact)

    def test_ledger_returns_complete_lines_once(self):
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger(os.path.join(folder, "ledger"))
            with open(ledger.path, "ab", buffering=0) as file:
                file.write(b"1 0.5\n2 0.7")
                self.assertEqual([(1, 0.5)], ledger.news())
                file.write(b"5\n2 0.8\n")
                self.assertEqual([(2, 0.75), (2, 0.8)], ledger.news())
                self.assertEqual([], ledger.news())


class Figures(unittest.TestCase):
    def test_quantiles_are_values_that_were_measured(self):
        values = list(range(1, 101))
        self.assertEqual([51, 100, 100], [figures.quantile(values, q) for q in (0.5, 0.99, 0.999)])

    def test_ranges_leave_out_rounds_without_a_value(self):
        self.assertEqual("2.00 (1.00 to 30.0) ms", figures.ranged([1, None, 30, 2], "ms"))
        self.assertEqual("-", figures.ranged([None]))


class Writers(unittest.TestCase):
    def test_bars_lie_in_the_order_of_their_values_and_inside_the_picture(self):
        picture = xml.etree.ElementTree.fromstring(
            svg.bars("a < b", "/s", [("x & y", 9, 10, 11, True), ("z", 90, 100, 2000, False)])
        )
        rects = [each for each in picture.iter() if each.tag.endswith("rect")]
        widths = [float(each.get("width")) for each in rects]
        self.assertLess(widths[0], widths[1])
        self.assertTrue(all(float(each.get("x")) + width <= 640 for each, width in zip(rects, widths)))

    def test_curves_are_well_formed_and_omit_empty_series(self):
        text = svg.curves("t", {"a": [(0, 1), (0.99, 20)], "b": []}, svg.NINES, svg.nines)
        lines = [each for each in xml.etree.ElementTree.fromstring(text).iter() if each.tag.endswith("polyline")]
        self.assertEqual(1, len(lines))
        self.assertIn("prefers-color-scheme", text)
        xml.etree.ElementTree.fromstring(svg.curves("t", {}, svg.NINES))

    def test_tables_escape_bars_and_refuse_rows_of_another_length(self):
        self.assertEqual("| a | b |\n|---|---|\n| x\\|y | 2 |", tables.table(["a", "b"], [["x|y", 2]]))
        with self.assertRaises(ValueError):
            tables.table(["a", "b"], [["x"]])


class Targets(unittest.TestCase):
    def by_name(self, start, rows):
        return next(each for each in TARGETS if each.what.startswith(start)).measure(made(rows))

    def test_nothing_measured_is_not_met_and_not_missed(self):
        for each in TARGETS:
            self.assertEqual("not measured", each.measure(made([row("other", "mycojobs")])).word(), each.what)

    def test_drain_needs_all_ratios(self):
        ours = [row("drain", "mycojobs", jobs_per_s=rate) for rate in (900, 1000, 5000)]
        slow, fast = row("drain", "celery", jobs_per_s=300), row("drain", "celery", jobs_per_s=600)
        rest = [row("drain", "rq", jobs_per_s=60), row("drain", "bullmq-sandboxed", jobs_per_s=700)]
        self.assertTrue(self.by_name("no-op", [*ours, slow, *rest]).met)
        self.assertFalse(self.by_name("no-op", [*ours, fast, *rest]).met)
        self.assertIsNone(self.by_name("no-op", [*ours, fast, rest[0]]).met)

    def test_systems_are_compared_at_their_best_concurrency(self):
        def at(name, slots, rate, redis=0.05):
            return row("concurrency", name, variant=slots, jobs_per_s=rate, cpu_ms_per_job=0.14, redis_ms_per_job=redis)

        rows = [at("mycojobs-warm", "4", 7000), at("mycojobs-warm", "16", 12500), at("celery", "2", 1500), at("celery", "8", 900)]
        rows += [at("bullmq", "2", 8000), at("bullmq", "32", 20000, 0.06), at("mycojobs", "4", 3000, 0.065), at("mycojobs", "8", 3100, 0.2)]
        self.assertEqual("yes, and the stretch", self.by_name("the same script warm: ", rows).word())
        self.assertEqual("0.090 ms at 16 slots", self.by_name("CPU of a warm job", rows).got)
        self.assertEqual("yes", self.by_name("CPU of Redis", rows).word())
        self.assertEqual("no", self.by_name("CPU of Redis", [*rows, at("mycojobs", "4", 3000, 0.08)]).word())

    def test_a_step_is_measured_by_an_idle_job(self):
        rows = [row("chain", "mycojobs", ms_per_job=1.2), row("round-trip", "mycojobs", p50_ms=1.0, p99_ms=2.0)]
        self.assertTrue(self.by_name("step of a flow", rows).met)
        self.assertFalse(self.by_name("step of a flow", [row("chain", "mycojobs", ms_per_job=1.4), rows[1]]).met)

    def test_switches_are_those_of_agent_and_launcher(self):
        def counted(kind, agent):
            figures = {"switches": {"agent": agent, "launcher": 2.0}, "faults": {"sandbox": 66.0}, "system_calls": 140.0}
            return row("counts", "mycojobs", variant=kind, **figures)

        name = "a single job"
        self.assertEqual("yes", self.by_name(name, [counted("fresh", 4.0), counted("warm", 9.0)]).word())
        self.assertEqual("no", self.by_name(name, [counted("fresh", 4.3), counted("warm", 1.0)]).word())
        self.assertEqual("yes", self.by_name("page faults", [counted("fresh", 4.0), counted("warm", 4.0)]).word())

    def test_a_rate_that_is_not_held_is_a_target_missed(self):
        skipped = {
            "workload": "open-500",
            "variant": "",
            "system": "mycojobs",
            "aof": True,
            "round": 0,
            "skipped": "cannot sustain 500/s",
        }
        self.assertEqual("no", self.by_name("p99 of the pickup", [skipped]).word())


class FakeStage:
    """Gives a system that has nothing; starts counts how often."""

    starts = 0

    def __init__(self, aof, complaints):
        pass

    @contextlib.contextmanager
    def started(self, name):
        FakeStage.starts += 1
        yield name


class Sessions(unittest.TestCase):
    def ran(self, **outcomes):
        """Rows of one session whose workloads do what the outcomes say, and the number of starts."""

        def does(outcome):
            def workload(system, sizes):
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome

            return plan.Workload("", workload, ("mycojobs",))

        FakeStage.starts = 0
        table = {name: does(outcome) for name, outcome in outcomes.items()}
        with mock.patch.object(run, "Stage", FakeStage), mock.patch.object(run, "WORKLOADS", table):
            with mock.patch("sys.stderr", io.StringIO()):
                made = run.Run(list(table), [True], 1, plan.QUICK)
                made.all()
        return made, FakeStage.starts

    def test_after_a_failure_and_after_jobs_left_over_the_rest_runs_on_a_fresh_start(self):
        good = ({"seconds": 1}, check([1], [1]))
        made, starts = self.ran(
            a=good, b=ValueError("bad"), c=good, d=Skipped("slow", left=True), e=Skipped("no"), f=good
        )
        self.assertEqual(["a", "b", "c", "d", "e", "f"], [each["workload"] for each in made.rows])
        self.assertEqual(3, starts)
        self.assertEqual(["b: ValueError: bad"], made.problems())

    def test_ours_that_is_not_exact_is_a_problem(self):
        made, _ = self.ran(a=({}, check([1, 2], [1])))
        self.assertEqual(["a: of 2: 1 lost (2)"], made.problems())


class PageOfResults(unittest.TestCase):
    def test_page_shows_results_omissions_and_failures(self):
        curve = [[0.0, 1.0], [0.5, 2.0], [0.99, 3.0]]
        rows = [
            row("drain", "mycojobs", jobs_per_s=10.0, cpu_ms_per_job=2.0) | {"exact": True, "delivery": "2 of 2 once"},
            row("drain", "celery", jobs_per_s=5.0) | {"exact": False, "delivery": "of 2: 1 lost (1)"},
            row("open-100", "mycojobs", p50_ms=2.0, p99_ms=3.0, p999_ms=3.0, curve=curve),
            {
                "workload": "open-100",
                "variant": "",
                "system": "rq",
                "aof": True,
                "round": 0,
                "skipped": "cannot sustain 100/s",
            },
            row("recovery", "rq", seconds=None, limit=3),
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results", "r.json")
            made(rows, ["drain: bad"]).save(path)
            with open(Page(results.load(path), folder, path).write(), encoding="utf-8") as file:
                page = file.read()
            for text in (
                "| mycojobs | process",
                "cannot sustain 100/s",
                "1 lost (1)",
                "- drain: bad",
                "not within 3 s",
                "results/r-drain.svg",
            ):
                self.assertIn(text, page)
            for each in os.listdir(os.path.join(folder, "results")):
                if each.endswith(".svg"):
                    xml.etree.ElementTree.parse(os.path.join(folder, "results", each))

    def test_every_workload_names_systems_that_there_are(self):
        for name, each in plan.WORKLOADS.items():
            self.assertTrue(set(each.systems) <= set(plan.SYSTEMS), name)
        json.dumps(list(plan.WORKLOADS))


if __name__ == "__main__":
    unittest.main()
