#!/usr/bin/python3
"""Whether anything grows: a mix of jobs at full speed through the embedded default, looked at every few seconds.

Writes bench/results/soak.json and bench/soak.md. Exit 1 if a series grows (soak_verdict.py has the rule), a job is not accounted for, `verify`
finds something, or something is left at the end. Usage: bench/soak.py [--minutes N] [--slots N] [--rate JOBS_PER_S] [--every SECONDS]
"""
import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time

from dev_agent import MYCOJOBS, ROOT, Agent
from soak_jobs import CONFIGURATION, Flows, Load
from soak_verdict import judge, shown, table
from soak_watch import Watch

# Limits of the steady state: maximum number of retained ended jobs, and their maximum age in seconds. The age is
# limited to the first quarter of the run, which is not evaluated. The benchmark must observe the end of each job before
# the job is removed.
KEPT, KEPT_S = 4000, 60
LOOK_S = 0.1
FLOW_EVERY_S = 7  # not a multiple of the sampling interval, so that some samples include a flow's client


def drive(agent, load, flows, watch, seconds, every):
    samples, start = [], time.monotonic()
    next_sample, next_look = start + every, start
    while (now := time.monotonic()) < start + seconds:
        if now >= next_sample:
            next_sample += every
            if now > next_sample:
                next_sample = now + every
            samples.append({"at": round(now - start, 3), "jobs": load.done(), "series": watch.sample()})
            live_line(samples, load)
        load.look()
        load.submit()
        flows.step()
        if agent.process.poll() is not None:
            raise RuntimeError(f"mycojobs dev has ended, exit {agent.process.returncode}")
        next_look = max(next_look + LOOK_S, time.monotonic())
        time.sleep(max(0.0, next_look - time.monotonic()) or LOOK_S / 10)
    return samples


