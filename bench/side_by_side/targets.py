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
    """way: what stands in the way, where it is not met (docs/performance.md has how it was found)."""

    what: str
    target: str
    stretch: str
    measure: Callable
    way: str = ""


NOTHING = Measured("-", None, None)


def _over(ours, theirs):
    return ours / theirs if ours and theirs else None


def _holds(tests):
    """All of them; None if one has nothing to compare."""
    return None if any(value is None for value, _ in tests) else all(holds(value) for value, holds in tests)


def _fastest(results, name, drained=None):
    """Jobs a second at the best concurrency; without that workload, those of the drain."""
    return results.highest("concurrency", name, "jobs_per_s") or results.median("drain", drained or name, "jobs_per_s")


def _drain(results):
    ours = _fastest(results, "mycojobs")
    if not ours:
        return NOTHING
    celery, bullmq = (_over(ours, _fastest(results, name)) for name in ("celery", "bullmq-sandboxed"))
    rq = _over(ours, results.median("drain", "rq", "jobs_per_s"))
    return Measured(
        f"{short(ours)}/s: {short(celery)} × Celery, {short(bullmq)} × BullMQ sandboxed, {short(rq)} × RQ",
        _holds([(celery, lambda x: x >= 2), (bullmq, lambda x: x >= 1.1)]),
        _holds([(celery, lambda x: x >= 4), (bullmq, lambda x: x >= 2)]),
    )


def _cpu(results):
    ours, celery = (results.median("drain", name, "cpu_ms_per_job") for name in ("mycojobs", "celery"))
    ratio = _over(ours, celery)
    if ratio is None:
        return NOTHING
    return Measured(f"{short(ours)} ms: {short(ratio)} of Celery's {short(celery)}", ratio <= 0.75, ratio <= 0.5)


def _warm(results):
    ours = _fastest(results, "mycojobs-warm")
    if not ours:
        return NOTHING
    celery, bullmq = _over(ours, _fastest(results, "celery")), _over(ours, _fastest(results, "bullmq", "bullmq-50"))
    return Measured(
        f"{short(ours)}/s: {short(celery)} × Celery, {short(bullmq)} × BullMQ in process",
        _holds([(ours, lambda x: x >= 10000), (celery, lambda x: x >= 6), (bullmq, lambda x: x >= 0.55)]),
        ours >= 12000,
    )


def _warm_cpu(results):
    best = results.best("concurrency", "mycojobs-warm", "jobs_per_s")
    if best is None:
        return NOTHING
    whole, redis = (results.median("concurrency", "mycojobs-warm", field, variant=best) for field in ("cpu_ms_per_job", "redis_ms_per_job"))
    return Measured(f"{whole - redis:.3f} ms at {best} slots", whole - redis <= 0.09, whole - redis <= 0.07)


def _redis(results):
    ours = results.median("concurrency", "mycojobs", "redis_ms_per_job", variant="4")
    best = results.best("concurrency", "bullmq", "jobs_per_s")
    bullmq = best and results.median("concurrency", "bullmq", "redis_ms_per_job", variant=best)
    ratio = _over(ours, bullmq)
    if ratio is None:
        return NOTHING
    return Measured(f"{ours:.3f} ms: {short(ratio)} of BullMQ's {bullmq:.3f}", ours <= 0.07 and ratio <= 1.1, ratio <= 0.8)


def _warm_trip(results):
    ours, bullmq, beanstalkd = (
        results.median("round-trip", name, "p50_ms") for name in ("mycojobs-warm", "bullmq-2", "beanstalkd")
    )
    if ours is None:
        return NOTHING
    ratios = _over(ours, bullmq), _over(ours, beanstalkd)
    return Measured(
        f"{short(ours)} ms: {short(ratios[0])} of BullMQ's, {short(ratios[1])} of beanstalkd's",
        _holds([(ratios[0], lambda x: x <= 1.5)]),
        _holds([(ratios[0], lambda x: x <= 1)]),
    )


