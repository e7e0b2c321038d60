"""Tests of the bench (ctest -R bench_selftest). They need neither the other systems nor the program mycojobs."""
import contextlib
import io
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

from . import figures, plan, results, run, svg, tables
from .delivery import Skipped, StartLedger, check_delivery
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


def make_row(workload, system, round_=0, variant="", **figures_):
    return {
        "workload": workload,
        "variant": variant,
        "system": system,
        "aof": True,
        "round": round_,
        "figures": figures_,
    }


def make_results(rows, problems=()):
    settings = {"quick": False, "rounds": 2, "seconds": 60}
    return results.Results(
        {"machine": MACHINE, "versions": {"x": "1"}, "settings": settings, "problems": list(problems), "rows": rows}
    )


class Delivery(unittest.TestCase):
    def test_delivery_in_another_order_is_exact(self):
        self.assertTrue(check_delivery(range(1, 4), [3, 1, 2]).is_exact)

    def test_verdict_names_lost_duplicated_and_unknown_ids(self):
        verdict = check_delivery(range(1, 6), [1, 2, 2, 4, 5, 9])
        self.assertFalse(verdict.is_exact)
        self.assertEqual(([3], [2], [9]), (verdict.lost, verdict.duplicated, verdict.unknown))
        self.assertEqual("of 5: 1 lost (3), 1 duplicated (2), 1 unknown (9)", verdict.to_text())

    def test_duplicate_does_not_hide_a_lost_job(self):
        self.assertFalse(check_delivery([1, 2], [1, 1]).is_exact)

    def test_ledger_returns_complete_lines_once(self):
        with tempfile.TemporaryDirectory() as folder:
            ledger = StartLedger(os.path.join(folder, "ledger"))
            with open(ledger.path, "ab", buffering=0) as file:
                file.write(b"1 0.5\n2 0.7")
                self.assertEqual([(1, 0.5)], ledger.read_new_entries())
                file.write(b"5\n2 0.8\n")
                self.assertEqual([(2, 0.75), (2, 0.8)], ledger.read_new_entries())
                self.assertEqual([], ledger.read_new_entries())


class Figures(unittest.TestCase):
    def test_quantiles_are_measured_values(self):
        values = list(range(1, 101))
        self.assertEqual([51, 100, 100], [figures.quantile(values, q) for q in (0.5, 0.99, 0.999)])

    def test_ranges_leave_out_rounds_without_a_value(self):
        self.assertEqual("2.00 (1.00 to 30.0) ms", figures.format_range([1, None, 30, 2], "ms"))
        self.assertEqual("-", figures.format_range([None]))


class Writers(unittest.TestCase):
    def test_bars_have_the_order_of_their_values_and_fit_into_the_plot(self):
        plot = xml.etree.ElementTree.fromstring(
            svg.draw_bars("a < b", "/s", [("x & y", 9, 10, 11, True), ("z", 90, 100, 2000, False)])
        )
        rects = [each for each in plot.iter() if each.tag.endswith("rect")]
        widths = [float(each.get("width")) for each in rects]
        self.assertLess(widths[0], widths[1])
        self.assertTrue(all(float(each.get("x")) + width <= 640 for each, width in zip(rects, widths)))

    def test_curves_are_well_formed_and_omit_empty_series(self):
        text = svg.draw_curves("t", {"a": [(0, 1), (0.99, 20)], "b": []}, svg.QUANTILE_TICKS, svg.spread_quantile)
        lines = [each for each in xml.etree.ElementTree.fromstring(text).iter() if each.tag.endswith("polyline")]
        self.assertEqual(1, len(lines))
        self.assertIn("prefers-color-scheme", text)
        xml.etree.ElementTree.fromstring(svg.draw_curves("t", {}, svg.QUANTILE_TICKS))

    def test_tables_escape_bars_and_reject_rows_of_another_length(self):
        self.assertEqual("| a | b |\n|---|---|\n| x\\|y | 2 |", tables.format_table(["a", "b"], [["x|y", 2]]))
        with self.assertRaises(ValueError):
            tables.format_table(["a", "b"], [["x"]])


