#!/usr/bin/python3
"""Transfers files between two hosts while agents and Redis are killed. Measures the memory and the append-only file of Redis.

The hosts are network namespaces. The outer namespace contains Redis and the coordinator. Each of two inner namespaces contains an agent with its own
state folder.

Each file is an artifact of a job on one host and an input of a job on the other host. Half of the files are transferred in each direction. The second
job compares the hash of its input with the hash that the first job has computed. At intervals, SIGKILL ends a random agent or Redis, which is restarted
immediately. The program needs root, and exits with 1 if a flow fails.

With --compare, nothing is killed: a command outside of the namespaces receives a file of the first host, through Redis and over HTTPS in turn, at an
unlimited rate. The values are medians of one file; memory is the maximum of a process.

Usage: bench/transfers.py [--compare ROUNDS] [--files N] [--mebibytes N] [--max-flows N] [--kill-every S] [--timeout S] [--seed S] [--folder FOLDER]
"""
import argparse
import collections
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

from dev_agent import MYCOJOBS, Redis, cpu_of, end_process

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


def format_flow_definition(mebibytes, maker, checker):
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


class TestCluster:
    """The network namespaces with Redis, the coordinator and two agents."""

    def __init__(self, folder, arguments):
        self.folder, self.arguments, self.namespace_processes, self.processes, self.starts = folder, arguments, {}, {}, collections.Counter()

    def create(self):
        folder, arguments = self.folder, self.arguments
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge0", "type", "bridge")
        run("ip", "address", "add", f"{ADDRESS}/24", "dev", "bridge0")
        run("ip", "link", "set", "bridge0", "up")
        for number, host in enumerate(("first", "second"), 2):
            namespace_process = self.namespace_processes[host] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            own_namespace = os.readlink("/proc/self/ns/net")
            while os.readlink(f"/proc/{namespace_process.pid}/ns/net") == own_namespace:
                time.sleep(0.01)
            run("ip", "link", "add", f"to-{host}", "type", "veth", "peer", "name", "eth0", "netns", str(namespace_process.pid))
            run("ip", "link", "set", f"to-{host}", "master", "bridge0", "up")
            for command in (["link", "set", "lo", "up"], ["address", "add", f"10.99.0.{number}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
                run("nsenter", "--net", "-t", str(namespace_process.pid), "ip", *command)
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
            self.commands[host] = ["nsenter", "--net", "-t", str(self.namespace_processes[host].pid), MYCOJOBS, "agent", *common, *agent,
                                   "--runner", str(number), "--script-types", types, "--state-dir", f"{folder}/{host}"]

    def use_https(self, is_used):
        """Adds or removes the HTTPS listeners of the agents, which are not running. Sets the rate to unlimited."""
        for number, host in enumerate(("first", "second"), 2):
            command = self.commands[host]
            if "--artifacts-transfer-rate" in command:
                del command[command.index("--artifacts-transfer-rate"):]
            command += ["--artifacts-transfer-rate", "0"] + (["--artifacts-listen", f"10.99.0.{number}:7443"] if is_used else [])

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
            except (OSError, RuntimeError, ValueError):  # Redis is starting, or is reading its append-only file
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self):
        for name in reversed(list(self.processes)):
            end_process(self.processes[name])
        for namespace_process in self.namespace_processes.values():
            namespace_process.kill()
            namespace_process.wait()


class Measurement:
    """Submits the flows, kills processes, and prints the measured values."""

    def __init__(self, cluster, arguments):
        self.cluster, self.arguments, self.random = cluster, arguments, random.Random(arguments.seed)
        self.peak_memory, self.aof_bytes = 0, 0  # maximum memory of Redis, and the latest size of its append-only file
        self.started, self.finished, self.open_flows, self.failed_flows = 0, 0, [], []  # numbers of flows, and keys of flows
        self.client = cluster.connect()
        self.initial_memory = self.read_memory()

    def read_memory(self, name="used_memory"):
        return int(re.search(name.encode() + rb":(\d+)", self.client.call("INFO", "memory")).group(1))

    def sample_redis(self):
        # Redis reports its maximum since its latest start, so the maximum is sampled before a kill resets it.
        self.peak_memory = max(self.peak_memory, self.read_memory("used_memory_peak"))
        folder = f"{self.cluster.folder}/appendonlydir"
        self.aof_bytes = sum(os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder))

    def start_flow(self):
        path = f"{self.cluster.folder}/{('to-second', 'to-first')[self.started % 2]}.yaml"
        completed = subprocess.run([MYCOJOBS, "flow", "start", "--detach", "--redis", f"redis://{ADDRESS}:{PORT}", "--key", f"file {self.started}", path],
                                   capture_output=True, text=True, check=False)
        if completed.returncode != 0:
            print(f"flow {self.started} is submitted again: {completed.stderr.strip()}", file=sys.stderr, flush=True)
            return time.sleep(0.2)
        self.started += 1
        self.open_flows.append(completed.stdout.split()[0])

    def check_flows(self):
        for key in list(self.open_flows):
            status = self.client.call("HGET", key, "status")
            if status == b"finished":
                self.finished += 1
            elif status == b"error" or status is None:
                self.failed_flows.append(key)
                print(subprocess.run([MYCOJOBS, "flow", "show", "--redis", f"redis://{ADDRESS}:{PORT}", key], capture_output=True, text=True,
                                     check=False).stdout, file=sys.stderr, flush=True)
            else:
                continue
            self.open_flows.remove(key)

    def kill_random_process(self):
        name = self.random.choice(["first", "second", "redis"])
        self.cluster.kill(name)
        self.cluster.start(name)
        if name == "redis":
            self.client = self.cluster.connect()

    def run(self):
        start = time.monotonic()
        next_kill, next_report = start + self.arguments.kill_every, start + 30
        while self.open_flows or self.started < self.arguments.files:
            if time.monotonic() - start > self.arguments.timeout:
                raise SystemExit(f"not finished after {self.arguments.timeout:.0f} s: {' '.join(self.open_flows)}")
            if self.started < self.arguments.files and len(self.open_flows) < self.arguments.max_flows:
                self.start_flow()
            self.check_flows()
            self.sample_redis()
            now = time.monotonic()
            if self.arguments.kill_every and now > next_kill:
                self.kill_random_process()
                next_kill = time.monotonic() + self.arguments.kill_every * self.random.uniform(0.5, 1.5)
            if now > next_report:
                print(f"{now - start:.0f} s: {self.finished} of {self.arguments.files} files, {dict(self.cluster.starts)}", file=sys.stderr, flush=True)
                next_report = now + 30
            time.sleep(0.1)
        seconds = time.monotonic() - start
        mebibyte = 1 << 20
        starts = self.cluster.starts
        print("| files | size | seconds | finished | failed | kills of agents | kills of Redis | memory of Redis, start and maximum | append-only file |")
        print("|---|---|---|---|---|---|---|---|---|")
        print(f"| {self.arguments.files} | {self.arguments.mebibytes} MiB | {seconds:.0f} | {self.finished} | {len(self.failed_flows)} | "
              f"{starts['first'] + starts['second'] - 2} | {starts['redis'] - 1} | {self.initial_memory / mebibyte:.1f} and "
              f"{self.peak_memory / mebibyte:.1f} MiB | {self.aof_bytes / mebibyte:.1f} MiB |")
        return 1 if self.failed_flows else 0


