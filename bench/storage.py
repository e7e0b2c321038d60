#!/usr/bin/python3
"""Measures the uploads of an agent to an object storage (s3rver on loopback) and the downloads, in comparison with curl.

A job stores one artifact of random bytes. The time of an upload begins when the record of the job has the detail `artifact_store`, and ends at the end of the
job. The time of a download is the run time of `mycojobs job artifacts` with an empty state folder. curl stores and reads a file of the same size without a
signature. Each round measures mycojobs and curl in turn. Needs s3rver in build/storage (installed by ./dev), and prints a table.

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

# The script of the job, which stores the artifact.
SCRIPT = """
import mycojobs, os
with open(mycojobs.artifacts / "file", "wb") as file:
    for _ in range({mebibytes}):
        file.write(os.urandom(1 << 20))
"""


class StorageBench:
    """Creates the files of the measurement in a folder, and measures rounds. The caller starts Redis and self.agent_command."""

    def __init__(self, folder, server, mebibytes):
        self.folder, self.server, self.mebibytes, self.round_number = folder, server, mebibytes, 0
        self.url = f"unix://{folder}/redis.sock"
        limit = f"{mebibytes + 8}MiB"
        self.config_options = ["--config", f"{folder}/settings.toml"]
        with open(f"{folder}/settings.toml", "w", encoding="ascii") as file:
            file.write(f'[artifacts]\nstore = "s3://{servers.BUCKET}/bench"\nstore_endpoint = "http://127.0.0.1:{server.port}"\nstore_path_style = true\n'
                       f'store_credentials = "{folder}/credentials"\n')
        self.agent_command = [MYCOJOBS, "agent", "--redis", self.url, "--runner", "20", "--state-dir", f"{folder}/agent", "--script-types", "python", "--log-level", "error",
                      "--job-max-artifact-bytes", limit, "--sandbox-tmp", limit, "--quota-caller-artifact-bytes", "20GiB", "--quota-context-artifact-bytes", "20GiB",
                      *self.config_options]
        with open(f"{folder}/file", "wb") as file:
            for _ in range(mebibytes):
                file.write(os.urandom(1 << 20))
        with open(f"{folder}/policy.toml", "w", encoding="ascii") as file:
            file.write(f'file_size = "{limit}"\n')
        with open(f"{folder}/script.py", "w", encoding="ascii") as file:
            file.write(SCRIPT.format(mebibytes=mebibytes))

    def run_job(self):
        """Runs a job. Returns (key of the job, seconds of the upload)."""
        output = subprocess.run([MYCOJOBS, "job", "submit", f"{self.folder}/script.py", "--redis", self.url, "--timeout", "5m", "--policy",
                                 f"{self.folder}/policy.toml"], capture_output=True, text=True, check=True)
        key, client, upload_start = output.stdout.split()[0], Redis(f"{self.folder}/redis.sock", 1), None
        while True:
            status, detail = client.call("HMGET", key, "status", "detail")
            now = time.monotonic()
            if upload_start is None and detail == b"artifact_store":
                upload_start = now
            if status == b"finished":
                return key, now - upload_start
            if status == b"error":
                raise SystemExit(f"{key}: {client.call('HGET', key, 'error')}")
            time.sleep(0.002)

    @staticmethod
    def time_command(command):
        """Runs a command, and returns the seconds."""
        start = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - start

    def time_curl(self, *options):
        """Runs curl with the URL of an object, and returns the seconds."""
        address = f"http://127.0.0.1:{self.server.port}/{servers.BUCKET}/curl{self.round_number}"
        return self.time_command(["curl", "-s", "-S", "-f", *options, address])

    def run_round(self):
        """Returns {"upload": (seconds of mycojobs, seconds of curl), "download": (...)}."""
        self.round_number += 1
        key, upload = self.run_job()
        curl_upload = self.time_curl("-T", f"{self.folder}/file")
        download = self.time_command([MYCOJOBS, "job", "artifacts", key, "file", "--output", f"{self.folder}/downloaded{self.round_number}", "--redis", self.url, "--state-dir",
                                 f"{self.folder}/reader{self.round_number}", *self.config_options])
        curl_download = self.time_curl("-o", f"{self.folder}/read{self.round_number}")
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
        bench = StorageBench(folder, server, arguments.mebibytes)
        while not os.path.exists(f"{folder}/redis.sock"):
            time.sleep(0.02)
        agent = subprocess.Popen(bench.agent_command)
        try:
            bench.run_round()  # not measured: the first round starts the script host and opens the connections
            rounds = [bench.run_round() for _ in range(arguments.rounds)]
        finally:
            for process in (agent, redis):
                end_process(process)
            server.stop()
        print(f"| {arguments.mebibytes} MiB | mycojobs | curl | ratio |\n|---|---|---|---|")
        for name in ("upload", "download"):
            mycojobs, curl = (statistics.median(values[name][index] for values in rounds) for index in (0, 1))
            print(f"| {name} | {arguments.mebibytes / mycojobs:.0f} MiB/s | {arguments.mebibytes / curl:.0f} MiB/s | {curl / mycojobs:.2f} |")


if __name__ == "__main__":
    main()
