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
            "# Side by side",
            "",
            f"Written by `./dev bench{' --quick' if settings['quick'] else ''}` in {settings['seconds'] / 60:.0f} min from [{self.file}]({self.file}): {settings['rounds']} round{'s' if settings['rounds'] > 1 else ''}, the systems in turn in each; "
            "medians (least to most of the rounds). `./dev bench --help` has the options; other measurements are in "
            "[flows.md](flows.md), [objects.md](objects.md) and [preload.md](preload.md).",
            "",
            f"Machine: {machine['cpus']} CPUs of {machine['cpus_of_machine']}, {machine['cpu']}, {machine['memory_mib'] / 1024:.0f} GiB, Linux {machine['kernel']}, as {machine['user']}; "
            f"{machine['date']}, load at the start {machine['load_at_start']:.1f}.",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        )
        usual, most = self.results.others()
        if most > 0.02:
            text = f"Others used {usual:.0%} of the machine's CPU time during the median workload, {most:.0%} at most."
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
            "Whole path through Redis with claims, leases, fences and journal, whole sandbox on. Soaks are `./dev soak`'s.",
            "",
            table(["what", "target", "stretch", "measured", "met", "what stands in the way"], rows),
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
            f"{len(checked)} checks; {len(checked) - len(wrong)} found every id once. A peer's job writes its id to a file that is open (2 µs); ours are counted in the "
            "journal and in their records (finished, delivered once), and `mycojobs verify` looks at each store of up to 10^5 jobs at the end.",
            *wrong,
            *failed,
            *[f"- {text}" for text in self.results.data["problems"]],
        )

    def settings(self):
        names = dict.fromkeys(row["system"] for row in self.results.rows if row["system"] in SYSTEMS)
        self.add(
            "",
            "## How each was run",
            "",
            "Every system has a private Redis of its own, made for the run with the same configuration (unix socket, no snapshots, appendfsync "
            "everysec with the AOF on), and is alone on the machine while it is measured.",
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
                    "From the submission to the end of the last one; ours is a flow of the coordinator, Celery's a chain, RQ's depends_on, "
                    "in BullMQ and beanstalkd each job adds the next.",
                    [("whole", "seconds", "s"), ("a job", "ms_per_job", "ms")],
                ),
            ),
            (
                "cpu",
                lambda: self.simple(
                    "cpu",
                    "Two CPUs need 1.5 s without any cost; BullMQ in process has one thread for them.",
                    [("all ten", "seconds", "s")],
                ),
            ),
            ("sleeps", self.sleeps),
            ("long-queue", self.long_queue),
            ("recovery", self.recovery),
            ("programs", self.programs),
            (
                "startup",
                lambda: self.simple(
                    "startup",
                    "A job waits; from the start of the worker until it has ended.",
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
