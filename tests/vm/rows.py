#!/usr/bin/env python3
"""Inside the machine: each row starts real jobs through the installed units and prints its result in one line.

"ok NAME: detail" or "FAILED NAME: why", and at last "end of rows". Lines that start with spaces belong to the row before.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback

UNIT = "mycojobs-agent.service"
COORDINATOR = "mycojobs-coordinator.service"
GROUP = "/sys/fs/cgroup/system.slice/" + UNIT
MEBI = 1 << 20
LAYERS = "userns pidns mountns netns ipcns utsns cgroupns seccomp caps nnp landlock:2 cgroup:memory cgroup:pids".split()
ROWS = []


def row(function):
    ROWS.append(function)
    return function


def check(holds, why):
    if not holds:
        raise AssertionError(why)


def sh(*words, ok=True, seconds=120, **more):
    more = more if "input" in more else {"stdin": subprocess.DEVNULL, **more}
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, **more)
    if ok:
        check(done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def until(holds, what, seconds=40):
    end = time.monotonic() + seconds
    while True:
        answer = holds()
        if answer:
            return answer
        check(time.monotonic() < end, f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.1)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def counter(path, name):
    return int(re.search(rf"(?m)^{name} (\d+)$", read(path)).group(1))


class Job:
    """A job that takes the real path; `script` is text."""

    def __init__(self, script, *flags, context=1):
        self.context = context
        write("/tmp/job.py", script)
        done = sh("mycojobs", "job", "submit", "/tmp/job.py", "--redis", "redis://127.0.0.1:6379", "--context", str(context), "--json", *flags)
        answer = json.loads(done.stdout)
        self.key = f"job:{answer['caller_id']}:{answer['id']}"

    def record(self):
        lines = sh("redis-cli", "-n", str(self.context), "--json", "HGETALL", self.key).stdout
        return json.loads(lines)

    def status(self):
        return sh("redis-cli", "-n", str(self.context), "HGET", self.key, "status").stdout.strip()

    def started(self):
        until(lambda: self.status() == "started", lambda: f"{self.key} starts: {self.record()}")
        return self

    def end(self, seconds=60):
        until(lambda: self.status() in ("finished", "error"), lambda: f"{self.key} ends: {self.record()}", seconds)
        record = self.record()
        record["usage"] = json.loads(record["usage"]) if record.get("usage") else {}
        record["result"] = json.loads(record["result"]) if record.get("result") else {}
        return record

    def finished(self, seconds=60):
        record = self.end(seconds)
        check(record["status"] == "finished", f"{self.key}: {record}")
        return record


def sleeper(seconds, *flags, **more):
    return Job(f"import os, time\ntime.sleep({seconds})\nresult['deliveries'] = os.environ['MYCOJOBS_DELIVERIES']\n", *flags, **more)


def stuck_at_first():
    """A job that sleeps forever in its first run, and ends at once in later runs."""
    return Job("import os, time\nif os.environ['MYCOJOBS_DELIVERIES'] == '1': time.sleep(300)\n"
               "result['deliveries'] = os.environ['MYCOJOBS_DELIVERIES']\n").started()


def deliveries(record):
    return int(record["result"]["deliveries"])


def show(name, unit=UNIT):
    return sh("systemctl", "show", "--value", "--property", name, unit).stdout.strip()


def main_pid():
    return int(show("MainPID"))


def launcher_folders(group=GROUP):
    return [f"{group}/{name}" for name in os.listdir(group) if re.fullmatch(r"mycojobs-\d+-\d+-\d+", name)]


def run_groups(group=GROUP):
    return [f"{folder}/{name}" for folder in launcher_folders(group) for name in os.listdir(folder) if name.isdigit()]


def drop_in(text):
    write(f"/run/systemd/system/{UNIT}.d/row.conf", text)
    sh("systemctl", "daemon-reload")


def no_drop_in():
    shutil.rmtree(f"/run/systemd/system/{UNIT}.d", ignore_errors=True)
    sh("systemctl", "daemon-reload")


def as_worker(*words, ok=True):
    return sh("runuser", "-u", "worker", "--", "env", "XDG_RUNTIME_DIR=/run/user/1000", "HOME=/home/worker", *words, ok=ok, cwd="/home/worker")


SPARES = 8  # prewarmed sandboxes of a zygote: an init and a waiting job each, with a group


def only_prewarmed_are_left(*group):
    def members(folder):
        try:
            with open(f"{folder}/cgroup.procs") as file:
                return len(file.read().split())
        except OSError:  # the group was just removed
            return 0

    def holds():
        left = run_groups(*group)
        return len(left) <= SPARES and all(members(each) <= 2 for each in left)

    until(holds, lambda: f"groups are left that are no prewarmed sandboxes': {run_groups(*group)}")


def only_one_launcher():
    until(lambda: len(launcher_folders()) == 1, lambda: f"one launcher's groups: {launcher_folders()}")
    only_prewarmed_are_left()


def doctor(run):
    done = run("mycojobs", "doctor", "--redis", "redis://127.0.0.1:6379", "--json", ok=False)
    # No Debian package contains a compiler for V, so its absence is not an error of this machine.
    return done.returncode, [each for each in json.loads(done.stdout) if (each["area"], each["name"]) != ("executor", "v")]


@row
def the_machine_is_what_it_should_be():
    check(read("/proc/self/cgroup").startswith("0::"), "cgroup v1 is in use")
    check(os.uname().release.startswith("6.1."), os.uname().release)
    return f"Linux {os.uname().release}, systemd {sh('systemctl', '--version').stdout.split()[1]}, cgroup v2"


@row
def units_are_well_formed():
    folder = "/usr/local/lib/systemd"
    sh("systemd-analyze", "--man=no", "verify", f"{folder}/system/{UNIT}", f"{folder}/system/{COORDINATOR}")
    as_worker("systemd-analyze", "--man=no", "--user", "verify", f"{folder}/user/{UNIT}", f"{folder}/user/{COORDINATOR}")
    return "systemd-analyze verify has nothing to say about the four"


@row
def service_starts_and_says_so():
    sh("systemctl", "enable", "--now", UNIT)
    check(show("ActiveState") == "active" and show("Type") == "notify", show("ActiveState"))
    check("runner 20 serves context 1" in show("StatusText"), show("StatusText"))
    pids = read(GROUP + "/mycojobs-self/cgroup.procs").split()
    check(str(main_pid()) in pids and not read(GROUP + "/cgroup.procs"), f"processes: {pids}")
    return show("StatusText")


def check_exposure(unit, documented):
    """Compares the exposure of a loaded unit, and of its file alone, with the row of docs/install.md for `documented`."""
    rows = dict(re.findall(r"(?m)^\| `(\S+)` \| ([\d.]+: [\d.]+) for the file alone", read("/payload/install.md")))
    file = sh("systemctl", "show", "--value", "--property", "FragmentPath", unit).stdout.strip()
    measured = []
    for words in ((unit,), ("--offline=true", file)):
        last = sh("systemd-analyze", "security", "--no-pager", *words).stdout.strip().splitlines()[-1]
        measured.append(re.search(r"([\d.]+) [A-Z]+", last).group(1))
    loaded, alone = measured
    check(rows[documented] == f"{loaded}: {alone}",
          f"{unit}: measured {loaded} loaded and {alone} for the file alone; docs/install.md has {rows[documented]}")
    return f"{unit} {loaded} of 10, {alone} for the file alone"


@row
def exposure_as_systemd_sees_it():
    return check_exposure(UNIT, "mycojobs-agent@.service")


@row
def doctor_is_green():
    code, checks = doctor(lambda *words, ok: sh("systemd-run", "--scope", "-q", "-p", "Delegate=yes", *words, ok=ok))
    bad = [each for each in checks if each["state"] != "ok"]
    check(code == 0 and not bad, bad)
    return ", ".join(each["name"] for each in checks if each["area"] == "sandbox")


@row
def without_delegation_it_names_the_remedy():
    code, checks = doctor(sh)
    missing = {each["name"]: each["remedy"] for each in checks if each["state"] == "error"}
    check(code == 69 and "Delegate=yes" in missing.get("cgroup:memory", ""), missing)
    return f"missing: {', '.join(missing)}"


def readme_commands(run):
    """Types the commands of README.md after the build, in a shell without a delegated group and without a configuration."""
    run("sh", "-c", """echo 'print("hello"); result["n"] = 3' > hello.py""")
    done = run("mycojobs", "run", "hello.py")
    check(done.stdout == "hello\n" and "n = 3" in done.stderr and "finished ok" in done.stderr, done.stdout + done.stderr)
    receipt = next(line for line in done.stderr.splitlines() if line.startswith("job:"))
    done = run("mycojobs", "run", "/payload/hello/denied.py")
    check("host_file = denied" in done.stderr and "network = denied" in done.stderr, done.stdout + done.stderr)
    done = run("mycojobs", "sandbox", "run", "hello.py")
    check("cgroup:memory cgroup:pids" in done.stderr, done.stderr)
    return receipt


@row
def the_readme_works_in_a_shell_of_root():
    os.makedirs("/root/readme", exist_ok=True)
    write("/root/readme/empty.toml", "")
    more = {**os.environ, "MYCOJOBS_CONFIG": "/root/readme/empty.toml", "MYCOJOBS_STATE_DIR": "/root/readme/state"}
    return readme_commands(lambda *words: sh(*words, cwd="/root/readme", env=more))


@row
def the_readme_works_in_a_shell_of_an_ordinary_user():
    return readme_commands(as_worker)


@row
def where_no_scope_can_be_had_the_error_has_the_command():
    done = sh("runuser", "-u", "nobody", "--", "env", "HOME=/tmp/nobody", "mycojobs", "sandbox", "run", "/payload/hello/denied.py", ok=False)
    line = "type: systemd-run --user --scope -p Delegate=yes mycojobs sandbox run /payload/hello/denied.py"
    check(done.returncode == 69 and line in done.stderr, f"exit {done.returncode}: {done.stderr}")
    return line


@row
def a_job_has_every_layer():
    record = Job("print('hello')").finished()
    missing = [layer for layer in LAYERS + ["uid"] if layer not in record["layers"].split()]
    check(not missing, f"missing {missing} in {record['layers']}")
    return record["layers"]


@row
def limits_stand_in_the_group():
    job = sleeper(300).started()
    wanted = {"memory.max": str(64 * MEBI), "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "17"}

    def found():  # prewarmed sandboxes also have groups, which are created and removed
        limits = []
        for group in run_groups():
            try:
                limits.append({name: read(f"{group}/{name}") for name in wanted})
            except OSError:
                continue
        return limits

    until(lambda: wanted in found(), lambda: f"a group with these limits: {found()}")
    sh("mycojobs", "job", "cancel", job.key.removeprefix("job:"), "--redis", "redis://127.0.0.1:6379")
    check(job.end()["detail"] == "cancelled", job.record())
    return str(wanted)


@row
def memory_limit_is_oom_and_nothing_is_swapped():
    before = counter(launcher_folders()[0] + "/memory.events", "oom_kill")
    restarts = show("NRestarts")
    record = Job("x = bytearray(400 << 20)").end()
    check(record["detail"] == "oom", record)
    peak = record["usage"]["memory_peak_bytes"]
    check(48 * MEBI <= peak <= 64 * MEBI, f"peak {peak}")
    killed = counter(launcher_folders()[0] + "/memory.events", "oom_kill") - before
    check(killed >= 1, "the kernel counted no kill")
    swapped = int(read(GROUP + "/memory.swap.current"))
    check(swapped == 0, f"{swapped} bytes are swapped out")
    check(show("ActiveState") == "active" and show("NRestarts") == restarts, "the unit did not live on")
    return f"{record['error']}; peak {peak >> 20} MiB, oom_kill {killed}, swap 0 of {read('/proc/swaps').split()[7]} KiB"


@row
def a_signal_is_not_oom():
    record = Job("import os, signal\nx = bytearray(8 << 20)\nos.kill(os.getpid(), signal.SIGSEGV)").end()
    check(record["detail"] == "signal", record)
    return record["error"]


@row
def pids_limit_stops_a_bomb():
    job = Job("import threading, time\nn = 0\nhold = threading.Event()\ntry:\n  while True:\n"
                 "    threading.Thread(target=hold.wait, daemon=True).start()\n    n += 1\n"
                 "except RuntimeError:\n  result['threads'] = n\ntime.sleep(5)\n")
    refused = until(lambda: [n for n in (counter(group + "/pids.events", "max") for group in run_groups()) if n], "a refused thread in pids.events")
    record = job.finished()
    threads = int(record["result"]["threads"])
    check(threads == 15, threads)  # in addition to the main thread
    check(record["usage"]["pids_peak"] == 16, record["usage"])
    return f"{threads} threads beside the main one, peak {record['usage']['pids_peak']}, {refused[0]} refused"


@row
def grants_and_the_proxy_work_under_the_unit():
    write("/tmp/grants.toml", 'fs.read = ["/srv/data"]\nnet = ["127.0.0.1:6379"]\n')
    script = """
