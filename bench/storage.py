#!/usr/bin/python3
"""Measures uploads of an agent to an object storage (s3rver on loopback) and downloads from it, compared with curl.

A job stores one artifact of random bytes. The time of its upload is that from the mark of the claim (`artifact_store`) to the end of the job. The time of
the download is that of `mycojobs job artifacts` with an empty state folder. curl stores and reads a file of the same size, without a signature. The ways take
turns. Needs s3rver in build/storage (./dev), and prints a table.

Usage: bench/storage.py [--rounds N] [--mebibytes N]
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from dev_agent import MYCOJOBS, ROOT, Redis, end_process

sys.path.insert(0, f"{ROOT}/tests/storage")
import servers  # noqa: E402

MAKE = """
import mycojobs, os
with open(mycojobs.artifacts / "file", "wb") as file:
    for _ in range({mebibytes}):
        file.write(os.urandom(1 << 20))
"""


class Measurement:
    def __init__(self, folder, server, mebibytes):
        self.folder, self.server, self.mebibytes, self.number = folder, server, mebibytes, 0
        self.url = f"unix://{folder}/redis.sock"
        limit = f"{mebibytes + 8}MiB"
        self.store = ["--config", f"{folder}/settings.toml"]
        with open(f"{folder}/settings.toml", "w", encoding="ascii") as file:
            file.write(f'[artifacts]\nstore = "s3://{servers.BUCKET}/bench"\nstore_endpoint = "http://127.0.0.1:{server.port}"\nstore_path_style = true\n'
                       f'store_credentials = "{folder}/credentials"\n')
        self.agent = [MYCOJOBS, "agent", "--redis", self.url, "--runner", "20", "--state-dir", f"{folder}/agent", "--script-types", "python", "--log-level", "error",
                      "--job-max-artifact-bytes", limit, "--sandbox-tmp", limit, "--quota-caller-artifact-bytes", "20GiB", "--quota-context-artifact-bytes", "20GiB",
                      *self.store]
        with open(f"{folder}/file", "wb") as file:
            for _ in range(mebibytes):
                file.write(os.urandom(1 << 20))
        with open(f"{folder}/policy.toml", "w", encoding="ascii") as file:
            file.write(f'file_size = "{limit}"\n')
        with open(f"{folder}/make.py", "w", encoding="ascii") as file:
            file.write(MAKE.format(mebibytes=mebibytes))

    def run_job(self):
        """Returns the key of a job that has stored a file, and the seconds of its upload."""
        output = subprocess.run([MYCOJOBS, "job", "submit", f"{self.folder}/make.py", "--redis", self.url, "--timeout", "5m", "--policy",
                                 f"{self.folder}/policy.toml"], capture_output=True, text=True, check=True)
        key, client, start = output.stdout.split()[0], Redis(f"{self.folder}/redis.sock", 1), None
        while True:
            status, detail = client.call("HMGET", key, "status", "detail")
            now = time.monotonic()
            if start is None and detail == b"artifact_store":
                start = now
            if status == b"finished":
                return key, now - start
            if status == b"error":
                raise SystemExit(f"{key}: {client.call('HGET', key, 'error')}")
            time.sleep(0.002)

    def measure(self, words):
        start = time.monotonic()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - start

    def curl(self, *words):
        address = f"http://127.0.0.1:{self.server.port}/{servers.BUCKET}/curl{self.number}"
        return self.measure(["curl", "-s", "-S", "-f", *words, address])

    def run_round(self):
        self.number += 1
        key, upload = self.run_job()
        curl_upload = self.curl("-T", f"{self.folder}/file")
        download = self.measure([MYCOJOBS, "job", "artifacts", key, "file", "--output", f"{self.folder}/downloaded{self.number}", "--redis", self.url, "--state-dir",
                                 f"{self.folder}/elsewhere{self.number}", *self.store])
        curl_download = self.curl("-o", f"{self.folder}/read{self.number}")
        return {"upload": (upload, curl_upload), "download": (download, curl_download)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=256)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mj-storage-") as folder:
        os.chmod(folder, 0o755)
        server = servers.S3rver(f"{folder}/s3rver", f"{ROOT}/build/storage/node_modules")
        with open(f"{folder}/credentials", "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"aws_access_key_id = {server.access_key}\naws_secret_access_key = {server.secret_key}\n")
        redis = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", f"{folder}/redis.sock", "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)
        measurement = Measurement(folder, server, arguments.mebibytes)
        while not os.path.exists(f"{folder}/redis.sock"):
            time.sleep(0.02)
        agent = subprocess.Popen(measurement.agent)
        try:
            measurement.run_round()  # starts script host and connections
            rounds = [measurement.run_round() for _ in range(arguments.rounds)]
        finally:
            for process in (agent, redis):
                end_process(process)
            server.stop()
        print(f"| {arguments.mebibytes} MiB | mycojobs | curl | ratio |\n|---|---|---|---|")
        for name in ("upload", "download"):
            own, curl = (statistics.median(values[name][index] for values in rounds) for index in (0, 1))
            print(f"| {name} | {arguments.mebibytes / own:.0f} MiB/s | {arguments.mebibytes / curl:.0f} MiB/s | {curl / own:.2f} |")


if __name__ == "__main__":
    main()