def _anew(results):
    own = results.values("private-mounts", "mycojobs", "own")
    ours, celery = (
        results.median("private-mounts", "mycojobs", "jobs_per_s"),
        results.median("drain", "celery", "jobs_per_s"),
    )
    ratio = _over(ours, celery)
    if ratio is None:
        return (
            Measured("jobs of the run share their mount namespace", False, False) if own and not all(own) else NOTHING
        )
    return Measured(f"{short(ours)}/s: {short(ratio)} × Celery", ratio >= 1, ratio >= 2)


def _round_trip(results):
    p50, p99, bullmq50, bullmq99, beanstalkd = (
        results.median("round-trip", name, field)
        for name, field in (
            ("mycojobs", "p50_ms"),
            ("mycojobs", "p99_ms"),
            ("bullmq-2", "p50_ms"),
            ("bullmq-2", "p99_ms"),
            ("beanstalkd", "p50_ms"),
        )
    )
    if p50 is None:
        return NOTHING
    median, tail, floor = _over(p50, bullmq50), _over(p99, bullmq99), _over(p50, beanstalkd)
    return Measured(
        f"{short(p50)} / {short(p99)} ms: {short(median)} of BullMQ's p50, {short(tail)} of its p99; {short(floor)} × beanstalkd's p50",
        _holds([(median, lambda x: x <= 1), (tail, lambda x: x <= 0.5)]),
        _holds([(floor, lambda x: x <= 2)]),
    )


def _pickup(results):
    p99 = results.median("open-500", "mycojobs", "p99_ms")
    if p99 is None:
        why = results.why_not("open-500", "mycojobs")
        return Measured(why, False, False) if why else NOTHING
    ratio = _over(p99, results.median("open-500", "bullmq-sandboxed", "p99_ms"))
    return Measured(
        f"{short(p99)} ms: {short(ratio)} of BullMQ's sandboxed",
        _holds([(ratio, lambda x: x <= 1)]),
        _holds([(ratio, lambda x: x <= 0.5)]),
    )


def _step(results):
    step, trip = results.median("chain", "mycojobs", "ms_per_job"), results.median("round-trip", "mycojobs", "p50_ms")
    ratio = _over(step, trip)
    if ratio is None:
        return NOTHING
    return Measured(f"{short(step)} ms: {short(ratio)} × one idle job", ratio <= 1.3, step <= 0.84)


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
            faster >= 3,
        )

    return measure


def _counted(field):
    def counted(results):
        return [results.median("counts", "mycojobs", field, variant=kind) for kind in ("fresh", "warm")]

    return counted


def _switches(results):
    agents, launchers = _counted("switches.agent")(results), _counted("switches.launcher")(results)
    if None in agents or None in launchers:
        return NOTHING
    fresh, warm = (agent + launcher for agent, launcher in zip(agents, launchers))
    return Measured(f"{short(fresh)}, warm {short(warm)}", fresh <= 6, fresh <= 4)


def _faults(results):
    fresh, warm = _counted("faults.sandbox")(results)
    return NOTHING if fresh is None else Measured(f"{short(fresh)}, warm {short(warm)}", fresh <= 70, fresh <= 40)


def _system_calls(results):
    fresh, warm = _counted("system_calls")(results)
    return NOTHING if fresh is None else Measured(f"{short(fresh)}, warm {short(warm)}", True, False)


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
    return NOTHING if got is None else Measured(f"{short(got)} MiB (PSS)", got <= 35, got <= 20)


def _child(results):
    kib = [max(found) for found in results.values("memory", "mycojobs", "ready_child_kib") if found]
    inits = [max(found) for found in results.values("memory", "mycojobs", "ready_init_kib") if found]
    if not kib:
        return NOTHING
    mib = max(kib) / 1024
    return Measured(
        f"{mib:.2f} MiB private and dirty, its init {max(inits, default=0) / 1024:.2f}", mib <= 2, mib <= 0.5
    )


_FRESH = (
    "a fresh process needs a fork, about 50 page faults and an exit: 0.3 to 0.4 ms in any program; Redis 0.12, the agent 0.12"
)
_WAKE_UPS = (
    "six wake-ups of agent and launcher, and those of Redis and the job, in sequence"
)

