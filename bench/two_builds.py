#!/usr/bin/python3
"""What a no-op Python job costs with two builds: CPU of all processes and jobs a second, drained by `mycojobs dev`, in turn, A B A B.
Usage: bench/two_builds.py FOLDER FOLDER [--jobs N] [--rounds N]; the folders are build/bin of each. Trust nothing of a busy machine.

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    folders = {"before": os.path.abspath(options.before), "after": os.path.abspath(options.after)}
    took = {name: [] for name in folders}
    for _ in range(options.rounds):
        for name, folder in folders.items():
            dev_agent.MYCOJOBS = os.path.join(folder, "mycojobs")
            took[name].append(measure(folder, options.jobs))
    print("| build | CPU a job, ms: median | least | jobs/s: median | most |\n|---|---|---|---|---|")
    for name, figures in took.items():
        cpu, rate = [each[0] for each in figures], [each[1] for each in figures]
        print(f"| {name} | {statistics.median(cpu):.3f} | {min(cpu):.3f} | {statistics.median(rate):.0f} | {max(rate):.0f} |")
    pairs = [after[0] / before[0] - 1 for before, after in zip(took["before"], took["after"])]
    spread = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else float("nan")
    print(f"\nCPU after against before, in pairs: {100 * statistics.mean(pairs):+.1f} % (standard error {100 * spread:.1f} %)")


if __name__ == "__main__":
    main()
