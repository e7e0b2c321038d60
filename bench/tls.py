#!/usr/bin/python3
"""What TLS to Redis costs a job: jobs a second and CPU time for each, over a plain TCP connection and over TLS, in turn, with one Redis.

Prints the tables of bench/tls.md; that of single calls needs the program tls_calls_bench (ninja -C build tls_calls_bench).
Usage: bench/tls.py [--jobs N] [--rounds N] [--slots N] [--libexec FOLDER] [--calls PROGRAM]
"""
import argparse
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time

from dev_agent import MYCOJOBS, Redis, cpu_of, descendants, submit_commands


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{folder}/key.pem", "-out",
                    f"{folder}/ca.pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"], check=True, capture_output=True)


class Server:
    def __init__(self, folder):
        self.plain, self.tls = free_port(), free_port()
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.plain), "--tls-port", str(self.tls), "--bind", "127.0.0.1", "--unixsocket", f"{folder}/redis.sock", "--save",
             "", "--dir", folder, "--tls-cert-file", f"{folder}/ca.pem", "--tls-key-file", f"{folder}/key.pem", "--tls-ca-cert-file", f"{folder}/ca.pem",
             "--tls-auth-clients", "no"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                self.client = Redis(f"{folder}/redis.sock", 1)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def wait_until_ended(client, number):
    while client.call("HGET", f"job:9:{number}", "status") not in (b"finished", b"error"):
        time.sleep(0.01)
    assert client.call("HGET", f"job:9:{number}", "status") == b"finished"


def measure(server, folder, with_tls, arguments):
    """Jobs a second, and milliseconds of CPU for each job: of the agent and its helpers, of Redis."""
    client = server.client
    client.call("FLUSHALL")
    url = f"rediss://localhost:{server.tls}" if with_tls else f"redis://localhost:{server.plain}"
    command = [MYCOJOBS, "agent", "--redis", url, "--redis-tls-ca", f"{folder}/ca.pem", "--state-dir", f"{folder}/state", "--slots", str(arguments.slots),
               "--log-level", "error"]
    if arguments.libexec:
        command += ["--libexec-dir", arguments.libexec]
    agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    client.pipeline(submit_commands(1))
    wait_until_ended(client, 1)
    agent.send_signal(signal.SIGSTOP)
    for number in range(2, arguments.jobs + 2):
        client.pipeline(submit_commands(number))
    tree = descendants(agent.pid)
    agent_cpu, redis_cpu = sum(map(cpu_of, tree)), cpu_of(server.process.pid)
    start = time.monotonic()
    agent.send_signal(signal.SIGCONT)
    while client.call("LLEN", "queue:python") > 0:
        time.sleep(0.01)
    for number in range(arguments.jobs - arguments.slots * 2, arguments.jobs + 2):
        wait_until_ended(client, number)
    seconds = time.monotonic() - start
    agent_cpu = sum(map(cpu_of, descendants(agent.pid))) - agent_cpu
    redis_cpu = cpu_of(server.process.pid) - redis_cpu
    agent.send_signal(signal.SIGTERM)
    agent.wait(60)
    return arguments.jobs / seconds, agent_cpu * 1000 / arguments.jobs, redis_cpu * 1000 / arguments.jobs


def print_calls(server, folder, program):
    """CPU time of a client for one call, the minimum of all rounds."""
    results = {}
    for with_tls, url in ((False, f"redis://127.0.0.1:{server.plain}"), (True, f"rediss://localhost:{server.tls}")) * 3:
        run = subprocess.run([program, url, f"{folder}/ca.pem"], check=True, capture_output=True, text=True)
        results.setdefault(with_tls, []).append([float(number) for number in run.stdout.split()])
    best = {with_tls: [min(column) for column in zip(*rows)] for with_tls, rows in results.items()}
    print("\n| CPU of the client, us a call | PING | SET of 4 KiB | GET of 4 KiB |\n|---|---|---|---|")
    for with_tls, name in ((False, "redis:// (TCP)"), (True, "rediss:// (TLS 1.3)")):
        print(f"| {name} | " + " | ".join(f"{number:.1f}" for number in best[with_tls]) + " |")
    print("| ratio | " + " | ".join(f"{tls / plain:.2f}" for plain, tls in zip(best[False], best[True])) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--libexec")
    parser.add_argument("--calls", default=os.path.join(os.path.dirname(MYCOJOBS), "tls_calls_bench"))
    arguments = parser.parse_args()
    results = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="mycojobs-tls-") as folder:
        make_certificate(folder)
        server = Server(folder)
        try:
            for _ in range(arguments.rounds):
                for with_tls in (False, True):
                    results[with_tls].append(measure(server, folder, with_tls, arguments))
            if os.path.exists(arguments.calls):
                print_calls(server, folder, arguments.calls)
        finally:
            server.process.kill()
            server.process.wait()
    medians = {with_tls: [statistics.median(column) for column in zip(*rows)] for with_tls, rows in results.items()}
    print("| connection | jobs/s | CPU of agent and helpers, ms a job | CPU of Redis, ms a job |\n|---|---|---|---|")
    for with_tls, name in ((False, "redis:// (TCP)"), (True, "rediss:// (TLS 1.3)")):
        spread = [f"{median:,.2f} ({min(column):,.2f} to {max(column):,.2f})" for median, column in zip(medians[with_tls], zip(*results[with_tls]))]
        print(f"| {name} | " + " | ".join(spread) + " |")
    print("| ratio of the medians | " + " | ".join(f"{tls / plain:.2f}" for plain, tls in zip(medians[False], medians[True])) + " |")
    best = {with_tls: [max(rates), min(agent), min(redis)] for with_tls, (rates, agent, redis) in ((key, zip(*rows)) for key, rows in results.items())}
    print("| ratio of the best rounds | " + " | ".join(f"{tls / plain:.2f}" for plain, tls in zip(best[False], best[True])) + " |")
    print(f"\n{arguments.jobs} no-op Python jobs, {arguments.slots} slots, {arguments.rounds} rounds in turn; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
