"""Workloads that share one start of a system. Each takes the system and its sizes, and gives (figures, verdict)."""
import time

from ..delivery import Skipped
from ..figures import percentiles
from ..processes import memory_kib, name


def startup(system, sizes):
    return {"seconds": system.start_seconds}, None


def drain(system, sizes):
    """Queue filled while the workers stand still; the clock runs from letting them go to the last end."""
    count = max(10, int(sizes.drain * sizes.scale))
    system.drain("noop", max(5, count // 5))
    rate, cpu, verdict = system.drain("noop", count)
    system.capacity = rate
    figures = {"jobs": count, "jobs_per_s": rate, "cpu_ms_per_job": cpu, "redis_ms_per_job": system.redis_ms_per_job}
    return figures | system.about(), verdict


def round_trip(system, sizes):
    took, verdict = system.round_trips(int(sizes.trips))
    return percentiles(took), verdict


def open_loop(rate):
    def run(system, sizes):
        if not getattr(system, "capacity", None):
            system.capacity = system.drain("noop", max(10, int(sizes.drain * sizes.scale)))[0]
        if not system.capacity or system.capacity < rate * 1.05:
            raise Skipped(f"cannot sustain {rate}/s: it drains {system.capacity or 0:.0f}/s")
        pickups, verdict = system.open_loop(rate, sizes.open_seconds)
        return percentiles(pickups), verdict

    return run


def chain(system, sizes):
    took, verdict = system.chained(40)
    return {"seconds": took, "ms_per_job": took / 40 * 1e3}, verdict


def cpu(system, sizes):
    """Ten jobs of 300 ms of CPU each; without any cost they take 1.5 s on two CPUs."""
    rate, _, verdict = system.drain("cpu", 10)
    return {"seconds": 10 / rate if rate else None}, verdict


def memory(system, sizes):
    """Proportional resident memory of workers and helpers, idle; Redis apart."""
    time.sleep(1.0)
    sizes_of = {}
    for pid in system.pids():
        kib = memory_kib(pid, "Pss")
        if kib is None:
            raise Skipped("smaps_rollup of its processes may not be read: run as root")
        sizes_of[name(pid)] = sizes_of.get(name(pid), 0) + kib / 1024
    return {"mib": sum(sizes_of.values()), "processes": sizes_of} | system.idle_figures(), None
