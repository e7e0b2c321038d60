#!/usr/bin/python3
"""What a no-op Python job costs with two builds, in turn, A B A B: CPU of all processes and jobs a second, drained by `mycojobs dev`; and how long
one takes that comes alone, and how often agent and launcher go to sleep for it.
Usage: bench/two_builds.py FOLDER FOLDER [--jobs N] [--alone N] [--rounds N]; the folders are build/bin of each. Trust nothing of a busy machine.

  git worktree add /tmp/before 53ce0e6    # before messages between tenants
  (cd /tmp/before && cmake --preset dev && ninja -C build programs)
  ninja -C build programs && bench/two_builds.py /tmp/before/build/bin build/bin --rounds 10
  git worktree remove --force /tmp/before
"""
import argparse
import os
import statistics

import dev_agent
from python_builds import measure


def sleeps(agent):
    """How often the threads of the agent and its launcher have gone to sleep."""
    return sum(dev_agent.switches_of(pid) for pid in dev_agent.descendants(agent) if dev_agent.comm_of(pid) in ("mycojobs", "mycojobs-launch"))


def alone(folder, jobs):
    """Milliseconds from submission to result, and sleeps a job, one at a time."""
    agent = dev_agent.Agent(2, "--libexec-dir", folder)
    try:
        for _ in range(50):
            agent.one()
        before = sleeps(agent.process.pid)
        took = [agent.one() for _ in range(jobs)]
        return 1000 * statistics.median(took), (sleeps(agent.process.pid) - before) / jobs
    finally:
        agent.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--alone", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    folders = {"before": os.path.abspath(options.before), "after": os.path.abspath(options.after)}
    took = {name: [] for name in folders}
    for _ in range(options.rounds):
        for name, folder in folders.items():
            dev_agent.MYCOJOBS = os.path.join(folder, "mycojobs")
            took[name].append(measure(folder, options.jobs) + alone(folder, options.alone))
    print("| build | CPU a job, ms: median | least | jobs/s: median | most | alone, ms: median | least | sleeps |\n|---|---|---|---|---|---|---|---|")
    for name, figures in took.items():
        cpu, rate, latency, slept = zip(*figures)
        print(f"| {name} | {statistics.median(cpu):.3f} | {min(cpu):.3f} | {statistics.median(rate):.0f} | {max(rate):.0f} "
              f"| {statistics.median(latency):.2f} | {min(latency):.2f} | {statistics.median(slept):.2f} |")
    pairs = [after[0] / before[0] - 1 for before, after in zip(took["before"], took["after"])]
    spread = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else float("nan")
    print(f"\nCPU after against before, in pairs: {100 * statistics.mean(pairs):+.1f} % (standard error {100 * spread:.1f} %)")


if __name__ == "__main__":
    main()
