"""The targets, each with what a run has measured of it."""
import dataclasses
from typing import Callable

from .figures import short


@dataclasses.dataclass
class Measured:
    """got: what is printed; met, stretch: None if it was not measured."""

    got: str
    met: bool | None
    stretch: bool | None

    def word(self):
        if self.met is None:
            return "not measured"
        if not self.met:
            return "no"
        return "yes, and the stretch" if self.stretch else "yes"


@dataclasses.dataclass
class Target:
    what: str
    target: str
    stretch: str
    measure: Callable


NOTHING = Measured("-", None, None)


def _over(ours, theirs):
    return ours / theirs if ours and theirs else None


def _holds(tests):
    """All of them; None if one has nothing to compare."""
    return None if any(value is None for value, _ in tests) else all(holds(value) for value, holds in tests)


def _drain(results):
    ours = results.median("drain", "mycojobs", "jobs_per_s")
    if not ours:
        return NOTHING
    celery, rq, bullmq = (
        _over(ours, results.median("drain", name, "jobs_per_s")) for name in ("celery", "rq", "bullmq-sandboxed")
    )
    cpu = results.median("drain", "mycojobs", "cpu_ms_per_job"), results.median("drain", "celery", "cpu_ms_per_job")
    return Measured(
        f"{short(ours)}/s: {short(celery)} × Celery, {short(rq)} × RQ, {short(bullmq)} × BullMQ sandboxed; "
        f"CPU a job {short(cpu[0])} ms, Celery's {short(cpu[1])}",
        _holds([(celery, lambda x: x >= 2.5), (rq, lambda x: x >= 15)]),
        _holds([(celery, lambda x: x >= 5), (bullmq, lambda x: x >= 1.5)]),
    )


def _warm(results):
    ours = results.median("drain", "mycojobs-warm", "jobs_per_s")
    if not ours:
        return NOTHING
    celery, boxed, bullmq, fresh = (
        _over(ours, results.median("drain", name, "jobs_per_s"))
        for name in ("celery", "bullmq-sandboxed", "bullmq-2", "mycojobs")
    )
    return Measured(
        f"{short(ours)}/s: {short(celery)} × Celery, {short(boxed)} × BullMQ sandboxed, {short(bullmq)} × BullMQ in "
        f"process, {short(fresh)} × a fresh process each",
        _holds([(celery, lambda x: x >= 5), (boxed, lambda x: x >= 2.5)]),
        _holds([(bullmq, lambda x: x > 1)]),
    )


def _warm_trip(results):
    ours, bullmq, beanstalkd = (
        results.median("round-trip", name, "p50_ms") for name in ("mycojobs-warm", "bullmq-2", "beanstalkd")
    )
    if ours is None:
        return NOTHING
    ratios = _over(ours, bullmq), _over(ours, beanstalkd)
    return Measured(
        f"{short(ours)} ms: {short(ratios[0])} of BullMQ's, {short(ratios[1])} of beanstalkd's",
        _holds([(ratios[0], lambda x: x <= 0.6)]),
        _holds([(ratios[1], lambda x: x <= 1.2)]),
    )


def _private(results):
    own = results.values("private-mounts", "mycojobs", "own")
    ratio = _over(
        results.median("private-mounts", "mycojobs", "jobs_per_s"), results.median("drain", "celery", "jobs_per_s")
    )
    if ratio is None:
        return (
            Measured("jobs of the run share their mount namespace", False, False) if own and not all(own) else NOTHING
        )
    return Measured(
        f"{short(results.median('private-mounts', 'mycojobs', 'jobs_per_s'))}/s: {short(ratio)} × Celery",
        ratio >= 1.5,
        ratio >= 2.5,
    )


def _round_trip(results):
    p50, p99 = (results.median("round-trip", "mycojobs", field) for field in ("p50_ms", "p99_ms"))
    if p50 is None:
        return NOTHING
    ratios, tests = [], []
    for name, title, part in (("celery", "Celery", 6), ("bullmq-2", "BullMQ", 4)):
        for field, ours in (("p50_ms", p50), ("p99_ms", p99)):
            ratio = _over(ours, results.median("round-trip", name, field))
            ratios.append(f"{short(ratio)} of {title}'s {field[:3]}")
            tests.append((ratio, lambda x, part=part: x <= 1 / part))
    return Measured(f"{short(p50)} / {short(p99)} ms: {', '.join(ratios)}", _holds(tests), p50 <= 0.3 and p99 <= 0.7)


