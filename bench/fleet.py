#!/usr/bin/python3
"""A fleet on one Redis: many agents without sandboxes (fleet_agent.cpp) that all serve the same contexts.

Prints the tables of fleet.md to stdout, and the progress to stderr. The parts, of which --parts selects some:
  agents    CPU of Redis, connections and memory while idle; jobs a second and their cost; the pickup at fixed rates
  queued    what a job costs Redis behind a long queue (--queued) and behind a short one (--short), and the memory of a queued job
  flows     flows that are created, run and listed (--flows)
  commands  the time of commands with --stored jobs, one half queued and one half ended
With --builds, the part `agents` runs the agents of each folder in turn, --rounds times.
Build first: ninja -C build programs fleet_agent.
Usage: bench/fleet.py [--parts NAME,...] [--agents N,...] [--contexts N] [--slots N] [--jobs N] [--rates N,...] [--seconds S] [--idle S]
       [--queued N] [--short N] [--flows N] [--stored N] [--builds FOLDER,...] [--rounds N]
"""
import argparse
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from connections import info_of, redis_cpu_of, start_redis
from dev_agent import MYCOJOBS, Redis, cpu_of, end_process, submit_commands
from side_by_side.figures import quantile

BUILD = os.path.dirname(MYCOJOBS)
LIMIT_S, BATCH, MIB = 1800, 1000, 2**20
FLOW = {"name": "two", "jobs": {"a": {"script": "pass", "type": "empty"}, "b": {"script": "pass", "type": "empty", "needs": ["a"]}}}


