#!/usr/bin/python3
"""Threads and connections of an idle agent and an idle coordinator by number of contexts, and the CPU time of the process and of Redis while idle.

Then compares agents with one context and with each other number side by side: the time of one job on an idle agent, and the cost of jobs that wait
in the queues of up to ten contexts. Prints the tables of docs/decisions/0033-connections-and-threads.md. The environment variable MYCOJOBS selects
another build. With --jobs 0 only the first table is printed, with --seconds 0 only the second.
Usage: bench/connections.py [--contexts N,N,...] [--seconds S] [--settle S] [--jobs N] [--rounds N] [--libexec FOLDER]
"""
import argparse
import os
import statistics
import subprocess
import tempfile
import time

from dev_agent import MYCOJOBS, Redis, await_commands, cpu_of, descendants, end_process, submit_commands
from side_by_side.figures import quantile
from tls import free_port

SLOTS, BUSY_CONTEXTS = 4, 10


def threads_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def start_redis(folder, contexts):
    path = f"{folder}/redis.sock"
    process = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder, "--databases", str(contexts + 1),
                                "--logfile", f"{folder}/redis.log"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while True:
        try:
            return process, Redis(path, 0), f"unix://{path}"
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def command_line(command, folder, url, contexts, arguments):
    line = [MYCOJOBS, command, "--redis", url, "--state-dir", f"{folder}/state", "--context", ",".join(map(str, range(1, contexts + 1))),
            "--log-level", "error"]
    return line + (["--libexec-dir", arguments.libexec] if arguments.libexec else [])


def measure(command, contexts, arguments):
    with tempfile.TemporaryDirectory(prefix="mj-connections-") as folder:
        redis, client, url = start_redis(folder, contexts)
        line = command_line(command, folder, url, contexts, arguments)
        line += ["--api-listen", f"127.0.0.1:{free_port()}"] if command == "coordinator" else ["--slots", "2"]
        process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        try:
            time.sleep(arguments.settle)
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(line[:2])} has exited with status {process.returncode}")
            before, start = (cpu_of(process.pid), cpu_of(redis.pid)), time.monotonic()
            time.sleep(arguments.seconds)
            seconds, after = time.monotonic() - start, (cpu_of(process.pid), cpu_of(redis.pid))
            connections = client.call("CLIENT", "LIST").count(b"name=mycojobs")
            percent = [100 * (last - first) / seconds for first, last in zip(before, after)]
            return threads_of(process.pid), connections, percent[0], percent[1]
        finally:
            end_process(process)
            end_process(redis)


def info_of(client, section):
    return dict(line.split(":", 1) for line in client.call("INFO", section).decode().split("\r\n") if ":" in line)


def redis_cpu_of(client):
    """Seconds of CPU of Redis, exact to a microsecond, while /proc counts hundredths of a second."""
    cpu = info_of(client, "cpu")
    return float(cpu["used_cpu_sys"]) + float(cpu["used_cpu_user"])


