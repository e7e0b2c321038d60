#!/usr/bin/python3
"""Tests of the image, one line per row, as in tests/vm/rows.py: rows.py [PART OF A NAME...].

test.sh starts this program in private mounts, network and processes, as root and as an unprivileged user. Containers are started as in
docker/README.md.
"""
import base64
import copy
import json
import os
import re
import shutil
import sys
import time
import traceback
import urllib.request

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "..", "vm"))
from rows import check, sh, until  # pylint: disable=wrong-import-position

IMAGE = "localhost/mycojobs"
PROFILE = os.path.join(ROOT, "docker", "seccomp.json")
COMPOSE = os.path.join(ROOT, "docker", "compose.yaml")
API = os.path.join(ROOT, "docker", "compose.api.yaml")
KUBERNETES = os.path.join(ROOT, "docker", "kubernetes.yaml")
CERTIFICATES = os.path.join(ROOT, "examples", "tenants", "certificates.sh")
OURS = ("--security-opt", "seccomp=" + PROFILE)
PROC = ("--security-opt", "systempaths=unconfined")
BARE = ("--cap-drop=ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp")
WITHOUT_GROUPS = ("--env", "MYCOJOBS_SANDBOX_ALLOW_MISSING=cgroup:memory,cgroup:pids")
ROOT_USER = ("--user=0", "--cap-drop=ALL", "--cap-add=SETUID,SETGID,SETPCAP,KILL,DAC_OVERRIDE", "--env", "MYCOJOBS_STATE_DIR=/run/mycojobs")
# A container of an unprivileged user has 65536 ids and none of the host's users, so the jobs get some of these ids.
if os.geteuid() != 0:
    ROOT_USER += ("--env", "MYCOJOBS_SANDBOX_UID_RANGE=20000:40000")
PASSWORD = "geheim7"
NETWORK = ("--network=rows",)
REDIS = ("--env", f"MYCOJOBS_REDIS=redis://:{PASSWORD}@rows-redis:6379")
ROWS = []


def row(function):
    ROWS.append(function)
    return function


def row_of_root(function):
    """A row for root only, because an unprivileged user has too few ids."""
    return row(function) if os.geteuid() == 0 else function


def podman(*words, ok=True, **more):
    return sh("podman", *words, ok=ok, **more)


def once(*words, ok=True):
    """Runs a container that ends by itself, without a network."""
    return podman("run", "--rm", "--no-healthcheck", "--network=none", *words, ok=ok)


def output(done):
    return done.stdout + done.stderr


def token_of(done):
    found = re.search(r"\bmj_\w+", done.stdout)
    check(found, output(done))
    return found[0]


def docker_default():
    """Returns Docker's own profile: our profile without the additional permissions."""
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
    """Returns the state of each layer from `doctor`: name -> ok, warning, missing."""
    answer = json.loads(once(*words, IMAGE, "doctor", "--json", ok=False).stdout)
    return {each["name"]: each for each in answer if each["area"] == "sandbox"}


def states(found, *names):
    return " ".join(f"{name}={found[name]['state']}" for name in names)


