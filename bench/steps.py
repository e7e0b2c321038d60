#!/usr/bin/python3
"""Where the time of a no-op Python job goes: the set-up times in its receipt, medians, step by step; with a slot that has served before, and
with everything made anew. Prints the table of docs/performance.md. Usage: bench/steps.py [--jobs N]
"""
import argparse
import json
import statistics

from dev_agent import Agent

def receipts(jobs, *arguments):
    agent = Agent(2, *arguments)
    try:
        found = []
        for number in range(jobs + 20):
            agent.one()
            if number >= 20:  # warm-up: the first jobs run with cold caches
                found.append(json.loads(agent.redis.call("HGET", f"job:9:{agent.next - 1}", "receipt")))
        return found
    finally:
        agent.stop()


def medians(found):
    steps = {}
    for receipt in found:
        for step, took in receipt["setup_us"].items():
            steps.setdefault(step, []).append(took)
    table = {step: statistics.median(values) for step, values in steps.items()}
    table["wall"] = statistics.median(receipt["wall_us"] for receipt in found)
    table["CPU"] = statistics.median(receipt["cpu_us"] for receipt in found)
    return table


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=300)
    jobs = parser.parse_args().jobs
    slot, anew = medians(receipts(jobs)), medians(receipts(jobs, "--sandbox-reused-runs", "1"))
    print("| step, us | in a slot that has served | everything anew |\n|---|---|---|")
    for step in sorted(anew, key=lambda step: (step in ("wall", "CPU", "prewarmed"), -anew[step])):
        print(f"| {step} | {slot[step]:.0f} |" if step in slot else f"| {step} | - |", f"{anew[step]:.0f} |")


if __name__ == "__main__":
    main()
