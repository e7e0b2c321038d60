"""Workloads that start their own systems: generators of (system name, variant, figures or Skipped, verdict)."""
import time

from ..delivery import Skipped, check_delivery
from ..processes import wait_for

SLOW_TO_FILL = ("bullmq-2", "celery")
MAX_CLAIMED_JOBS = 64  # maximum number of jobs that a system claims before they run


def sleeps(factory, names, sizes):
    """Drains jobs that sleep for 100 ms, with 2 to 100 slots. The number of jobs is at most 10,000, and takes
    sizes.sleep_seconds if all slots are busy."""
    for slots in sizes.slots:
        count = min(10000, slots * 10 * sizes.sleep_seconds)
        for name in names:
            with factory.start_system(name, slots=slots) as system:
                system.drain("noop", 20)
                try:
                    rate, cpu, verdict = system.drain("sleep", count)
                except Skipped as skipped:
                    yield name, f"{slots}", skipped, None
                    continue
                yield name, f"{slots}", {
                    "slots": slots,
                    "jobs": count,
                    "jobs_per_s": rate,
                    "of_ideal": rate / (slots * 10),
                    "cpu_ms_per_job": cpu,
                }, verdict


def concurrency(factory, names, sizes):
    """Drains no-op jobs with several numbers of slots, so that the systems can be compared at their best concurrency."""
    for slots in sizes.concurrency:
        for name in names:
            count = max(10, int(sizes.for_system(name).drained_jobs * sizes.scale))
            with factory.start_system(name, slots=slots) as system:
                system.drain("noop", max(5, count // 5))
                rate, cpu, verdict = system.drain("noop", count)
                yield name, f"{slots}", {
                    "slots": slots,
                    "jobs_per_s": rate,
                    "cpu_ms_per_job": cpu,
                    "redis_ms_per_job": system.redis_ms_per_job,
                }, verdict


def long_queue(factory, names, sizes):
    """Measures the cost of a job at the head of queues of several lengths."""
    for length in sizes.queue_lengths:
        for name in names:
            if length > 100_000 and name in SLOW_TO_FILL:
                yield name, f"{length}", Skipped("(filling the queue takes a minute or more)"), None
                continue
            with factory.connect_system(name, audit=length <= 100_000) as system:
                idents = system.allocate_ids(length)
                system.submit_many("noop", idents)
                if system.redis:
                    system.redis.finish_rewrites()
                system.workers.append(system.start_worker())
                measured_jobs = min(sizes.jobs_from_long_queue, length - 200)
                wait_for(lambda: system.count_ended() >= 100, f"the first 100 of {length} jobs of {system.title}", 300)
                first, cpu, begin = system.count_ended(), system.read_cpu(), time.perf_counter()
                wait_for(
                    lambda: system.count_ended() >= first + measured_jobs, f"{measured_jobs} of {length} jobs of {system.title}", 300, 0.004
                )
                took, ended = time.perf_counter() - begin, system.count_ended() - first
                used = system.read_cpu() - cpu
                for worker in system.workers:
                    worker.stop()
                system.workers = []
                # All queues are FIFO, so the first jobs must have run, except the claimed jobs at the time of the stop.
                certain = idents[: max(0, system.count_ended() - MAX_CLAIMED_JOBS)]
                started = [ident for ident, _ in system.read_started()]
                expected = set(certain) | {ident for ident in started if ident in idents}
                yield (
                    name,
                    f"{length}",
                    {"length": length, "ms_per_job": took / ended * 1e3, "cpu_ms_per_job": used / ended * 1e3},
                    check_delivery(expected, started),
                )


class _WorkerFailure:
    """Kills a worker that runs a job, and measures the time until the job runs again. restarts_worker: the same agent is
    started again; otherwise another worker already runs."""

    def __init__(self, name, system, restarts_worker):
        self.name, self.system, self.restarts_worker = name, system, restarts_worker
        self.seconds = None
        self.ident = system.allocate_ids(1)[0]
        system.submit("hang", self.ident)
        wait_for(lambda: self._count_runs() >= 1, f"the job of {system.title}")

    def _count_runs(self):
        return self.system.count_runs(self.ident)

    def start_other_worker(self):
        if not self.restarts_worker:
            self.system.workers.append(self.system.start_worker())

    def kill_worker(self):
        self.begin = time.monotonic()
        self.system.workers[0].kill()
        if self.restarts_worker:
            self.system.workers[0] = self.system.start_worker(runner=1)

    def poll(self):
        """Returns whether the job has started again."""
        if self.seconds is None and self._count_runs() >= 2:
            self.seconds = time.monotonic() - self.begin
        return self.seconds is not None


def recovery(factory, names, sizes):
    """Measures all systems at the same time, since they only wait. mycojobs is measured with another agent, and with the
    same agent started again."""
    with factory.start_systems(names, slots=1) as systems:
        failures = [_WorkerFailure(name, system, name.endswith("-again")) for name, system in systems]
        for failure in failures:
            failure.start_other_worker()
        time.sleep(4)
        for failure in failures:
            failure.kill_worker()
        end = time.monotonic() + sizes.recovery_seconds
        while not all([failure.poll() for failure in failures]) and time.monotonic() < end:
            time.sleep(0.005)
        for failure in failures:
            for worker in failure.system.workers:
                worker.kill()
            failure.system.workers = []
            yield failure.name, "", {"seconds": failure.seconds, "limit": sizes.recovery_seconds}, None