def _pickup(results):
    p99 = results.median("open-500", "mycojobs", "p99_ms")
    if p99 is None:
        why = results.why_not("open-500", "mycojobs")
        return Measured(why, False, False) if why else NOTHING
    return Measured(f"{short(p99)} ms", p99 <= 3, p99 <= 1.5)


def _programs(kind):
    def measure(results):
        ours, bare, bubble, inside = (
            results.median("programs", "mycojobs", field, variant=kind)
            for field in ("mycojobs.p50_ms", "posix_spawn.p50_ms", "bubblewrap.p50_ms", "sandbox_p50_ms")
        )
        if ours is None:
            return NOTHING
        ratio, faster = ours / bare, bubble / ours
        return Measured(
            f"{short(ours)} ms through Redis ({short(inside)} ms of it in the sandbox): {short(ratio)} × a bare one ({short(bare)} ms), "
            f"{short(faster)} × faster than bubblewrap ({short(bubble)} ms)",
            ratio <= 2.5,
            ratio <= 1.6 and faster >= 3,
        )

    return measure


def _seconds(workload, target, stretch):
    def measure(results):
        got = results.median(workload, "mycojobs", "seconds")
        return NOTHING if got is None else Measured(f"{short(got)} s", got <= target, got <= stretch)

    return measure


def _claim(results):
    fields = ("cpu_ms_per_job", "ms_per_job")
    cpu, wall = (
        _over(
            results.median("long-queue", "mycojobs", field, variant="1000000"),
            results.median("long-queue", "mycojobs", field, variant="1000"),
        )
        for field in fields
    )
    if cpu is None:
        return NOTHING
    return Measured(f"{cpu:.2f} × the CPU time a job, {wall:.2f} × the wall time", cpu <= 1.1, cpu <= 1.02)


def _memory(results):
    got = results.median("memory", "mycojobs", "mib")
    return NOTHING if got is None else Measured(f"{short(got)} MiB (PSS)", got <= 60, got <= 30)


def _child(results):
    kib = [max(found) for found in results.values("memory", "mycojobs", "ready_child_kib") if found]
    inits = [max(found) for found in results.values("memory", "mycojobs", "ready_init_kib") if found]
    if not kib:
        return NOTHING
    mib = max(kib) / 1024
    return Measured(
        f"{mib:.2f} MiB private and dirty, its init {max(inits, default=0) / 1024:.2f}", mib <= 2, mib <= 0.5
    )


TARGETS = [
    Target(
        "no-op Python jobs a second, each in a fresh sandboxed process",
        "≥ 2.5 × Celery prefork, ≥ 15 × RQ",
        "≥ 5 × Celery, ≥ 1.5 × BullMQ sandboxed",
        _drain,
    ),
    Target(
        "the same script warm: one process for many jobs",
        "≥ 5 × Celery, ≥ 2.5 × BullMQ sandboxed",
        "> BullMQ in process, concurrency 2",
        _warm,
    ),
    Target("the same with a private mount namespace a job", "≥ 1.5 × Celery", "≥ 2.5 × Celery", _private),
    Target("idle, submit to result, p50 / p99", "≤ 1/6 of Celery, ≤ 1/4 of BullMQ", "≤ 0.3 / 0.7 ms", _round_trip),
    Target("the same script warm, p50", "≤ 0.6 of BullMQ in process", "≤ 1.2 × beanstalkd", _warm_trip),
    Target("p99 of the pickup at 500 jobs a second, open loop", "≤ 3 ms", "≤ 1.5 ms", _pickup),
    Target(
        "bash in the sandbox, start to end, over a bare posix_spawn",
        "≤ 2.5 ×",
        "≤ 1.6 ×, ≥ 3 × faster than bubblewrap",
        _programs("bash"),
    ),
    Target("a native program, the same", "≤ 2.5 ×", "≤ 1.6 ×, ≥ 3 × faster than bubblewrap", _programs("native")),
    Target(
        "`mycojobs run` on nothing, first byte of output", "≤ 0.6 s", "≤ 0.25 s", _seconds("first-output", 0.6, 0.25)
    ),
    Target("worker start to first job done", "≤ 0.3 s", "≤ 0.1 s", _seconds("startup", 0.3, 0.1)),
    Target("claim cost with 10^6 queued jobs over 10^3", "≤ 1.1 ×", "the same", _claim),
    Target("idle agent with its helpers, resident", "≤ 60 MiB", "≤ 30 MiB", _memory),
    Target("a ready child, private memory", "≤ 2 MiB", "≤ 0.5 MiB", _child),
]
