#!/usr/bin/python3
"""Moves files between two hosts while agents and Redis are killed, and measures the memory and the append-only file of Redis.

Hosts are network namespaces below one that this program makes for itself: one with Redis and the coordinator, and two with an agent and a state
folder each. A file is an artifact of a job on one host, and the input of a job on the other, half of them in each direction. The second job compares
its hash with the result of the first. Every few seconds SIGKILL ends an agent or Redis, which starts again at once. Needs root.
Usage: bench/transfers.py [--files N] [--mebibytes N] [--at-once N] [--kill-every S] [--limit S] [--seed S] [--folder FOLDER]
"""
import argparse
import collections
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from dev_agent import MYCOJOBS, Redis

ADDRESS, PORT = "10.99.0.1", 6379
SETTINGS = """
[executors.bash]
command = ["/bin/bash", "{script}"]
"""
MAKE_PYTHON = """
import hashlib, mycojobs, os
digest = hashlib.sha256()
with open(mycojobs.artifacts / "file", "wb") as file:
    for _ in range(int(os.environ["MEBIBYTES"])):
        block = os.urandom(1 << 20)
        digest.update(block)
        file.write(block)
result["sha256"] = digest.hexdigest()
"""
MAKE_BASH = """
head -c "${MEBIBYTES}M" /dev/urandom > "$MYCOJOBS_ARTIFACTS/file"
set -- $(sha256sum "$MYCOJOBS_ARTIFACTS/file")
echo "sha256=$1" >> "$MYCOJOBS_RESULT"
"""
CHECK_PYTHON = """
import hashlib, os
digest = hashlib.sha256()
with open("/job/inputs/make/file", "rb") as file:
    while block := file.read(1 << 20):
        digest.update(block)
assert digest.hexdigest() == os.environ["EXPECTED"], "another file has arrived"
"""
CHECK_BASH = """
set -- $(sha256sum /job/inputs/make/file)
[ "$1" = "$EXPECTED" ]
"""


def indent(text):
    return text.strip().replace("\n", "\n      ")


def definition(mebibytes, maker, checker):
    scripts = {"python": (MAKE_PYTHON, CHECK_PYTHON), "bash": (MAKE_BASH, CHECK_BASH)}
    return f"""name: transfer
env: {{MEBIBYTES: "{mebibytes}"}}
defaults: {{timeout: 10m, policy: {{file_size: {mebibytes}MiB}}}}
jobs:
  make:
    type: {maker}
    script: |
      {indent(scripts[maker][0])}
  check:
    type: {checker}
    needs: make
    inputs: make/file
    env: {{EXPECTED: "${{make.sha256}}"}}
    script: |
      {indent(scripts[checker][1])}
"""


def run(*words):
    subprocess.run(words, check=True)