def read_peak_memory(process):
    """Returns the maximum memory of a process in bytes. Agents are started by nsenter, which is replaced by the agent."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) * 1024


class Comparison:
    """Transfers files through Redis and over HTTPS in turn, and prints the measured values of both."""

    def __init__(self, cluster, arguments):
        self.cluster, self.arguments, self.number = cluster, arguments, 0
        self.values = {way: collections.defaultdict(list) for way in ("redis", "https")}

    def store_file(self, client):
        """Returns the key of a job of the first host that has stored a file."""
        folder = self.cluster.folder
        for name, text in (("make.py", MAKE_PYTHON), ("policy.toml", f'file_size = "{self.arguments.mebibytes}MiB"\n')):
            with open(f"{folder}/{name}", "w", encoding="ascii") as file:
                file.write(text)
        key = subprocess.run([MYCOJOBS, "job", "submit", f"{folder}/make.py", "--env", f"MEBIBYTES={self.arguments.mebibytes}", "--policy", f"{folder}/policy.toml",
                              "--timeout", "10m", "--redis", f"redis://{ADDRESS}:{PORT}"], check=True, capture_output=True, text=True).stdout.split()[0]
        deadline = time.monotonic() + self.arguments.timeout
        while (status := client.call("HGET", key, "status")) != b"finished":
            if status == b"error" or time.monotonic() > deadline:
                raise SystemExit(f"{key}: {client.call('HGET', key, 'error')}")
            time.sleep(0.02)
        return key

    def receive_file(self, key):
        """Returns the seconds, the CPU seconds and the maximum memory of a command that receives the file of a job."""
        self.number += 1
        path = f"{self.cluster.folder}/received"
        start = time.monotonic()
        process = subprocess.Popen([MYCOJOBS, "job", "artifacts", key, "file", "--output", path, "--redis", f"redis://{ADDRESS}:{PORT}", "--state-dir",
                                    f"{self.cluster.folder}/receiver{self.number}"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        if status != 0:
            raise SystemExit(f"the file of {key} was not received")
        os.unlink(path)
        return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024

    def run_way(self, way):
        self.cluster.use_https(way == "https")
        for name in ("redis", "first"):
            self.cluster.start(name)
        client, values = self.cluster.connect(), self.values[way]
        key = self.store_file(client)
        self.receive_file(key)  # opens the connections
        redis, agent = self.cluster.processes["redis"], self.cluster.processes["first"]
        before = cpu_of(redis.pid), cpu_of(agent.pid)
        for _ in range(self.arguments.files):
            seconds, cpu_seconds, memory = self.receive_file(key)
            for name, value in (("time", seconds), ("receiver CPU", cpu_seconds), ("receiver memory", memory)):
                values[name].append(value)
        values["Redis CPU"].append((cpu_of(redis.pid) - before[0]) / self.arguments.files)
        values["holder CPU"].append((cpu_of(agent.pid) - before[1]) / self.arguments.files)
        values["holder memory"].append(read_peak_memory(agent))
        values["Redis memory"].append(int(re.search(rb"used_memory_peak:(\d+)", client.call("INFO", "memory")).group(1)))
        for name in ("first", "redis"):
            self.cluster.kill(name)

    def run(self):
        for number in range(self.arguments.compare):
            for way in (("redis", "https"), ("https", "redis"))[number % 2]:
                self.run_way(way)
        medians = {way: {name: statistics.median(values) for name, values in all_values.items()} for way, all_values in self.values.items()}
        print(f"| {self.arguments.mebibytes} MiB | time | CPU of Redis | CPU of holder | CPU of receiver | memory of Redis | memory of holder | memory of receiver |")
        print("|---|---|---|---|---|---|---|---|")
        for way, value in medians.items():
            seconds = " | ".join(f"{value[name]:.2f} s" for name in ("time", "Redis CPU", "holder CPU", "receiver CPU"))
            memory = " | ".join(f"{value[name] / (1 << 20):.1f} MiB" for name in ("Redis memory", "holder memory", "receiver memory"))
            print(f"| {way} | {seconds} | {memory} |")
        print(f"\ntime over HTTPS / time through Redis: {medians['https']['time'] / medians['redis']['time']:.2f}")
        return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=int, default=0, metavar="ROUNDS", help="compare Redis and HTTPS; --files is the number of files of each round")
    parser.add_argument("--files", type=int, default=100, help="number of files")
    parser.add_argument("--mebibytes", type=int, default=200, help="size of each file")
    parser.add_argument("--max-flows", type=int, default=4, help="maximum number of flows that run at the same time")
    parser.add_argument("--kill-every", type=float, default=10, help="average seconds between two kills; 0 means no kills")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds after which the program fails if flows are unfinished")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random kills")
    parser.add_argument("--folder", help="existing folder in which a temporary folder is created; default: that of the system")
    arguments = parser.parse_args()
    if not os.environ.get("MYCOJOBS_TRANSFERS_INSIDE"):
        os.execvpe("unshare", ["unshare", "--net", sys.executable, os.path.abspath(__file__), *sys.argv[1:]],
                   {**os.environ, "MYCOJOBS_TRANSFERS_INSIDE": "1"})
    with tempfile.TemporaryDirectory(prefix="mj-transfers-", dir=arguments.folder) as folder:
        os.chmod(folder, 0o755)
        for name, types in (("to-second", ("python", "bash")), ("to-first", ("bash", "python"))):
            with open(f"{folder}/{name}.yaml", "w", encoding="ascii") as file:
                file.write(format_flow_definition(arguments.mebibytes, *types))
        cluster = TestCluster(folder, arguments)
        try:
            cluster.create()
            if arguments.compare:
                return Comparison(cluster, arguments).run()
            cluster.start("redis")
            measurement = Measurement(cluster, arguments)
            for name in ("coordinator", "first", "second"):
                cluster.start(name)
            return measurement.run()
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
