#!/usr/bin/python3
"""Counts the cost of the whole path of a job, one job at a time, with a real agent and its Redis. The counts do not depend on the speed of
the machine. Exit code 1: a count exceeds that of way.txt by more than its tolerance.

  KIND.switches.PART        voluntary context switches per 100 jobs
  KIND.start.PART, .end.PART  the same from the claim to the first line of the script, and from its last line to the agent's notification.
                              The job's last sleep is that of the script: a count above one means wake-ups before it.
  KIND.faults.sandbox, KIND.redis.commands, .scripts, KIND.system_calls

Usage: way.py PROGRAM [--write]. --write stores the counts as the expected counts; `./dev counts` builds and does that.
A lower count is reported but accepted: a busy machine finds work where an idle machine waits for it.
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
from dev_agent import comm_of, descendants, switches_of  # noqa: E402

FILE = os.path.join(HERE, "way.txt")
BATCHES, JOBS = 9, 25
TRACES = 3  # traces of JOBS jobs each
AGAIN = 2  # repetitions if a count exceeds its limit, for busy machines
SLEEPS, SLEEP_S = 15, 0.4  # jobs that sleep between start and end, so both can be measured separately
WARM = ("policy", '{"warm":{"runs":1000000}}')
KINDS = {"fresh": ("pass", ()), "warm": ("def main(job):\n    pass\n", WARM)}
SLEEPERS = {"fresh": (f"import time\ntime.sleep({SLEEP_S})", ()), "warm": (f"import time\ndef main(job):\n    time.sleep({SLEEP_S})\n", WARM)}
PARTS = {"mycojobs": "agent", "mycojobs-launch": "launcher", "init": "init", "python": "job", "redis-server": "redis"}


def faults_of(pid):
    """Returns minor page faults, including those of children that were waited for."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[7]) + int(fields[8])


