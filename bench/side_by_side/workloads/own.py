"""Workloads that start their own systems: generators of (system name, variant, figures or Skipped, verdict)."""
import time

from ..delivery import Skipped, check
from ..processes import wait_for

SLOW_TO_FILL = ("bullmq-2", "celery")
IN_HAND = 64  # upper bound of the jobs that a system claims at once


def sleeps(stage, names, sizes):
    """Jobs that sleep 100 ms, at 2 to 100 slots: 10,000, or as many as take sizes.sleep_seconds in the best case."""
    for slots in sizes.slots:
        count = min(10000, slots * 10 * sizes.sleep_seconds)
        for name in names:
            with stage.started(name, slots=slots) as system:
                system.drain("noop", 20)
                try:
                    rate, cpu, verdict = system.drain("sleep", count)
                except Skipped as why:
                    yield name, f"{slots}", why, None
                    continue
                yield name, f"{slots}", {
                    "slots": slots,
                    "jobs": count,
                    "jobs_per_s": rate,
                    "of_ideal": rate / (slots * 10),
                    "cpu_ms_per_job": cpu,
                }, verdict


def concurrency(stage, names, sizes):
    """No-op jobs, drained at several numbers of slots, so that each system can be compared at its best."""
    for slots in sizes.concurrency:
        for name in names:
            count = max(10, int(sizes.of(name).drain * sizes.scale))
            with stage.started(name, slots=slots) as system:
                system.drain("noop", max(5, count // 5))
                rate, cpu, verdict = system.drain("noop", count)
                yield name, f"{slots}", {
                    "slots": slots,
                    "jobs_per_s": rate,
                    "cpu_ms_per_job": cpu,
                    "redis_ms_per_job": system.redis_ms_per_job,
                }, verdict


def long_queue(stage, names, sizes):
    """The same jobs from the head of queues of several lengths: does the length cost anything?"""
    for length in sizes.lengths:
        for name in names:
            if length > 100_000 and name in SLOW_TO_FILL:
                yield name, f"{length}", Skipped("(filling the queue takes a minute or more)"), None
                continue
            with stage.connected(name, audit=length <= 100_000) as system:
                idents = system.numbers(length)
                system.fill("noop", idents)
                if system.redis:
                    system.redis.settle()
                system.workers.append(system.spawn())
                taken = min(sizes.taken, length - 200)
                wait_for(lambda: system.ended() >= 100, f"the first 100 of {length} jobs of {system.title}", 300)
                first, cpu, begin = system.ended(), system.cpu(), time.perf_counter()
                wait_for(
                    lambda: system.ended() >= first + taken, f"{taken} of {length} jobs of {system.title}", 300, 0.004
                )
                took, ended = time.perf_counter() - begin, system.ended() - first
                used = system.cpu() - cpu
                for worker in system.workers:
                    worker.stop()
                system.workers = []
                # All queues are FIFO, so the first jobs must have run, except those in progress at the stop.
                sure = idents[: max(0, system.ended() - IN_HAND)]
                ran = [ident for ident, _ in system.seen()]
                expected = set(sure) | {ident for ident in ran if ident in idents}
                yield (
                    name,
                    f"{length}",
                    {"length": length, "ms_per_job": took / ended * 1e3, "cpu_ms_per_job": used / ended * 1e3},
                    check(expected, ran),
                )


class _Fall:
    """A worker with a job is killed, another one is there; how long until the job runs again?"""

    def __init__(self, name, system, again):
        self.name, self.system, self.again = name, system, again
        self.took = None
        self.ident = system.numbers(1)[0]
        system.send("hang", self.ident)
        wait_for(lambda: self._runs() >= 1, f"the job of {system.title}")

    def _runs(self):
        return self.system.runs_of(self.ident)

    def prepare(self):
        """The other worker is up, and idle, before the first one falls."""
        if not self.again:
            self.system.workers.append(self.system.spawn())

    def fall(self):
        self.begin = time.monotonic()
        self.system.workers[0].kill()
        if self.again:
            self.system.workers[0] = self.system.spawn(runner=1)

    def ask(self):
        if self.took is None and self._runs() >= 2:
            self.took = time.monotonic() - self.begin
        return self.took is not None


def recovery(stage, names, sizes):
    """All at one time: it is waiting, and costs nothing. Ours twice: another agent, and the same one started again."""
    with stage.several([(name, 1) for name in names]) as systems:
        falls = [_Fall(name, system, name.endswith("-again")) for name, system in systems]
        for each in falls:
            each.prepare()
        time.sleep(4)
        for each in falls:
            each.fall()
        end = time.monotonic() + sizes.recovery_limit
        while not all([each.ask() for each in falls]) and time.monotonic() < end:
            time.sleep(0.005)
        for each in falls:
            for worker in each.system.workers:
                worker.kill()
            each.system.workers = []
            yield each.name, "", {"seconds": each.took, "limit": sizes.recovery_limit}, None