def live_line(samples, load):
    last, series = samples[-1], samples[-1]["series"]
    before = samples[-2] if len(samples) > 1 else {"at": 0, "jobs": 0}
    rate = (last["jobs"] - before["jobs"]) / (last["at"] - before["at"])
    line = (f"{last['at']:6.0f} s  {last['jobs']} jobs  {rate:.0f}/s  agent {series.get('agent anonymous, MiB', 0):.1f} MiB, "
            f"{series.get('agent descriptors', 0)} fds  redis {series['redis used, MiB']:.1f} MiB  zombies {series['zombies']}  "
            f"cgroups {series.get('cgroups of the launcher', 0)}  wrong {len(load.wrong)}")
    print(("\r\x1b[K" + line) if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def drain(load):
    """Until every job has ended, or none has for a minute."""
    done, since = load.done(), time.monotonic()
    while load.open and time.monotonic() < since + 60:
        time.sleep(LOOK_S)
        load.look()
        if load.done() != done:
            done, since = load.done(), time.monotonic()


def leftovers(agent, watch):
    """Of a system at rest: what should not be there. Prewarmed sandboxes are."""
    deadline = time.monotonic() + 15
    while True:
        series, leases = watch.sample(), agent.redis.call("ZCARD", "mj:leases")
        wrong = [f"at rest: {series['zombies']} zombies"] if series["zombies"] else []
        if leases:
            wrong.append(f"at rest: {leases} leases")
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(0.2)


def verify(state):
    done = subprocess.run([MYCOJOBS, "verify", "--state-dir", state], capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()


def stop(agent, watch):
    """TERM; what is left of processes and cgroups then is wrong."""
    pids = {pid for _, pid in watch.long_lived()[0]}
    cgroups = watch.cgroups[1] if watch.cgroups else []
    agent.stop()
    deadline = time.monotonic() + 10
    while True:
        left = [f"process {pid} after the end" for pid in pids if os.path.exists(f"/proc/{pid}")]
        left += [f"cgroup {path} after the end" for path in cgroups if os.path.exists(path)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def page(result):
    accounts = "\n".join(f"| {name} | {end} | {submitted} | {right} |" for name, end, submitted, right in result["account"])
    wrong = "\n".join(f"- {line}" for line in result["wrong"][:50]) or "None."
    return f"""# Soak

`./dev soak --minutes {result["minutes"]:g}{f" --rate {result['rate']:g}" if result["rate"] else ""}`: {result["jobs"]} jobs in {result["minutes"]:g} min ({result["jobs"] / result["minutes"] / 60:.0f} jobs/s, {result["slots"]} slots), {result["flows"]} flows, {result["samples"]} samples.
{result["machine"]}. Verdict: **{result["verdict"]}**.

A private Redis keeps the last {KEPT} ended jobs, for {result["kept_s"]} s at most. Script hosts are replaced after their usual number of runs. A series grows if its
last median exceeds the second by more than the allowed rise (bench/soak_verdict.py). Medians are those of the quarters of the time. If several zygotes have one
name, the largest value is shown.

{table(result["series"])}

## All jobs

| kind | expected end | submitted | ended as expected |
|---|---|---|---|
{accounts}
| flow of four nodes | finished | {result["flows"]} | {result["flows_finished"]} |

`mycojobs verify` at the end: {result["verify"].splitlines()[-1] if result["verify"] else "no answer"}.

## Errors

{wrong}
"""


def columns(samples):
    """Of all samples: moments, jobs, and for each series its values, null where it was not there."""
    names = sorted({name for each in samples for name in each["series"]})
    rounded = lambda value: None if value is None else round(value, 3)
    return {"at": [round(each["at"], 1) for each in samples], "jobs": [each["jobs"] for each in samples],
            "series": {name: [rounded(each["series"].get(name)) for each in samples] for name in names}}


def soak(options, kept_s):
    """Drives and looks; gives the samples, the load and the flows, and what was wrong at the end."""
    seconds = options.minutes * 60
    with tempfile.NamedTemporaryFile("w", suffix=".toml", prefix="mycojobs-soak-") as configuration:
        configuration.write(CONFIGURATION)
        configuration.flush()
        agent = Agent(options.slots, "--config", configuration.name, "--api-listen", "", "--retention", f"{kept_s}s", "--retention-count", str(KEPT))
    watch, load, flows = Watch(agent), Load(agent.redis, agent.next, options.slots, options.rate), Flows(agent.state, FLOW_EVERY_S)
    wrong = []
    try:
        samples = drive(agent, load, flows, watch, seconds, options.every or min(5.0, seconds / 120))
        print(file=sys.stderr)
        flows.finish()
        drain(load)
        wrong += leftovers(agent, watch)
        code, said = verify(agent.state)
        if code != 0:
            wrong.append(f"verify: exit {code}: {said[-500:]}")
    finally:
        wrong += stop(agent, watch)
    return samples, load, flows, said, wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0, help="jobs a second; 0: as fast as they go")
    parser.add_argument("--every", type=float, default=0, help="seconds between samples; 0: a 120th of the time, 5 at most")
    options = parser.parse_args()
    kept_s = max(1, min(KEPT_S, int(options.minutes * 60 / 5)))
    samples, load, flows, said, left = soak(options, kept_s)
    rows = judge(samples)
    account, wrong = load.account()
    wrong += [f"job {number} never ended" for number in load.open] + flows.wrong + left
    wrong += [f"{row['series']}: {row['verdict']}, {shown(row['second'])} -> {shown(row['last'])}, {shown(row['allowed'])} allowed"
              for row in rows if row["verdict"] in ("grows", "too few samples")]
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")), "?")
    result = {"minutes": options.minutes, "slots": options.slots, "rate": options.rate, "kept_s": kept_s, "jobs": load.done(), "flows": flows.begun,
              "flows_finished": flows.finished, "samples": len(samples), "verdict": "wrong" if wrong else "flat", "wrong": wrong,
              "account": account, "verify": said, "series": rows, "values": columns(samples),
              "machine": f"{os.cpu_count()} x {cpu}, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}"}
    os.makedirs(os.path.join(ROOT, "bench/results"), exist_ok=True)
    with open(os.path.join(ROOT, "bench/results/soak.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, separators=(",", ":"))
        file.write("\n")
    with open(os.path.join(ROOT, "bench/soak.md"), "w", encoding="utf-8") as file:
        file.write(page(result))
    print(page(result))
    return 1 if wrong else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
