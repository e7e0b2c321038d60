#!/usr/bin/python3
"""docker/compose.yaml and docker/kubernetes.yaml with real programs: each service of the files is started as the file describes, in
namespaces that replace a container engine (containers.py), and flows with artifacts run on them.

    programs_test.py FOLDER_OF_PROGRAMS
"""
import json
import os
import re
import shlex
import sys
import tempfile
import unittest
import urllib.request

import yaml
from containers import ROOT, SYSTEM_ENVIRONMENT, USER, Container, Image, Network
from containers import enter_private_namespaces, interpolate, is_root, new_volume, remove, run, text_of, wait_until

PROGRAMS = os.path.abspath(sys.argv[1])
PASSWORD = "geheim7"
FLOWS = 20
SIZE = 1 << 20
BUILD = f"""
      import mycojobs, os
      (mycojobs.artifacts / 'text').write_text('built by ' + os.environ['MYCOJOBS_RUNNER_ID'])
      (mycojobs.artifacts / 'large').write_bytes(os.urandom({SIZE}))
"""
COPY = "import mycojobs, pathlib; (mycojobs.artifacts / 'copy').write_bytes(pathlib.Path('/job/inputs/build/large').read_bytes())"
FLOW = f"""
name: files
jobs:
  build:
    type: python
    script: |{BUILD}
  left: {{needs: build, inputs: build, type: python, script: "{COPY}"}}
  right: {{needs: build, inputs: build/large, type: python, script: "{COPY}"}}
  test:
    needs: [left, right]
    inputs: [left, right]
    type: python
    script: |
      import pathlib
      left, right = (pathlib.Path(f'/job/inputs/{{name}}/copy').read_bytes() for name in ('left', 'right'))
      assert left == right and len(left) == {SIZE}
      result = {{'size': len(left)}}
"""
# More jobs at the same time than one agent has slots (two for each CPU) and claims at once, so both agents need the file.
WIDE = f"""
name: wide
jobs:
  build:
    type: python
    script: |{BUILD}
""" + "".join(f"""  copy{number}: {{needs: build, inputs: build, type: python, script: "import time; time.sleep(1); {COPY}"}}\n""" for number in range(4 * os.cpu_count()))
USE = "import hashlib, pathlib; print(hashlib.sha256(pathlib.Path('/job/files/sent').read_bytes()).hexdigest())"
# The client of another program on the host, or in another pod.
CLIENT = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import mycojobs
client = mycojobs.Client()
for artifact in client.job(sys.argv[2]).artifacts():
    artifact.save(sys.argv[3])
    print(artifact.name, hashlib.sha256(open(sys.argv[3], 'rb').read()).hexdigest())
