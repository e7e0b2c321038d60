#!/usr/bin/python3
"""What HTTPS costs a request: requests a second and CPU time of the coordinator for each, over plain HTTP and over HTTPS, in turn.

Prints the table of bench/tls.md, "HTTPS". Two coordinators use one Redis, one of them with a certificate (ECDSA, P-256).
Usage: bench/https.py [--requests N] [--rounds N] [--clients N]
"""
import argparse
import http.client
import json
import multiprocessing
import os
import re
import ssl
import statistics
import subprocess
import tempfile
import time

from dev_agent import MYCOJOBS
from tls import cpu_of, free_port, make_certificate

PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "system.ping", "params": {}})
DISCOVER = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "rpc.discover", "params": {}})
# Name of the row, body of the request, and whether each request has a connection of its own.
KINDS = {"system.ping": (PING, False), "rpc.discover": (DISCOVER, False), "system.ping, new connection": (PING, True)}


def start_coordinator(folder, redis_port, has_tls):
    flags = ["--api-tls-cert", f"{folder}/ca.pem", "--api-tls-key", f"{folder}/key.pem"] if has_tls else []
    log = open(f"{folder}/coordinator{has_tls}.log", "w+", encoding="utf-8")
    process = subprocess.Popen([MYCOJOBS, "coordinator", "--redis", f"redis://127.0.0.1:{redis_port}", "--context", "1", "--api-listen", "127.0.0.1:0", "--api-tokens",
                                f"{folder}/tokens", "--state-dir", f"{folder}/state{has_tls}", *flags], stderr=log, stdout=log)
    deadline = time.monotonic() + 20
    while True:
        log.seek(0)
        if found := re.search(r"JSON-RPC at https?://127\.0\.0\.1:(\d+)", log.read()):
            return process, int(found[1])
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(f"the coordinator does not start: see {log.name}")
        time.sleep(0.02)


def send_requests(port, ca, token, kind, count):
    context = ssl.create_default_context(cafile=ca) if ca else None
    body, is_new = KINDS[kind]
    connect = (lambda: http.client.HTTPSConnection("localhost", port, context=context)) if ca else (lambda: http.client.HTTPConnection("localhost", port))
    connection = None
    for _ in range(count):
        connection = connect() if connection is None or is_new else connection
        connection.request("POST", "/rpc", body, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        assert response.status == 200 and response.read()
        if is_new:
            connection.close()


def measure(process, port, ca, token, kind, arguments):
    """Requests a second, and microseconds of CPU of the coordinator for each."""
    count = arguments.requests // arguments.clients
    clients = [multiprocessing.Process(target=send_requests, args=(port, ca, token, kind, count)) for _ in range(arguments.clients)]
    cpu_s, start = cpu_of(process.pid), time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
        assert client.exitcode == 0
    seconds, total = time.monotonic() - start, count * arguments.clients
    return total / seconds, (cpu_of(process.pid) - cpu_s) * 1e6 / total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=2)
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="mycojobs-https-") as folder:
        make_certificate(folder)
        redis_port = free_port()
        redis = subprocess.Popen(["redis-server", "--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)
        token = subprocess.run([MYCOJOBS, "key", "token", "--operator", "--api-tokens", f"{folder}/tokens"], check=True, capture_output=True, text=True).stdout.split()[0]
        servers = {has_tls: start_coordinator(folder, redis_port, has_tls) for has_tls in (False, True)}
        try:
            for _ in range(arguments.rounds):
                for kind in KINDS:
                    for has_tls, (process, port) in servers.items():
                        result = measure(process, port, f"{folder}/ca.pem" if has_tls else None, token, kind, arguments)
                        results.setdefault((kind, has_tls), []).append(result)
        finally:
            for process, _ in servers.values():
                process.terminate()
                process.wait(60)
            redis.kill()
            redis.wait()
    print("| request | HTTP, requests/s | HTTPS, requests/s | ratio | HTTP, CPU, us | HTTPS, CPU, us | ratio |\n|---|---|---|---|---|---|---|")
    for kind in KINDS:
        (plain_rate, plain_cpu), (tls_rate, tls_cpu) = ([statistics.median(column) for column in zip(*results[kind, has_tls])] for has_tls in (False, True))
        print(f"| {kind} | {plain_rate:,.0f} | {tls_rate:,.0f} | {tls_rate / plain_rate:.2f} | {plain_cpu:,.0f} | {tls_cpu:,.0f} | {tls_cpu / plain_cpu:.2f} |")
    print(f"\nMedians of {arguments.rounds} rounds of {arguments.requests} requests of {arguments.clients} clients in turn; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
