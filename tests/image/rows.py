#!/usr/bin/env python3
"""What holds of the image, one line a row, as in tests/vm/rows.py: rows.py [PART OF A NAME...].

test.sh starts it in mounts, a network and processes of its own. Containers are started as docker/README.md says.
"""
import json
import os
import re
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "..", "vm"))
from rows import check, sh, until  # pylint: disable=wrong-import-position

IMAGE = "localhost/mycojobs"
PROFILE = os.path.join(ROOT, "docker", "seccomp.json")
COMPOSE = os.path.join(ROOT, "docker", "compose.yaml")
OURS = ("--security-opt", "seccomp=" + PROFILE)
PROC = ("--security-opt", "systempaths=unconfined")
BARE = ("--cap-drop=ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp")
WITHOUT_GROUPS = ("--env", "MYCOJOBS_SANDBOX_ALLOW_MISSING=cgroup:memory,cgroup:pids")
ROOT_USER = ("--user=0", "--cap-drop=ALL", "--cap-add=SETUID,SETGID,SETPCAP,KILL,DAC_OVERRIDE", "--env", "MYCOJOBS_STATE_DIR=/run/mycojobs")
PASSWORD = "geheim7"
NETWORK = ("--network=rows",)
REDIS = ("--env", f"MYCOJOBS_REDIS=redis://:{PASSWORD}@rows-redis:6379")
ROWS = []


def row(function):
    ROWS.append(function)
    return function


def podman(*words, ok=True, **more):
    return sh("podman", *words, ok=ok, **more)


def once(*words, ok=True):
    """A container that ends by itself, without a network."""
    return podman("run", "--rm", "--no-healthcheck", "--network=none", *words, ok=ok)


def said(done):
    return done.stdout + done.stderr