"""


def find_token(text):
    return re.search(r"\bmj_\w+", text)[0]


def replace_programs(environment):
    """The programs of the image are in /usr/local/bin."""
    return {**environment, "PATH": f"{PROGRAMS}:{SYSTEM_ENVIRONMENT['PATH']}"}


class Services:
    """The services of compose files. Other keys than those below would be ignored, so they fail the test."""

    KEYS = set("image build restart depends_on read_only tmpfs cap_drop command security_opt mem_limit pids_limit stop_grace_period environment "
               "volumes healthcheck ports".split())

    def __init__(self, folder, *files):
        self.folder, self.image = folder, Image()
        self.variables = {"MYCOJOBS_REDIS_PASSWORD": PASSWORD}
        self.services, self.volumes = {}, set()
        for file in files:
            compose = interpolate(yaml.safe_load(text_of("docker", file)), self.variables)
            for name, service in compose["services"].items():
                assert set(service) <= self.KEYS, set(service) - self.KEYS
                known = self.services.setdefault(name, {"environment": {}})
                known.update(service, environment={**known["environment"], **service.get("environment", {})})
            self.volumes |= set(compose.get("volumes", {}))
        self.network = Network(folder, [*self.services, "spare"])
        self.containers = {name: self.make(name, service) for name, service in self.services.items()}

    def make(self, name, service):
        mounts = {}
        for volume, target in (each.split(":") for each in service["volumes"]):
            assert volume in self.volumes
            path = os.path.join(self.folder, "volumes", volume)
            mounts[target] = path if os.path.exists(path) else new_volume(path)
        mine = service["image"] == "mycojobs"
        command = service["command"] if isinstance(service["command"], list) else shlex.split(service["command"])
        (seccomp,) = [each.partition("=")[2] for each in service.get("security_opt", []) if each.startswith("seccomp=")] or [""]
        environment = {**(self.image.environment if mine else {}), **service["environment"]}
        return Container(
            self.network, name, folder=self.folder, mounts=mounts, tmpfs=service.get("tmpfs", []), read_only_root=service.get("read_only", False),
            command=[*self.image.entrypoint, *command] if mine else command, environment=replace_programs(environment),
            seccomp=os.path.join(ROOT, "docker", seccomp) if seccomp else "", work_folder=self.image.work_folder if mine else "/data",
        )  # fmt: skip

    def is_healthy(self, name):
        test = self.services[name].get("healthcheck", {}).get("test") or ["CMD", *self.image.health]
        words = ["sh", "-c", test[1]] if test[0] == "CMD-SHELL" else test[1:]
        return self.containers[name].first_process() != 0 and self.containers[name].execute(*words, check=False).returncode == 0

    def wait_until_healthy(self, name):
        wait_until(lambda: self.is_healthy(name), lambda: f"{name} is healthy: " + self.containers[name].log()[-3000:])

    def up(self):
        for name, service in self.services.items():
            for other in service.get("depends_on", {}):
                self.wait_until_healthy(other)
            if self.containers[name].first_process() == 0:
                self.containers[name].start()
        for name in self.services:
            self.wait_until_healthy(name)

    def kill(self):
        for container in self.containers.values():
            container.kill()
        self.network.remove()


class FlowsWithArtifacts(unittest.TestCase):
    """Tests of both files."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mycojobs-programs-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(remove, self.folder)

    def start_flow(self, submitter, definition):
        submitter.execute("sh", "-c", "cat >/tmp/flow.yaml", script=definition)
        return submitter.execute("mycojobs", "flow", "start", "--detach", "/tmp/flow.yaml").stdout.strip()

    def wait_for_flow(self, submitter, flow):
        """Returns the records of the jobs by the name of their node."""
        show = lambda: json.loads(submitter.execute("mycojobs", "flow", "show", "--json", flow).stdout)  # noqa: E731
        wait_until(lambda: show()["terminal"], lambda: f"{flow} ends: {show()}", 240)
        self.assertEqual(show()["status"], "finished", show())
        jobs = [json.loads(submitter.execute("mycojobs", "job", "show", "--json", node["job"]).stdout) for node in show()["nodes"]]
        return {job["name"]: job for job in jobs}

    def run_flows(self, submitter, readers, runners):
        """Runs flows with files on both agents, and reads the files in each container. Returns the latest job that made them."""
        flows = [self.start_flow(submitter, FLOW) for _ in range(FLOWS)] + [self.start_flow(submitter, WIDE)]
        used = set()
        for flow in flows:
            jobs = self.wait_for_flow(submitter, flow)
            used |= {job["runner_id"] for job in jobs.values()}
            build = jobs["build"]
        self.assertEqual(used, set(runners), "both agents ran jobs that need the file of one of them")
        large = build["artifacts"]["large"]
        self.assertEqual(large["bytes"], SIZE)
        for reader in readers:
            self.assert_reads(reader, build)
        return build

    def assert_reads(self, reader, job):
        """The command reads a file of the job in any container."""
        reader.execute("rm", "-f", "/tmp/large")
        reader.execute("mycojobs", "job", "artifacts", job["key"], "large", "--output", "/tmp/large")
        self.assertEqual(reader.execute("sha256sum", "/tmp/large").stdout.split()[0], job["artifacts"]["large"]["sha256"], reader.name)

    def assert_file_is_uploaded(self, submitter, environment):
        """A file above 1 MiB is uploaded to a coordinator, which sends it to the agent of the job."""
        submitter.execute("sh", "-c", f"head -c {2 * SIZE} /dev/urandom >/tmp/sent; cat >/tmp/use.py", script=USE)
        out = submitter.execute("mycojobs", "run", "--file", "/tmp/sent", "/tmp/use.py", environment=environment).stdout
        self.assertEqual(out.split()[0], submitter.execute("sha256sum", "/tmp/sent").stdout.split()[0])

    def assert_client_reads(self, environment, job, inside=None):
        """The client for Python reads all files of the job by JSON-RPC."""
        path = os.path.join(self.folder, "saved") if inside is None else "/tmp/saved"
        words = ["/usr/bin/python3", "-c", CLIENT, os.path.join(ROOT, "clients", "python"), str(job["id"]), path]
        if inside is None:
            out = run(*words, env={**SYSTEM_ENVIRONMENT, **environment}, timeout=120).stdout
        else:
            out = inside.execute(*words, environment=environment).stdout
        self.assertEqual(dict(line.split() for line in out.splitlines()), {name: each["sha256"] for name, each in job["artifacts"].items()})


