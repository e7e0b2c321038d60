#!/usr/bin/python3
"""Threads and connections of an idle agent and an idle coordinator by number of contexts, and the CPU time of the process and of Redis while idle.

Prints the table of docs/decisions/0033-connections-and-threads.md. The environment variable MYCOJOBS selects another build.
Usage: bench/connections.py [--contexts N,N,...] [--seconds S] [--settle S] [--libexec FOLDER]
"""
import argparse
import os
import signal
import subprocess
import tempfile
import time

from dev_agent import MYCOJOBS, Redis
from tls import free_port


def cpu_of(pid):
    """Seconds of CPU of a process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")


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


def end(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def measure(command, contexts, arguments):
    with tempfile.TemporaryDirectory(prefix="mj-connections-") as folder:
        redis, client, url = start_redis(folder, contexts)
        line = [MYCOJOBS, command, "--redis", url, "--state-dir", f"{folder}/state", "--context", ",".join(map(str, range(1, contexts + 1))),
                "--log-level", "error"]
        line += ["--libexec-dir", arguments.libexec] if arguments.libexec else []
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
            end(process)
            end(redis)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="1,10,100")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--settle", type=float, default=15, help="seconds between the start and the measurement")
    parser.add_argument("--libexec")
    arguments = parser.parse_args()
    print("| process | contexts | threads | connections | CPU of the process | CPU of Redis |")
    print("|---|---|---|---|---|---|")
    for command in ("agent", "coordinator"):
        for contexts in map(int, arguments.contexts.split(",")):
            threads, connections, cpu, redis_cpu = measure(command, contexts, arguments)
            print(f"| {command} | {contexts} | {threads} | {connections} | {cpu:.2f} % | {redis_cpu:.2f} % |", flush=True)


if __name__ == "__main__":
    main()
