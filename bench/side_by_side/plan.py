"""The workloads with their systems, and the sizes of quick and full runs."""
import dataclasses
from typing import Callable

from .systems.table import SYSTEMS
from .workloads import alone, own, shared

CPUS = 2  # CPUs shared by all processes, including Redis and clients; the targets are defined for two CPUs
MAIN_SYSTEMS = ("mycojobs", "celery", "rq", "bullmq-2", "bullmq-sandboxed", "beanstalkd")


@dataclasses.dataclass(frozen=True)
class Workload:
    title: str
    run: Callable
    systems: tuple
    uses_running_system: bool = True  # False: `run` starts the systems itself (workloads/own.py, workloads/alone.py)
    max_rounds: int = 99
    runs_in_all_aof_modes: bool = True  # False: runs only with the AOF on, if the run includes this setting


WORKLOADS = {
    "drain": Workload(
        "Draining no-op jobs",
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
    "open-100": Workload("Open loop, 100 jobs a second", shared.open_loop(100), MAIN_SYSTEMS),
    "open-500": Workload("Open loop, 500 jobs a second", shared.open_loop(500), MAIN_SYSTEMS),
    "open-1000": Workload("Open loop, 1,000 jobs a second", shared.open_loop(1000), MAIN_SYSTEMS),
    "chain": Workload("A chain of 40 small jobs", shared.chain, ("mycojobs", "celery", "rq", "bullmq-2", "beanstalkd")),
    "cpu": Workload("Ten jobs of 300 ms of CPU", shared.cpu, MAIN_SYSTEMS),
    "startup": Workload("Worker start to first job done", shared.startup, MAIN_SYSTEMS),
    "memory": Workload(
        "Idle workers with their helpers, resident",
        shared.memory,
        ("mycojobs", "celery", "rq", "bullmq-2", "beanstalkd"),
    ),
    "concurrency": Workload(
        "No-op jobs by concurrency",
        own.concurrency,
        ("mycojobs", "mycojobs-warm", "celery", "bullmq", "bullmq-sandboxed"),
        uses_running_system=False,
        max_rounds=2,
        runs_in_all_aof_modes=False,
    ),
    "sleeps": Workload(
        "Jobs of 100 ms of sleep, at 2 to 100 slots",
        own.sleeps,
        ("mycojobs", "celery", "celery-threads", "bullmq"),
        uses_running_system=False,
        max_rounds=1,
        runs_in_all_aof_modes=False,
    ),
    "long-queue": Workload(
        "The start of a long queue",
        own.long_queue,
        ("mycojobs", "celery", "bullmq-2", "beanstalkd"),
        uses_running_system=False,
        max_rounds=2,
        runs_in_all_aof_modes=False,
    ),
    "recovery": Workload(
        "A worker is killed with a job running",
        own.recovery,
        ("mycojobs", "mycojobs-again", "celery", "rq", "bullmq-2", "beanstalkd"),
        uses_running_system=False,
        max_rounds=1,
        runs_in_all_aof_modes=False,
    ),
    "programs": Workload("Programs: start to end", alone.programs, ("mycojobs",), uses_running_system=False, runs_in_all_aof_modes=False),
    "first-output": Workload(
        "`mycojobs run` without a running agent or Redis: first byte", alone.first_output, ("mycojobs",), uses_running_system=False, runs_in_all_aof_modes=False
    ),
    "counts": Workload(
        "Counts for the whole path of a job", alone.counts, ("mycojobs",), uses_running_system=False, max_rounds=1, runs_in_all_aof_modes=False
    ),
    "private-mounts": Workload(
        "No-op jobs, each with its own mount namespace",
        alone.private_mounts,
        ("mycojobs",),
        uses_running_system=False,
        runs_in_all_aof_modes=False,
    ),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    scale: float = 1.0  # factor for drained_jobs
    round_trips: int = 300
    open_loop_seconds: float = 3
    concurrency: tuple = (2, 4, 8, 16, 32)  # numbers of slots for no-op jobs
    slots: tuple = (2, 10, 50, 100)  # numbers of slots for the workload with sleeping jobs
    sleep_seconds: int = 10
    queue_lengths: tuple = (1000, 100_000, 1_000_000)
    jobs_from_long_queue: int = 2000
    recovery_seconds: int = 130  # time after which the measurement of the recovery ends
    programs: int = 100
    first_outputs: int = 5
    drained_jobs: int = 1000  # no-op jobs of a drain; for_system() sets the number of the system

    def for_system(self, name):
        return dataclasses.replace(self, drained_jobs=SYSTEMS[name][2] or 1000)


FULL_SIZES = Sizes()
QUICK_SIZES = Sizes(
    scale=0.15,
    round_trips=60,
    open_loop_seconds=1.5,
    concurrency=(2, 8),
    slots=(2, 50),
    sleep_seconds=1,
    queue_lengths=(1000, 20_000),
    jobs_from_long_queue=500,
    recovery_seconds=3,
    programs=15,
    first_outputs=3,
)