class Container:
    """A container that runs until the end of the row."""

    def __init__(self, name, *words):
        self.name = name
        podman("rm", "--force", "--time=0", "--ignore", name)
        podman("run", "--detach", "--name", name, *words)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        podman("rm", "--force", "--time=0", "--volumes", self.name)

    def log(self):
        return output(podman("logs", self.name))

    def logs(self, text, seconds=60):
        until(lambda: text in self.log(), lambda: f"{self.name} says {text!r}: {self.log()[-2000:]}", seconds)
        return self

    def state(self):
        return json.loads(podman("inspect", self.name).stdout)[0]["State"]

    def ended(self, seconds=60):
        until(lambda: not self.state()["Running"], lambda: f"{self.name} ends: {self.log()[-2000:]}", seconds)
        return self.state()["ExitCode"]

    def execute(self, script, *command, ok=True):
        """Runs `command` with the script's text in /tmp/x; `command` ends with that file name."""
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
    return output(Container.execute(inside, text, "mycojobs", "run", "job.py", ok=ok))


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
    shown = []
    rows = (("Docker's profile", docker_default(), "error", "error", "docker/seccomp.json"),
            ("our profile, /proc masked", OURS, "ok", "error", "systempaths=unconfined"),
            ("our profile, /proc whole", OURS + PROC, "ok", "ok", ""),
            ("the same, no capability", OURS + PROC + BARE, "ok", "ok", ""))
    for what, words, userns, canary, remedy in rows:
        found = layers(*words)
        check((found["userns"]["state"], found["canary"]["state"]) == (userns, canary), f"{what}: {found}")
        check(remedy in found["canary"].get("remedy", ""), f"{what}: {found['canary']}")
        check(found["seccomp"]["state"] == "ok" and found["landlock"]["state"] == "ok", f"{what}: {found}")
        shown.append(f"{what}: " + states(found, "userns", "uid", "cgroup:memory", "canary"))
    found = layers(*OURS, *PROC, *ROOT_USER)
    check(found["uid"]["state"] == "ok" and found["canary"]["state"] == "ok", found)
    return "; ".join(shown)


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
def a_wrong_password_is_reported_and_ends_it():
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
        jobs = lambda: output(podman("exec", inside.name, "mycojobs", "job", "list", "--json"))  # noqa: E731
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
    def __init__(self, *more):
        self.environment = dict(os.environ, MYCOJOBS_REDIS_PASSWORD=PASSWORD, MYCOJOBS_IMAGE=IMAGE)
        self.files = [word for file in (COMPOSE, *more) for word in ("-f", file)]

    def __enter__(self):
        self("up", "-d")
        return self

    def __call__(self, *words, files=None):
        return sh("podman-compose", "--project-name", "mycojobs", *(files or self.files), *words, env=self.environment)

    def __exit__(self, *_):
        self("down", "--timeout", "1", "--volumes")

    @staticmethod
    def wait_until_healthy(name):
        healthy = lambda: podman("healthcheck", "run", f"mycojobs_{name}_1", ok=False).returncode == 0  # noqa: E731
        until(healthy, lambda: f"{name} is healthy: " + output(podman("logs", f"mycojobs_{name}_1"))[-1500:], 180)

    @staticmethod
    def inside(name, script, *command, ok=True):
        return output(Container.execute(Named(f"mycojobs_{name}_1"), script, *command, ok=ok))


class Named:  # pylint: disable=too-few-public-methods
    def __init__(self, name):
        self.name = name


@row
def compose_comes_up_healthy_and_outlives_an_agent():
    flow = "name: two\njobs:\n  a: {type: python, script: \"print('one')\"}\n  b: {needs: a, type: python, script: \"print('two')\"}\n"
    with Compose() as compose:
        for name in ("redis", "coordinator", "agent1", "agent2"):
            compose.wait_until_healthy(name)
        check("6" in compose.inside("agent1", "print(2 * 3)\n", "mycojobs", "run", "job.py"), "a job's answer")
        out = compose.inside("coordinator", flow, "mycojobs", "flow", "start", "--follow", "flow.yaml")
        check("completed" in out.splitlines()[-1], out)
        # A job whose first run never ends. Its agent is killed, and the other agent runs the job again.
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