class Hosts:
    """The network namespaces, and the processes in them."""

    def __init__(self, folder, arguments):
        self.folder, self.arguments, self.sleepers, self.processes, self.starts = folder, arguments, {}, {}, collections.Counter()

    def create(self):
        folder, arguments = self.folder, self.arguments
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge0", "type", "bridge")
        run("ip", "address", "add", f"{ADDRESS}/24", "dev", "bridge0")
        run("ip", "link", "set", "bridge0", "up")
        for number, host in enumerate(("first", "second"), 2):
            sleeper = self.sleepers[host] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            own = os.readlink("/proc/self/ns/net")
            while os.readlink(f"/proc/{sleeper.pid}/ns/net") == own:
                time.sleep(0.01)
            run("ip", "link", "add", f"to-{host}", "type", "veth", "peer", "name", "eth0", "netns", str(sleeper.pid))
            run("ip", "link", "set", f"to-{host}", "master", "bridge0", "up")
            for command in (["link", "set", "lo", "up"], ["address", "add", f"10.99.0.{number}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
                run("nsenter", "--net", "-t", str(sleeper.pid), "ip", *command)
        with open(f"{folder}/agent.toml", "w", encoding="ascii") as file:
            file.write(SETTINGS)
        memory = f"{3 * arguments.mebibytes + 256}MiB"
        limit = f"{arguments.mebibytes + 8}MiB"
        common = ["--redis", f"redis://{ADDRESS}:{PORT}", "--log-level", "warn"]
        agent = ["--config", f"{folder}/agent.toml", "--slots", "2", "--lease", "5s", "--retention", "30s", "--job-max-deliveries", "100",
                 "--job-max-artifact-bytes", limit, "--sandbox-tmp", limit, "--sandbox-memory", memory, "--quota-caller-artifact-bytes", "20GiB",
                 "--quota-context-artifact-bytes", "20GiB", "--artifacts-cache-bytes", "1GiB"]
        self.commands = {
            "redis": ["redis-server", "--bind", ADDRESS, "--port", str(PORT), "--unixsocket", f"{folder}/redis.sock", "--dir", folder, "--save", "",
                      "--appendonly", "yes", "--appendfsync", "always", "--protected-mode", "no", "--logfile", f"{folder}/redis.log"],
            "coordinator": [MYCOJOBS, "coordinator", *common, "--state-dir", f"{folder}/coordinator", "--retention", "30s"]}
        for number, (host, types) in enumerate((("first", "python"), ("second", "bash")), 30):
            self.commands[host] = ["nsenter", "--net", "-t", str(self.sleepers[host].pid), MYCOJOBS, "agent", *common, *agent, "--runner", str(number),
                                   "--script-types", types, "--state-dir", f"{folder}/{host}"]

    def start(self, name):
        self.starts[name] += 1
        with open(f"{self.folder}/{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(self.commands[name], stdout=log, stderr=log)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def connect(self):
        deadline = time.monotonic() + 30
        while True:
            try:
                client = Redis(f"{self.folder}/redis.sock", 1)
                client.call("PING")
                return client
            except (OSError, RuntimeError, ValueError):  # starting, or reading its append-only file
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self):
        for name in reversed(list(self.processes)):
            process = self.processes[name]
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for sleeper in self.sleepers.values():
            sleeper.kill()
            sleeper.wait()


class Measurement:
    def __init__(self, hosts, arguments):
        self.hosts, self.arguments, self.random = hosts, arguments, random.Random(arguments.seed)
        self.peak_memory, self.aof_bytes, self.started, self.finished, self.open, self.failed = 0, 0, 0, 0, [], []
        self.client = hosts.connect()
        self.memory_start = self.memory()

    def memory(self, name="used_memory"):
        return int(re.search(name.encode() + rb":(\d+)", self.client.call("INFO", "memory")).group(1))

    def observe(self):
        # Redis measures its maximum itself, since its start.
        self.peak_memory = max(self.peak_memory, self.memory("used_memory_peak"))
        folder = f"{self.hosts.folder}/appendonlydir"
        self.aof_bytes = sum(os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder))

    def start_flow(self):
        path = f"{self.hosts.folder}/{('to-second', 'to-first')[self.started % 2]}.yaml"
        done = subprocess.run([MYCOJOBS, "flow", "start", "--detach", "--redis", f"redis://{ADDRESS}:{PORT}", "--key", f"file {self.started}", path],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"flow {self.started} is submitted again: {done.stderr.strip()}", file=sys.stderr, flush=True)
            return time.sleep(0.2)
        self.started += 1
        self.open.append(done.stdout.split()[0])

    def check_flows(self):
        for key in list(self.open):
            status = self.client.call("HGET", key, "status")
            if status == b"finished":
                self.finished += 1
            elif status == b"error" or status is None:
                self.failed.append(key)
                print(subprocess.run([MYCOJOBS, "flow", "show", "--redis", f"redis://{ADDRESS}:{PORT}", key], capture_output=True, text=True,
                                     check=False).stdout, file=sys.stderr, flush=True)
            else:
                continue
            self.open.remove(key)

    def kill_one(self):
        name = self.random.choice(["first", "second", "redis"])
        self.hosts.kill(name)
        self.hosts.start(name)
        if name == "redis":
            self.client = self.hosts.connect()

    def run(self):
        start = time.monotonic()
        next_kill, next_report = start + self.arguments.kill_every, start + 30
        while self.open or self.started < self.arguments.files:
            if time.monotonic() - start > self.arguments.limit:
                raise SystemExit(f"not finished after {self.arguments.limit:.0f} s: {' '.join(self.open)}")
            if self.started < self.arguments.files and len(self.open) < self.arguments.at_once:
                self.start_flow()
            self.check_flows()
            self.observe()
            now = time.monotonic()
            if self.arguments.kill_every and now > next_kill:
                self.kill_one()
                next_kill = time.monotonic() + self.arguments.kill_every * self.random.uniform(0.5, 1.5)
            if now > next_report:
                print(f"{now - start:.0f} s: {self.finished} of {self.arguments.files} files, {dict(self.hosts.starts)}", file=sys.stderr, flush=True)
                next_report = now + 30
            time.sleep(0.1)
        seconds = time.monotonic() - start
        mebibyte = 1 << 20
        starts = self.hosts.starts
        print("| files | size | seconds | finished | failed | kills of agents | kills of Redis | memory of Redis, start and maximum | append-only file |")
        print("|---|---|---|---|---|---|---|---|---|")
        print(f"| {self.arguments.files} | {self.arguments.mebibytes} MiB | {seconds:.0f} | {self.finished} | {len(self.failed)} | "
              f"{starts['first'] + starts['second'] - 2} | {starts['redis'] - 1} | {self.memory_start / mebibyte:.1f} and "
              f"{self.peak_memory / mebibyte:.1f} MiB | {self.aof_bytes / mebibyte:.1f} MiB |")
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--mebibytes", type=int, default=200, help="size of a file")
    parser.add_argument("--at-once", type=int, default=4, help="flows at the same time")
    parser.add_argument("--kill-every", type=float, default=10, help="seconds between two kills on average; 0: none")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which the measurement fails")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="existing folder for all files; default: a new one below the temporary folder")
    arguments = parser.parse_args()
    if not os.environ.get("MYCOJOBS_TRANSFERS_INSIDE"):
        os.execvpe("unshare", ["unshare", "--net", sys.executable, os.path.abspath(__file__), *sys.argv[1:]],
                   {**os.environ, "MYCOJOBS_TRANSFERS_INSIDE": "1"})
    with tempfile.TemporaryDirectory(prefix="mj-transfers-", dir=arguments.folder) as folder:
        os.chmod(folder, 0o755)
        for name, types in (("to-second", ("python", "bash")), ("to-first", ("bash", "python"))):
            with open(f"{folder}/{name}.yaml", "w", encoding="ascii") as file:
                file.write(definition(arguments.mebibytes, *types))
        hosts = Hosts(folder, arguments)
        try:
            hosts.create()
            hosts.start("redis")
            measurement = Measurement(hosts, arguments)
            for name in ("coordinator", "first", "second"):
                hosts.start(name)
            return measurement.run()
        finally:
            hosts.stop()


if __name__ == "__main__":
    sys.exit(main())
