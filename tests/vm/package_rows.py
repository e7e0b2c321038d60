"""Rows of the packages on a machine without earlier installations: installed, run, upgraded, downgraded, purged."""
import json
import os
import threading
import urllib.error
import urllib.request

from rows import COORDINATOR, LAYERS, Job, check, check_exposure, read, sh, sleeper, until, write

AGENT = "mycojobs-agent@20.service"
CONFIG = "/etc/mycojobs/config.toml"
REDIS = ("--redis", "redis://127.0.0.1:6379")
FOLDER = "/payload/packages"
ROWS = []


def row(function):
    ROWS.append(function)
    return function


def package(newer, name="mycojobs"):
    return next(f"{FOLDER}/{each}" for each in sorted(os.listdir(FOLDER)) if each.startswith(name + "_") and ("+next" in each) == newer)


def dpkg(*words):
    done = sh("dpkg", *words, seconds=1000)  # for a busy host with software emulation
    return done.stdout + done.stderr


def state(unit):
    return sh("systemctl", "show", "--value", "--property", "ActiveState", unit).stdout.strip()


def pid(unit):
    return int(sh("systemctl", "show", "--value", "--property", "MainPID", unit).stdout)


def version():
    return sh("dpkg-query", "-W", "-f", "${Version}", "mycojobs").stdout


def listening():
    """Returns the addresses with a listening socket."""
    found = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in read(f"/proc/net/{name}").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" or name.startswith("udp"):
                found.add(f"{name} {words[1]}")
    return found


def recover():
    """Restores the state for the next row: the packages are completely installed, and the units run."""
    sh("dpkg", "--configure", "-a", ok=False)
    for unit in (AGENT, COORDINATOR):
        if sh("systemctl", "is-enabled", unit, ok=False).stdout.strip() == "enabled":
            sh("systemctl", "reset-failed", unit, ok=False)
            sh("systemctl", "start", unit, ok=False)


def left_over():
    """Returns the files with the name of the program."""
    found = sh("find", "/", "-xdev", "-name", "*mycojobs*", "-not", "-path", "/proc/*", "-not", "-path", "/tmp/*").stdout
    return found.split() + [f"/run/{name}" for name in os.listdir("/run") if "mycojobs" in name]


@row
def apt_installs_what_the_package_needs_and_starts_nothing():
    before = listening()
    check(not left_over(), f"this machine is not clean: {left_over()}")
    check(sh("dpkg-query", "-W", "libhiredis0.14", ok=False).returncode != 0, "the libraries are there already")
    write("/etc/apt/sources.list", "deb [trusted=yes] file:/srv/repository ./\n")
    sh("apt-get", "update", "-q")
    sh("apt-get", "install", "-yq", "-o", "APT::Install-Recommends=true", package(newer=False), seconds=1000)
    check(listening() == before, f"somebody listens now: {listening() - before}")
    units = sh("systemctl", "list-units", "--all", "--plain", "--no-legend", "mycojobs*").stdout
    check(not units, units)
    for unit in (AGENT, "mycojobs-agent.service", COORDINATOR):
        enabled = sh("systemctl", "is-enabled", unit, ok=False).stdout.strip()
        check(enabled == "disabled", f"{unit}: {enabled}")
    users = sh("systemctl", "--global", "is-enabled", "mycojobs-agent.service", ok=False).stdout.strip()
    check(users == "disabled", f"units of users: {users}")
    sh("systemd-analyze", "--man=no", "verify", AGENT, COORDINATOR)
    mode = sh("stat", "-c", "%a %U", "/etc/mycojobs", "/etc/mycojobs/config.toml").stdout.split()
    check(mode == ["700", "root", "600", "root"], mode)
    for name in ("libhiredis0.14", "ca-certificates"):
        sh("dpkg-query", "-W", name)
    return f"{version()}; nothing listens, nothing is enabled"


@row
def one_edited_file_gives_a_worker():
    sh("sed", "-i", "s/^# redis = /redis = /; s/^# slots = 8/slots = 3/; s/^# .ceiling.$/[ceiling]/; s/^# fs.read = .*/fs.read = [\"\/srv\/go\"]/", CONFIG)
    sh("mycojobs", "config", "check")
    sh("systemctl", "enable", "--now", AGENT)
    status = sh("systemctl", "show", "--value", "--property", "StatusText", AGENT).stdout
    check("runner 20 serves context 1" in status, status)
    record = Job("print('hello')").finished()
    missing = [layer for layer in LAYERS + ["uid"] if layer not in record["layers"].split()]
    check(not missing, f"missing {missing} in {record['layers']}")
    return f"{status.strip()}; its first job had every layer"


