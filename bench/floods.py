#!/usr/bin/python3
"""What one tenant's floods cost another tenant: the time from submission to result of a no-op, beside jobs (or clients) that flood the agent and the
coordinator, over the same beside as many jobs that only burn CPU. Both are measured in turn, in one run of `mycojobs dev` with free slots.

Prints the table of bench/floods.md. Exit 1 if a ratio is over --limit, or a no-op does not end as it must.
Usage: bench/floods.py [--kinds KIND,...] [--seconds N] [--rounds N] [--jobs N] [--together] [--quantile 95|99] [--limit RATIO]
       bench/floods.py --together --kinds pieces,progress,listen,connections,workflows,artifacts,yaml --seconds 900 --rounds 1 --quantile 99 --limit 3
"""
import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from dev_agent import MYCOJOBS, ROOT, Agent, Redis, comm_of, descendants

SECRET = "hunter2-of-the-bench"
PAUSE_S = 0.02  # pause between two no-op jobs, so that the measured tenant causes little load
FLOODER, VICTIM = 2, 1  # contexts

BURN = "while True: pass"
# Scripts of the flooding tenant, by kind. Each repeats its work as fast as possible until its time-out.
JOBS = {
    "pieces": "import os\nwhile True: os.write(1, b'x\\n')",
    "stderr": "import os\nwhile True: os.write(2, b'x\\n')",
    "lines": "while True: print('2026-11-28 12:00:00 INFO a line of a log, as programs write it', flush=True)",
    "blocks": "import os\nblock = b'x' * 65535 + b'\\n'\nwhile True: os.write(1, block)",
    "progress": "import mycojobs\nwhile True: mycojobs.progress(0.5, 'half of it')",
    "frames": "import os, struct\nnote = struct.pack('<IB', 2, 16) + b'{}'\nwhile True: os.write(3, note * 1000)",
    "redactor": f"import os\npart = b'{SECRET[:-1]}' * 3000\nwhile True: os.write(1, part)",
    "listen": ("import socket\nwhile True:\n  s = socket.socket()\n  s.bind(('127.0.0.1', 0))\n  s.listen(1)\n  s.close()"),
    "artifacts": ("import mycojobs\nwhile True:\n  for i in range(200): (mycojobs.artifacts / f'f{i}').write_bytes(b'x' * 200000)"),
}
POLICIES = {"redactor": {"secrets": ["token"]}, "listen": {"net": "loopback"}}
# JSON-RPC clients of the flooding tenant. They run outside the sandbox at nice 19, one of each kind, beside
# jobs that use CPU time. The baseline is a client that uses CPU time.
BURN_CLIENT = "def flood(port):\n  while True: pass"
CLIENTS = {
    "connections": "def flood(port):\n  held = []\n  while True:\n    s = socket.create_connection(('127.0.0.1', port))\n    s.sendall(b'POST /rpc HTTP/1.1\\r\\n')\n"
                   "    held.append(s)\n    if len(held) > 300: held.pop(0).close()",
    "yaml": "def flood(port):\n  while True: call(port, 'flow.check', {'definition': '[' * 1000000})",
    "workflows": "def flood(port):\n  i = 0\n  while True:\n    i += 1\n    call(port, 'workflow.send', {'event': 'order/Placed', 'value': "
                 "{'id': i, 'item': 'book', 'count': 1, 'cents': 1500, 'card': 'visa'}})",
}
CLIENT_HEAD = """import http.client, json, os, socket, sys
os.nice(19)
def call(port, method, params):
  try:
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=30)
    body = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': method, 'params': {**params, 'context_id': %d}})
    connection.request('POST', '/rpc', body)
    connection.getresponse().read()
    connection.close()
  except (OSError, http.client.HTTPException):
    pass
def forever(port):
  while True:
    try: flood(port)
    except OSError: pass
""" % FLOODER