def report_progress(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def empty_job(number, context):
    return submit_commands(number, context=context, script_type="empty")


class Fleet:
    def __init__(self, agents, contexts, slots, build=BUILD):
        self.folder, self.contexts, self.next = tempfile.TemporaryDirectory(prefix="mj-fleet-"), contexts, 1
        self.redis, self.client, self.url = start_redis(self.folder.name, contexts)
        self.agents = []
        try:
            self.client.call("CONFIG", "SET", "appendonly", "yes")
            self.clients = {context: Redis(f"{self.folder.name}/redis.sock", context) for context in range(1, contexts + 1)}
            for number in range(1, agents + 1):
                line = [f"{build}/fleet_agent", self.url, str(contexts), str(number), str(slots), f"{self.folder.name}/{number}"]
                agent = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                self.agents.append(agent)
                assert agent.stdout.readline() == b"ready\n", f"agent {number} has not started"
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def idle(self, seconds):
        """Percent of a core that Redis uses, connections, MiB of Redis."""
        before, start = redis_cpu_of(self.client), time.monotonic()
        time.sleep(seconds)
        percent = 100 * (redis_cpu_of(self.client) - before) / (time.monotonic() - start)
        return percent, int(info_of(self.client, "clients")["connected_clients"]), self.memory_mib()

    def memory_mib(self):
        return int(info_of(self.client, "memory")["used_memory"]) / MIB

    def take_number(self):
        self.next += 1
        return self.next - 1

    def push(self, context, count):
        for first in range(0, count, BATCH):
            self.clients[context].pipeline([words for _ in range(min(BATCH, count - first)) for words in empty_job(self.take_number(), context)])

    def pause(self):
        for agent in self.agents:
            agent.send_signal(signal.SIGSTOP)

    def resume(self):
        for agent in self.agents:
            agent.send_signal(signal.SIGCONT)

    def agent_cpu(self):
        return sum(cpu_of(agent.pid) for agent in self.agents)

    def ended(self):
        return sum(client.call("ZCARD", "mj:ended") for client in self.clients.values())

    def wait_for_ends(self, goal):
        deadline = time.monotonic() + LIMIT_S
        while self.ended() < goal:
            assert time.monotonic() < deadline, f"{goal - self.ended()} jobs have not ended in {LIMIT_S} s"
            time.sleep(0.05)

    def drain(self, jobs):
        """Jobs a second, and ms of CPU a job of Redis and of the agents. The queues are filled while the agents are stopped."""
        self.pause()
        for context in self.clients:
            self.push(context, jobs // self.contexts)
        return self.end_jobs(jobs // self.contexts * self.contexts)

    def end_jobs(self, jobs):
        """Continues the agents and waits until this number of jobs has ended. The figures of drain()."""
        goal = self.ended() + jobs
        before, start = (redis_cpu_of(self.client), self.agent_cpu()), time.monotonic()
        self.resume()
        self.wait_for_ends(goal)
        seconds, after = time.monotonic() - start, (redis_cpu_of(self.client), self.agent_cpu())
        return [jobs / seconds] + [1000 * (last - first) / jobs for first, last in zip(before, after)]

    def pickup(self, rate, seconds):
        """Milliseconds from the time at which a job was to be sent until it began, and ms of CPU a job of Redis."""
        sent, before, cpu_s, start = {}, self.ended(), redis_cpu_of(self.client), time.time() + 0.1
        for i in range(rate * seconds):
            due = start + i / rate
            while (pause := due - time.time()) > 0:
                time.sleep(pause)
            context, number = random.randrange(1, self.contexts + 1), self.take_number()
            self.clients[context].pipeline(empty_job(number, context))
            sent[context, number] = due
        self.wait_for_ends(len(sent) + before)
        cpu_ms = 1000 * (redis_cpu_of(self.client) - cpu_s) / len(sent)
        return [int(json.loads(self.clients[context].call("HGET", f"job:9:{number}", "result"))["began_us"]) / 1000 - 1000 * due
                for (context, number), due in sent.items()], cpu_ms

    def command_ms(self, *words, runs=5, accepts=(0,)):
        """Milliseconds of a command, the median of some runs."""
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            done = subprocess.run([MYCOJOBS, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
            times.append(1000 * (time.perf_counter() - start))
            assert done.returncode in accepts, (words, done.returncode, done.stderr)
        return sorted(times)[runs // 2]

    def close(self):
        for agent in self.agents:
            agent.kill()
            agent.wait()
            agent.stdout.close()
        end_process(self.redis)
        self.folder.cleanup()


class Coordinator:
    """A coordinator of context 1, and a client of its JSON-RPC."""

    def __init__(self, fleet):
        tokens, self.token_file = f"{fleet.folder.name}/tokens", f"{fleet.folder.name}/token"
        made = subprocess.run([MYCOJOBS, "key", "token", "--operator", "--api-tokens", tokens], check=True, capture_output=True, text=True)
        self.token = made.stdout.split()[0]
        with open(os.open(self.token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(self.token)
        self.log = open(f"{fleet.folder.name}/coordinator.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen([MYCOJOBS, "coordinator", "--redis", fleet.url, "--context", "1", "--api-listen", "127.0.0.1:0",
                                         "--api-tokens", tokens, "--state-dir", f"{fleet.folder.name}/coordinator"], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 20
        while not (found := re.search(r"JSON-RPC at (http://127\.0\.0\.1:(\d+))", self.read_log())):
            if time.monotonic() > deadline or self.process.poll() is not None:
                text = self.read_log()
                self.close()
                raise RuntimeError(f"the coordinator has not started: {text}")
            time.sleep(0.02)
        self.url = found[1]
        self.connection = http.client.HTTPConnection("127.0.0.1", int(found[2]), timeout=60)

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def call(self, method, **params):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"context_id": 1, **params}})
        self.connection.request("POST", "/rpc", body, {"Authorization": f"Bearer {self.token}"})
        answer = json.loads(self.connection.getresponse().read())
        assert "result" in answer, (method, params, answer)
        return answer["result"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        end_process(self.process)
        self.log.close()


def measure_agents(agents, build, options):
    with Fleet(agents, options.contexts, options.slots, build) as fleet:
        time.sleep(options.idle)
        report_progress(f"{agents} agents of {build}: idle")
        idle = fleet.idle(options.idle)
        report_progress(f"{agents} agents: {options.jobs} jobs")
        drained = fleet.drain(options.jobs)
        cells = [f"{idle[0]:.2f} %", str(idle[1]), f"{idle[2]:.0f}", f"{drained[0]:,.0f}", f"{drained[1]:.3f}", f"{drained[2]:.3f}"]
        for rate in options.rates:
            report_progress(f"{agents} agents: {rate} jobs a second")
            times, cpu_ms = fleet.pickup(rate, options.seconds)
            cells.append(f"{quantile(times, 0.5):.2f} / {quantile(times, 0.99):.2f} / {cpu_ms:.3f}")
    return cells


def print_agents(options):
    print(f"## Agents with {options.slots} slots that serve the same {options.contexts} contexts\n")
    heads = ["Redis, idle", "connections", "Redis, MiB", "jobs a second", "Redis, ms a job", "agents, ms a job"]
    heads += [f"at {rate:,}/s: pickup p50 / p99, ms / Redis, ms a job" for rate in options.rates]
    first_heads = ["agents"] if len(options.builds) == 1 else ["agents", "build"]
    print(f"| {' | '.join(first_heads + heads)} |\n|{'---|' * len(first_heads + heads)}")
    for agents in options.agents:
        for _ in range(options.rounds):
            for build in options.builds:
                first = [str(agents)] if len(options.builds) == 1 else [str(agents), os.path.basename(os.path.abspath(build))]
                print(f"| {' | '.join(first + measure_agents(agents, build, options))} |", flush=True)


def print_queued(options):
    print(f"\n## Jobs behind a queue of another length\n\n| queued | jobs a second | Redis, ms a job | Redis, bytes a queued job |\n|{'---|' * 4}")
    for queued in (options.short, options.queued):
        with Fleet(1, 1, options.slots) as fleet:
            fleet.pause()
            before = fleet.memory_mib()
            report_progress(f"{queued} jobs are queued")
            fleet.push(1, queued)
            bytes_per_job = (fleet.memory_mib() - before) * MIB / queued
            # The queue keeps its length: as many jobs follow as are claimed.
            figures, jobs = [], min(options.short, options.queued)
            for _ in range(10):
                report_progress(f"{jobs} of them run")
                figures.append(fleet.end_jobs(jobs))
                fleet.pause()
                fleet.push(1, jobs)
            rate, redis_ms, _ = (sorted(values)[len(values) // 2] for values in zip(*figures))
            print(f"| {queued:,} | {rate:,.0f} | {redis_ms:.3f} | {bytes_per_job:,.0f} |", flush=True)
            fleet.resume()


def print_flows(options):
    print(f"\n## {options.flows:,} flows of two jobs\n\n| step | flows a second | Redis, MiB |\n|---|---|---|")
    with Fleet(1, 1, options.slots) as fleet, Coordinator(fleet) as coordinator:
        ids = []

        def print_step(name, work):
            report_progress(f"{options.flows} flows: {name}")
            start = time.monotonic()
            work()
            print(f"| {name} | {options.flows / (time.monotonic() - start):,.0f} | {fleet.memory_mib():,.0f} |", flush=True)

        def run():
            for flow in ids:
                coordinator.call("flow.start", id=flow)
            deadline = time.monotonic() + LIMIT_S
            while fleet.clients[1].call("ZCARD", "mj:flows:active") > 0:
                assert time.monotonic() < deadline, f"the flows have not ended in {LIMIT_S} s"
                time.sleep(0.05)

        print_step("created", lambda: ids.extend(coordinator.call("flow.create", caller_id=9, definition=FLOW)["id"] for _ in range(options.flows)))
        print_step("started and ended", run)
        last = f"flow:{ids[-1]}"
        print_commands(fleet, [("flow", "list"), ("flow", "show", last), ("flow", "explain", last), ("verify",)])


def print_commands(fleet, commands):
    print("\n| command | ms |\n|---|---|", flush=True)
    for words in commands:
        report_progress(" ".join(words))
        print(f"| `mycojobs {' '.join(words)}` | {fleet.command_ms(*words, '--context', '1', '--redis', fleet.url, runs=3):,.0f} |", flush=True)


def print_stored(options):
    print(f"\n## Commands with {options.stored:,} jobs in a context, one half queued and one half ended, and {options.contexts} contexts")
    with Fleet(1, options.contexts, options.slots) as fleet, Coordinator(fleet) as coordinator:
        half = options.stored // 2
        report_progress(f"{half} jobs run")
        fleet.pause()
        fleet.push(1, half)
        fleet.end_jobs(half)
        fleet.pause()
        report_progress(f"{half} jobs are queued")
        for context in range(2, options.contexts + 1):
            fleet.push(context, 1)
        ended, queued = f"job:9:{1 + half // 2}", f"job:9:{fleet.next - options.contexts}"
        fleet.push(1, half)
        last = f"job:9:{fleet.next - 1}"
        commands = [("job", "list"), ("job", "list", "--status", "finished"), ("job", "explain", ended), ("job", "explain", queued), ("job", "explain", last)]
        print_commands(fleet, commands + [("queue", "list"), ("verify",)])
        overview = ("rpc", "context.overview", json.dumps({"context_id": 1}), "--url", coordinator.url, "--token-file", coordinator.token_file)
        print(f"| `mycojobs rpc context.overview` | {fleet.command_ms(*overview):,.0f} |", flush=True)
        # The sandbox of this host decides about the exit status.
        print(f"| `mycojobs doctor` | {fleet.command_ms('doctor', '--context', '1', '--redis', fleet.url, runs=3, accepts=(0, 1)):,.0f} |", flush=True)
        lists = [fleet.command_ms("queue", "list", "--context", str(context), "--redis", fleet.url, runs=1) for context in fleet.clients]
        print(f"| `mycojobs queue list`, {options.contexts} contexts one after another | {sum(lists):,.0f} |", flush=True)
        print(f"\nRedis: {fleet.memory_mib():,.0f} MiB")
        fleet.resume()


PARTS = {"agents": print_agents, "queued": print_queued, "flows": print_flows, "commands": print_stored}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(number) for number in text.split(",") if number]  # noqa: E731
    words = lambda text: [word for word in text.split(",") if word]  # noqa: E731
    parser.add_argument("--parts", type=words, default=list(PARTS))
    parser.add_argument("--agents", type=numbers, default=[1, 20, 50])
    parser.add_argument("--contexts", type=int, default=50)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=50000)
    parser.add_argument("--rates", type=numbers, default=[500, 1000, 2000])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--idle", type=int, default=10)
    parser.add_argument("--queued", type=int, default=1000000)
    parser.add_argument("--short", type=int, default=1000)
    parser.add_argument("--flows", type=int, default=100000)
    parser.add_argument("--stored", type=int, default=200000)
    parser.add_argument("--builds", type=words, default=[BUILD])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown parts {', '.join(unknown)}: {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all processes are ended
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
