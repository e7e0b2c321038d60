#!/usr/bin/python3
"""First figures: no-op Python jobs with the whole sandbox, beside bubblewrap starting `python3 -c pass`, in one run.

Writes bench/first.md. Takes about a minute. Usage: bench/first.py [--jobs N] [--rounds N]
"""
import argparse
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MYCOJOBS = os.path.join(ROOT, "build/bin/mycojobs")
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", "--symlink",
         "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin", "--proc", "/proc",
         "--dev", "/dev", "--tmpfs", "/tmp", "/usr/bin/python3", "-c", "pass"]


class Redis:
    """As much of the protocol as this needs, on a unix socket."""

    def __init__(self, path, database):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.reader = self.socket.makefile("rb")
        self.call("SELECT", database)

    @staticmethod
    def encode(*words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        return b"".join(parts)

    def answer(self):
        line = self.reader.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.reader.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.answer() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def call(self, *words):
        self.socket.sendall(self.encode(*words))
        return self.answer()

    def pipeline(self, commands):
        self.socket.sendall(b"".join(self.encode(*words) for words in commands))
        return [self.answer() for _ in commands]


def submit_commands(number, script="pass"):
    key = f"job:9:{number}"
    return [("HSET", key, "id", number, "caller_id", 9, "context_id", 1, "script", script, "script_type", "python",
             "timeout", 60, "status", "dispatched"), ("LPUSH", "queue:python", key)]


class Agent:
    def __init__(self, slots, *arguments):
        self.state = tempfile.mkdtemp(prefix="mycojobs-bench-")
        self.process = subprocess.Popen([MYCOJOBS, "dev", "--state-dir", self.state, "--slots", str(slots), "--log-level", "error", *arguments])
        path = os.path.join(self.state, "redis/redis.sock")
        deadline = time.monotonic() + 10
        while True:
            try:
                self.redis = Redis(path, 1)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self.next = 1
        self.one()  # the agent is up when a job has gone through

    def one(self):
        """Submit to result, in seconds."""
        number, self.next = self.next, self.next + 1
        start = time.perf_counter()
        self.redis.pipeline(submit_commands(number))
        self.redis.call("XREAD", "BLOCK", 20000, "STREAMS", f"mj:log:job:9:{number}", "0")
        took = time.perf_counter() - start
        assert self.redis.call("HGET", f"job:9:{number}", "status") == b"finished", self.redis.call("HGETALL", f"job:9:{number}")
        return took

    def drain(self, count):
        """Jobs a second, from the first submission to the last end."""
        first, self.next = self.next, self.next + count
        commands = [command for number in range(first, first + count) for command in submit_commands(number)]
        start = time.perf_counter()
        self.redis.pipeline(commands)
        # Few questions, so that asking costs little: first whether all are taken, then whether all have ended.
        while self.redis.call("LLEN", "queue:python") or self.redis.call("ZCARD", "mj:leases"):
            time.sleep(0.01)
        took = time.perf_counter() - start
        statuses = self.redis.pipeline([("HGET", f"job:9:{n}", "status") for n in range(first, first + count)])
        assert statuses == [b"finished"] * count, "not every job finished"
        return count / took

    def memory(self):
        """Proportional resident memory of the agent, its launcher and hosts (Redis apart), in MiB."""
        pids, found = [self.process.pid], {}
        while pids:
            pid = pids.pop()
            name = open(f"/proc/{pid}/comm").read().strip()
            if not name.startswith("redis"):
                pss = [line for line in open(f"/proc/{pid}/smaps_rollup") if line.startswith("Pss:")][0]
                found[name] = found.get(name, 0) + int(pss.split()[1]) / 1024
            for task in os.listdir(f"/proc/{pid}/task"):
                pids += [int(child) for child in open(f"/proc/{pid}/task/{task}/children").read().split()]
        return found

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        shutil.rmtree(self.state)


def bwrap_rate(count, parallel=2):
    running, started, start = [], 0, time.perf_counter()
    while started < count or running:
        while started < count and len(running) < parallel:
            running.append(subprocess.Popen(BWRAP))
            started += 1
        assert running.pop(0).wait() == 0
    return count / (time.perf_counter() - start)


def bwrap_one():
    start = time.perf_counter()
    subprocess.run(BWRAP, check=True)
    return time.perf_counter() - start


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    agent = Agent(slots=4)
    try:
        ours, theirs, our_times, their_times = [], [], [], []
        for _ in range(options.rounds):
            ours.append(agent.drain(options.jobs))
            theirs.append(bwrap_rate(options.jobs // 8))
            our_times += [agent.one() for _ in range(200)]
            their_times += [bwrap_one() for _ in range(60)]
        time.sleep(1)
        memory = agent.memory()
    finally:
        agent.stop()
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    redis = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout.split()[2]
    ms = lambda seconds: f"{seconds * 1e3:.2f} ms"
    page = f"""# First figures

`./dev bench`, {options.rounds} rounds in turn (ours, bubblewrap, ours, ...), {options.jobs} jobs a round; medians. Redis with appendonly yes, appendfsync everysec.
Machine: {os.cpu_count()} x {cpu}, Linux {platform.release()}, Redis {redis}, {time.strftime("%Y-%m-%d")}.
Ours is the whole path: submit, claim, sandbox, result, each job in a fresh process with every layer on. bubblewrap starts
`python3 -c pass` in fresh namespaces, without Redis, seccomp, Landlock or limits.

| | mycojobs | bubblewrap + python3 | ratio |
|---|---|---|---|
| no-op Python jobs a second, 2 cores | {statistics.median(ours):.0f} ({min(ours):.0f} to {max(ours):.0f}) | {statistics.median(theirs):.0f} ({min(theirs):.0f} to {max(theirs):.0f}) | {statistics.median(ours) / statistics.median(theirs):.1f} |
| one at a time, p50 | {ms(statistics.median(our_times))} | {ms(statistics.median(their_times))} | {statistics.median(their_times) / statistics.median(our_times):.1f} |
| one at a time, p99 | {ms(quantile(our_times, 0.99))} | {ms(quantile(their_times, 0.99))} | {quantile(their_times, 0.99) / quantile(our_times, 0.99):.1f} |

Idle agent with its helpers, proportional resident memory: {sum(memory.values()):.1f} MiB ({", ".join(f"{name} {size:.1f}" for name, size in sorted(memory.items()))}).
"""
    with open(os.path.join(ROOT, "bench/first.md"), "w") as file:
        file.write(page)
    print(page)


if __name__ == "__main__":
    main()
