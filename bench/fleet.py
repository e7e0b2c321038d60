#!/usr/bin/python3
"""A fleet on one Redis: many agents without sandboxes (fleet_agent.cpp) that all serve the same contexts.

Prints the tables of fleet.md: CPU of Redis, connections and memory while idle; jobs a second and CPU of Redis a job; p99 of the pickup at
fixed rates; the time of commands with 10^6 queued jobs. Build first: ninja -C build programs fleet_agent.
Usage: bench/fleet.py [--agents N,N,...] [--contexts N] [--slots N] [--jobs N] [--rates N,N,...] [--queued N]
"""
import argparse
import json
import os
import random
import subprocess
import tempfile
import time

from connections import info_of, redis_cpu_of, start_redis
from dev_agent import MYCOJOBS, Redis, cpu_of, end_process, submit_commands
from side_by_side.figures import quantile

AGENT = os.path.join(os.path.dirname(MYCOJOBS), "fleet_agent")
IDLE_S, RATE_S, LIMIT_S, BATCH = 10, 10, 300, 1000


def empty_job(number, context):
    return submit_commands(number, context=context, script_type="empty")


class Fleet:
    def __init__(self, agents, contexts, slots):
        self.folder, self.contexts, self.next = tempfile.TemporaryDirectory(prefix="mj-fleet-"), contexts, 1
        self.redis, self.client, self.url = start_redis(self.folder.name, contexts)
        self.client.call("CONFIG", "SET", "appendonly", "yes")
        self.clients = {context: Redis(f"{self.folder.name}/redis.sock", context) for context in range(1, contexts + 1)}
        self.agents = []
        for number in range(1, agents + 1):
            agent = subprocess.Popen([AGENT, self.url, str(contexts), str(number), str(slots), f"{self.folder.name}/{number}"],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert agent.stdout.readline() == b"ready\n", f"agent {number} has not started"
            self.agents.append(agent)

    def idle(self):
        """Percent of a core that Redis uses, connections, MiB of Redis."""
        before, start = redis_cpu_of(self.client), time.monotonic()
        time.sleep(IDLE_S)
        percent = 100 * (redis_cpu_of(self.client) - before) / (time.monotonic() - start)
        return percent, int(info_of(self.client, "clients")["connected_clients"]), int(info_of(self.client, "memory")["used_memory"]) / 2**20

    def take_number(self):
        self.next += 1
        return self.next - 1

    def push(self, context, count):
        for first in range(0, count, BATCH):
            self.clients[context].pipeline([words for _ in range(min(BATCH, count - first)) for words in empty_job(self.take_number(), context)])

    def stop(self, number):
        for agent in self.agents:
            agent.send_signal(number)

    def ended(self):
        return sum(client.call("ZCARD", "mj:ended") for client in self.clients.values())

    def wait_for_ends(self, goal):
        deadline = time.monotonic() + LIMIT_S
        while self.ended() < goal:
            assert time.monotonic() < deadline, f"{goal - self.ended()} jobs have not ended in {LIMIT_S} s"
            time.sleep(0.05)

    def drain(self, jobs):
        """Jobs a second, and ms of CPU a job of Redis and of the agents. The queues are filled while the agents are stopped."""
        self.stop(19)  # SIGSTOP
        for context in self.clients:
            self.push(context, jobs // self.contexts)
        goal = self.ended() + jobs // self.contexts * self.contexts
        before, start = (redis_cpu_of(self.client), sum(cpu_of(agent.pid) for agent in self.agents)), time.monotonic()
        self.stop(18)  # SIGCONT
        self.wait_for_ends(goal)
        seconds, after = time.monotonic() - start, (redis_cpu_of(self.client), sum(cpu_of(agent.pid) for agent in self.agents))
        return [jobs / seconds] + [1000 * (last - first) / jobs for first, last in zip(before, after)]

    def pickup(self, rate):
        """Milliseconds from the time at which a job was to be sent until it began, for RATE_S seconds."""
        sent, before, start = {}, self.ended(), time.time() + 0.1
        for i in range(rate * RATE_S):
            due = start + i / rate
            while (pause := due - time.time()) > 0:
                time.sleep(pause)
            context, number = random.randrange(1, self.contexts + 1), self.take_number()
            self.clients[context].pipeline(empty_job(number, context))
            sent[context, number] = due
        self.wait_for_ends(len(sent) + before)
        return [int(json.loads(self.clients[context].call("HGET", f"job:9:{number}", "result"))["began_us"]) / 1000 - 1000 * due
                for (context, number), due in sent.items()]

    def command_ms(self, *words):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            done = subprocess.run([MYCOJOBS, *words, "--redis", self.url], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
            times.append(1000 * (time.perf_counter() - start))
            assert done.returncode == 0, (words, done.stderr)
        return sorted(times)[2]

    def close(self):
        for agent in self.agents:
            agent.kill()
            agent.wait()
        end_process(self.redis)
        self.folder.cleanup()


def measure_agents(agents, options):
    fleet = Fleet(agents, options.contexts, options.slots)
    try:
        time.sleep(IDLE_S)
        idle = fleet.idle()
        drained = fleet.drain(options.jobs)
        pickups = [fleet.pickup(rate) for rate in options.rates]
        cells = [f"{idle[0]:.2f} %", str(idle[1]), f"{idle[2]:.0f}", f"{drained[0]:,.0f}", f"{drained[1]:.3f}", f"{drained[2]:.3f}"]
        cells += [f"{quantile(times, 0.5):.2f} / {quantile(times, 0.99):.2f}" for times in pickups]
        print(f"| {agents} | {' | '.join(cells)} |", flush=True)
    finally:
        fleet.close()


def measure_commands(options):
    fleet = Fleet(1, options.contexts, options.slots)
    try:
        fleet.stop(19)
        fleet.push(1, options.queued)
        for words in (("job", "list", "--context", "1"), ("job", "explain", "job:9:2", "--context", "1"), ("queue", "list", "--context", "1")):
            print(f"| `{' '.join(words)}` | {fleet.command_ms(*words):.0f} |", flush=True)
        print(f"\nRedis: {int(info_of(fleet.client, 'memory')['used_memory']) / 2**20:,.0f} MiB")
    finally:
        fleet.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(number) for number in text.split(",") if number]  # noqa: E731
    parser.add_argument("--agents", type=numbers, default=[1, 20, 50])
    parser.add_argument("--contexts", type=int, default=50)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=50000)
    parser.add_argument("--rates", type=numbers, default=[500, 1000, 2000])
    parser.add_argument("--queued", type=int, default=1000000)
    options = parser.parse_args()
    print(f"## Agents with {options.slots} slots that serve the same {options.contexts} contexts\n")
    heads = ["Redis, idle", "connections", "Redis, MiB", "jobs a second", "Redis, ms a job", "agents, ms a job"]
    heads += [f"pickup at {rate:,}/s, p50 / p99, ms" for rate in options.rates]
    print(f"| agents | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for agents in options.agents:
        measure_agents(agents, options)
    if options.queued:
        print(f"\n## Commands with {options.queued:,} queued jobs in a context\n\n| command | ms |\n|---|---|")
        measure_commands(options)


if __name__ == "__main__":
    main()
