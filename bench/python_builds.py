#!/usr/bin/python3
"""What a no-op Python job costs with the interpreter linked into its host, and with the system's shared library: CPU of all processes, in turn,
A B A B. Prints the table of docs/performance.md. Usage: bench/python_builds.py [--jobs N] [--rounds N] [--bin FOLDER]
"""
import argparse
import os
import shutil
import statistics
import tempfile
import time

import dev_agent

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def cpu_ms(root):
    """Of a process and all below, with those that have ended and were waited for."""
    parents, spent = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)], spent[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total = 0
    for pid in spent:
        above = pid
        while above not in (root, 0, None):
            above = parents.get(above)
        total += spent[pid] if above == root else 0
    return total * TICK_MS


def measure(folder, jobs):
    """Milliseconds of CPU a job, and jobs a second, in a drain."""
    agent = dev_agent.Agent(2, "--libexec-dir", folder)
    try:
        for _ in range(50):
            agent.one()  # warm-up: the first jobs run with cold caches
        first, agent.next = agent.next, agent.next + jobs
        before, began = cpu_ms(agent.process.pid), time.monotonic()
        agent.redis.pipeline([command for number in range(first, agent.next) for command in dev_agent.submit_commands(number)])
        while agent.redis.call("LLEN", "queue:python"):
            time.sleep(0.02)
        agent.one()
        rate = (jobs + 1) / (time.monotonic() - began)
        return (cpu_ms(agent.process.pid) - before) / (jobs + 1), rate
    finally:
        agent.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bin", default=os.path.dirname(dev_agent.MYCOJOBS))
    options = parser.parse_args()
    dev_agent.MYCOJOBS = os.path.join(options.bin, "mycojobs")
    with tempfile.TemporaryDirectory() as shared:
        for name in os.listdir(options.bin):
            if name.startswith("mycojobs-") and name != "mycojobs-pyhost":
                os.symlink(os.path.join(os.path.abspath(options.bin), name), os.path.join(shared, name))
        shutil.copy(os.path.join(options.bin, "mycojobs-pyhost-shared"), os.path.join(shared, "mycojobs-pyhost"))
        took = {"linked in": [], "shared library": []}
        for _ in range(options.rounds):
            for name, folder in zip(took, (os.path.abspath(options.bin), shared)):
                took[name].append(measure(folder, options.jobs)[0])
    print("| interpreter | CPU a job, ms: median | least | rounds |\n|---|---|---|---|")
    for name, figures in took.items():
        print(f"| {name} | {statistics.median(figures):.2f} | {min(figures):.2f} | {' '.join(f'{figure:.2f}' for figure in figures)} |")


if __name__ == "__main__":
    main()