class Compose(FlowsWithArtifacts):
    def test_flows_with_artifacts(self):
        services = Services(self.folder, "compose.yaml")
        self.addCleanup(services.kill)
        services.up()
        containers = services.containers
        coordinator, agent = containers["coordinator"], containers["agent1"]
        build = self.run_flows(coordinator, [coordinator, agent, containers["agent2"]], [21, 22])
        # The files of an agent are in its volume, so they are there after a restart.
        for name in ("agent1", "agent2"):
            self.assertEqual(containers[name].stop(120), 0, containers[name].log()[-2000:])
            containers[name].start()
            services.wait_until_healthy(name)
        self.assert_reads(coordinator, build)
        # `--scale agent1=2` would start a second container with the same number and volume.
        scaled = Container(services.network, "spare", **agent.options).start()
        self.assertNotEqual(scaled.process.wait(60), 0)
        self.assertIn("runner 21 of context 1 is held by process", scaled.log())
        # SIGKILL of a container, and its restart
        flow = self.start_flow(coordinator, WIDE)
        agent.kill()
        agent.start()
        self.wait_for_flow(coordinator, flow)

    def test_clients_of_the_host_get_artifacts(self):
        services = Services(self.folder, "compose.yaml", "compose.api.yaml")
        self.addCleanup(services.kill)
        coordinator = services.containers["coordinator"]
        services.containers["redis"].start()
        services.wait_until_healthy("redis")
        token = find_token(coordinator.run_once("key", "token", "--operator"))  # the order of docker/README.md
        services.up()
        (published,) = services.services["coordinator"]["ports"]
        address, _, port = published.rpartition(":")
        self.assertTrue(address.startswith("127.0.0.1:"), published)
        host = {"COORDINATOR_URL": f"http://{services.network.addresses['coordinator']}:{port}", "MYCOJOBS_TOKEN": token}
        flow = self.wait_for_flow(coordinator, self.start_flow(coordinator, FLOW))
        self.assert_client_reads(host, flow["build"])
        self.assert_file_is_uploaded(services.containers["agent2"], {**host, "COORDINATOR_URL": "http://coordinator:9652"})