@row
def several_agents_share_a_host_and_a_file():
    sh("systemctl", "start", "mycojobs-agent@21.service")
    live = json.loads(sh("mycojobs", "runner", "list", "--json", *REDIS).stdout)
    ids = sorted(each["id"] for each in live)
    sh("systemctl", "stop", "mycojobs-agent@21.service")
    check(ids == [20, 21], live)
    return "runners 20 and 21"


@row
def the_coordinator_s_unit_moves_a_flow_on():
    sh("systemctl", "enable", "--now", COORDINATOR)
    write("/tmp/flow.yaml", "name: two\njobs:\n  a: {type: python, script: \"print('a')\"}\n  b: {needs: a, type: python, script: \"print('b')\"}\n")
    flow = json.loads(sh("mycojobs", "flow", "start", "/tmp/flow.yaml", "--detach", "--json", *REDIS).stdout)
    key = str(flow.get("id") or flow["flow"])

    def stands():
        return sh("mycojobs", "flow", "show", key, "--json", *REDIS).stdout

    until(lambda: '"finished"' in stands() or '"completed"' in stands(), stands, 60)
    status = sh("systemctl", "show", "--value", "--property", "StatusText", COORDINATOR).stdout.strip()
    return f"{status}; a flow of two jobs ended"


@row
def the_coordinator_s_unit_runs_workflows():
    sh("mycojobs", "workflow", "apply", "/payload/order/order.json", *REDIS)
    sh("mycojobs", "workflow", "send", "order/Placed", '{"id": 7, "item": "lamp", "count": 1, "cents": 1500, "card": "visa"}', *REDIS)

    def steps():
        return sum(each["steps"] for each in json.loads(sh("mycojobs", "workflow", "cells", "order", "--json", *REDIS).stdout))

    until(steps, lambda: sh("journalctl", "--no-pager", "-u", COORDINATOR, "-n", "20").stdout, 60)
    return "its code has taken steps"


@row
def exposure_of_the_units():
    return ", ".join(check_exposure(unit, unit.replace("@20", "@")) for unit in (AGENT, COORDINATOR))


