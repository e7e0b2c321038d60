#!/usr/bin/python3
"""What the whole way of a job costs, counted: switches, page faults, system calls, commands of Redis; one job at a time, through a real agent
and its Redis. Exit 1 if a count is over what way.txt has by more than its tolerance: these do not depend on how fast the machine is.

Usage: way.py PROGRAM [--write]. --write makes the counts the expected ones; `./dev counts` builds and does that.
A count that is lower is said, not refused: a busy machine finds work where a quiet one waits for it.
"""
import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../bench"))
import dev_agent  # noqa: E402
from counts import Expected, compare, table  # noqa: E402

FILE = os.path.join(HERE, "way.txt")
BATCHES, JOBS = 9, 25  # the median of as many batches counts
KINDS = {"fresh": ("pass", ()), "warm": ("def main(job):\n    pass\n", ("policy", '{"warm":{"runs":1000000}}'))}
PARTS = {"mycojobs": "agent", "mycojobs-launch": "launcher"}


def descendants(pid):
    found = [pid]
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
                for child in children.read().split():
                    found += descendants(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has just ended
    return found


def switches_of(pid):
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as status:
            total += next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches:"))
    return total


def faults_of(pid):
    """Small faults, of its children too that have been waited for."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[7]) + int(fields[8])


def look(agent):
    """Counts so far, by name."""
    seen = {"switches.agent": 0, "switches.launcher": 0, "faults.sandbox": 0}
    for pid in descendants(agent.process.pid):
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                part = PARTS.get(comm.read().strip())
            if part is not None:
                seen[f"switches.{part}"] += switches_of(pid)
            elif agent.is_below_launcher(pid):
                seen["faults.sandbox"] += faults_of(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended
    for line in agent.redis.call("INFO", "commandstats").decode().split():
        name, _, rest = line.partition(":")
        if name.startswith("cmdstat_") and name not in ("cmdstat_info", "cmdstat_select"):
            calls = int(rest.partition("calls=")[2].partition(",")[0])
            kind = "redis.scripts" if name == "cmdstat_evalsha" else "redis.commands"
            seen[kind] = seen.get(kind, 0) + calls
    return seen


class Way(dev_agent.Agent):
    def __init__(self, kind, settings):
        self.script, self.fields = KINDS[kind]
        super().__init__(2, "--config", settings, "--api-listen", "")

    def commands(self, number):
        key = f"job:9:{number}"
        return [("HSET", key, "id", number, "caller_id", 9, "context_id", 1, "script", self.script, "script_type", "python", "timeout", 60,
                 "status", "dispatched", *self.fields), ("LPUSH", "queue:python", key)]

    def is_below_launcher(self, pid):
        while pid > 1 and pid != self.process.pid:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                pid = int(stat.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                if comm.read().strip() == "mycojobs-launch":
                    return True
        return False

    def system_calls(self):
        """Of all processes, Redis too, for each of JOBS jobs: under strace, which changes their time and not their number. None: it may not."""
        with tempfile.NamedTemporaryFile() as out:
            arguments = [word for pid in descendants(self.process.pid) for word in ("-p", str(pid))]
            tracer = subprocess.Popen(["strace", "-f", "-c", "-o", out.name, *arguments], stderr=subprocess.PIPE, text=True)
            attached = 0
            while attached < len(arguments) // 2:
                line = tracer.stderr.readline()
                if not line:  # no right to it, or none for all
                    print("strace cannot attach here: system calls are not counted")
                    return None
                attached += " attached" in line
            for _ in range(JOBS):
                self.one()
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=60)
            with open(out.name, encoding="utf-8") as text:
                total = next(line.split() for line in text if line.rstrip().endswith(" total"))
        return int(total[3]) / JOBS


def count(program):
    """Name -> of 100 jobs."""
    dev_agent.MYCOJOBS = os.path.abspath(program)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # everywhere alike
    counts = {}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write("[ceiling]\nwarm.runs = 1000000\n")
        settings.flush()
        for kind in KINDS:
            agent = Way(kind, settings.name)
            try:
                for _ in range(40):  # the first ones find nothing warm
                    agent.one()
                batches = []
                for _ in range(BATCHES):
                    before = look(agent)
                    for _ in range(JOBS):
                        agent.one()
                    time.sleep(0.05)  # what comes after an end has come
                    after = look(agent)
                    batches.append({name: (after[name] - before[name]) / JOBS for name in after})
                for name in batches[0]:
                    counts[f"{kind}.{name}"] = round(100 * statistics.median(batch[name] for batch in batches))
                calls = agent.system_calls()
                if calls is not None:
                    counts[f"{kind}.system_calls"] = round(100 * calls)
            finally:
                agent.stop()
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with open(FILE, encoding="utf-8") as file:
        expected = Expected(file.read())
    got = count(options.program)
    rows = [row for row in compare(expected, got) if row[2] is not None]
    print(table(rows))
    if options.write:
        with open(FILE, "w", encoding="utf-8") as file:
            file.write(expected.text(got))
        return 0
    if any(wrong and not wrong.startswith("costs less") for *_, wrong in rows):
        print(f"\nMore than {expected.tolerance:g} % over. If it is meant: `./dev counts` writes tests/instructions/way.txt; commit it with its reason.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