import socket
result['text'] = open('/srv/data/text').read()
proxy = socket.create_connection(('127.0.0.1', 3128))
proxy.sendall(b'CONNECT 127.0.0.1:6379 HTTP/1.1\\r\\nHost: 127.0.0.1:6379\\r\\n\\r\\n')
result['tunnel'] = proxy.recv(200).decode().split()[1]
proxy.sendall(b'PING\\r\\n')
result['redis'] = proxy.recv(20).decode().strip()
"""
    record = Job(script, "--policy", "/tmp/grants.toml").finished()
    expected = {"text": "granted", "tunnel": "200", "redis": "+PONG"}
    check({key: record["result"].get(key) for key in expected} == expected, record)
    return str(expected)


@row
def cpu_time_is_counted_in_threads_too():
    record = Job("import threading, time\ndef burn():\n  while time.thread_time() < 0.5: pass\n"
                 "all = [threading.Thread(target=burn) for _ in range(2)]\n[t.start() for t in all]\n[t.join() for t in all]\n").finished()
    cpu = record["usage"]["user_us"] + record["usage"]["system_us"]
    check(cpu >= 1_000_000, record["usage"])
    return f"{cpu / 1e6:.2f} s"


@row
def no_group_is_left_after_jobs():
    only_one_launcher()
    return os.path.basename(launcher_folders()[0])


@row
def what_a_job_writes_reaches_no_disk():
    def written():
        return sum(int(n) for n in re.findall(r"wbytes=(\d+)", read(GROUP + "/io.stat")))
    before = written()
    record = Job("open('/tmp/a', 'wb').write(b'x' * (24 << 20))\nopen('/job/b', 'wb').write(b'x' * (8 << 20))\n").finished()
    check(written() - before < 4 * MEBI, f"{written() - before} bytes were written")
    return f"32 MiB in /tmp and /job, {(written() - before) >> 10} KiB on disk; memory peak {record['usage']['memory_peak_bytes'] >> 20} MiB"


@row
def io_limit_of_the_unit_holds_its_jobs():
    sh("systemctl", "set-property", "--runtime", UNIT, "IOReadBandwidthMax=/dev/vda 4M", "IOWriteBandwidthMax=/dev/vda 1M")
    limit = until(lambda: read(GROUP + "/io.max"), "io.max of the unit")
    check("rbps=4000000 wbps=1000000" in limit, limit)
    Job("print('hello')").finished()
    sh("systemctl", "set-property", "--runtime", UNIT, "IOReadBandwidthMax=", "IOWriteBandwidthMax=")
    return f"io.max of the unit: {limit}"


@row
def restart_lets_running_jobs_finish():
    running = [sleeper(3).started() for _ in range(2)]
    waiting = [sleeper(0.1) for _ in range(4)]
    pid = main_pid()
    sh("systemctl", "restart", UNIT)
    check(main_pid() != pid, "it was not restarted")
    counts = [deliveries(job.finished()) for job in running + waiting]
    check(counts == [1] * 6, f"deliveries {counts}")
    only_one_launcher()
    return "2 running and 4 waiting jobs, each delivered once"


@row
def stop_drains_and_leaves_with_0():
    running = sleeper(3).started()
    sh("systemctl", "stop", UNIT)
    record = running.record()
    check(record["status"] == "finished", record)
    left = {name: show(name) for name in ("Result", "ExecMainCode", "ExecMainStatus")}
    check(left == {"Result": "success", "ExecMainCode": "1", "ExecMainStatus": "0"}, left)  # 1: it exited
    late = sleeper(0.1)
    check(late.status() == "dispatched", late.record())
    check(not os.path.exists(GROUP), "the unit's group is still there")
    sh("systemctl", "start", UNIT)
    check(deliveries(late.finished()) == 1, "delivered more than once")
    return "the running job finished, the next one waited for the start"


@row
def a_drain_that_takes_too_long_gives_jobs_back():
    drop_in("[Service]\nTimeoutStopSec=1\n")
    running = stuck_at_first()
    sh("systemctl", "stop", UNIT)
    check(show("Result") == "timeout", show("Result"))
    check(running.status() == "started", running.record())
    no_drop_in()
    sh("systemctl", "reset-failed", UNIT)
    sh("systemctl", "start", UNIT)
    count = deliveries(running.finished())
    check(count == 2, f"deliveries {count}")
    return "killed with the unit, delivered again by the next start, finished once"


@row
def a_killed_agent_is_started_again_and_takes_its_jobs_up():
    restarts = int(show("NRestarts"))
    jobs = [stuck_at_first(), sleeper(0.1), sleeper(0.1)]
    os.kill(main_pid(), signal.SIGKILL)
    counts = [deliveries(job.finished()) for job in jobs]
    check(counts[0] == 2, f"deliveries {counts}")
    check(int(show("NRestarts")) == restarts + 1, show("NRestarts"))
    only_one_launcher()
    return f"deliveries {counts}"


@row
def a_killed_launcher_leaves_no_groups():
    folder = launcher_folders()[0]
    job = stuck_at_first()
    os.kill(int(folder.split("-")[-2]), signal.SIGKILL)
    count = deliveries(job.finished())
    check(count == 2, f"deliveries {count}")
    only_one_launcher()
    check(folder not in launcher_folders() and show("NRestarts") == "1", launcher_folders())
    return "a new launcher, the old one's groups are gone, the agent is the same"


@row
def a_stopped_agent_meets_the_watchdog():
    drop_in("[Service]\nWatchdogSec=5\n")
    sh("systemctl", "restart", UNIT)
    time.sleep(6)  # idle
    check(show("NRestarts") == "0" and show("ActiveState") == "active", "an idle agent did not say that it lives")
    job = stuck_at_first()
    os.kill(main_pid(), signal.SIGSTOP)
    count = deliveries(job.finished(90))
    check(count == 2, f"deliveries {count}")
    check(show("NRestarts") == "1", show("NRestarts"))
    log = sh("journalctl", "--no-pager", "-u", UNIT, "--since", "-2min").stdout
    check("Watchdog timeout" in log, log[-2000:])
    no_drop_in()
    only_one_launcher()
    return "ended, started again, its job delivered again and finished once"


@row
def a_wrong_setting_is_not_tried_again():
    write("/run/row.toml", "redis = 'redis://127.0.0.1:6379'\nslots = 0\n")
    drop_in("[Service]\nEnvironment=MYCOJOBS_CONFIG=/run/row.toml\n")
    check(sh("systemctl", "restart", UNIT, ok=False).returncode != 0, "it started")
    time.sleep(2.5)
    check((show("ActiveState"), show("ExecMainStatus")) == ("failed", "65"), show("ActiveState") + show("ExecMainStatus"))
    log = sh("journalctl", "--no-pager", "-u", UNIT, "-n", "20").stdout
    check("/run/row.toml:2" in log and "slots" in log, log)
    no_drop_in()
    sh("systemctl", "restart", UNIT)
    return "failed with 65, its log names the line"


@row
def an_ordinary_user_runs_it_too():
    write("/home/worker/.config/mycojobs/config.toml", 'redis = "redis://127.0.0.1:6379"\nrunner = 21\ncontext = [2]\nslots = 2\n[sandbox]\nmemory = "64MiB"\npids = 16\n')
    sh("chown", "-R", "worker:worker", "/home/worker/.config")
    as_worker("systemctl", "--user", "start", UNIT)
    group = "/sys/fs/cgroup" + as_worker("systemctl", "--user", "show", "--value", "--property", "ControlGroup", UNIT).stdout.strip()
    record = Job("import os\nresult['uid'] = os.getuid()", context=2).finished()
    missing = [layer for layer in LAYERS if layer not in record["layers"].split()]
    check(not missing, f"missing {missing} in {record['layers']}")
    check("uid" not in record["layers"].split(), "a user id of its own was claimed")
    oom = Job("x = bytearray(400 << 20)", context=2).end()
    check(oom["detail"] == "oom", oom)
    check(launcher_folders(group), "no groups below the user's unit")
    only_prewarmed_are_left(group)
    running = sleeper(2, context=2).started()
    as_worker("systemctl", "--user", "stop", UNIT)
    check(running.record()["status"] == "finished", running.record())
    return f"all layers but uid; oom told; drained ({group})"


@row
def an_ordinary_user_runs_a_coordinator_too():
    as_worker("systemctl", "--user", "start", COORDINATOR)
    status = as_worker("systemctl", "--user", "show", "--value", "--property", "StatusText", COORDINATOR).stdout.strip()
    check("coordinator of" in status, status)
    sh("mycojobs", "health", "--url", "http://127.0.0.1:9652")
    write("/tmp/flow.yaml", "name: alone\njobs:\n  a: {log: moved on}\n")
    to_two = ("--redis", "redis://127.0.0.1:6379", "--context", "2", "--json")
    flow = json.loads(sh("mycojobs", "flow", "start", "/tmp/flow.yaml", "--detach", *to_two).stdout)
    show = ("mycojobs", "flow", "show", str(flow.get("id") or flow["flow"]), *to_two)
    until(lambda: re.search('"(finished|completed)"', sh(*show).stdout), lambda: sh(*show).stdout, 60)
    as_worker("systemctl", "--user", "stop", COORDINATOR)
    result = as_worker("systemctl", "--user", "show", "--value", "--property", "Result", COORDINATOR).stdout.strip()
    check(result == "success", result)
    return f"{status}; a flow ended"


@row
def doctor_of_an_ordinary_user_names_what_is_missing():
    code, checks = doctor(lambda *words, ok: as_worker("systemd-run", "--user", "--wait", "--pipe", "-q", "-p", "Delegate=yes", *words, ok=ok))
    other = {each["name"]: (each["state"], each["remedy"]) for each in checks if each["state"] != "ok"}
    check(code == 0 and list(other) == ["uid"] and "root" in other["uid"][1], other)
    return f"uid: {other['uid'][0]}, {other['uid'][1]}"


@row
def the_store_is_consistent_after_all_that():
    done = sh("mycojobs", "verify", "--redis", "redis://127.0.0.1:6379", "--context", "1,2")
    check("violation" not in done.stdout, done.stdout)
    return done.stdout.strip().splitlines()[-1]


def the_suite_of_the_sandbox_holds_on_this_kernel():
    place = read("/payload/suite/place")
    shutil.copytree("/payload/suite", place)
    # Tests that read the sources, that need an ordinary user, or that take long compared with their value for a kernel, run
    # only on the host.
    but = "Rows.*:Volumes.OrdinaryUser*:Honesty.NoRowDependsOnLandlock:Neighbours.ManyJobs*:Neighbours.NoProcessIs*:Frames.Mutated*:Fuzz.*:HostileJobs.Storm*:Leaks.*:*Matrix*"

    def run(name, chosen):
        return subprocess.run(["systemd-run", "--wait", "--pipe", "-q", "-p", "Delegate=yes", "-p", "TasksMax=infinity", f"{place}/{name}", "--gtest_brief=1", f"--gtest_filter={chosen}"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1500, check=False)

    summary = []
    for name in ("cgroup_tests", "sandbox_tests"):
        done = run(name, f"-{but}")
        ran = re.search(r"\[==========\] (\d+ tests)", done.stdout)
        skipped = re.search(r"\[  SKIPPED \] (.*)", done.stdout)
        check(not skipped, f"{name}: root's tests need nothing that this machine has not, and yet: {skipped and skipped[0]}")
        failed = sorted(set(re.findall(r"\[  FAILED  \] ([\w/]+\.[\w/]+)", done.stdout)))
        check(ran and (failed or done.returncode == 0), f"{name}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-1000:]}")
        summary.append(f"{ran.group(1)} of {name}")
        if not failed:
            continue
        # As on the host, a failed test is repeated once and reported.
        again = run(name, ":".join(failed))
        check(again.returncode == 0, f"{' '.join(failed)}\n{done.stdout[:2000]}\nagain:\n{again.stdout[:2000]}\n{again.stderr[-1000:]}")
        summary.append(f"at the second try {' '.join(failed)}")
    return ", ".join(summary)


def prepare():
    shutil.copytree("/payload/usr", "/usr", dirs_exist_ok=True)
    write("/etc/mycojobs/config.toml", 'redis = "redis://127.0.0.1:6379"\nrunner = 20\nslots = 3\nlease = "10s"\n[sandbox]\nmemory = "64MiB"\npids = 16\n[ceiling]\nfs.read = ["/srv/data"]\nnet = ["127.0.0.1:6379"]\n')
    write("/srv/data/text", "granted")
    sh("chmod", "700", "/etc/mycojobs")
    sh("systemctl", "daemon-reload")
    sh("redis-cli", "CONFIG", "SET", "appendonly", "yes")
    # Allows a job without its own swap limit to use swap.
    sh("dd", "if=/dev/zero", "of=/swap", "bs=1M", "count=128")
    sh("chmod", "600", "/swap")
    sh("mkswap", "/swap")
    sh("swapon", "/swap")


def main():
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    os.environ["HOME"] = "/root"
    groups = read("/payload/groups").split()
    if "packages" in groups:  # first, while the machine is clean
        import package_rows  # pylint: disable=import-outside-toplevel  # it imports this file
        do_group("packages", package_rows.ROWS, package_rows.recover)
        sh("dpkg", "--purge", "mycojobs", ok=False)
    # installs the libraries that the rows below load, if no row above has
    sh("sh", "-c", "dpkg --install --skip-same-version /srv/repository/*.deb", seconds=1000)
    sh("redis-cli", "FLUSHALL")
    prepare()
    if "units" in groups:
        do_group("units", ROWS, recover_unit)
    if "suite" in groups:
        do_group("suite", [the_suite_of_the_sandbox_holds_on_this_kernel], lambda: None)
    print("end of rows", flush=True)


def do_group(name, rows, recover):
    """Prints "held NAME" if no row of the group has failed, so that a second machine need not repeat the group."""
    if do(rows, recover):
        print(f"held {name}", flush=True)


def recover_unit():
    no_drop_in()
    sh("systemctl", "kill", "-s", "KILL", UNIT, ok=False)  # processes left by the row belong to no test
    sh("systemctl", "reset-failed", UNIT, ok=False)
    sh("systemctl", "restart", UNIT, ok=False)
    sh("redis-cli", "FLUSHALL")


def do(rows, recover, units="mycojobs-*"):
    """Returns whether all rows have held. units: pattern of the units whose journal is printed for a failed row."""
    only = read("/payload/only")  # written by machine.sh, or guest.sh of tests/image
    held = True
    for each in rows:
        name = each.__name__.replace("_", " ")
        if not re.search(only, name):
            continue
        began = time.monotonic()
        try:
            detail = each()
            print(f"ok {name} ({time.monotonic() - began:.1f} s): {detail}", flush=True)
        except Exception as error:  # pylint: disable=broad-except
            why = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            print(f"FAILED {name}: " + why.replace("\n", "\n    "), flush=True)
            log = sh("journalctl", "--no-pager", "-u", units, "-n", "15", "-o", "cat", ok=False).stdout
            print("    " + log.strip().replace("\n", "\n    "), flush=True)
            recover()
            held = False
    return held


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        print("FAILED the rows themselves: " + traceback.format_exc().replace("\n", "\n    "), flush=True)
        sys.exit(1)
