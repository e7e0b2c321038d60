"""Rows of the packages, on a machine that never had the program: installed, run, upgraded, downgraded, purged."""
import json
import os
import re

from rows import LAYERS, Job, check, read, sh, sleeper, until, write

AGENT = "mycojobs-agent@20.service"
COORDINATOR = "mycojobs-coordinator.service"
REDIS = ("--redis", "redis://127.0.0.1:6379")
FOLDER = "/payload/packages"
# What systemd-analyze security may say at most (docs/install.md has the figures).
EXPOSURE = {AGENT: 6.5, COORDINATOR: 2.5}
ROWS = []


def row(function):
    ROWS.append(function)
    return function


def package(newer):
    return next(f"{FOLDER}/{name}" for name in sorted(os.listdir(FOLDER)) if ("+next" in name) == newer)


def dpkg(*words):
    """What `apt install` does, but for finding the dependencies, which machine.sh puts into the machine."""
    done = sh("dpkg", *words, seconds=1000)  # on a busy host in software emulation
    return done.stdout + done.stderr


def state(unit):
    return sh("systemctl", "show", "--value", "--property", "ActiveState", unit).stdout.strip()


def pid(unit):
    return int(sh("systemctl", "show", "--value", "--property", "MainPID", unit).stdout)


def version():
    return sh("dpkg-query", "-W", "-f", "${Version}", "mycojobs").stdout


def listening():
    """Addresses that somebody listens at."""
    found = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in read(f"/proc/net/{name}").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" or name.startswith("udp"):
                found.add(f"{name} {words[1]}")
    return found


def recover():
    """So that the next row finds what it would have found: what is installed is whole, and runs."""
    sh("dpkg", "--configure", "-a", ok=False)
    for unit in (AGENT, COORDINATOR):
        if sh("systemctl", "is-enabled", unit, ok=False).stdout.strip() == "enabled":
            sh("systemctl", "reset-failed", unit, ok=False)
            sh("systemctl", "start", unit, ok=False)


def left_over():
    """What bears the program's name."""
    found = sh("find", "/", "-xdev", "-name", "*mycojobs*", "-not", "-path", "/proc/*", "-not", "-path", "/tmp/*").stdout
    return found.split() + [f"/run/{name}" for name in os.listdir("/run") if "mycojobs" in name]


@row
def a_package_starts_and_enables_nothing():
    before = listening()
    check(not left_over(), f"this machine is not clean: {left_over()}")
    dpkg("--install", package(newer=False))
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
    return f"{version()}; nothing listens, nothing is enabled"


@row
def one_edited_file_gives_a_worker():
    sh("sed", "-i", "s/^# redis = /redis = /; s/^# slots = 8/slots = 3/", "/etc/mycojobs/config.toml")
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
def exposure_of_the_units():
    figures = {}
    for unit, most in EXPOSURE.items():
        last = sh("systemd-analyze", "security", "--no-pager", unit).stdout.strip().splitlines()[-1]
        figures[unit] = float(re.search(r"([\d.]+) [A-Z]+", last).group(1))
        check(figures[unit] <= most, last)
    return ", ".join(f"{unit} {figure} of 10" for unit, figure in figures.items())


JOBS = 500


def plain_jobs(first, script):
    """As any client of Redis writes them."""
    lines = []
    for number in range(first, first + JOBS):
        lines.append(f'HSET job:12:{number} id {number} caller_id 12 context_id 1 script_type python script "{script}"')
        lines.append(f"LPUSH queue:python job:12:{number}")
    write("/tmp/commands", "\n".join(lines) + "\n")
    sh("sh", "-c", "redis-cli -n 1 </tmp/commands")


def fields(first, name):
    write("/tmp/commands", "".join(f"HGET job:12:{number} {name}\n" for number in range(first, first + JOBS)))
    return sh("sh", "-c", "redis-cli -n 1 </tmp/commands").stdout.split("\n")[:JOBS]


def statuses(first):
    return fields(first, "status")


def began_ms(unit):
    stamp = sh("systemctl", "show", "--value", "--timestamp=unix", "--property", "ActiveEnterTimestamp", unit).stdout
    return int(stamp.strip().lstrip("@")) * 1000


