"""The sections of the report: a table and, for some workloads, a plot."""
import os

from . import plots
from .figures import format_number, format_range
from .plan import WORKLOADS
from .systems.table import SYSTEMS
from .tables import format_table


def title_of(system):
    return SYSTEMS[system][3]


def format_aof(aof):
    return "AOF on" if aof else "AOF off"


class Sections:
    """Base class of Page, with a function for each section. The functions append Markdown to `lines`, and add SVG texts to
    `plots`, whose keys are paths relative to the folder of the report. Values are those of find_values(): an argument
    aof=None selects the rows with the AOF on."""

    def __init__(self, results, folder, path):
        self.results = results
        self.folder = folder
        self.file = os.path.relpath(path, folder)
        self.lines = []
        self.plots = {}

    def add_lines(self, *lines):
        self.lines += lines

    def format_heading(self, workload):
        return f"## {WORKLOADS[workload].title}"

    def add_plot(self, name, description, svg_text):
        file = f"{os.path.splitext(self.file)[0]}-{name}.svg"
        self.plots[file] = svg_text
        self.add_lines("", f"![{description}]({file})")

    def format_cell(self, workload, system, field, aof, unit="", variant=None):
        return format_range(self.results.find_values(workload, system, field, aof=aof, variant=variant), unit)

    def add_omissions(self, workload):
        """Adds the systems without figures, and the reasons."""
        reasons = [
            f"{title_of(name)} {self.results.find_skip_reason(workload, name)}"
            for name in self.list_systems(workload)
            if self.results.find_skip_reason(workload, name)
        ]
        if reasons:
            self.add_lines("", "Not measured in all cases: " + "; ".join(reasons) + ".")

    def list_systems(self, workload):
        return [name for name in WORKLOADS[workload].systems if self.results.find_rows(workload, name)]

    def format_system_table(self, workload, columns, isolation=False):
        """Returns a table with a row for each system. columns: [(header, field, aof, unit)] or [(header, field, aof, unit,
        variant)]. isolation: adds a column with the isolation between jobs."""
        header = ["system", *(["isolation between jobs"] if isolation else []), *[column[0] for column in columns]]
        body = [
            [
                title_of(name),
                *([SYSTEMS[name][0].isolation] if isolation else []),
                *[self.format_cell(workload, name, *column[1:]) for column in columns],
            ]
            for name in self.list_systems(workload)
        ]
        return format_table(header, body)

    def expand_columns(self, columns):
        """Returns the columns (header, field, unit) once for each measured AOF setting, as format_system_table() needs
        them."""
        return [
            (f"{header}, {format_aof(aof)}", field, aof, unit)
            for aof in self.results.aof_modes
            for header, field, unit in columns
        ]

    def add_drain(self):
        self.add_lines(
            "",
            self.format_heading("drain"),
            "",
            "The queue is filled while the workers are stopped (SIGSTOP). The time is measured from SIGCONT to the end of the last job. The CPU time is "
            "the sum of workers, helpers and Redis.",
            "",
            self.format_system_table(
                "drain",
                self.expand_columns([("jobs/s", "jobs_per_s", ""), ("CPU time of a job", "cpu_ms_per_job", "ms")]),
                isolation=True,
            ),
        )
        for aof in self.results.aof_modes[:1]:
            self.add_plot(
                "drain", "No-op jobs a second", plots.plot_drain(self.results, aof, self.list_systems("drain"), title_of)
            )
            fresh = [
                name
                for name in self.list_systems("drain")
                if name in ("mycojobs", "celery-fresh", "rq", "bwrap", "bwrap-nothing")
            ]
            self.add_lines("", "Only the systems with a fresh process for each job:")
            self.add_plot(
                "isolated", "No-op jobs a second in fresh processes", plots.plot_fresh_processes(self.results, aof, fresh, title_of)
            )

    def add_round_trip(self):
        columns = [("p50", "p50_ms", "ms"), ("p99", "p99_ms", "ms")]
        self.add_lines("", self.format_heading("round-trip"), "", self.format_system_table("round-trip", self.expand_columns(columns)))
        self.add_plot(
            "round-trip",
            "Round trip by quantile",
            plots.plot_latencies(self.results, "round-trip", self.list_systems("round-trip"), title_of),
        )

    def add_open_loops(self):
        self.add_lines(
            "",
            "## Open loop: pickup",
            "",
            "Jobs are sent at fixed times, independent of their progress. The pickup is the time at which the code of the job runs, recorded by the "
            "job, minus the scheduled time of sending. Systems that drain fewer jobs than the rate are omitted.",
        )
        for workload in ("open-100", "open-500", "open-1000"):
            if not self.results.find_rows(workload):
                continue
            columns = [("p50", "p50_ms", "ms"), ("p99", "p99_ms", "ms"), ("p99.9", "p999_ms", "ms")]
            self.add_lines("", f"### {WORKLOADS[workload].title}", "", self.format_system_table(workload, self.expand_columns(columns)))
            self.add_omissions(workload)
            self.add_plot(
                workload,
                f"{WORKLOADS[workload].title}: pickup by quantile",
                plots.plot_latencies(self.results, workload, self.list_systems(workload), title_of),
            )

    def add_simple_section(self, workload, text, columns):
        self.add_lines("", self.format_heading(workload), "", text, "", self.format_system_table(workload, self.expand_columns(columns)))

    def add_concurrency(self):
        slots = sorted({row["variant"] for row in self.results.find_rows("concurrency")}, key=int)
        text = (
            "The concurrency is the number of slots, processes or parallel jobs. The CPU time of Redis is for one job at the concurrency with the most "
            "jobs per second."
        )
        body = []
        for name in self.list_systems("concurrency"):
            cells = [self.format_cell("concurrency", name, "jobs_per_s", None, variant=count) for count in slots]
            best = self.results.find_best_variant("concurrency", name, "jobs_per_s")
            cpu = self.results.median("concurrency", name, "redis_ms_per_job", variant=best) if best else None
            body.append([title_of(name), *cells, best or "-", f"{format_number(cpu)} ms" if cpu is not None else "-"])
        header = ["jobs per second at", *slots, "best", "CPU time of Redis"]
        self.add_lines("", self.format_heading("concurrency"), "", text, "", format_table(header, body))
        self.add_omissions("concurrency")
        self.add_plot(
            "concurrency", "No-op jobs a second by concurrency", plots.plot_concurrency(self.results, self.list_systems("concurrency"), slots, title_of)
        )

    def add_sleeps(self):
        slots = ("2", "10", "50", "100")
        variants = {
            row["variant"]: row["figures"]["jobs"] for row in self.results.find_rows("sleeps") if "figures" in row
        }
        columns = [(f"{count} slots", "of_ideal", None, "", count) for count in slots if count in variants]
        jobs = ", ".join(f"{jobs:,} at {count} slots" for count, jobs in variants.items())
        self.add_lines(
            "",
            self.format_heading("sleeps"),
            "",
            f"The fraction of the maximum rate of the slots (ten jobs a second for each slot). Number of jobs: {jobs}.",
            "",
            self.format_system_table("sleeps", columns),
        )
        self.add_omissions("sleeps")
        self.add_plot("sleeps", "Jobs of 100 ms by slots", plots.plot_sleeps(self.results, self.list_systems("sleeps"), title_of))

    def add_long_queue(self):
        lengths = sorted({row["variant"] for row in self.results.find_rows("long-queue")}, key=int)
        columns = [
            (f"{int(length):,} jobs: {header}", field, None, "ms", length)
            for length in lengths
            for header, field in (("time", "ms_per_job"), ("CPU time", "cpu_ms_per_job"))
        ]
        self.add_lines(
            "",
            self.format_heading("long-queue"),
            "",
            "Time and CPU time for each job while the first jobs of a queue of this length are drained. They include the cost of the job itself.",
            "",
            self.format_system_table("long-queue", columns),
        )
        self.add_omissions("long-queue")

    def add_recovery(self):
        rows = []
        for name in self.list_systems("recovery"):
            figures = [row["figures"] for row in self.results.find_rows("recovery", name) if "figures" in row]
            seconds = [entry["seconds"] for entry in figures if entry["seconds"] is not None]
            rows.append(
                [
                    title_of(name),
                    format_range(seconds, "s")
                    if seconds
                    else f"not within {max(entry['limit'] for entry in figures)} s",
                    SYSTEMS[name][0].settings,
                ]
            )
        self.add_lines(
            "",
            self.format_heading("recovery"),
            "",
            "SIGKILL is sent to the worker and its processes. The table shows the time until the job runs again, with default settings.",
            "",
            format_table(["system", "runs again after", "settings"], rows),
        )

    def add_programs(self):
        rows = []
        for kind in ("bash", "native"):
            if not self.results.find_rows("programs", variant=kind):
                continue
            for title, field in (
                ("posix_spawn", "posix_spawn"),
                ("mycojobs, through Redis", "mycojobs"),
                ("bubblewrap", "bubblewrap"),
            ):
                cells = [
                    self.format_cell("programs", "mycojobs", f"{field}.{quantile}", None, "ms", kind)
                    for quantile in ("p50_ms", "p99_ms")
                ]
                rows.append([kind, title, *cells])
        self.add_lines(
            "",
            self.format_heading("programs"),
            "",
            "A bash script and a static program without any work. They run one at a time, and the systems alternate.",
            "",
            format_table(["program", "started by", "p50", "p99"], rows),
        )

    def add_counts(self):
        parts = ("agent", "launcher", "init", "job", "redis")
        counters = [
            *[(f"voluntary context switches of {part}", f"switches.{part}") for part in parts],
            *[(f"until the script starts: {part}", f"start.{part}") for part in parts[1:4]],
            *[(f"after the end of the script: {part}", f"end.{part}") for part in parts[1:3]],
            ("page faults of the sandbox, its job and its init", "faults.sandbox"),
            ("commands of Redis", "redis.commands"),
            ("server-side scripts, included in the commands", "redis.scripts"),
            ("system calls of all processes", "system_calls"),
        ]
        self.add_lines(
            "",
            self.format_heading("counts"),
            "",
            "The counts for one job, with one job at a time. They do not depend on the speed of the machine.",
            "",
            format_table(
                ["count", "fresh process", "warm script"],
                [
                    [text, *[self.format_cell("counts", "mycojobs", field, None, variant=kind) for kind in ("fresh", "warm")]]
                    for text, field in counters
                ],
            ),
        )

    def add_memory(self):
        rows = []
        for name in self.list_systems("memory"):
            rounds = [row["figures"]["processes"] for row in self.results.find_rows("memory", name) if "figures" in row]
            sizes = sorted(rounds[-1].items()) if rounds else []
            by_process = ", ".join(f"{process} {format_number(mib)}" for process, mib in sizes)
            rows.append([title_of(name), self.format_cell("memory", name, "mib", None, "MiB"), by_process])
        self.add_lines(
            "",
            self.format_heading("memory"),
            "",
            "Proportional set size, one second after the last job, without Redis, beanstalkd and clients.",
            "",
            format_table(["system", "total", "by process"], rows),
        )