class Pods:
    """The pods of kubernetes.yaml: two agents and two coordinators, with Redis and the secrets that the head of the file names."""

    AGENTS = ("mycojobs-agent-0", "mycojobs-agent-1")
    COORDINATORS = ("mycojobs-coordinator-0", "mycojobs-coordinator-1")

    def __init__(self, folder):
        self.folder, self.image, self.temporary = folder, Image(), {}
        rpc, _, coordinator, agent = yaml.safe_load_all(text_of("docker", "kubernetes.yaml"))
        self.network = Network(folder, ["redis", "client", *self.AGENTS, *self.COORDINATORS])
        # A service leads to any of its pods.
        self.network.add_aliases({rpc["metadata"]["name"]: self.COORDINATORS[1]})
        self.secrets = {"mycojobs-redis": {"url": f"redis://:{PASSWORD}@redis:6379"}}
        self.redis = Container(self.network, "redis", folder=folder, environment={},
                               command=["redis-server", "--requirepass", PASSWORD, "--save", "", "--databases", "64", "--bind", "0.0.0.0", "--dir", "/tmp"])  # fmt: skip
        self.agents = [self.make(name, agent) for name in self.AGENTS]
        self.coordinators = [self.make(name, coordinator) for name in self.COORDINATORS]
        self.client = Container(self.network, "client", folder=folder, environment=replace_programs({}), command=["sleep", "infinity"], tmpfs=["/tmp"], mounts={"/ca": self.secret_folder("ca")})
        self.probes = {each["metadata"]["name"]: each["spec"]["template"]["spec"]["containers"][0] for each in (coordinator, agent)}

    def secret_folder(self, name):
        path = os.path.join(self.folder, "secrets", name)
        os.makedirs(path, exist_ok=True)
        return path

    def make(self, name, document):
        """The container of a pod. seccompProfile, volumes and variables as a kubelet would use them."""
        spec = document["spec"]["template"]["spec"]
        (pod,) = spec["containers"]
        mounts, read_only = {}, []
        volumes = {each["name"]: each for each in spec["volumes"]}
        for each in pod["volumeMounts"]:
            source = volumes.get(each["name"], {})
            path = os.path.join(self.folder, "volumes", name, each["name"])
            mounts[each["mountPath"]] = self.secret_folder(source["secret"]["secretName"]) if "secret" in source else new_volume(path)
            read_only += [each["mountPath"]] if each.get("readOnly") else []
            if "emptyDir" in source:
                self.temporary.setdefault(name, []).append(path)
        environment = {each["name"]: each["value"] if "value" in each else self.secrets[each["valueFrom"]["secretKeyRef"]["name"]][each["valueFrom"]["secretKeyRef"]["key"]]
                       for each in pod["env"]}  # fmt: skip
        profile = spec["securityContext"]["seccompProfile"].get("localhostProfile")
        command = pod["command"] + pod.get("args", []) if "command" in pod else [*self.image.entrypoint, *pod.get("args", self.image.command)]
        return Container(
            self.network, name, folder=self.folder, mounts=mounts, read_only=read_only, read_only_root=pod["securityContext"]["readOnlyRootFilesystem"],
            user=spec["securityContext"]["runAsUser"], environment=replace_programs({**self.image.environment, **environment}), command=command,
            seccomp=os.path.join(ROOT, "docker", "seccomp.json") if profile else "", work_folder=self.image.work_folder,
        )  # fmt: skip

    def make_secrets(self):
        """Makes the secrets as the head of the file describes. Returns the token of clients."""
        tokens, certificates = self.secret_folder("mycojobs-tokens"), self.secret_folder("mycojobs-api-tls")
        made = run(f"{PROGRAMS}/mycojobs", "key", "token", "--operator", "--api-tokens", f"{self.folder}/tokens", env={**SYSTEM_ENVIRONMENT, "HOME": self.folder, "MYCOJOBS_CONFIG": ""})
        os.rename(f"{self.folder}/tokens", f"{tokens}/tokens")
        run(os.path.join(ROOT, "examples", "tenants", "certificates.sh"), f"{self.folder}/ca", "tls=mycojobs-coordinator")
        for source, target in (("tls.crt", certificates), ("tls.key", certificates), ("ca.crt", self.secret_folder("ca"))):
            os.rename(f"{self.folder}/ca/{source}", f"{target}/{source}")
        for path in (f"{tokens}/tokens", f"{certificates}/tls.crt", f"{certificates}/tls.key"):
            os.chmod(path, 0o440)  # defaultMode and fsGroup
            if is_root():
                os.chown(path, 0, USER)
        os.chmod(f"{self.secret_folder('ca')}/ca.crt", 0o644)
        return find_token(made.stdout + made.stderr)

    def is_ready(self, container):
        probes = self.probes[container.name.rpartition("-")[0]]
        for name in ("livenessProbe", "readinessProbe"):
            (port,) = (each["containerPort"] for each in probes["ports"] if each["name"] == probes[name]["httpGet"]["port"])
            try:
                url = f"http://{self.network.addresses[container.name]}:{port}{probes[name]['httpGet']['path']}"
                with urllib.request.urlopen(url, timeout=probes[name]["timeoutSeconds"]) as answer:
                    if answer.status != 200:
                        return False
            except OSError:
                return False
        return True

    def up(self):
        self.redis.start()
        self.client.start()
        for container in self.agents + self.coordinators:
            container.start()
        for container in self.agents + self.coordinators:
            self.wait_until_ready(container)

    def start_replacement(self, container):
        """Starts the pod that replaces a stopped one: it has the claims of the stopped one, and new folders for emptyDir."""
        for path in self.temporary[container.name]:
            remove(path)
            new_volume(path)
        container.start()
        self.wait_until_ready(container)

    def wait_until_ready(self, container):
        wait_until(lambda: self.is_ready(container), lambda: f"{container.name} is ready: " + container.log()[-3000:])

    def kill(self):
        for container in [*self.agents, *self.coordinators, self.client, self.redis]:
            container.kill()
        self.network.remove()


