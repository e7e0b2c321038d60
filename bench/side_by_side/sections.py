"""The sections of the page: a table, and a plot, for each workload."""
import os

from . import plots
from .figures import ranged, short
from .plan import WORKLOADS
from .systems.table import SYSTEMS
from .tables import table


def title_of(system):
    return SYSTEMS[system][3]


def mode_of(aof):
    return "AOF on" if aof else "AOF off"


class Sections:
    """What Page is made of: texts in parts, plots in pictures (path below the page's folder: SVG)."""

    def __init__(self, results, folder, path):
        self.results = results
        self.folder = folder
        self.file = os.path.relpath(path, folder)
        self.parts = []
        self.pictures = {}

    def add(self, *texts):
        self.parts += texts

    def head(self, workload):
        return f"## {WORKLOADS[workload].title}"

    def picture(self, name, alt, text):
        file = f"{os.path.splitext(self.file)[0]}-{name}.svg"
        self.pictures[file] = text
        self.add("", f"![{alt}]({file})")

    def cell(self, workload, system, field, aof, unit="", variant=None):
        found = self.results.values(workload, system, field, aof=aof, variant=variant)
        return ranged(found, unit) if found else "-"

    def left_out(self, workload):
        """Under a table: who has no figures in it, and why."""
        reasons = [
            f"{title_of(name)} {self.results.why_not(workload, name)}"
            for name in self.systems(workload)
            if self.results.why_not(workload, name)
        ]
        if reasons:
            self.add("", "Not measured in all cases: " + "; ".join(reasons) + ".")

    def systems(self, workload):
        return [name for name in WORKLOADS[workload].systems if self.results.rows_of(workload, name)]

    def rows(self, workload, cells, isolation=False):
        """A row a system; cells: [(head, field, aof, unit, variant)]."""
        head = ["", *(["between jobs"] if isolation else []), *[each[0] for each in cells]]
        body = [
            [
                title_of(name),
                *([SYSTEMS[name][0].isolation] if isolation else []),
                *[self.cell(workload, name, *each[1:]) for each in cells],
            ]
            for name in self.systems(workload)
        ]
        return table(head, body)

    def in_modes(self, columns):
        """Columns (head, field, unit) for each AOF setting that was measured."""
        return [
            (f"{head}, {mode_of(aof)}", field, aof, unit) for aof in self.results.modes for head, field, unit in columns
        ]

    def drain(self):
        self.add(
            "",
            self.head("drain"),
            "",
            "The queue is filled while the workers are stopped (SIGSTOP). The time is measured from their continuation to the last end. The CPU time is "
            "the sum of workers, helpers and Redis.",
            "",
            self.rows(
                "drain",
                self.in_modes([("jobs/s", "jobs_per_s", ""), ("CPU a job", "cpu_ms_per_job", "ms")]),
                isolation=True,
            ),
        )
        for aof in self.results.modes[:1]:
            self.picture(
                "drain", "No-op jobs a second", plots.drain(self.results, aof, self.systems("drain"), title_of)
            )
            fresh = [
                name
                for name in self.systems("drain")
                if name in ("mycojobs", "celery-fresh", "rq", "bwrap", "bwrap-nothing")
            ]
            self.add("", "Only the systems with a fresh process for each job:")
            self.picture(
                "isolated", "No-op jobs a second in fresh processes", plots.isolated(self.results, aof, fresh, title_of)
            )

    def round_trip(self):
        columns = [("p50", "p50_ms", "ms"), ("p99", "p99_ms", "ms")]
        self.add("", self.head("round-trip"), "", self.rows("round-trip", self.in_modes(columns)))
        self.picture(
            "round-trip",
            "Round trip by quantile",
            plots.latencies(self.results, "round-trip", self.systems("round-trip"), title_of),
        )

    def open_loops(self):
        self.add(
            "",
            "## Open loop: pickup",
            "",
            "Jobs are sent at fixed times, independent of their progress. The pickup is the time at which the code of the job runs, recorded by the "
            "job, minus the scheduled time of sending. Systems that drain fewer jobs than the rate are omitted.",
        )
        for workload in ("open-100", "open-500", "open-1000"):
            if not self.results.rows_of(workload):
                continue
            columns = [("p50", "p50_ms", "ms"), ("p99", "p99_ms", "ms"), ("p99.9", "p999_ms", "ms")]
            self.add("", f"### {WORKLOADS[workload].title}", "", self.rows(workload, self.in_modes(columns)))
            self.left_out(workload)
            self.picture(
                workload,
                f"{WORKLOADS[workload].title}: pickup by quantile",
                plots.latencies(self.results, workload, self.systems(workload), title_of),
            )

    def simple(self, workload, text, columns):
        self.add("", self.head(workload), "", text, "", self.rows(workload, self.in_modes(columns)))

    def concurrency(self):
        slots = sorted({row["variant"] for row in self.results.rows_of("concurrency")}, key=int)
        text = (
            "The concurrency is slots, processes or jobs at the same time. CPU of Redis is for one job at the concurrency with the most "
            "jobs a second."
        )
        body = []
        for name in self.systems("concurrency"):
            cells = [self.cell("concurrency", name, "jobs_per_s", None, variant=each) for each in slots]
            best = self.results.best("concurrency", name, "jobs_per_s")
            cpu = self.results.median("concurrency", name, "redis_ms_per_job", variant=best) if best else None
            body.append([title_of(name), *cells, best or "-", f"{short(cpu)} ms" if cpu is not None else "-"])
        heads = ["jobs a second at", *slots, "best", "CPU of Redis"]
        self.add("", self.head("concurrency"), "", text, "", table(heads, body))
        self.left_out("concurrency")
        self.picture(
            "concurrency", "No-op jobs a second by concurrency", plots.concurrency(self.results, self.systems("concurrency"), slots, title_of)
        )

    def sleeps(self):
        slots = ("2", "10", "50", "100")
        variants = {
            row["variant"]: row["figures"]["jobs"] for row in self.results.rows_of("sleeps") if "figures" in row
        }
        cells = [(f"{each} slots", "of_ideal", None, "", each) for each in slots if each in variants]
        jobs = ", ".join(f"{count:,} at {each} slots" for each, count in variants.items())
        self.add(
            "",
            self.head("sleeps"),
            "",
            f"The fraction of the maximum rate of the slots (ten jobs a second for each slot). Number of jobs: {jobs}.",
            "",
            self.rows("sleeps", cells),
        )
        self.left_out("sleeps")
        self.picture("sleeps", "Jobs of 100 ms by slots", plots.sleeps(self.results, self.systems("sleeps"), title_of))

    def long_queue(self):
        lengths = sorted({row["variant"] for row in self.results.rows_of("long-queue")}, key=int)
        cells = [
            (f"{int(each):,} jobs: {head}", field, None, "ms", each)
            for each in lengths
            for head, field in (("a job", "ms_per_job"), ("CPU", "cpu_ms_per_job"))
        ]
        self.add(
            "",
            self.head("long-queue"),
            "",
            "Time and CPU time for each job while the first jobs of a queue of this length are drained. They include the cost of the job itself.",
            "",
            self.rows("long-queue", cells),
        )
        self.left_out("long-queue")

    def recovery(self):
        rows = []
        for name in self.systems("recovery"):
            found = [row["figures"] for row in self.results.rows_of("recovery", name) if "figures" in row]
            known = [each["seconds"] for each in found if each["seconds"] is not None]
            rows.append(
                [
                    title_of(name),
                    ranged(known, "s") if known else f"not within {max(each['limit'] for each in found)} s",
                    SYSTEMS[name][0].settings,
                ]
            )
        self.add(
            "",
            self.head("recovery"),
            "",
            "SIGKILL is sent to the worker and its processes. The table shows the time until the job runs again, with default settings.",
            "",
            table(["", "runs again after", "settings"], rows),
        )

    def programs(self):
        rows = []
        for kind in ("bash", "native"):
            if not self.results.rows_of("programs", variant=kind):
                continue
            for title, field in (
                ("posix_spawn, bare", "posix_spawn"),
                ("mycojobs, through Redis", "mycojobs"),
                ("bubblewrap", "bubblewrap"),
            ):
                cells = [
                    self.cell("programs", "mycojobs", f"{field}.{each}", None, "ms", kind)
                    for each in ("p50_ms", "p99_ms")
                ]
                rows.append([kind, title, *cells])
        self.add(
            "",
            self.head("programs"),
            "",
            "A bash script and a static program without any work. They run one at a time, and the systems alternate.",
            "",
            table(["", "", "p50", "p99"], rows),
        )

    def counts(self):
        parts = ("agent", "launcher", "init", "job", "redis")
        what = [
            *[(f"voluntary context switches of {part}", f"switches.{part}") for part in parts],
            *[(f"until the script starts: {part}", f"start.{part}") for part in parts[1:4]],
            *[(f"after the end of the script: {part}", f"end.{part}") for part in parts[1:3]],
            ("page faults of the sandbox, its job and its init", "faults.sandbox"),
            ("commands of Redis", "redis.commands"),
            ("server-side scripts, included in the commands", "redis.scripts"),
            ("system calls of all processes", "system_calls"),
        ]
        self.add(
            "",
            self.head("counts"),
            "",
            "The counts for one job, with one job at a time. They do not depend on the speed of the machine.",
            "",
            table(
                ["", "a fresh process", "warm"],
                [
                    [text, *[self.cell("counts", "mycojobs", field, None, variant=kind) for kind in ("fresh", "warm")]]
                    for text, field in what
                ],
            ),
        )

    def memory(self):
        rows = []
        for name in self.systems("memory"):
            found = [row["figures"]["processes"] for row in self.results.rows_of("memory", name) if "figures" in row]
            parts = (
                ", ".join(f"{process} {short(size)}" for process, size in sorted(found[-1].items())) if found else ""
            )
            rows.append([title_of(name), self.cell("memory", name, "mib", None, "MiB"), parts])
        self.add(
            "",
            self.head("memory"),
            "",
            "Proportional set size, one second after the last job, without Redis, beanstalkd and clients.",
            "",
            table(["", "total", "by process"], rows),
        )