def asked(url):
    """Returns status and body of a GET request."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as why:
        return why.code, why.read().decode()
    except urllib.error.URLError as why:
        return 0, str(why)


@row
def readiness_follows_redis_and_no_order_of_starts_fails():
    folder = f"/run/systemd/system/{AGENT}.d"
    urls = ["http://127.0.0.1:9653/readyz", "http://127.0.0.1:9652/readyz"]  # agent, coordinator
    answers = lambda code: all(asked(url)[0] == code for url in urls)  # noqa: E731
    stands = lambda: f"{[asked(url) for url in urls]}"  # noqa: E731
    status = lambda: sh("systemctl", "show", "--value", "--property", "StatusText", AGENT).stdout.strip()  # noqa: E731
    write(folder + "/row.conf", "[Service]\nEnvironment=MYCOJOBS_HEALTH_LISTEN=127.0.0.1:9653\n")
    try:
        sh("systemctl", "daemon-reload")
        sh("systemctl", "restart", AGENT)
        until(lambda: answers(200), stands)
        sh("mycojobs", "health", "--url", "http://127.0.0.1:9653")
        sh("systemctl", "stop", "redis-server")
        until(lambda: answers(503), stands)
        away = asked(urls[0])[1]
        check("Redis is unavailable" in away, away)
        check(asked("http://127.0.0.1:9653/healthz")[0] == 200, "it lives")
        check(sh("mycojobs", "health", "--url", "http://127.0.0.1:9653", ok=False).returncode == 1, "mycojobs health")
        until(lambda: status() == "Redis is unavailable", status)
        sh("systemctl", "restart", AGENT, COORDINATOR)
        check((state(AGENT), state(COORDINATOR)) == ("active", "active"), "they wait")
        check(status().startswith("waits for its store: "), status())
        until(lambda: answers(503), stands)
        sh("systemctl", "start", "redis-server")
        until(lambda: answers(200), stands)
        until(lambda: "runner 20 serves" in status(), status)
        Job("print('hello')").finished()
    finally:
        sh("systemctl", "start", "redis-server")
        os.unlink(folder + "/row.conf")
        os.rmdir(folder)
        sh("systemctl", "daemon-reload")
        sh("systemctl", "restart", AGENT)
    return away.strip()


@row
def the_python_client_is_a_package_too():
    dpkg("--install", package(newer=False, name="python3-mycojobs"))
    token = sh("mycojobs", "key", "token", "--operator").stdout.split()[0]
    write("/tmp/client.py", "import mycojobs\n\n\ndef add(a, b):\n    return a + b\n\n\nprint(mycojobs.Client().submit(add, 40, 2).result(60))\n")
    output = sh("env", f"MYCOJOBS_TOKEN={token}", "/usr/bin/python3", "/tmp/client.py").stdout.strip()
    check(output == "42", output)
    dpkg("--purge", "python3-mycojobs")
    return f"submit(add, 40, 2) is {output}"


class Held:
    """Jobs that run until they are released."""

    def __init__(self, name, count):
        self.path = f"/srv/go/{name}"
        write("/srv/go/README", "")
        write("/tmp/go.json", '{"fs.read": ["/srv/go"]}')
        script = f"import os, time\nwhile not os.path.exists('{self.path}'): time.sleep(1)\nresult['deliveries'] = os.environ['MYCOJOBS_DELIVERIES']\n"
        self.jobs = [Job(script, "--policy", "/tmp/go.json", "--timeout", "1000s") for _ in range(count)]
        for job in self.jobs:
            until(lambda: job.status() == "started", lambda: f"{job.key} starts: {job.record()}", 400)

    def let_go(self):
        write(self.path, "")

    def let_go_when_the_agent_stops(self):
        """Releases the jobs as soon as systemd has told the agent to stop; they run until then."""
        def waits():
            until(lambda: state(AGENT) == "deactivating", "the agent is told to stop", 400)
            self.let_go()

        thread = threading.Thread(target=waits)
        thread.start()
        return thread

    def ended_once(self):
        for job in self.jobs:
            check(job.finished(400)["result"]["deliveries"] == "1", job.record())


JOBS, RUNNING = 500, 40


def plain_jobs(first, count, script):
    """Submits jobs as any Redis client would."""
    lines = []
    for number in range(first, first + count):
        lines.append(f'HSET job:12:{number} id {number} caller_id 12 context_id 1 script_type python script "{script}"')
        lines.append(f"LPUSH queue:python job:12:{number}")
    write("/tmp/commands", "\n".join(lines) + "\n")
    sh("sh", "-c", "redis-cli -n 1 </tmp/commands")


def fields(first, count, name):
    write("/tmp/commands", "".join(f"HGET job:12:{number} {name}\n" for number in range(first, first + count)))
    return sh("sh", "-c", "redis-cli -n 1 </tmp/commands").stdout.split("\n")[:count]


def began_ms(unit):
    stamp = sh("systemctl", "show", "--value", "--timestamp=unix", "--property", "ActiveEnterTimestamp", unit).stdout
    return int(stamp.strip().lstrip("@")) * 1000


@row
def an_upgrade_with_500_jobs_loses_none():
    right = read(CONFIG)
    try:
        write(CONFIG, right.replace("slots = 3", f"slots = {RUNNING}"))
        sh("systemctl", "restart", AGENT)
        held = Held("upgrade", RUNNING)
        plain_jobs(1000, JOBS, "import os; result['deliveries'] = os.environ['MYCOJOBS_DELIVERIES']")
        old, coordinator = pid(AGENT), pid(COORDINATOR)
        check(sh("redis-cli", "-n", "1", "HGET", "runner:20", "version").stdout.strip() == "0.1.0", "the runner's version")
        going = held.let_go_when_the_agent_stops()
        shown = dpkg("--install", package(newer=True))
        going.join()
    finally:
        write(CONFIG, right + "\n")
    check("+next" in version() and sh("mycojobs", "version").stdout.strip() == "mycojobs 0.1.1", shown)
    log = sh("journalctl", "--no-pager", "-u", AGENT, "-o", "cat").stdout
    check(f"draining: {RUNNING} jobs to finish" in log, log[-3000:])
    check(all(job.status() == "finished" for job in held.jobs), "the old agent did not drain")
    held.ended_once()
    check(pid(AGENT) not in (0, old) and pid(COORDINATOR) not in (0, coordinator), "not started again")
    check(sh("redis-cli", "-n", "1", "HGET", "runner:20", "version").stdout.strip() == "0.1.1", "the new runner's version")
    check(state("mycojobs-agent@21.service") == "inactive", "what did not run was started")
    until(lambda: fields(1000, JOBS, "status") == ["finished"] * JOBS, lambda: f"all have finished: {fields(1000, JOBS, 'status')}", 400)
    counts = [json.loads(each)["deliveries"] for each in fields(1000, JOBS, "result")]
    check(counts == ["1"] * JOBS, f"deliveries: {sorted(counts)[-5:]} of {len(counts)}")
    began = began_ms(AGENT)
    by_new = len([ms for ms in fields(1000, JOBS, "started_ms") if int(ms) >= began])
    check(by_new == JOBS, f"the new agent ran {by_new}")
    sound = sh("mycojobs", "verify", *REDIS).stdout
    check("violation" not in sound, sound)
    sh("systemctl", "restart", AGENT)  # with its previous settings
    return f"{RUNNING} were running and {JOBS} there; the new agent, of another version, ran these; all finished, each delivered once"


@row
def a_policy_of_the_operator_s_is_obeyed_and_reported():
    old = pid(AGENT)
    policy = "/usr/sbin/policy-rc.d"
    try:
        write(policy, "#!/bin/sh\nexit 101\n")
        os.chmod(policy, 0o755)
        shown = dpkg("--install", package(newer=True))
        check(f"policy-rc.d forbids to stop {AGENT}" in shown and f"policy-rc.d forbids to stop {COORDINATOR}" in shown, shown)
        check(pid(AGENT) == old, "it was stopped")
        # The policy permits the stop but not the start: it can change in between.
        write(policy, '#!/bin/sh\n[ "$2" = stop ] || exit 101\n')
        shown = dpkg("--install", package(newer=True))
        check(f"policy-rc.d forbids to start {AGENT}" in shown, shown)
        check((state(AGENT), state(COORDINATOR)) == ("inactive", "inactive"), shown)
    finally:
        os.unlink(policy)
        sh("systemctl", "start", AGENT, COORDINATOR)
    return next(line for line in shown.splitlines() if "policy-rc.d" in line)


@row
def an_upgrade_that_cannot_know_what_runs_changes_nothing():
    old = pid(AGENT)
    sh("mount", "--bind", "/bin/false", "/usr/bin/systemctl")
    try:
        done = sh("dpkg", "--install", package(newer=False), ok=False, seconds=1000)
    finally:
        sh("umount", "/usr/bin/systemctl")
    shown = done.stdout + done.stderr
    check(done.returncode != 0 and "systemctl does not say what runs" in shown, shown)
    check("+next" in version() and pid(AGENT) == old, shown)
    stands = sh("dpkg-query", "-W", "-f", "${db:Status-Abbrev}", "mycojobs").stdout.strip()
    check(stands == "ii", stands)
    Job("print('hello')").finished()
    return next(line for line in shown.splitlines() if "does not say" in line)


@row
def a_file_that_was_copied_half_leaves_the_old_program_at_work():
    held, was = Held("half", 1), version()
    going = held.let_go_when_the_agent_stops()
    with open(package(newer=True), "rb") as whole, open("/tmp/half.deb", "wb") as half:
        half.write(whole.read()[:os.path.getsize(whole.name) // 2])
    shown = sh("dpkg", "--install", "/tmp/half.deb", ok=False, seconds=1000)
    check(shown.returncode != 0, shown.stdout)
    stands = sh("dpkg-query", "-W", "-f", "${db:Status-Abbrev}", "mycojobs").stdout.strip()
    check((stands, version()) == ("ii", was), f"{stands} {version()}: {shown.stderr}")
    going.join()
    held.ended_once()  # dpkg had stopped the agent before the agent detected the end
    check((state(AGENT), state(COORDINATOR)) == ("active", "active"), shown.stdout + shown.stderr)
    Job("print('hello')").finished()
    return f"{shown.stderr.strip().splitlines()[0]}; agent and coordinator run again"


@row
def a_typo_stops_an_upgrade_of_nothing_but_the_agent():
    right = read(CONFIG)
    try:
        write(CONFIG, right + "\nslotz = 3\n")
        shown = dpkg("--install", package(newer=True))
        check("not all of these started again" in shown and AGENT in shown, shown)
        check(CONFIG in shown and "slotz" in shown, f"what is wrong is not told: {shown}")
        check(sh("mycojobs", "config", "check", ok=False).returncode == 65, "config check")
    finally:
        write(CONFIG, right + "\n")
    waits = Job("print('hello')")
    sh("systemctl", "start", AGENT, COORDINATOR)
    waits.finished()
    return next(line for line in shown.splitlines() if "slotz" in line)


@row
def a_full_disk_is_reported_and_the_agent_goes_on():
    folder = "/var/lib/mycojobs"
    sh("systemctl", "stop", AGENT)
    sh("mount", "-t", "tmpfs", "-o", "size=1M,mode=700", "full", folder)
    try:
        sh("sh", "-c", f"head -c 4M /dev/zero >{folder}/ballast", ok=False)
        sh("systemctl", "start", AGENT)
        Job("print('hello')").finished()
        job = Job("open('/job/artifacts/big', 'wb').write(b'x' * (1 << 16))")
        job.finished()
        # destination of the agent's own log lines
        log = sh("mycojobs", "job", "logs", job.key.removeprefix("job:"), *REDIS).stderr
        check("not kept" in log and "ENOSPC" in log, log)
        check(state(AGENT) == "active", state(AGENT))
        os.unlink(folder + "/ballast")
        Job("print('hello')").finished()
    finally:
        sh("systemctl", "stop", AGENT, ok=False)
        sh("umount", folder)
        sh("systemctl", "start", AGENT)
    return log.strip()


@row
def a_program_that_is_too_old_refuses_the_store():
    sh("redis-cli", "-n", "1", "HSET", "mj:format", "version", "3", "program", "9.9")
    try:
        done = sh("mycojobs", "job", "submit", "/tmp/job.py", *REDIS, ok=False)
        check(done.returncode == 77 and "format 3 of mycojobs 9.9" in done.stderr, done.stderr)
        check(sh("systemctl", "restart", AGENT, ok=False).returncode != 0, "it started")
        until(lambda: state(AGENT) == "failed", lambda: state(AGENT))
        log = sh("journalctl", "--no-pager", "-u", AGENT, "-n", "20").stdout
        check("supports formats up to 2" in log, log)
    finally:
        sh("redis-cli", "-n", "1", "HSET", "mj:format", "version", "2")
        sh("systemctl", "start", AGENT)
    return "agent and command exit 77 and name both formats; the agent is not started again and again"


@row
def a_downgrade_is_reported():
    shown = dpkg("--install", package(newer=False))
    check("takes the place of the newer" in shown, shown)
    check("+next" not in version() and sh("mycojobs", "version").stdout.strip() == "mycojobs 0.1.0", shown)
    check(state(AGENT) == "active", shown)
    Job("print('hello')").finished()
    return "a warning, and the older program goes on with a store that it knows"


@row
def a_removal_drains_and_keeps_settings_and_jobs():
    held = Held("removal", 3)  # equals the number of slots
    waiting = [sleeper(0.1) for _ in range(4)]
    going = held.let_go_when_the_agent_stops()
    dpkg("--remove", "mycojobs")
    going.join()
    check([job.status() for job in held.jobs] == ["finished"] * 3, [job.record() for job in held.jobs])
    check([job.status() for job in waiting] == ["dispatched"] * 4, [job.record() for job in waiting])
    check("slots = 3" in read("/etc/mycojobs/config.toml"), "the settings are gone")
    alive = sh("sh", "-c", "grep -l mycojobs /proc/[0-9]*/comm 2>/dev/null; true").stdout
    check(not alive, alive)
    dpkg("--install", package(newer=False))
    check(state(AGENT) == "inactive", "it was started")
    enabled = sh("systemctl", "is-enabled", AGENT, ok=False).stdout.strip()
    check(enabled == "enabled", enabled)
    sh("systemctl", "start", AGENT)
    for job in waiting:
        job.finished()
    return "3 running jobs finished, 4 waited; installed again it is enabled as before, and starts when told"


@row
def a_purge_leaves_nothing():
    write("/etc/mycojobs/secrets/1/key", "secret")
    shown = dpkg("--purge", "mycojobs")
    check(not left_over(), f"left: {left_over()}")
    alive = sh("sh", "-c", "grep -l mycojobs /proc/[0-9]*/comm 2>/dev/null; true").stdout
    check(not alive, alive)
    check("mycojobs" not in read("/etc/passwd") + read("/etc/group"), "a user is left")
    failed = sh("systemctl", "list-units", "--all", "--plain", "--no-legend", "--state=failed", "mycojobs*").stdout
    check(not failed, failed)
    check("mycojobs" not in sh("sh", "-c", "ls -R /etc/systemd").stdout, shown)
    return "no file, no process, no user, no unit"


@row
def a_purge_is_whole_where_a_file_system_is_mounted():
    dpkg("--install", package(newer=False))
    folder = "/var/lib/mycojobs"
    os.makedirs(folder)
    sh("mount", "-t", "tmpfs", "state", folder)
    try:
        write(folder + "/artifacts/1/file", "left by a job")
        shown = dpkg("--purge", "mycojobs")
        check(f"mycojobs: {folder} stays" in shown, shown)
        check(not os.listdir(folder), os.listdir(folder))
        status = sh("dpkg-query", "-W", "mycojobs", ok=False)
        check(status.returncode != 0, status.stdout)
    finally:
        sh("umount", folder)
    os.rmdir(folder)
    check(not left_over(), f"left: {left_over()}")
    return next(line for line in shown.splitlines() if "stays" in line)