class Kubernetes(FlowsWithArtifacts):
    def test_flows_with_artifacts(self):
        pods = Pods(self.folder)
        self.addCleanup(pods.kill)
        token = pods.make_secrets()
        pods.up()
        submitter = pods.coordinators[0]
        build = self.run_flows(submitter, pods.agents + pods.coordinators, [20, 21])
        host = {"COORDINATOR_URL": "https://mycojobs-coordinator:9652", "MYCOJOBS_TOKEN": token, "SSL_CERT_FILE": "/ca/ca.crt"}
        self.assert_client_reads(host, build, inside=pods.client)
        # An upload outlives the pods of all coordinators, and the artifacts those of all agents.
        for container in pods.agents:
            self.assertEqual(container.stop(120), 0, container.log()[-2000:])
        settings = {**host, "MYCOJOBS_HTTPS_CA": "/ca/ca.crt", "MYCOJOBS_REDIS": pods.secrets["mycojobs-redis"]["url"], "MYCOJOBS_CONFIG": "", "HOME": "/tmp"}
        self.assertIn("pong", pods.client.execute("mycojobs", "rpc", "system.ping", environment=settings).stdout)
        pods.client.execute("sh", "-c", f"head -c {2 * SIZE} /dev/urandom >/tmp/sent; cat >/tmp/use.py", script=USE)
        job = pods.client.execute("mycojobs", "job", "submit", "--file", "/tmp/sent", "/tmp/use.py", environment=settings).stdout.strip()
        for container in pods.coordinators:
            self.assertEqual(container.stop(30), 0, container.log()[-2000:])
        for container in pods.coordinators + pods.agents:
            pods.start_replacement(container)
        out = pods.client.execute("mycojobs", "job", "logs", "--follow", job, environment=settings).stdout
        self.assertIn(pods.client.execute("sha256sum", "/tmp/sent").stdout.split()[0], out)
        self.assert_reads(submitter, build)