def switches(agent):
    """{pid: (part, switches so far)}"""
    seen = {}
    for pid in descendants(agent.process.pid):
        try:
            part = PARTS.get(comm_of(pid))
            if part is not None:
                seen[pid] = part, switches_of(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass  # the process has just ended
    return seen


def difference(before, after):
    """Returns the difference by part, for processes that lived during the whole interval."""
    found = dict.fromkeys(PARTS.values(), 0)
    for pid, (part, count) in after.items():
        if pid in before:
            found[part] += count - before[pid][1]
    return found


def look(agent):
    """Returns the counts so far, by name."""
    seen = {"faults.sandbox": 0}
    for pid in descendants(agent.process.pid):
        try:
            if comm_of(pid) not in ("mycojobs", "mycojobs-launch") and agent.is_below_launcher(pid):
                seen["faults.sandbox"] += faults_of(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass  # the process has just ended
    for line in agent.redis.call("INFO", "commandstats").decode().split():
        name, _, rest = line.partition(":")
        if name.startswith("cmdstat_") and name not in ("cmdstat_info", "cmdstat_select"):
            calls = int(rest.partition("calls=")[2].partition(",")[0])
            kind = "redis.scripts" if name == "cmdstat_evalsha" else "redis.commands"
            seen[kind] = seen.get(kind, 0) + calls
    return seen


class Way(dev_agent.Agent):
    def __init__(self, kind, settings):
        self.kind = kind
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
            if comm_of(pid) == "mycojobs-launch":
                return True
        return False

    def batch(self):
        """Returns the cost of one job, averaged over JOBS."""
        slept, before = switches(self), look(self)
        for _ in range(JOBS):
            self.one()
        time.sleep(0.05)  # waits for the work after the end of a job
        after, sleeps = look(self), difference(slept, switches(self))
        if self.kind == "fresh":
            del sleeps["job"]  # each job is a different process
        costs = {f"switches.{part}": count for part, count in sleeps.items()}
        costs.update((name, after[name] - before[name]) for name in after)
        return {name: count / JOBS for name, count in costs.items()}

    def halves(self):
        """Returns the switches until a script begins, and after its end."""
        self.script, self.fields = SLEEPERS[self.kind]
        self.one()  # creates the process of the warm script
        found = []
        for _ in range(SLEEPS):
            time.sleep(0.05)
            idle = switches(self)
            number, self.next = self.next, self.next + 1
            self.redis.pipeline(dev_agent.await_commands(number) + self.commands(number))
            time.sleep(SLEEP_S / 2)
            running = switches(self)
            self.wait_for(number)
            time.sleep(0.05)
            ended = switches(self)
            start, end = difference(idle, running), difference(running, ended)
            found.append({"start.launcher": start["launcher"], "start.init": start["init"], "start.job": start["job"],
                          "end.init": end["init"], "end.launcher": end["launcher"]})
        self.script, self.fields = KINDS[self.kind]
        return {name: statistics.median(each[name] for each in found) for name in found[0]}

    def wait_for(self, number):
        self.redis.call("XREAD", "BLOCK", 20000, "STREAMS", f"mj:log:job:9:{number}", "0")
        assert self.redis.call("HGET", f"job:9:{number}", "status") == b"finished", self.redis.call("HGETALL", f"job:9:{number}")

    def system_calls(self):
        """Returns the system calls of all processes and Redis for each of JOBS jobs, counted by strace. None: strace is not permitted."""
        with tempfile.NamedTemporaryFile() as out:
            arguments = [word for pid in descendants(self.process.pid) for word in ("-p", str(pid))]
            tracer = subprocess.Popen(["strace", "-f", "-c", "-o", out.name, *arguments], stderr=subprocess.PIPE, text=True)
            attached = 0
            while attached < len(arguments) // 2:
                line = tracer.stderr.readline()
                if not line:  # no permission, or not for all processes
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
    """Returns name -> count per 100 jobs."""
    dev_agent.MYCOJOBS = os.path.abspath(program)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # the same number of CPUs on all machines
    counts = {}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write("[ceiling]\nwarm.runs = 1000000\n")
        settings.flush()
        for kind in KINDS:
            agent = Way(kind, settings.name)
            try:
                for _ in range(40):  # the first jobs find no warm process
                    agent.one()
                batches = [agent.batch() for _ in range(BATCHES)]
                # The median counts for processes that wait only for their job. For the others the minimum counts: on a
                # busy machine the agent polls more often, which is not a cost of the job.
                costs = {name: (statistics.median if name in ("switches.launcher", "switches.init") else min)(
                    batch[name] for batch in batches) for name in batches[0]}
                costs.update(agent.halves())
                counts.update((f"{kind}.{name}", round(100 * cost)) for name, cost in costs.items())
                calls = [agent.system_calls() for _ in range(TRACES)]
                if None not in calls:
                    counts[f"{kind}.system_calls"] = round(100 * min(calls))
            finally:
                agent.stop()
    return counts


def by_kind(counts):
    """{kind: {"switches": {"agent": count per job, ...}, ..., "system_calls": ...}}"""
    found = {}
    for name, count in counts.items():
        place, *path = found, *name.split(".")
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = count / 100
    return found


def untraced(expected, got):
    """Returns the counts that needed strace and are missing."""
    return [name for name in expected.counts if name.endswith(".system_calls") and name not in got]


def compared(expected, got):
    return [row for row in compare(expected, got) if row[0] not in untraced(expected, got)]


def costs_more(expected, got):
    return any(wrong and not wrong.startswith("costs less") for *_, wrong in compared(expected, got))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with open(FILE, encoding="utf-8") as file:
        expected = Expected(file.read())
    got = count(options.program)
    for _ in range(0 if options.write else AGAIN):
        if not costs_more(expected, got):
            break
        got = {name: min(costs, got.get(name, costs)) for name, costs in count(options.program).items()}
    missing = untraced(expected, got)
    if missing and options.write:
        sys.exit("strace cannot attach here: not all is counted, and nothing is written")
    print(table(compared(expected, got)))
    if options.write:
        with open(FILE, "w", encoding="utf-8") as file:
            file.write(expected.text(got))
        return 0
    if costs_more(expected, got):
        print(f"\nMore than {expected.tolerance:g} % over. If it is meant: `./dev counts` writes tests/instructions/way.txt; commit it with its reason.")
        return 1
    if missing:  # CI fails unless a row of tests/ledger/skips.txt permits this
        print(f"strace cannot attach here, so that {', '.join(missing)} are not counted\n[  SKIPPED ] WayCounts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
