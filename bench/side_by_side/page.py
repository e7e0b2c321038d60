"""README.md of a run, and its plots, from its results."""
import os

from .sections import Sections, title_of
from .systems.table import SYSTEMS
from .tables import table
from .targets import TARGETS


class Page(Sections):
    """Made of the results in folder/results/NAME.json: folder/README.md, and plots beside the results under their
    name, so that a page shows the plots of its own run."""

    def intro(self):
        data, machine, versions = self.results.data, self.results.data["machine"], self.results.data["versions"]
        settings = data["settings"]
        self.add(
            "# Comparison with other systems",
            "",
            f"Written by `./dev bench{' --quick' if settings['quick'] else ''}` in {settings['seconds'] / 60:.0f} min from [{self.file}]({self.file}): {settings['rounds']} round{'s, each of which runs' if settings['rounds'] > 1 else ', which runs'} the systems one after another. "
            "Values are medians (minimum to maximum of the rounds). `./dev bench --help` lists the options. Other measurements are in "
            "[flows.md](flows.md), [objects.md](objects.md) and [preload.md](preload.md).",
            "",
            f"Machine: {machine['cpus']} CPUs of {machine['cpus_of_machine']}, {machine['cpu']}, {machine['memory_mib'] / 1024:.0f} GiB, Linux {machine['kernel']}, as {machine['user']}; "
            f"{machine['date']}, load at the start {machine['load_at_start']:.1f}.",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        )
        usual, most = self.results.others()
        if most > 0.02:
            text = f"Other processes used {usual:.0%} of the machine's CPU time during the median workload, {most:.0%} at most."
            self.add("", f"**{text} Trust CPU times, not rates and latencies.**" if usual > 0.05 else text)

    def targets(self):
        rows = []
        for each in TARGETS:
            got = each.measure(self.results)
            way = (each.way or "not known") if got.met is False else ""
            rows.append([each.what, each.target, each.stretch, got.got, got.word(), way])
        self.add(
            "",
            "## Targets",
            "",
            "The measurements use the complete path through Redis with claims, leases, fences and journal, and the complete sandbox. `./dev soak` runs the long "
            "measurements.",
            "",
            table(["measurement", "target", "stretch", "measured", "met", "reason if not met"], rows),
        )

    def delivery(self):
        checked = [row for row in self.results.rows if "exact" in row]
        wrong = [
            f"- {title_of(row['system'])}, {row['workload']}: {row['delivery']}" for row in checked if not row["exact"]
        ]
        failed = [
            f"- {row['system']}, {row['workload']}: {row['error']}" for row in self.results.rows if "error" in row
        ]
        self.add(
            "",
            "## Delivery",
            "",
            f"{len(checked)} checks; {len(checked) - len(wrong)} found every id exactly once. A job of another system writes its id to an open file (2 µs). Jobs of mycojobs are counted "
            "in the journal and in their records (finished, delivered once). At the end `mycojobs verify` checks each store of up to 10^5 jobs.",
            *wrong,
            *failed,
            *[f"- {text}" for text in self.results.data["problems"]],
        )

    def settings(self):
        names = dict.fromkeys(row["system"] for row in self.results.rows if row["system"] in SYSTEMS)
        self.add(
            "",
            "## Configuration of each system",
            "",
            "Each system has a private Redis, which is started for the run. All have the same configuration: unix socket, no snapshots, appendfsync "
            "everysec with the AOF on. No other system runs on the machine while a system is measured.",
            "",
            table(
                ["", "between jobs", "settings"],
                [[title_of(name), SYSTEMS[name][0].isolation, SYSTEMS[name][0].settings] for name in names],
            ),
        )

    def write(self):
        has = {row["workload"] for row in self.results.rows}
        self.intro()
        self.targets()
        parts = [
            ("drain", self.drain),
            ("round-trip", self.round_trip),
            ("open-100", self.open_loops),
            (
                "chain",
                lambda: self.simple(
                    "chain",
                    "The time from the submission to the end of the last job. mycojobs uses a flow of the coordinator, Celery a chain, RQ depends_on. "
                    "In BullMQ and beanstalkd each job adds the next one.",
                    [("whole chain", "seconds", "s"), ("for each job", "ms_per_job", "ms")],
                ),
            ),
            (
                "cpu",
                lambda: self.simple(
                    "cpu",
                    "Two CPUs need 1.5 s without any overhead. BullMQ in process runs all jobs in one thread.",
                    [("all ten", "seconds", "s")],
                ),
            ),
            ("concurrency", self.concurrency),
            ("sleeps", self.sleeps),
            ("long-queue", self.long_queue),
            ("recovery", self.recovery),
            ("programs", self.programs),
            (
                "startup",
                lambda: self.simple(
                    "startup",
                    "A job waits in the queue. The table shows the time from the start of the worker until the job has ended.",
                    [("first job", "seconds", "s")],
                ),
            ),
            ("memory", self.memory),
            ("counts", self.counts),
        ]
        for name, part in parts:
            if name in has or (name == "open-100" and {"open-500", "open-1000"} & has):
                part()
        self.delivery()
        self.settings()
        for name, text in self.pictures.items():
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        page = os.path.join(self.folder, "README.md")
        with open(page, "w", encoding="utf-8") as file:
            file.write("\n".join(self.parts) + "\n")
        return page