@row
def an_upgrade_with_500_jobs_loses_none():
    running = [sleeper(3).started() for _ in range(3)]
    plain_jobs(1000, "import os; result['deliveries'] = os.environ['MYCOJOBS_DELIVERIES']")
    old, coordinator = pid(AGENT), pid(COORDINATOR)
    told = dpkg("--install", package(newer=True))
    check("+next" in version(), told)
    check(all(job.status() == "finished" for job in running), "the old agent did not drain")
    check(pid(AGENT) not in (0, old) and pid(COORDINATOR) not in (0, coordinator), "not started again")
    check(state("mycojobs-agent@21.service") == "inactive", "what did not run was started")
    until(lambda: statuses(1000) == ["finished"] * JOBS, lambda: f"all have finished: {statuses(1000)}", 400)
    counts = [json.loads(job.record()["result"])["deliveries"] for job in running] + re.findall(r'"deliveries":"(\d+)"', "\n".join(fields(1000, "result")).replace("\\", ""))
    check(counts == ["1"] * (JOBS + len(running)), f"deliveries: {sorted(counts)[-5:]} of {len(counts)}")
    began = began_ms(AGENT)
    by_new = len([ms for ms in fields(1000, "started_ms") if int(ms) >= began])
    check(by_new > JOBS // 2, f"the new agent ran {by_new}: this shows nothing")
    sound = sh("mycojobs", "verify", *REDIS).stdout
    check("violation" not in sound, sound)
    return f"3 were running and {JOBS} there; the new agent ran {by_new} of them; all finished, each delivered once"


@row
def a_file_that_was_copied_half_leaves_the_old_program_at_work():
    running, was = sleeper(3).started(), version()
    with open(package(newer=True), "rb") as whole, open("/tmp/half.deb", "wb") as half:
        half.write(whole.read()[:os.path.getsize(whole.name) // 2])
    told = sh("dpkg", "--install", "/tmp/half.deb", ok=False, seconds=1000)
    check(told.returncode != 0, told.stdout)
    stands = sh("dpkg-query", "-W", "-f", "${db:Status-Abbrev}", "mycojobs").stdout.strip()
    check((stands, version()) == ("ii", was), f"{stands} {version()}: {told.stderr}")
    check(running.status() == "finished", running.record())  # dpkg had stopped the agent before it saw
    check((state(AGENT), state(COORDINATOR)) == ("active", "active"), told.stdout + told.stderr)
    Job("print('hello')").finished()
    return f"{told.stderr.strip().splitlines()[0]}; agent and coordinator run again"


@row
def a_typo_stops_an_upgrade_of_nothing_but_the_agent():
    config = "/etc/mycojobs/config.toml"
    right = read(config)
    try:
        write(config, right + "\nslotz = 3\n")
        told = dpkg("--install", package(newer=True))
        check("not all of these started again" in told and AGENT in told, told)
        check(config in told and "slotz" in told, f"what is wrong is not told: {told}")
        check(sh("mycojobs", "config", "check", ok=False).returncode == 65, "config check")
    finally:
        write(config, right + "\n")
    waits = Job("print('hello')")
    sh("systemctl", "start", AGENT, COORDINATOR)
    waits.finished()
    return next(line for line in told.splitlines() if "slotz" in line)


@row
def a_full_disk_is_told_and_the_agent_goes_on():
    folder = "/var/lib/mycojobs"
    sh("systemctl", "stop", AGENT)
    sh("mount", "-t", "tmpfs", "-o", "size=1M,mode=700", "full", folder)
    try:
        sh("sh", "-c", f"head -c 4M /dev/zero >{folder}/ballast", ok=False)
        sh("systemctl", "start", AGENT)
        Job("print('hello')").finished()
        job = Job("open('/job/artifacts/big', 'wb').write(b'x' * (1 << 16))")
        job.finished()
        log = sh("mycojobs", "job", "logs", job.key.removeprefix("job:"), *REDIS).stderr  # where the agent's own lines go
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
    sh("redis-cli", "-n", "1", "HSET", "mj:format", "version", "2", "program", "9.9")
    try:
        done = sh("mycojobs", "job", "submit", "/tmp/job.py", *REDIS, ok=False)
        check(done.returncode == 77 and "format 2 of mycojobs 9.9" in done.stderr, done.stderr)
        check(sh("systemctl", "restart", AGENT, ok=False).returncode != 0, "it started")
        until(lambda: state(AGENT) == "failed", lambda: state(AGENT))
        log = sh("journalctl", "--no-pager", "-u", AGENT, "-n", "20").stdout
        check("knows formats up to 1" in log, log)
    finally:
        sh("redis-cli", "-n", "1", "HSET", "mj:format", "version", "1")
        sh("systemctl", "start", AGENT)
    return "agent and command exit 77 and name both formats; the agent is not started again and again"


@row
def a_downgrade_is_told():
    told = dpkg("--install", package(newer=False))
    check("takes the place of the newer" in told, told)
    check("+next" not in version() and state(AGENT) == "active", told)
    Job("print('hello')").finished()
    return "a warning, and the older program goes on with a store that it knows"


@row
def a_removal_drains_and_keeps_settings_and_jobs():
    running = [sleeper(3).started() for _ in range(3)]
    waiting = [sleeper(0.1) for _ in range(4)]
    dpkg("--remove", "mycojobs")
    check([job.status() for job in running] == ["finished"] * 3, [job.record() for job in running])
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
    told = dpkg("--purge", "mycojobs")
    check(not left_over(), f"left: {left_over()}")
    alive = sh("sh", "-c", "grep -l mycojobs /proc/[0-9]*/comm 2>/dev/null; true").stdout
    check(not alive, alive)
    check("mycojobs" not in read("/etc/passwd") + read("/etc/group"), "a user is left")
    failed = sh("systemctl", "list-units", "--all", "--plain", "--no-legend", "--state=failed", "mycojobs*").stdout
    check(not failed, failed)
    check("mycojobs" not in sh("sh", "-c", "ls -R /etc/systemd").stdout, told)
    return "no file, no process, no user, no unit"
