#!/usr/bin/python3
"""Whether anything grows while one warm process serves very many calls of its script: in Python, then in Lua, each with one slot of `mycojobs dev`.

Memory and descriptors of the process are what it says of itself, the rest is what soak_watch.py looks at; soak_verdict.py has the rule. Prints
bench/warm_calls.md; of Redis, ./dev soak tells. Exit 1 if a series grows or a call did not end as it must. Usage: bench/warm_calls.py [--calls N] [--only TYPE]
"""
import argparse
import collections
import os
import platform
import re
import sys
import tempfile
import time

from dev_agent import Agent
from soak_verdict import judge, table
from soak_watch import Watch

SAMPLES = 120
AHEAD = 200  # maximum number of pending calls
CONFIGURATION = "[ceiling]\nwarm.runs = 1000000\n"
POLICY = '{"warm": {"runs": 1000000, "idle": "10m"}}'
SCRIPTS = {
    "python": """import os
calls = 0
def main(job):
    global calls
    calls += 1
    print('call', job.id)
    open('/tmp/left', 'x').write('y')
    result['calls'] = str(calls)
    result['KiB'] = str(int(open('/proc/self/statm').read().split()[1]) * 4)
    result['descriptors'] = str(len(os.listdir('/proc/self/fd')))
    if calls % 10 == 0: raise ValueError('as planned')
""",
    "sal": """calls = 0
function main(job)
  calls = calls + 1
  print('call', job.id)
  assert(not io.open('/tmp/left')); io.open('/tmp/left', 'w'):write('y'):close()
  result.calls = calls
  local file = io.open('/proc/self/statm')
  result.KiB = math.floor(tonumber(file:read('a'):match('%d+ (%d+)')) * 4)
  file:close()
  if calls % 10 == 0 then error('as planned') end
end
""",
}


class Calls:
    def __init__(self, agent, script_type):
        self.redis, self.first, self.type = agent.redis, agent.next, script_type
        self.sent = self.ended = 0
        self.wrong, self.said = [], {}
        self.had = collections.Counter()  # number of calls, by the number of earlier calls of the same process

    def send(self, until):
        commands = []
        while self.sent < until:
            key = f"job:9:{self.first + self.sent}"
            commands += [("HSET", key, "id", self.first + self.sent, "caller_id", 9, "context_id", 1, "script", SCRIPTS[self.type], "script_type", self.type,
                          "timeout", 60, "status", "dispatched", "policy", POLICY), ("LPUSH", f"queue:{self.type}", key)]
            self.sent += 1
        if commands:
            self.redis.pipeline(commands)

    def look(self):
        keys = [f"job:9:{self.first + number}" for number in range(self.ended, self.sent)]
        for status, error, result, receipt in self.redis.pipeline([("HMGET", key, "status", "error", "result", "receipt") for key in keys]):
            if status not in (b"finished", b"error"):
                break
            self.ended += 1
            self.take(status, error or b"", receipt or b"", result)

    def take(self, status, error, receipt, result):
        found = re.search(rb'"reused":(\d+)', receipt)
        before = int(found[1]) if found else -1
        as_planned = (status, b"as planned" in error) == ((b"error", True) if before % 10 == 9 else (b"finished", False))
        self.had[before] += 1
        if not as_planned or before < 0:
            self.wrong.append(f"call {self.ended}: {status.decode()} {error.decode()[:200]} {receipt.decode()[-300:]}")
        if result:
            self.said = {part.split('":"')[0].strip('{"'): part.split('":"')[1].strip('"}') for part in result.decode().split(",")}

    def processes(self):
        """How many have served them: each its first call, its second, ... A system that is updated replaces script hosts, and so them."""
        processes = self.had[0]
        for before, count in self.had.items():
            if count > processes:
                self.wrong.append(f"{count} calls had {before} before them, in {processes} processes")
        return processes


def run(script_type, calls):
    with tempfile.NamedTemporaryFile("w", suffix=".toml", prefix="mycojobs-warm-") as configuration:
        configuration.write(CONFIGURATION)
        configuration.flush()
        agent = Agent(1, "--config", configuration.name, "--api-listen", "", "--retention", "60s", "--retention-count", "4000")
    watch, load, samples, start = Watch(agent), Calls(agent, script_type), [], time.monotonic()
    try:
        while load.ended < calls and len(load.wrong) < 5:
            load.send(min(calls, load.ended + AHEAD))
            load.look()
            if load.ended >= len(samples) * calls / SAMPLES and load.said:
                series = {name: value for name, value in watch.sample().items() if not name.startswith("redis")}
                series["process, MiB"] = int(load.said["KiB"]) / 1024
                if "descriptors" in load.said:
                    series["process descriptors"] = int(load.said["descriptors"])
                samples.append({"at": time.monotonic() - start, "jobs": load.ended, "series": series})
            time.sleep(0.01)
    finally:
        agent.stop()
    return judge(samples), load, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--only", choices=SCRIPTS)
    options = parser.parse_args()
    calls = options.calls
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")), "?")
    print(f"# Many calls of one warm script\n\n`bench/warm_calls.py --calls {calls}`; {os.cpu_count()} x {cpu}, Linux {platform.release()}, "
          f"{time.strftime('%Y-%m-%d')}. Every tenth call fails.\nThe rule for growth is in bench/soak_verdict.py.")
    failed = False
    for name in [options.only] if options.only else SCRIPTS:
        rows, load, took = run(name, calls)
        processes = load.processes()
        grows = [row["series"] for row in rows if row["verdict"] in ("grows", "too few samples")]
        failed = failed or bool(grows or load.wrong)
        print(f"\n## {name}\n\n{load.ended} calls in {took:.0f} s, in {processes} {'process' if processes == 1 else 'processes'}; {len(load.wrong)} ended unexpectedly. "
              f"{'Growing: ' + ', '.join(grows) if grows else 'No series grows'}.\n\n{table(rows)}")
        for line in load.wrong:
            print(f"- {line}")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
