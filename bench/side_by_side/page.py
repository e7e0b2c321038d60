"""Writes the report of a run, which is README.md and its plots."""
import os

from .sections import Sections, title_of
from .systems.table import SYSTEMS
from .tables import format_table
from .targets import TARGETS


class Page(Sections):
    """The report of the results in <folder>/results/<name>.json: <folder>/README.md, and plots <folder>/results/<name>-*.svg.
    The names of the plots contain the name of the results, so that a report refers to the plots of its own run."""

    def add_introduction(self):
        data, machine, versions = self.results.data, self.results.data["machine"], self.results.data["versions"]
        settings = data["settings"]
        self.add_lines(
            "# Comparison with other systems",
            "",
            f"Written by `./dev bench{' --quick' if settings['quick'] else ''}` in {settings['seconds'] / 60:.0f} min from [{self.file}]({self.file}): {settings['rounds']} round{'s, each of which runs' if settings['rounds'] > 1 else ', which runs'} the systems one after another. "
            "Values are medians (minimum to maximum of the rounds). `./dev bench --help` lists the options. Other measurements are in "
            "[fleet.md](fleet.md), [flows.md](flows.md), [objects.md](objects.md) and [preload.md](preload.md).",
            "",
            f"Machine: {machine['cpus']} CPUs of {machine['cpus_of_machine']}, {machine['cpu']}, {machine['memory_mib'] / 1024:.0f} GiB, Linux {machine['kernel']}, as {machine['user']}; "
            f"{machine['date']}, load at the start {machine['load_at_start']:.1f}.",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        )
        median, maximum = self.results.summarize_foreign_cpu()
        if maximum > 0.02:
            text = f"Other processes used {median:.0%} of the machine's CPU time during the median workload, {maximum:.0%} at most."
            self.add_lines("", f"**{text} Trust CPU times, not rates and latencies.**" if median > 0.05 else text)

    def add_targets(self):
        rows = []
        for target in TARGETS:
            result = target.evaluate(self.results)
            reason = (target.reason_if_missed or "not known") if result.is_met is False else ""
            rows.append(
                [
                    target.measurement,
                    target.target,
                    target.stretch_target,
                    result.measured,
                    result.format_status(),
                    reason,
                ]
            )
        self.add_lines(
            "",
            "## Targets",
            "",
            "The measurements use the complete path through Redis with claims, leases, fences and journal, and the complete sandbox. `./dev soak` runs the long "
            "measurements.",
            "",
            format_table(["measurement", "target", "stretch target", "measured", "met", "reason if not met"], rows),
        )

    def add_delivery(self):
        checked = [row for row in self.results.rows if "exact" in row]
        inexact = [
            f"- {title_of(row['system'])}, {row['workload']}: {row['delivery']}" for row in checked if not row["exact"]
        ]
        failed = [
            f"- {row['system']}, {row['workload']}: {row['error']}" for row in self.results.rows if "error" in row
        ]
        self.add_lines(
            "",
            "## Delivery",
            "",
            f"{len(checked)} checks; {len(checked) - len(inexact)} found each job exactly once. A job of another system writes its id to an open file (2 µs). Jobs of mycojobs are counted "
            "in the journal and in their records (finished, delivered once). At the end `mycojobs verify` checks each store of up to 10^5 jobs.",
            *inexact,
            *failed,
            *[f"- {text}" for text in self.results.data["problems"]],
        )

    def add_settings(self):
        names = dict.fromkeys(row["system"] for row in self.results.rows if row["system"] in SYSTEMS)
        self.add_lines(
            "",
            "## Configuration of each system",
            "",
            "Each system has a private Redis, which is started for the run. All servers have the same configuration: unix socket, no snapshots, appendfsync "
            "everysec with the AOF on. No other system runs on the machine while a system is measured.",
            "",
            format_table(
                ["system", "isolation between jobs", "settings"],
                [[title_of(name), SYSTEMS[name][0].isolation, SYSTEMS[name][0].settings] for name in names],
            ),
        )

    def write(self):
        """Writes README.md and the plots, and returns the path of README.md."""
        measured = {row["workload"] for row in self.results.rows}
        self.add_introduction()
        self.add_targets()
        sections = [
            ("drain", self.add_drain),
            ("round-trip", self.add_round_trip),
            ("open-100", self.add_open_loops),
            (
                "chain",
                lambda: self.add_simple_section(
                    "chain",
                    "The time from the submission to the end of the last job. mycojobs uses a flow of the coordinator, Celery a chain, RQ depends_on. "
                    "In BullMQ and beanstalkd each job submits the next job.",
                    [("whole chain", "seconds", "s"), ("for each job", "ms_per_job", "ms")],
                ),
            ),
            (
                "cpu",
                lambda: self.add_simple_section(
                    "cpu",
                    "Two CPUs need 1.5 s without any overhead. BullMQ in process runs all jobs in one thread.",
                    [("all ten jobs", "seconds", "s")],
                ),
            ),
            ("concurrency", self.add_concurrency),
            ("sleeps", self.add_sleeps),
            ("long-queue", self.add_long_queue),
            ("recovery", self.add_recovery),
            ("programs", self.add_programs),
            (
                "startup",
                lambda: self.add_simple_section(
                    "startup",
                    "A job waits in the queue. The table shows the time from the start of the worker until the job has ended.",
                    [("first job", "seconds", "s")],
                ),
            ),
            ("memory", self.add_memory),
            ("counts", self.add_counts),
        ]
        for name, add_section in sections:
            if name in measured or (name == "open-100" and {"open-500", "open-1000"} & measured):
                add_section()
        self.add_delivery()
        self.add_settings()
        for name, text in self.plots.items():
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        page = os.path.join(self.folder, "README.md")
        with open(page, "w", encoding="utf-8") as file:
            file.write("\n".join(self.lines) + "\n")
        return page
