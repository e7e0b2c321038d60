#!/usr/bin/python3
"""Cost of an environment: the time from the submission to the end of a job, with the packages of its script and without, in turn.

usage: bench/packages.py [BIN] [JOBS]     BIN: the folder with mycojobs (build/bin); prints bench/packages.md. Exit 1 if the limit is exceeded
"""
import os, pathlib, platform, statistics, subprocess, sys, tempfile, time

from dev_agent import Redis, submit_commands
from side_by_side.figures import quantile

root = pathlib.Path(__file__).resolve().parent.parent

LIMIT_MS = 20
binary = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/bin").resolve() / "mycojobs"
jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 200
PACKAGES = '# /// script\n# dependencies = ["alpha", "colors", "tool"]\n# ///\n'
SCRIPTS = {  # the job, its script
    "no packages": "pass\n",
    "packages": PACKAGES + "pass\n",
    "no packages, import of a module": "import wave\n",
    "packages, import of one": PACKAGES + "import alpha\n",
}


def run_job(redis, number, script):
    """Returns the milliseconds from the submission to the end."""
    key, (record, entry) = f"job:9:{number}", submit_commands(number, script)
    redis.call(*record)
    started = time.perf_counter()
    redis.call(*entry)
    while (status := redis.call("HGET", key, "status")) not in (b"finished", b"error"):
        time.sleep(0.0002)
    milliseconds = 1000 * (time.perf_counter() - started)
    assert status == b"finished", redis.call("HGET", key, "error")
    return milliseconds


with tempfile.TemporaryDirectory() as folder:
    index = subprocess.Popen(["/usr/bin/python3", root / "tests/support/package_index.py", "serve", f"{folder}/index"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port = index.stdout.readline().split()[1]
    socket = f"{folder}/redis.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", socket, "--dir", folder, "--save", ""], stdout=subprocess.DEVNULL)
    config = pathlib.Path(folder, "config.toml")
    config.write_text(f'[contexts.1.python.packages]\nindex = "http://127.0.0.1:{port}/simple"\nallow = ["*"]\n')
    while subprocess.run(["redis-cli", "-s", socket, "PING"], capture_output=True).stdout != b"PONG\n":
        time.sleep(0.05)
    agent = subprocess.Popen([binary, "agent", "--redis", f"unix://{socket}", "--context", "1", "--config", config, "--state-dir", f"{folder}/state"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        redis = Redis(socket, 1)
        first = run_job(redis, 1, SCRIPTS["packages"])
        times = {name: [] for name in SCRIPTS}
        number = 1
        for _ in range(jobs + 10):
            for name, script in SCRIPTS.items():
                number += 1
                times[name].append(run_job(redis, number, script))
        times = {name: values[10:] for name, values in times.items()}
    finally:
        agent.terminate()
        agent.wait()
        for process in (server, index):
            process.terminate()
            process.wait()

difference = statistics.median(times["packages"]) - statistics.median(times["no packages"])
print("# Cost of an environment\n")
print(f"`bench/packages.py build/bin {jobs}`: {jobs} jobs of each kind in turn, one at a time, from LPUSH to the end in the record. {os.cpu_count()} CPUs, "
      f"Linux {platform.release()}, {time.strftime('%Y-%m-%d')}.\n")
print("| job | median, ms | lower decile | upper decile |\n|---|---|---|---|")
for name, values in times.items():
    print(f"| {name} | {statistics.median(values):.1f} | {quantile(values, 0.1):.1f} | {quantile(values, 0.9):.1f} |")
print(f"\nThe first job installed six packages and took {first / 1000:.1f} s. A later job with the same packages ends {difference:.1f} ms later than one without; "
      f"the limit is {LIMIT_MS} ms.")
sys.exit(1 if difference > LIMIT_MS else 0)