@row
def compose_api_yaml_lets_clients_of_this_host_in_by_token():
    compose = Compose(API)
    # The order of docker/README.md: first the token, then the open port.
    token = token_of(compose("run", "--rm", "coordinator", "key", "token", "--operator", files=("-f", COMPOSE)))
    script = "import sys; sys.path.insert(0, sys.argv[1])\nimport mycojobs\ndef add(a, b):\n    return a + b\nprint(mycojobs.Client().submit(add, 40, 2).result(60))\n"
    path = os.path.join(os.environ["TMPDIR"], "client.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(script)
    client = lambda token: sh("env", f"MYCOJOBS_TOKEN={token}", "/usr/bin/python3", path, os.path.join(ROOT, "clients", "python"), ok=False)  # noqa: E731
    with compose:
        for name in ("coordinator", "agent1"):
            compose.wait_until_healthy(name)
        answer = client(token)
        check(answer.stdout.strip() == "42", output(answer))
        denied = client("mj_another")
        check(denied.returncode != 0 and "Denied" in denied.stderr, output(denied))
        with urllib.request.urlopen("http://127.0.0.1:9652/readyz", timeout=60) as ready:
            check(ready.status == 200, ready.status)
    return "submit(add, 40, 2) is 42; without the token: " + denied.stderr.strip().splitlines()[-1][:100]


def pods_of(documents):
    """Converts kubernetes.yaml for podman 4.3, which supports neither StatefulSet nor two settings: an annotation replaces
    `seccompProfile`, and an unmasked /proc beside the masked one, which permits the kernel to mount another /proc, replaces
    `procMount: Unmasked`. A folder replaces the volume of a secret. Services need a cluster and are removed. The rest is unchanged."""
    for document, replicas in zip((each for each in documents if each["kind"] != "Service"), (1, 2)):
        for number in range(replicas):
            yield pod_of(document, number)


def pod_of(document, number):
    pod = copy.deepcopy(document["spec"]["template"])
    name = f"{document['metadata']['name']}-{number}"
    (container,) = pod["spec"]["containers"]
    pod["metadata"]["name"] = name
    profile = pod["spec"]["securityContext"]["seccompProfile"].get("localhostProfile")
    if profile:
        pod["metadata"]["annotations"] = {"container.seccomp.security.alpha.kubernetes.io/" + container["name"]: "localhost/" + profile}
    for volume in pod["spec"]["volumes"]:
        if "secret" in volume:
            volume["hostPath"] = {"path": os.path.join(os.environ["TMPDIR"], "kube", volume.pop("secret")["secretName"]), "type": "Directory"}
    pod["spec"]["volumes"] += [{"name": each["metadata"]["name"], "persistentVolumeClaim": {"claimName": f"{each['metadata']['name']}-{name}"}}
                               for each in document["spec"]["volumeClaimTemplates"]]
    if container["securityContext"].get("procMount") == "Unmasked":
        pod["spec"]["volumes"].append({"name": "proc", "hostPath": {"path": "/proc", "type": "Directory"}})
        container["volumeMounts"].append({"name": "proc", "mountPath": "/run/proc"})
    return {"apiVersion": "v1", "kind": "Pod", **pod}


class Kube:
    """docker/kubernetes.yaml, started by podman, with its secret and its profile as the head of the file describes."""

    def __init__(self):
        self.folder = os.path.join(os.environ["TMPDIR"], "kube")
        os.makedirs(self.folder, exist_ok=True)
        shutil.copy(PROFILE, os.path.join(self.folder, "mycojobs.json"))
        tokens = os.path.join(self.folder, "mycojobs-tokens")
        os.makedirs(tokens, exist_ok=True)
        self.token = token_of(once("--user=0", "--volume", f"{tokens}:/tokens", IMAGE, "key", "token", "--operator", "--api-tokens", "/tokens/tokens"))
        # readable as with the mode of the secret and fsGroup of the pod
        os.chmod(os.path.join(tokens, "tokens"), 0o444)
        certificates = os.path.join(self.folder, "mycojobs-api-tls")
        sh(CERTIFICATES, certificates, "tls=mycojobs-coordinator,mycojobs-coordinator-0")
        os.chown(os.path.join(certificates, "tls.key"), 0, 10001)  # as with fsGroup
        os.chmod(os.path.join(certificates, "tls.key"), 0o440)
        os.chmod(certificates, 0o755)
        with open(KUBERNETES, encoding="utf-8") as file:
            coordinator, *agents = pods_of(list(yaml.safe_load_all(file)))
        self.agent = copy.deepcopy(agents[0]["spec"]["containers"][0])
        for each in (coordinator, *agents):
            (container,) = each["spec"]["containers"]
            container.update(image=IMAGE, imagePullPolicy="Never")
            del container["ports"]  # podman would publish the ports of all pods on the same port of the host
        self.agents, self.coordinator = os.path.join(self.folder, "agents.yaml"), os.path.join(self.folder, "coordinator.yaml")
        for path, these in ((self.agents, agents), (self.coordinator, [coordinator])):
            with open(path, "w", encoding="utf-8") as file:
                yaml.safe_dump_all(these, file)

    def __enter__(self):
        url = base64.b64encode(f"redis://:{PASSWORD}@rows-redis:6379".encode()).decode()
        self.gone()
        podman("secret", "create", "mycojobs-redis", "-", input=json.dumps({"url": url}))
        # The effect of hostUsers: agents have user ids of their own.
        podman("kube", "play", "--network", "rows", "--userns", "auto:size=65536", "--seccomp-profile-root", self.folder, self.agents)
        podman("kube", "play", "--network", "rows", self.coordinator)
        return self

    def __exit__(self, *_):
        self.gone()

    @staticmethod
    def gone():
        podman("pod", "rm", "--force", "--all", "--time=0", ok=False)
        podman("volume", "rm", "--force", "state-mycojobs-agent-0", "state-mycojobs-agent-1", "state-mycojobs-coordinator-0", ok=False)
        podman("secret", "rm", "mycojobs-redis", ok=False)

    def probed(self, container, probe):
        """Probes as a kubelet does, but from inside."""
        (port,) = (each["containerPort"] for each in self.agent["ports"] if each["name"] == self.agent[probe]["httpGet"]["port"])
        url = f"http://127.0.0.1:{port}{self.agent[probe]['httpGet']['path']}"
        asks = f"import urllib.request; print(urllib.request.urlopen('{url}').status)"
        return podman("exec", container, "python3", "-c", asks, ok=False).stdout.strip() == "200"


@row_of_root
def kubernetes_yaml_gives_agents_that_have_their_sandbox():
    agents = [f"mycojobs-agent-{number}-agent" for number in range(2)]
    with Redis(), Kube() as kube:
        for name in agents:
            until(lambda: kube.probed(name, "readinessProbe"), lambda: f"{name} is ready: " + output(podman("logs", name, ok=False))[-1500:], 60)
            check(kube.probed(name, "livenessProbe") and kube.probed(name, "startupProbe"), name)
            about = json.loads(podman("inspect", name).stdout)[0]
            check(not about["EffectiveCaps"] and about["HostConfig"]["ReadonlyRootfs"], about["EffectiveCaps"])
            check(about["Config"]["User"] == "10001:10001", about["Config"]["User"])
        found = {each["name"]: each for each in json.loads(podman("exec", agents[0], "mycojobs", "doctor", "--json", ok=False).stdout) if each["area"] == "sandbox"}
        check(found["canary"]["state"] == "ok", found)
        runners = json.loads(podman("exec", agents[0], "mycojobs", "runner", "list", "--json").stdout)
        check(sorted(each["id"] for each in runners) == [20, 21], runners)
        coordinator = "mycojobs-coordinator-0-coordinator"
        until(lambda: podman("exec", coordinator, "mycojobs", "health", ok=False).returncode == 0,
              lambda: "the coordinator is ready: " + output(podman("logs", coordinator, ok=False))[-1500:], 60)
        out = run_job(Named(coordinator), "print(6 * 7)\n")
        check("42" in out, out)
        with open(os.path.join(kube.folder, "mycojobs-api-tls", "ca.crt"), encoding="utf-8") as file:
            podman("exec", "--interactive", agents[0], "sh", "-c", "cat >/tmp/ca.crt", input=file.read())
        environment = {"COORDINATOR_URL": "https://mycojobs-coordinator-0:9652", "MYCOJOBS_TOKEN": kube.token, "MYCOJOBS_HTTPS_CA": "/tmp/ca.crt"}
        variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        ping = podman("exec", *variables, agents[0], "mycojobs", "rpc", "system.ping")
        check("pong" in ping.stdout, output(ping))
        return "runners 20 and 21, without a capability; a job from the coordinator's pod; " + states(found, "userns", "uid", "canary")


def main():
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