class Agent:
    """An agent with a Redis of its own, and a client for each context with jobs."""

    def __init__(self, contexts, arguments):
        self.contexts, self.next = contexts, 1
        self.folder = tempfile.TemporaryDirectory(prefix="mj-connections-")
        self.redis, self.client, url = start_redis(self.folder.name, contexts)
        line = command_line("agent", self.folder.name, url, contexts, arguments)
        start = time.monotonic()
        self.process = subprocess.Popen([*line, "--slots", str(SLOTS)], stderr=subprocess.DEVNULL)
        # Contexts with an equal distance, so that their queues are everywhere in the list of the agent.
        busy = min(BUSY_CONTEXTS, contexts)
        self.clients = {context: Redis(f"{self.folder.name}/redis.sock", context) for context in range(contexts // busy, contexts + 1, contexts // busy)}
        self.run_one(list(self.clients)[-1])
        self.start_s = time.monotonic() - start
        for context in self.clients:
            for _ in range(5):
                self.run_one(context)

    def submit(self, context):
        number, self.next = self.next, self.next + 1
        self.clients[context].pipeline(await_commands(number) + submit_commands(number, context=context))
        return f"job:9:{number}"

    def run_one(self, context):
        start = time.perf_counter()
        key = self.submit(context)
        self.clients[context].call("XREAD", "BLOCK", 60000, "STREAMS", f"mj:log:{key}", "0")
        milliseconds = 1000 * (time.perf_counter() - start)
        status = self.clients[context].call("HGET", key, "status")
        assert status == b"finished", (key, status)
        return milliseconds

    def drain(self, jobs):
        """Milliseconds of CPU of Redis and of the agent with its helpers for each job, and seconds for all."""
        before, start = (redis_cpu_of(self.client), self.agent_cpu()), time.monotonic()
        last_keys = {}
        for i in range(jobs):
            context = list(self.clients)[i % len(self.clients)]
            last_keys[context] = self.submit(context)
        for context, client in self.clients.items():
            while client.call("LLEN", "queue:python") > 0:
                time.sleep(0.01)
            while client.call("HGET", last_keys[context], "status") != b"finished":
                time.sleep(0.01)
        seconds, after = time.monotonic() - start, (redis_cpu_of(self.client), self.agent_cpu())
        return [1000 * (last - first) / jobs for first, last in zip(before, after)] + [seconds]

    def agent_cpu(self):
        return sum(map(cpu_of, descendants(self.process.pid)))

    def stop(self):
        end_process(self.process)
        end_process(self.redis)
        self.folder.cleanup()


def compare(contexts, arguments):
    agents = [Agent(1, arguments), Agent(contexts, arguments)]
    try:
        time.sleep(arguments.settle)
        # The same context of each agent, then all of them in turn. The jobs of both agents alternate.
        same, turns, drains = ([], []), ([], []), ([], [])
        for _ in range(arguments.rounds):
            for i in range(arguments.jobs):
                for agent, times in zip(agents, same):
                    times.append(agent.run_one(list(agent.clients)[0]))
                    time.sleep(0.01)
                for agent, times in zip(agents, turns):
                    times.append(agent.run_one(list(agent.clients)[i % len(agent.clients)]))
                    time.sleep(0.01)
            for agent, costs in zip(agents, drains):
                costs.append(agent.drain(4 * arguments.jobs))
        for agent, fixed, turn, costs in zip(agents, same, turns, drains):
            redis_ms, agent_ms, seconds = (statistics.median(column) for column in zip(*costs))
            print(f"| {agent.contexts} | {agent.start_s:.2f} s | {quantile(fixed, 0.5):.2f} / {quantile(fixed, 0.99):.2f} ms "
                  f"| {quantile(turn, 0.5):.2f} / {quantile(turn, 0.99):.2f} ms | {redis_ms:.3f} ms | {agent_ms:.3f} ms "
                  f"| {4 * arguments.jobs / seconds:.0f} |", flush=True)
    finally:
        for agent in agents:
            agent.stop()


def print_idle(arguments):
    print("| process | contexts | threads | connections | CPU of the process | CPU of Redis |")
    print("|---|---|---|---|---|---|")
    for command in ("agent", "coordinator"):
        for contexts in map(int, arguments.contexts.split(",")):
            threads, connections, cpu, redis_cpu = measure(command, contexts, arguments)
            print(f"| {command} | {contexts} | {threads} | {connections} | {cpu:.2f} % | {redis_cpu:.2f} % |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="1,10,100")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--settle", type=float, default=15, help="seconds between the start and the measurement")
    parser.add_argument("--jobs", type=int, default=200, help="jobs of each kind in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--libexec")
    arguments = parser.parse_args()
    if arguments.seconds > 0:
        print_idle(arguments)
    if arguments.jobs > 0:
        print("| contexts | first job after the start | one job: p50 / p99 | in ten contexts in turn | CPU of Redis for a waiting job "
              "| of the agent and its jobs | jobs per second |")
        print("|---|---|---|---|---|---|---|")
        for contexts in map(int, arguments.contexts.split(",")):
            if contexts > 1:
                compare(contexts, arguments)


if __name__ == "__main__":
    main()