TARGETS = [
    Target(
        "no-op Python jobs a second, each in a fresh sandboxed process; each system at its best concurrency",
        "≥ 2 × Celery prefork, ≥ 1.1 × BullMQ sandboxed",
        "≥ 4 × Celery, ≥ 2 × BullMQ sandboxed",
        _drain,
        _FRESH,
    ),
    Target(
        "the same script warm: one process for many jobs; each system at its best concurrency",
        "≥ 10,000/s, ≥ 6 × Celery, ≥ 0.55 × BullMQ in process",
        "≥ 12,000/s",
        _warm,
        "each call is checked for remains: init stops and starts the process, and the launcher checks it",
    ),
    Target("CPU of a warm job outside of Redis", "≤ 0.09 ms", "≤ 0.07 ms", _warm_cpu, "the checks of each call"),
    Target(
        "CPU of Redis for a no-op job, one agent with 4 slots",
        "≤ 0.07 ms, ≤ 1.1 × BullMQ's",
        "≤ 0.8 × BullMQ's",
        _redis,
        "24 writes and reads, with their copies in the append-only file, and the definitions of the scripts at each call",
    ),
    # The floor of a fresh process, as _FRESH says, is 0.7 of Celery's CPU.
    Target("CPU of a no-op job, including Redis, relative to Celery", "≤ 0.75", "≤ 0.5", _cpu, _FRESH),
    Target(
        "new sandbox for each job (`sandbox.reused_runs = 1`)",
        "≥ 1 × Celery",
        "≥ 2 × Celery",
        _anew,
        "about 2 ms more: cgroups 0.5, mounts and their removal 0.3, the long filter 0.2, two forks and exits, kernel workers",
    ),
    Target(
        "idle, submit to result, p50 / p99",
        "≤ BullMQ in process / ≤ 0.5 of it",
        "≤ 2 × beanstalkd's p50",
        _round_trip,
        _WAKE_UPS,
    ),
    Target("the same script warm, p50", "≤ 1.5 × BullMQ in process", "≤ BullMQ in process", _warm_trip, _WAKE_UPS),
    Target("a single job: voluntary context switches of agent and launcher", "≤ 6", "≤ 4", _switches, "the queue, the claim, start and end by the launcher, the end, its answer"),
    Target(
        "page faults of its sandbox, job and init",
        "≤ 70",
        "≤ 40",
        _faults,
        "memory that Python itself writes: 12 pages of static data only by reference counts, which 3.12 avoids",
    ),
    Target("system calls of all processes", "recorded only", "-", _system_calls),
    Target(
        "p99 of the pickup at 500 jobs a second, open loop",
        "≤ BullMQ sandboxed in the same run",
        "≤ half of it",
        _pickup,
    ),
    Target("step of a flow, from the end of a job to the start of the next", "≤ 1.3 × one idle job", "≤ 0.84 ms", _step, "two round trips of the coordinator between two jobs, and its wake-up"),
    Target("bash, start to end, relative to a bare posix_spawn", "≤ 2.5 ×", "≥ 3 × faster than bubblewrap", _programs("bash")),
    Target(
        "a native program, the same",
        "≤ 2.5 ×",
        "≥ 3 × faster than bubblewrap",
        _programs("native"),
        "in addition to the exec: fork and exit of the script host, the copy of the program (0.2 ms), the wake-ups of a single job",
    ),
    Target(
        "`mycojobs run` without a running agent or Redis, first byte of output",
        "≤ 0.25 s",
        "≤ 0.12 s",
        _seconds("first-output", 0.25, 0.12),
    ),
    Target("worker start to first job done", "≤ 0.2 s", "≤ 0.1 s", _seconds("startup", 0.2, 0.1)),
    Target(
        "claim cost with 10^6 queued jobs, relative to 10^3",
        "≤ 1.1 ×",
        "the same",
        _claim,
        "the variation between runs is as large as the excess",
    ),
    Target("idle agent with its helpers, resident", "≤ 35 MiB", "≤ 20 MiB", _memory),
    Target("a ready child, private memory", "≤ 2 MiB", "≤ 0.5 MiB", _child),
]