def quantile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def cpu_of(pid):
    """Seconds of CPU of a process, its ended children left out."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, options):
        self.options, self.next = options, 1000
        self.folder = tempfile.TemporaryDirectory(prefix="mycojobs-floods-")
        os.makedirs(f"{self.folder.name}/secrets/{FLOODER}")
        with open(os.open(f"{self.folder.name}/secrets/{FLOODER}/token", os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(SECRET)
        configuration = f"{self.folder.name}/config.toml"
        with open(configuration, "w", encoding="ascii") as file:
            file.write(f'secrets_dir = "{self.folder.name}/secrets"\n[ceiling]\nsecrets = ["token"]\nnet = "loopback"\n')
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.agent = Agent(2 * options.jobs + 2, "--config", configuration, "--context", f"{VICTIM},{FLOODER}",
                           "--api-listen", f"127.0.0.1:{self.port}", "--retention", "10s")
        self.flooder = Redis(os.path.join(self.agent.state, "redis/redis.sock"), FLOODER)
        below = descendants(self.agent.process.pid)
        self.trusted = {comm: pid for pid in below if (comm := comm_of(pid)) in ("mycojobs", "mycojobs-launch", "redis-server")}
        if "workflows" in options.kinds:
            subprocess.run([MYCOJOBS, "workflow", "apply", f"{ROOT}/examples/workflow/order/order.json", "--state-dir", self.agent.state, "--context",
                            str(FLOODER)], check=True, stdout=subprocess.DEVNULL)

    def stop(self):
        self.agent.stop()
        self.folder.cleanup()

    def submit(self, kind, seconds):
        """A job of the flooding tenant that lasts as long as the phase."""
        number, self.next = self.next, self.next + 1
        fields = {"id": number, "caller_id": 9, "context_id": FLOODER, "script": JOBS.get(kind, BURN), "script_type": "python", "timeout": seconds,
                  "status": "dispatched"}
        if kind in POLICIES:
            fields["policy"] = json.dumps(POLICIES[kind])
        key = f"job:9:{number}"
        self.flooder.pipeline([("HSET", key, *[word for pair in fields.items() for word in pair]), ("LPUSH", "queue:python", key)])
        return key

    def phase(self, kinds, floods):
        """Times of no-ops in ms, and CPU of the trusted processes per second, while the other tenant's jobs and clients of these kinds flood, or only burn CPU."""
        seconds = self.options.seconds
        clients = [subprocess.Popen([sys.executable, "-c", f"{CLIENT_HEAD}{CLIENTS[kind] if floods else BURN_CLIENT}\nforever({self.port})"],
                                    stderr=subprocess.DEVNULL) for kind in kinds if kind in CLIENTS]
        of_jobs = [kind for kind in kinds if kind in JOBS and floods] or ["burn"]
        keys = [self.submit(of_jobs[i % len(of_jobs)], seconds + 2) for i in range(self.options.jobs)]
        time.sleep(1)
        before, begin, times = {comm: cpu_of(pid) for comm, pid in self.trusted.items()}, time.monotonic(), []
        while time.monotonic() < begin + seconds:
            times.append(self.agent.one() * 1000)
            time.sleep(random.uniform(0, 2 * PAUSE_S))
        took = time.monotonic() - begin
        used = {comm: (cpu_of(pid) - before[comm]) / took for comm, pid in self.trusted.items()}
        for client in clients:
            client.kill()
            client.wait()
        self.wait(keys)
        return times, used

    def wait(self, keys):
        for key in keys:
            deadline = time.monotonic() + 60
            while self.flooder.call("HGET", key, "status") not in (b"error", b"finished", None):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{key} does not end")
                time.sleep(0.05)

    def compare(self, kinds):
        """Rows of one kind, or of several together: quiet and flooded times of all rounds, ratio of each round."""
        percent, quiet, flooded, ratios, used = self.options.quantile, [], [], [], []
        for _ in range(self.options.rounds):
            burn, _ = self.phase(kinds, False)
            flood, cpu = self.phase(kinds, True)
            quiet += burn
            flooded += flood
            ratios.append(quantile(flood, percent) / quantile(burn, percent))
            used.append(cpu)
        return quiet, flooded, statistics.median(ratios), {comm: statistics.mean(each[comm] for each in used) for comm in self.trusted}


def main():
    every = [*JOBS, *CLIENTS]
    parser = argparse.ArgumentParser(description="what one tenant's floods cost another tenant")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=every, help="of " + ",".join(every))
    parser.add_argument("--seconds", type=int, default=10, help="of a phase")
    parser.add_argument("--rounds", type=int, default=3, help="each a phase without and one with the flood")
    parser.add_argument("--jobs", type=int, default=4, help="of the other tenant at one time; twice as many slots and two more are there")
    parser.add_argument("--together", action="store_true", help="all kinds in one phase")
    parser.add_argument("--quantile", type=int, default=95)
    parser.add_argument("--limit", type=float, default=2.0, help="of the ratio; over it the exit code is 1")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(every):
        parser.error("unknown kinds: " + ",".join(sorted(unknown)))
    bench = Bench(options)
    name = f"p{options.quantile}"
    over = []
    print(f"{options.rounds} rounds of {options.seconds} s without and with each flood, {options.jobs} jobs of the other tenant, {os.cpu_count()} CPUs, "
          f"Linux {platform.release()}, load at the start {os.getloadavg()[0]:.1f}\n", flush=True)
    print(f"| flood | no-ops | p50 with burning, ms | p50 with the flood | {name} with burning, ms | {name} with the flood | ratio of {name} | CPU of agent, launcher, Redis: s a second |\n"
          "|---|---|---|---|---|---|---|---|", flush=True)
    try:
        for kinds in [options.kinds] if options.together else [[kind] for kind in options.kinds]:
            quiet, flooded, ratio, used = bench.compare(kinds)
            cpu = ", ".join(f"{used.get(comm, 0):.2f}" for comm in ("mycojobs", "mycojobs-launch", "redis-server"))
            print(f"| {', '.join(kinds)} | {len(flooded)} | {quantile(quiet, 50):.2f} | {quantile(flooded, 50):.2f} | {quantile(quiet, options.quantile):.2f} | "
                  f"{quantile(flooded, options.quantile):.2f} | {ratio:.2f} | {cpu} |", flush=True)
            if ratio > options.limit:
                over.append(f"{', '.join(kinds)}: {ratio:.2f}")
    finally:
        bench.stop()
    if over:
        print(f"\nover the limit of {options.limit}: " + "; ".join(over))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