class Targets(unittest.TestCase):
    def evaluate(self, name, rows):
        return next(target for target in TARGETS if name in target.measurement).evaluate(make_results(rows))

    def test_targets_without_values_are_not_measured(self):
        for target in TARGETS:
            result = target.evaluate(make_results([make_row("other", "mycojobs")]))
            self.assertEqual("not measured", result.format_status(), target.measurement)

    def test_drain_needs_all_ratios(self):
        ours = [make_row("drain", "mycojobs", jobs_per_s=rate) for rate in (900, 1000, 5000)]
        slow, fast = make_row("drain", "celery", jobs_per_s=300), make_row("drain", "celery", jobs_per_s=600)
        rest = [make_row("drain", "rq", jobs_per_s=60), make_row("drain", "bullmq-sandboxed", jobs_per_s=700)]
        self.assertTrue(self.evaluate("each in a fresh sandboxed process", [*ours, slow, *rest]).is_met)
        self.assertFalse(self.evaluate("each in a fresh sandboxed process", [*ours, fast, *rest]).is_met)
        self.assertIsNone(self.evaluate("each in a fresh sandboxed process", [*ours, fast, rest[0]]).is_met)

    def test_systems_are_compared_at_their_best_concurrency(self):
        def at(name, slots, rate, redis=0.05):
            return make_row("concurrency", name, variant=slots, jobs_per_s=rate, cpu_ms_per_job=0.14, redis_ms_per_job=redis)

        rows = [at("mycojobs-warm", "4", 7000), at("mycojobs-warm", "16", 12500), at("celery", "2", 1500), at("celery", "8", 900)]
        rows += [at("bullmq", "2", 8000), at("bullmq", "32", 20000, 0.06), at("mycojobs", "4", 3000, 0.065), at("mycojobs", "8", 3100, 0.2)]
        self.assertEqual("yes, and the stretch", self.evaluate("no-op Python jobs per second with a warm script", rows).format_status())
        self.assertEqual("0.090 ms at 16 slots", self.evaluate("CPU time of a warm job", rows).measured)
        self.assertEqual("yes", self.evaluate("CPU time of Redis", rows).format_status())
        self.assertEqual("no", self.evaluate("CPU time of Redis", [*rows, at("mycojobs", "4", 3000, 0.08)]).format_status())

    def test_flow_step_is_compared_with_a_single_job(self):
        rows = [make_row("chain", "mycojobs", ms_per_job=1.2), make_row("round-trip", "mycojobs", p50_ms=1.0, p99_ms=2.0)]
        self.assertTrue(self.evaluate("step of a flow", rows).is_met)
        self.assertFalse(self.evaluate("step of a flow", [make_row("chain", "mycojobs", ms_per_job=1.4), rows[1]]).is_met)

    def test_context_switches_of_agent_and_launcher_are_added(self):
        def counted(kind, agent):
            figures = {"switches": {"agent": agent, "launcher": 2.0}, "faults": {"sandbox": 66.0}, "system_calls": 140.0}
            return make_row("counts", "mycojobs", variant=kind, **figures)

        name = "voluntary context switches"
        self.assertEqual("yes", self.evaluate(name, [counted("fresh", 4.0), counted("warm", 9.0)]).format_status())
        self.assertEqual("no", self.evaluate(name, [counted("fresh", 4.3), counted("warm", 1.0)]).format_status())
        self.assertEqual("yes", self.evaluate("page faults", [counted("fresh", 4.0), counted("warm", 4.0)]).format_status())

    def test_target_is_missed_if_the_rate_is_not_sustained(self):
        skipped = {
            "workload": "open-500",
            "variant": "",
            "system": "mycojobs",
            "aof": True,
            "round": 0,
            "skipped": "cannot sustain 500/s",
        }
        self.assertEqual("no", self.evaluate("p99 of the pickup", [skipped]).format_status())


class FakeSystemFactory:
    """Starts systems without functions, and counts the starts."""

    starts = 0

    def __init__(self, aof, audit_findings):
        pass

    @contextlib.contextmanager
    def start_system(self, name):
        FakeSystemFactory.starts += 1
        yield name


class Sessions(unittest.TestCase):
    def run_workloads(self, **outcomes):
        """Runs a session whose workloads return or raise their outcomes. Returns the run and the number of starts."""

        def make_workload(outcome):
            def workload(system, sizes):
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome

            return plan.Workload("", workload, ("mycojobs",))

        FakeSystemFactory.starts = 0
        table = {name: make_workload(outcome) for name, outcome in outcomes.items()}
        with mock.patch.object(run, "SystemFactory", FakeSystemFactory), mock.patch.object(run, "WORKLOADS", table):
            with mock.patch("sys.stderr", io.StringIO()):
                bench_run = run.Run(list(table), [True], 1, plan.QUICK_SIZES)
                bench_run.run_all()
        return bench_run, FakeSystemFactory.starts

    def test_system_is_restarted_after_a_failure_and_after_remaining_jobs(self):
        good = ({"seconds": 1}, check_delivery([1], [1]))
        bench_run, starts = self.run_workloads(
            a=good, b=ValueError("bad"), c=good, d=Skipped("slow", has_remaining_jobs=True), e=Skipped("no"), f=good
        )
        self.assertEqual(["a", "b", "c", "d", "e", "f"], [each["workload"] for each in bench_run.rows])
        self.assertEqual(3, starts)
        self.assertEqual(["b: ValueError: bad"], bench_run.list_problems())

    def test_inexact_delivery_of_mycojobs_is_a_problem(self):
        bench_run, _ = self.run_workloads(a=({}, check_delivery([1, 2], [1])))
        self.assertEqual(["a: of 2: 1 lost (2)"], bench_run.list_problems())


class Report(unittest.TestCase):
    def test_page_shows_results_omissions_and_failures(self):
        curve = [[0.0, 1.0], [0.5, 2.0], [0.99, 3.0]]
        rows = [
            make_row("drain", "mycojobs", jobs_per_s=10.0, cpu_ms_per_job=2.0) | {"exact": True, "delivery": "2 of 2 once"},
            make_row("drain", "celery", jobs_per_s=5.0) | {"exact": False, "delivery": "of 2: 1 lost (1)"},
            make_row("open-100", "mycojobs", p50_ms=2.0, p99_ms=3.0, p999_ms=3.0, curve=curve),
            {
                "workload": "open-100",
                "variant": "",
                "system": "rq",
                "aof": True,
                "round": 0,
                "skipped": "cannot sustain 100/s",
            },
            make_row("recovery", "rq", seconds=None, limit=3),
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results", "r.json")
            make_results(rows, ["drain: bad"]).save(path)
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

    def test_systems_of_all_workloads_exist(self):
        for name, each in plan.WORKLOADS.items():
            self.assertTrue(set(each.systems) <= set(plan.SYSTEMS), name)
        json.dumps(list(plan.WORKLOADS))


if __name__ == "__main__":
    unittest.main()
