#!/usr/bin/python3
"""What the spares gain: no-op Python jobs, one at a time and in bulk, with and without them in turn, in one run.

Writes bench/spares.md. Takes about a minute. Usage: bench/spares.py [--rounds N]
"""
import argparse
import os
import statistics

from first import ROOT, Agent, quantile


def measure(spares):
    os.environ["MYCOJOBS_SANDBOX_SPARES"] = str(spares)
    agent = Agent(4)
    try:
        for _ in range(30):
            agent.one()
        trips = sorted(agent.one() * 1000 for _ in range(200))
        return statistics.median(trips), quantile(trips, 0.99), agent.drain(1500)
    finally:
        agent.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    seen = {0: [], 8: []}
    for _ in range(rounds):
        for spares, rows in seen.items():
            rows.append(measure(spares))
    lines = ["# What the spares gain", "", f"Medians of {rounds} rounds, with and without in turn (range); bench/spares.py repeats it.", "",
             "| | without | with 8 | ratio |", "|---|---|---|---|"]
    for name, column, unit in (("round trip, median", 0, "ms"), ("round trip, p99", 1, "ms"), ("drain", 2, "jobs/s")):
        values = {spares: [row[column] for row in rows] for spares, rows in seen.items()}
        cells = [f"{statistics.median(each):.1f} {unit} ({min(each):.1f} to {max(each):.1f})" for each in values.values()]
        ratio = statistics.median(values[8]) / statistics.median(values[0])
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} |")
    text = "\n".join(lines) + "\n"
    with open(os.path.join(ROOT, "bench/spares.md"), "w", encoding="utf-8") as file:
        file.write(text)
    print(text)


if __name__ == "__main__":
    main()