class Volumes(unittest.TestCase):
    """Volumes of an agent that may not map ids: the files of its jobs have one owner, or the start names the reason."""

    CAPABILITIES = ["SETUID", "SETGID", "SETPCAP", "KILL", "DAC_OVERRIDE"]  # docker/README.md
    OWNER = 34

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mycojobs-programs-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(remove, self.folder)
        self.network = Network(self.folder, ["redis", "agent"])
        self.addCleanup(self.network.remove)
        self.redis = Container(self.network, "redis", folder=self.folder, environment={}, tmpfs=["/tmp"],
                               command=["redis-server", "--save", "", "--databases", "64", "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/tmp"])  # fmt: skip
        self.addCleanup(self.redis.kill)
        self.redis.start()
        self.data = new_volume(os.path.join(self.folder, "data"))

    def start_agent(self, user, owner, fixed_uid=False):
        """An agent with the volume `data` that belongs to the owner."""
        config = os.path.join(self.folder, "config")
        os.makedirs(config, exist_ok=True)
        with open(os.path.join(config, "config.toml"), "w", encoding="utf-8") as file:
            file.write(f'[contexts.1.volumes.data]\npath = "/data"\nmode = "rw"\nowner = {owner}\n')
            file.write(f"[contexts.1.files]\nowner = {owner}\nfixed_uid = true\n" if fixed_uid else "")
        state = os.path.join(self.folder, f"state{user}")
        agent = Container(
            self.network, "agent", folder=self.folder, user=user, capabilities=self.CAPABILITIES if user == 0 else [], tmpfs=["/tmp"],
            mounts={"/config": config, "/data": self.data, "/state": state if os.path.exists(state) else new_volume(state, user)},
            environment=replace_programs({
                "MYCOJOBS_REDIS": "redis://redis:6379", "MYCOJOBS_STATE_DIR": "/state", "MYCOJOBS_CONFIG": "/config/config.toml",
                "MYCOJOBS_SANDBOX_ALLOW_MISSING": "cgroup:memory,cgroup:pids", "MYCOJOBS_RUNNER": "21",
            }), command=["mycojobs", "agent"], seccomp=os.path.join(ROOT, "docker", "seccomp.json"))  # fmt: skip
        wait_until(lambda: self.redis.execute("redis-cli", "ping", check=False).stdout == "PONG\n", self.redis.log)
        self.addCleanup(agent.kill)
        return agent.start()

    def assert_refused(self, user, owner, reason):
        agent = self.start_agent(user, owner)
        self.assertNotEqual(agent.process.wait(60), 0)
        self.assertIn(reason, agent.log())
        self.assertIn("contexts.1.volumes.data", agent.log())
        os.remove(agent.log_path)

    def assert_writes(self, agent, owner):
        """A job writes into the volume, and the file belongs to the owner."""
        wait_until(lambda: "serves context 1" in agent.log(), agent.log)
        agent.execute("sh", "-c", "cat >/tmp/policy.toml", script='volumes = ["data"]\n')
        agent.execute("sh", "-c", "cat >/tmp/write.py", script="open('/volumes/data/file', 'a').write('x')\n")
        agent.execute("mycojobs", "run", "--policy", "/tmp/policy.toml", "/tmp/write.py")
        self.assertEqual(agent.execute("stat", "-c", "%u", "/data/file").stdout.strip(), str(owner))
        self.assertEqual(agent.stop(60), 0)

    def test_ordinary_user_has_volumes_of_its_own(self):
        self.assert_refused(USER, self.OWNER, f"only an agent of root can map ids: name the agent's own user {USER}")
        self.assert_writes(self.start_agent(USER, USER), USER)

    def test_root_without_the_right_to_map_needs_a_fixed_uid(self):
        if not is_root():
            return  # an ordinary user has no second id for its containers
        os.chown(self.data, self.OWNER, self.OWNER)
        self.assert_refused(0, self.OWNER, "the agent may not map ids (a container")
        self.assert_writes(self.start_agent(0, self.OWNER, fixed_uid=True), self.OWNER)


if __name__ == "__main__":
    enter_private_namespaces()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