def docker_default():
    """Docker's own profile: ours without what goes beyond."""
    path = os.path.join(os.environ["TMPDIR"], "default.json")
    with open(PROFILE, encoding="utf-8") as file:
        profile = json.load(file)
    profile["syscalls"] = [each for each in profile["syscalls"] if not each.get("comment", "").startswith("Beyond")]
    namespaces = 0x7e020000  # CLONE_NEW*
    profile["syscalls"].append({"action": "SCMP_ACT_ALLOW", "names": ["clone"],
                                "args": [{"index": 0, "value": namespaces, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(profile, file)
    return ("--security-opt", "seccomp=" + path)


def layers(*words):
    """What `doctor` says of each layer: name -> ok, warning, missing."""
    answer = json.loads(once(*words, IMAGE, "doctor", "--json", ok=False).stdout)
    return {each["name"]: each for each in answer if each["area"] == "sandbox"}


def states(found, *names):
    return " ".join(f"{name}={found[name]['state']}" for name in names)


class Container:
    """Runs until the end of the row."""

    def __init__(self, name, *words):
        self.name = name
        podman("rm", "--force", "--time=0", "--ignore", name)
        podman("run", "--detach", "--name", name, *words)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        podman("rm", "--force", "--time=0", "--volumes", self.name)

    def log(self):
        return said(podman("logs", self.name))

    def logs(self, text, seconds=60):
        until(lambda: text in self.log(), lambda: f"{self.name} says {text!r}: {self.log()[-2000:]}", seconds)
        return self

    def state(self):
        return json.loads(podman("inspect", self.name).stdout)[0]["State"]

    def ended(self, seconds=60):
        until(lambda: not self.state()["Running"], lambda: f"{self.name} ends: {self.log()[-2000:]}", seconds)
        return self.state()["ExitCode"]

    def execute(self, script, *command, ok=True):
        """`command` with the script's text in /tmp/x, whose name `command` ends with."""
        return podman("exec", "--interactive", self.name, "sh", "-c", f"cat >/tmp/{command[-1]}; cd /tmp; exec " + " ".join(command),
                      ok=ok, input=script)


class Redis(Container):
    def __init__(self):
        podman("network", "create", "rows", ok=False)
        super().__init__("rows-redis", *NETWORK, "docker.io/library/redis:7", "redis-server", "--requirepass", PASSWORD, "--bind", "0.0.0.0")
        self.logs("Ready to accept")


def agent(name="rows-agent", *words):  # pylint: disable=keyword-arg-before-vararg
    return Container(name, *NETWORK, *REDIS, "--no-healthcheck", *words, IMAGE)


def run_job(inside, text, ok=True):
    return said(inside.execute(text, "mycojobs", "run", "job.py", ok=ok))


@row
def the_image_is_small_and_has_what_its_programs_load():
    done = once("--entrypoint", "sh", IMAGE, "-c", "id -u; ldd /usr/local/bin/mycojobs /usr/local/libexec/mycojobs/*; which gcc cmake git; true")
    uid, *libraries = done.stdout.splitlines()
    check(uid == "10001", f"the user is {uid}")
    check(not [line for line in libraries if "not found" in line], "\n".join(libraries))
    check(not [line for line in libraries if line.startswith("/usr/bin/")], "it has a compiler: " + libraries[-1])
    image = json.loads(podman("inspect", IMAGE).stdout)[0]
    size, health = image["Size"], image.get("Healthcheck") or image.get("HealthCheck")
    check(size < 350e6, f"{size} bytes")
    check(health and health["Test"] == ["CMD", "mycojobs", "health"], health)
    return f"user 10001, {size / 1e6:.0f} MB"


@row
def doctor_says_which_layers_a_container_has():
    told = []
    rows = (("Docker's profile", docker_default(), "missing", "missing", "docker/seccomp.json"),
            ("our profile, /proc masked", OURS, "ok", "missing", "systempaths=unconfined"),
            ("our profile, /proc whole", OURS + PROC, "ok", "ok", ""),
            ("the same, no capability", OURS + PROC + BARE, "ok", "ok", ""))
    for what, words, userns, canary, remedy in rows:
        found = layers(*words)
        check((found["userns"]["state"], found["canary"]["state"]) == (userns, canary), f"{what}: {found}")
        check(remedy in found["canary"].get("remedy", ""), f"{what}: {found['canary']}")
        check(found["seccomp"]["state"] == "ok" and found["landlock"]["state"] == "ok", f"{what}: {found}")
        told.append(f"{what}: " + states(found, "userns", "uid", "cgroup:memory", "canary"))
    found = layers(*OURS, *PROC, *ROOT_USER)
    check(found["uid"]["state"] == "ok" and found["canary"]["state"] == "ok", found)
    return "; ".join(told)


@row
def an_agent_refuses_what_is_missing_and_names_the_remedy():
    rows = ((docker_default() + WITHOUT_GROUPS, "zygote_namespaces", "seccomp=docker/seccomp.json (docker/README.md)"),
            (OURS + WITHOUT_GROUPS, "zygote_root", "systempaths=unconfined (docker/README.md)"),
            (OURS + PROC, "cgroup:memory", "docker/README.md"))
    with Redis():
        for words, step, remedy in rows:
            with agent("rows-refused", *words) as refused:
                code = refused.ended()
                log = refused.log()
                check(code not in (0, 137), f"{words}: exit {code}: {log}")
                check(step in log and remedy in log, f"{words}: {log}")
    return "profile, /proc, groups"


@row
def a_job_runs_as_the_images_user():
    with Redis(), agent("rows-agent", *OURS, *PROC, *BARE, *WITHOUT_GROUPS) as inside:
        inside.logs("serves context 1")
        out = run_job(inside, "import os\nprint('uid', os.getuid(), 'pids', sorted(p for p in os.listdir('/proc') if p.isdigit()))\n")
        check("uid" in out, out)
        denied = run_job(inside, "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\n", ok=False)
        check("denied: ptrace" in denied, denied)
        return out.splitlines()[0]


@row
def a_job_runs_as_root_with_an_id_of_its_own():
    with Redis(), agent("rows-agent", *OURS, *PROC, *ROOT_USER, *WITHOUT_GROUPS) as inside:
        inside.logs("serves context 1")
        out = run_job(inside, "import os\nprint('my uid is', os.getuid(), open('/proc/self/uid_map').read())\n")
        check(re.search(r"my uid is [1-9]\d* ", out), out)
        return out.splitlines()[0]


@row
def a_wrong_password_is_said_and_ends_it():
    with Redis(), Container("rows-agent", *NETWORK, "--no-healthcheck", "--env", "MYCOJOBS_REDIS=redis://:wrong@rows-redis:6379",
                            *OURS, *PROC, *WITHOUT_GROUPS, IMAGE) as inside:
        code = inside.ended()
        check(code == 77, f"exit {code}: {inside.log()}")
        check("WRONGPASS" in inside.log() or "password" in inside.log(), inside.log())
        return inside.log().strip().splitlines()[-1][:160]


@row
def process_1_reaps_orphans_and_drains():
    with Redis(), agent("rows-agent", *OURS, *PROC, *WITHOUT_GROUPS) as inside:
        inside.logs("serves context 1")
        # Each `sleep` is orphaned by its shell.
        podman("exec", inside.name, "sh", "-c", "for i in $(seq 500); do (sleep 0.1 &); done")
        count = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"
        until(lambda: podman("exec", inside.name, "sh", "-c", count, ok=False).stdout.strip() == "0", "no zombie is left")
        inside.execute("import time\ntime.sleep(5)\n", "mycojobs", "job", "submit", "slow.py")
        jobs = lambda: said(podman("exec", inside.name, "mycojobs", "job", "list", "--json"))  # noqa: E731
        until(lambda: "started" in jobs(), lambda: f"the job starts: {jobs()} {inside.log()}")
        began = time.monotonic()
        podman("kill", "--signal", "TERM", inside.name)
        code = inside.ended()
        check(code == 0, f"exit {code}: {inside.log()}")
        check("draining: 1 job to finish" in inside.log(), inside.log())
        return f"drained in {time.monotonic() - began:.1f} s"


@row
def what_kills_the_agent_ends_the_container():
    with Redis(), agent("rows-agent", *OURS, *PROC, *WITHOUT_GROUPS) as inside:
        inside.logs("serves context 1")
        podman("exec", inside.name, "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")
        code = inside.ended()
        check(code == 137, f"exit {code}")
        return "exit 137"


class Compose:
    def __enter__(self):
        self.environment = dict(os.environ, MYCOJOBS_REDIS_PASSWORD=PASSWORD, MYCOJOBS_IMAGE=IMAGE)
        self("up", "-d")
        return self

    def __call__(self, *words):
        return sh("podman-compose", "--project-name", "mycojobs", "-f", COMPOSE, *words, env=self.environment)

    def __exit__(self, *_):
        self("down", "--timeout", "1", "--volumes")

    @staticmethod
    def healthy(name):
        return podman("healthcheck", "run", f"mycojobs_{name}_1", ok=False).returncode == 0

    @staticmethod
    def inside(name, script, *command, ok=True):
        return said(Container.execute(Named(f"mycojobs_{name}_1"), script, *command, ok=ok))


class Named:  # pylint: disable=too-few-public-methods
    def __init__(self, name):
        self.name = name


@row
def compose_comes_up_healthy_and_outlives_an_agent():
    flow = "name: two\njobs:\n  a: {type: python, script: \"print('one')\"}\n  b: {needs: a, type: python, script: \"print('two')\"}\n"
    with Compose() as compose:
        for name in ("redis", "coordinator", "agent1", "agent2"):
            until(lambda: compose.healthy(name), lambda: f"{name} is healthy: " + said(podman("logs", f"mycojobs_{name}_1"))[-1500:], 60)
        check("6" in compose.inside("agent1", "print(2 * 3)\n", "mycojobs", "run", "job.py"), "a job's answer")
        out = compose.inside("coordinator", flow, "mycojobs", "flow", "start", "--follow", "flow.yaml")
        check("completed" in out.splitlines()[-1], out)
        # A job that never ends in its first run; its agent is killed, and the other one runs it again.
        again = ("import os, time\nif os.environ['MYCOJOBS_DELIVERIES'] == '1': time.sleep(300)\n"
                 "print('delivery', os.environ['MYCOJOBS_DELIVERIES'])\n")
        key = json.loads(compose.inside("coordinator", again, "mycojobs", "job", "submit", "--json", "again.py"))
        show = ("mycojobs", "job", "show", str(key["id"]), "--json")
        record = lambda: json.loads(podman("exec", "mycojobs_coordinator_1", *show).stdout)  # noqa: E731
        until(lambda: record()["status"] == "started", lambda: f"it starts: {record()}")
        first = "agent1" if str(record()["runner_id"]) == "21" else "agent2"
        podman("kill", "--signal", "KILL", f"mycojobs_{first}_1")
        until(lambda: record()["status"] == "finished", lambda: f"the other one runs it: {record()}", 90)
        return f"{first} was killed; runner {record()['runner_id']} ran it"


def main():
    sh("ip", "link", "set", "lo", "up")
    wanted = sys.argv[1:]
    for each in ROWS:
        name = each.__name__.replace("_", " ")
        if wanted and not any(part in name for part in wanted):
            continue
        began = time.monotonic()
        try:
            detail = each()
            print(f"ok {name} ({time.monotonic() - began:.1f} s): {detail}", flush=True)
        except Exception as error:  # pylint: disable=broad-except
            why = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            print(f"FAILED {name}: " + why.replace("\n", "\n    "), flush=True)
    sh("podman", "rm", "--force", "--all", "--time=0", "--volumes", ok=False)
    print("end of rows", flush=True)


if __name__ == "__main__":
    main()
