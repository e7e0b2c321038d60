#!/usr/bin/python3
"""Measures `mycojobs job logs --follow` for a job with much output, and compares the received bytes with the output of the job.

Starts a Redis server with an append-only file, and an agent. The follower uses another state folder than the agent, so the lines are requested from the
agent through Redis. Measures the time, the memory of the agent, the follower and Redis, and the size of the append-only file. Exits with 1 if the received
bytes differ from the output.

Usage: bench/logs.py [--mebibytes N] [--rate SIZE] [--folder FOLDER]
"""
import argparse
import hashlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from dev_agent import MYCOJOBS, Redis, end_process

LINE_BYTES = 1024
SCRIPT = """
import os, sys
for first in range(0, int(os.environ["LINES"]), 64):
    sys.stdout.write("".join(f"{number:010d} ".ljust(1023, ".") + "\\n" for number in range(first, first + 64)))
"""


def make_line(number):
    """Returns a line of the output of SCRIPT."""
    return f"{number:010d} ".ljust(LINE_BYTES - 1, ".").encode() + b"\n"


def find_free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def read_memory(pid):
    """Returns the resident bytes of a process without its children, or 0 for an exited process."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


class MemorySampler(threading.Thread):
    """Records the maximum memory of processes every 50 ms, until stop()."""

    def __init__(self, **pids):
        super().__init__(daemon=True)
        self.pids, self.peaks, self.stop_event = pids, {name: 0 for name in pids}, threading.Event()

    def run(self):
        while not self.stop_event.wait(0.05):
            for name, pid in self.pids.items():
                self.peaks[name] = max(self.peaks[name], read_memory(pid))

    def stop(self):
        """Ends the thread, and returns the maximum memory of each process in bytes."""
        self.stop_event.set()
        self.join()
        return self.peaks


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the servers have not started within 30 s")
        time.sleep(0.05)


def measure(folder, arguments):
    """Runs the job, and prints the figures. Returns whether the received bytes are equal to the output of the job."""
    lines = arguments.mebibytes * (1 << 20) // LINE_BYTES
    address = f"redis://127.0.0.1:{(port := find_free_port())}"
    with open(f"{folder}/log", "ab") as log:
        redis = subprocess.Popen(["redis-server", "--port", str(port), "--unixsocket", f"{folder}/redis.sock", "--dir", folder, "--save", "",
                                  "--appendonly", "yes"], stdout=log)
        wait_for(lambda: os.path.exists(f"{folder}/redis.sock"))
        client = Redis(f"{folder}/redis.sock", 1)
        agent = subprocess.Popen([MYCOJOBS, "agent", "--redis", address, "--runner", "20", "--state-dir", f"{folder}/agent", "--job-log-bytes", "8GiB",
                                  "--quota-caller-artifact-bytes", "9GiB", "--quota-context-artifact-bytes", "9GiB", "--job-output-rate", arguments.rate],
                                 stdout=log, stderr=log)
        try:
            wait_for(lambda: client.call("EXISTS", "runner:20") == 1)
            with open(f"{folder}/script.py", "w", encoding="ascii") as file:
                file.write(SCRIPT)
            common = ["--redis", address, "--state-dir", f"{folder}/reader"]
            job = subprocess.run([MYCOJOBS, "job", "submit", *common, "--timeout", "3000s", "--env", f"LINES={lines}", f"{folder}/script.py"], check=True,
                                 capture_output=True, text=True).stdout.split()[0]
            start = time.monotonic()
            follower = subprocess.Popen([MYCOJOBS, "job", "logs", *common, "--follow", job], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            sampler = MemorySampler(agent=agent.pid, follower=follower.pid)
            sampler.start()
            digest, received = hashlib.sha256(), 0
            while block := follower.stdout.read(1 << 20):
                digest.update(block)
                received += len(block)
            messages = follower.stderr.read().decode(errors="replace")
            follower.wait()
            seconds, peaks = time.monotonic() - start, sampler.stop()
            redis_peak = int(re.search(rb"used_memory_peak:(\d+)", client.call("INFO", "memory")).group(1))
            aof_bytes = sum(os.path.getsize(f"{folder}/appendonlydir/{name}") for name in os.listdir(f"{folder}/appendonlydir"))
            spool_bytes = sum(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(f"{folder}/agent/contexts/1/logs") for name in names)
        finally:
            end_process(agent)
            end_process(redis)
    expected = hashlib.sha256()
    for number in range(lines):
        expected.update(make_line(number))
    mebibyte = 1 << 20
    print(f"written {lines * LINE_BYTES / mebibyte:,.0f} MiB, received {received / mebibyte:,.0f} MiB in {seconds:.1f} s, "
          f"{received / mebibyte / seconds:.1f} MiB/s")
    print(f"maximum memory: agent {peaks['agent'] / mebibyte:.1f} MiB, follower {peaks['follower'] / mebibyte:.1f} MiB, Redis {redis_peak / mebibyte:.1f} MiB")
    print(f"append-only file {aof_bytes / mebibyte:.1f} MiB, log on the disk of the agent {spool_bytes / mebibyte:,.0f} MiB")
    print(messages, end="")
    return digest.digest() == expected.digest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the output")
    parser.add_argument("--rate", default="0", help="job.output_rate of the agent; 0 for unlimited")
    parser.add_argument("--folder", help="existing folder for all files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        is_complete = measure(folder, arguments)
    print("the received output is complete" if is_complete else "the received output differs from the output of the job")
    sys.exit(0 if is_complete else 1)


main()
