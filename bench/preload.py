#!/usr/bin/env python3
"""What a preloaded module saves: jobs of one context through a running agent, with and without numpy preloaded.

usage: bench/preload.py [BIN] [JOBS]     BIN: the folder with mycojobs (build/bin); prints a table, medians
"""
import json, os, pathlib, statistics, subprocess, sys, tempfile, time

binary = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/bin").resolve() / "mycojobs"
jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 100


def measure(folder, redis, context, script, first):
    """Seconds between start and end, one job after the other; usage as the receipt has it."""
    wall, cpu, memory = [], [], []
    for number in range(first, first + jobs):
        key = f"job:1:{number}"
        subprocess.run(["redis-cli", "-s", redis, "-n", str(context), "HSET", key, "id", str(number), "caller_id", "1", "context_id", str(context),
                        "script", script, "script_type", "python", "timeout", "20", "status", "dispatched"], stdout=subprocess.DEVNULL, check=True)
        subprocess.run(["redis-cli", "-s", redis, "-n", str(context), "LPUSH", "queue:python", key], stdout=subprocess.DEVNULL, check=True)
        while True:
            show = subprocess.run([binary, "job", "show", key, "--json", "--redis", f"unix://{redis}", "--context", str(context)],
                                  capture_output=True, text=True)
            job = json.loads(show.stdout)
            if job["status"] in ("finished", "error"):
                break
        assert job["status"] == "finished", job
        usage = job["receipt"]
        wall.append(usage["wall_us"] / 1000)
        cpu.append(usage["cpu_us"] / 1000)
        memory.append(usage["memory_peak_bytes"] / (1 << 20))
    return [statistics.median(each) for each in (wall, cpu, memory)]


with tempfile.TemporaryDirectory() as folder:
    redis = f"{folder}/redis.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", redis, "--dir", folder, "--save", ""], stdout=subprocess.DEVNULL)
    config = pathlib.Path(folder, "config.toml")
    config.write_text('[contexts.2.python]\npreload = ["numpy"]\n')
    while subprocess.run(["redis-cli", "-s", redis, "PING"], capture_output=True).stdout != b"PONG\n":
        time.sleep(0.05)
    agent = subprocess.Popen([binary, "agent", "--redis", f"unix://{redis}", "--context", "1,2", "--config", config, "--state-dir", f"{folder}/state"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        print("| job | numpy preloaded | wall, ms | CPU, ms | memory, MiB |\n|---|---|---|---|---|")
        for script in ("pass", "import numpy", "import numpy; numpy.ones((300, 300)) @ numpy.ones((300, 300))"):
            for context in (1, 2):
                first = 1 + 1000 * context + 100000 * len(script)
                wall, cpu, memory = measure(folder, redis, context, script, first)
                print(f"| `{script}` | {'yes' if context == 2 else 'no'} | {wall:.1f} | {cpu:.1f} | {memory:.1f} |", flush=True)
    finally:
        agent.terminate()
        agent.wait()
        server.terminate()
        server.wait()
