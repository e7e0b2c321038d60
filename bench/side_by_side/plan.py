"""The table of workloads, and the sizes of a quick and of a whole run."""
import dataclasses
from typing import Callable

from .systems.table import SYSTEMS
from .workloads import alone, own, shared

CPUS = 2  # CPUs shared by all processes, including Redis and clients; the targets are defined for two CPUs
FULL = ("mycojobs", "celery", "rq", "bullmq-2", "bullmq-sandboxed", "beanstalkd")


@dataclasses.dataclass(frozen=True)
class Workload:
    title: str
    run: Callable
    systems: tuple
    shared: bool = True  # runs on a system that other workloads use too; otherwise it starts its own
    repeats: int = 99  # maximum number of measured rounds
    both_aof: bool = True  # False: only with the AOF on, if the run includes that setting


WORKLOADS = {
    "drain": Workload(
        "No-op jobs, drained",
        shared.drain,
        (
            "mycojobs",
            "mycojobs-warm",
            "celery",
            "celery-fresh",
            "rq",
            "bullmq-2",
            "bullmq-50",
            "bullmq-sandboxed",
            "beanstalkd",
            "bwrap",
            "bwrap-nothing",
        ),
    ),
    "round-trip": Workload(
        "Single jobs: submit to result",
        shared.round_trip,
        ("mycojobs", "mycojobs-warm", "celery", "rq", "bullmq-2", "bullmq-50", "bullmq-sandboxed", "beanstalkd", "bwrap"),
    ),
    "open-100": Workload("Open loop, 100 jobs a second", shared.open_loop(100), FULL),
    "open-500": Workload("Open loop, 500 jobs a second", shared.open_loop(500), FULL),
    "open-1000": Workload("Open loop, 1,000 jobs a second", shared.open_loop(1000), FULL),
    "chain": Workload("A chain of 40 small jobs", shared.chain, ("mycojobs", "celery", "rq", "bullmq-2", "beanstalkd")),
    "cpu": Workload("Ten jobs of 300 ms of CPU", shared.cpu, FULL),
    "startup": Workload("Worker start to first job done", shared.startup, FULL),
    "memory": Workload(
        "Idle workers with their helpers, resident",
        shared.memory,
        ("mycojobs", "celery", "rq", "bullmq-2", "beanstalkd"),
    ),
    "concurrency": Workload(
        "No-op jobs by concurrency",
        own.concurrency,
        ("mycojobs", "mycojobs-warm", "celery", "bullmq", "bullmq-sandboxed"),
        shared=False,
        repeats=2,
        both_aof=False,
    ),
    "sleeps": Workload(
        "Jobs of 100 ms of sleep, at 2 to 100 slots",
        own.sleeps,
        ("mycojobs", "celery", "celery-threads", "bullmq"),
        shared=False,
        repeats=1,
        both_aof=False,
    ),
    "long-queue": Workload(
        "The start of a long queue",
        own.long_queue,
        ("mycojobs", "celery", "bullmq-2", "beanstalkd"),
        shared=False,
        repeats=2,
        both_aof=False,
    ),
    "recovery": Workload(
        "A worker is killed with a job running",
        own.recovery,
        ("mycojobs", "mycojobs-again", "celery", "rq", "bullmq-2", "beanstalkd"),
        shared=False,
        repeats=1,
        both_aof=False,
    ),
    "programs": Workload("Programs: start to end", alone.programs, ("mycojobs",), shared=False, both_aof=False),
    "first-output": Workload(
        "`mycojobs run` without a running agent or Redis: first byte", alone.first_output, ("mycojobs",), shared=False, both_aof=False
    ),
    "counts": Workload(
        "Counts for the whole path of a job", alone.counts, ("mycojobs",), shared=False, repeats=1, both_aof=False
    ),
    "private-mounts": Workload(
        "No-op jobs, each with its own mount namespace",
        alone.private_mounts,
        ("mycojobs",),
        shared=False,
        both_aof=False,
    ),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    scale: float = 1.0  # factor for the number of jobs of a drain
    trips: int = 300
    open_seconds: float = 3
    concurrency: tuple = (2, 4, 8, 16, 32)  # numbers of slots for no-op jobs
    slots: tuple = (2, 10, 50, 100)  # numbers of slots for the workload with sleeping jobs
    sleep_seconds: int = 10
    lengths: tuple = (1000, 100_000, 1_000_000)
    taken: int = 2000
    recovery_limit: int = 130
    programs: int = 100
    first_outputs: int = 5
    drain: int = 1000  # no-op jobs, by system

    def of(self, name):
        return dataclasses.replace(self, drain=SYSTEMS[name][2] or 1000)


WHOLE = Sizes()
QUICK = Sizes(
    scale=0.15,
    trips=60,
    open_seconds=1.5,
    concurrency=(2, 8),
    slots=(2, 50),
    sleep_seconds=1,
    lengths=(1000, 20_000),
    taken=500,
    recovery_limit=3,
    programs=15,
    first_outputs=3,
)
