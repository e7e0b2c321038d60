"""Workloads on a running system. Each function returns (figures, verdict); the verdict is None without a check."""
import time

from ..delivery import Skipped
from ..figures import summarize_latencies
from ..processes import read_memory_kib, read_process_name


def startup(system, sizes):
    return {"seconds": system.start_seconds}, None


def drain(system, sizes):
    """Measures the rate and the CPU time of no-op jobs (System.drain())."""
    count = max(10, int(sizes.drained_jobs * sizes.scale))
    system.drain("noop", max(5, count // 5))
    rate, cpu, verdict = system.drain("noop", count)
    system.capacity = rate
    figures = {"jobs": count, "jobs_per_s": rate, "cpu_ms_per_job": cpu, "redis_ms_per_job": system.redis_ms_per_job}
    return figures | system.read_drain_figures(), verdict


def round_trip(system, sizes):
    seconds, verdict = system.round_trips(int(sizes.round_trips))
    return summarize_latencies(seconds), verdict


def open_loop(rate):
    """Returns a workload that submits jobs at a rate, and measures the delay until they start."""

    def run(system, sizes):
        if not getattr(system, "capacity", None):
            system.capacity = system.drain("noop", max(10, int(sizes.drained_jobs * sizes.scale)))[0]
        if not system.capacity or system.capacity < rate * 1.05:
            raise Skipped(f"cannot sustain {rate}/s: it drains {system.capacity or 0:.0f}/s")
        pickups, verdict = system.open_loop(rate, sizes.open_loop_seconds)
        return summarize_latencies(pickups), verdict

    return run


def chain(system, sizes):
    seconds, verdict = system.run_chain(40)
    return {"seconds": seconds, "ms_per_job": seconds / 40 * 1e3}, verdict


def cpu(system, sizes):
    """Runs ten jobs of 300 ms of CPU time, which take at least 1.5 s on two CPUs."""
    rate, _, verdict = system.drain("cpu", 10)
    return {"seconds": 10 / rate if rate else None}, verdict


def memory(system, sizes):
    """Measures the proportional set size of idle workers and their helper processes, without Redis."""
    time.sleep(1.0)
    mib_by_process = {}
    for pid in system.list_pids():
        kib = read_memory_kib(pid, "Pss")
        if kib is None:
            raise Skipped("smaps_rollup of its processes cannot be read: run the bench as root")
        mib_by_process[read_process_name(pid)] = mib_by_process.get(read_process_name(pid), 0) + kib / 1024
    return {"mib": sum(mib_by_process.values()), "processes": mib_by_process} | system.read_idle_figures(), None
