#!/usr/bin/python3
"""Checks the files of docker/ that cannot be started here, or not on every host: their structure, and their agreement with the
systemd unit and with each other. There is no registry and no cluster: the rules below replace their schemas.
"""
import copy
import json
import os
import re
import unittest

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def text_of(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def drain_s():
    """TimeoutStopSec of the agent's unit."""
    return 60 * int(re.search(r"(?m)^TimeoutStopSec=(\d+)min$", text_of("systemd", "system", "mycojobs-agent.service.in")).group(1))


# System calls that must never be permitted for a container, even if the sandbox would use them.
NEVER = set("""bpf perf_event_open userfaultfd kexec_load kexec_file_load init_module finit_module delete_module reboot swapon
    swapoff acct iopl ioperm open_by_handle_at add_key request_key fsopen fsmount fsconfig fspick quotactl settimeofday
    clock_settime syslog io_uring_setup process_madvise kcmp lookup_dcookie fanotify_init nfsservctl vhangup""".split())
BEYOND = set("clone keyctl mount mount_setattr move_mount open_tree pidfd_getfd pivot_root sethostname setns umount2 unshare".split())


def seccomp_problems(profile):
    found = []
    if profile["defaultAction"] != "SCMP_ACT_ERRNO" or "SCMP_ARCH_X86_64" not in profile["architectures"]:
        found.append("the default")
    known = {"comment", "action", "names", "args", "errnoRet"}
    plain, beyond = set(), set()
    for rule in profile["syscalls"]:
        if set(rule) - known:
            found.append(f"unknown: {set(rule) - known}")
        if rule["action"] == "SCMP_ACT_ERRNO":
            if (rule["names"], rule["errnoRet"]) != (["clone3"], 38):
                found.append(f"an errno for {rule['names']}")
            continue
        goes_beyond = rule.get("comment", "").startswith("Beyond Docker's default")
        names = beyond if goes_beyond else plain
        if len(set(rule["names"])) != len(rule["names"]):
            found.append("a name twice")
        names |= set(rule["names"])
        if "keyctl" in rule["names"] and rule.get("args") != [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]:
            found.append("keyctl may do more than to join an empty keyring")
    if beyond != BEYOND:
        found.append(f"beyond the default: {beyond ^ BEYOND}")
    if plain & beyond or (plain | beyond) & NEVER:
        found.append(f"allowed: {plain & beyond | (plain | beyond) & NEVER}")
    return found


def apparmor_problems(text):
    """Checks the rules of the profile. guest_rows.py tests that a kernel accepts them."""
    found = []
    rules = {line.strip() for line in text.split("{", 1)[1].splitlines() if line.strip() and not line.strip().startswith("#")} - {"}"}
    free = {rule for rule in rules if not rule.startswith(("deny ", "signal ", "ptrace "))}
    if free != {"include <abstractions/base>", "capability,", "file,", "network,", "userns,", "mount,", "umount,", "pivot_root,"}:
        found.append(f"beyond Docker's profile: {free}")
    if any("peer=" not in rule for rule in rules if rule.startswith(("signal ", "ptrace "))):
        found.append("signals of anybody, or to anybody")
    denied = {rule.split()[1] for rule in rules if rule.startswith("deny ")}
    for path in "@{PROC}/sys/[^nu]*/** @{PROC}/sysrq-trigger @{PROC}/kcore /sys/kernel/security/** /sys/{block,bus,class,devices,hypervisor,kernel,module,power}/** /sys/firmware/**".split():
        if path not in denied:
            found.append(f"{path} is open")
    return found


def compose_problems(compose):
    found = []
    services = compose["services"]
    if set(services) != {"redis", "coordinator", "agent1", "agent2"}:
        found.append(f"services: {sorted(services)}")
    if any("ports" in service for service in services.values()):
        found.append("a port is published")
    if "appendonly yes" not in str(services["redis"]["command"]) or not any(each.endswith(":/data") for each in services["redis"]["volumes"]):
        found.append("Redis forgets")
    if any(not service.get("restart") for service in services.values()) or "healthcheck" not in services["redis"]:
        found.append("restart, health")
    for name, service in services.items():
        for volume in service["volumes"]:
            if volume.split(":")[0] not in compose["volumes"]:
                found.append(f"{name}: no volume {volume}")
        if name == "redis":
            continue
        if service["depends_on"] != {"redis": {"condition": "service_healthy"}}:
            found.append(f"{name}: does not wait for Redis")
        if service["cap_drop"] != ["ALL"] or not service["read_only"] or "no-new-privileges" not in service["security_opt"]:
            found.append(f"{name}: rights")
        if "PASSWORD:?" not in service["environment"]["MYCOJOBS_REDIS"]:
            found.append(f"{name}: a password may be missing")
    agents = [services["agent1"], services["agent2"]]
    if len({each["environment"]["MYCOJOBS_RUNNER"] for each in agents}) != 2:
        found.append("two agents with one runner number")
    for agent in agents:
        if not agent.get("mem_limit") or not agent.get("pids_limit"):
            found.append("jobs without a limit of memory or processes")
        if not {"seccomp=seccomp.json", "systempaths=unconfined"} <= set(agent["security_opt"]):
            found.append("an agent without what its sandbox needs")
        if agent["stop_grace_period"] != f"{drain_s() // 60}m":
            found.append("the time to drain differs from the unit's")
    return found


def api_problems(compose, api):
    """Checks the additions of compose.api.yaml: a port only for this host, with persistent tokens."""
    found = []
    service = api["services"]["coordinator"]
    coordinator = compose["services"]["coordinator"]
    if list(api["services"]) != ["coordinator"] or set(service) != {"environment", "ports"}:
        found.append(f"more than a door: {api['services']}")
    if any(not port.startswith("127.0.0.1:") or not port.endswith(":9652") for port in service["ports"]):
        found.append(f"open to others: {service['ports']}")
    if service["environment"] != {"MYCOJOBS_API_LISTEN": "0.0.0.0:9652", "MYCOJOBS_API_INSECURE": "true"}:
        found.append(f"where it listens: {service['environment']}")
    folders = [each.split(":")[1] for each in coordinator["volumes"]]
    if os.path.dirname(coordinator["environment"]["MYCOJOBS_API_TOKENS"]) not in folders:
        found.append("tokens go with the container")
    return found


# The permitted keys at each path. A path that ends in [] is a list.
SCHEMA = {
    "": "apiVersion kind metadata spec",
    "metadata": "name labels",
    "spec": "replicas selector template serviceName podManagementPolicy volumeClaimTemplates",
    "spec.selector": "matchLabels",
    "spec.template": "metadata spec",
    "spec.template.metadata": "labels",
    "spec.template.spec": "automountServiceAccountToken enableServiceLinks hostUsers terminationGracePeriodSeconds securityContext containers volumes",
    "spec.template.spec.securityContext": "runAsNonRoot runAsUser runAsGroup fsGroup seccompProfile appArmorProfile",
    "spec.template.spec.securityContext.seccompProfile": "type localhostProfile",
    "spec.template.spec.securityContext.appArmorProfile": "type",
    "spec.template.spec.containers[]": "name image args command env ports startupProbe livenessProbe readinessProbe securityContext resources volumeMounts",
    "spec.template.spec.containers[].env[]": "name value valueFrom",
    "spec.template.spec.containers[].env[].valueFrom": "secretKeyRef",
    "spec.template.spec.containers[].env[].valueFrom.secretKeyRef": "name key",
    "spec.template.spec.containers[].ports[]": "name containerPort",
    "spec.template.spec.containers[].securityContext": "allowPrivilegeEscalation readOnlyRootFilesystem capabilities procMount",
    "spec.template.spec.containers[].securityContext.capabilities": "drop",
    "spec.template.spec.containers[].resources": "requests limits",
    "spec.template.spec.containers[].volumeMounts[]": "name mountPath readOnly",
    "spec.template.spec.volumes[]": "name emptyDir secret",
    "spec.template.spec.volumes[].secret": "secretName defaultMode",
    "spec.volumeClaimTemplates[]": "metadata spec",
    "spec.volumeClaimTemplates[].metadata": "name",
    "spec.volumeClaimTemplates[].spec": "accessModes resources",
    "spec.volumeClaimTemplates[].spec.resources": "requests",
}
for _probe in ("startupProbe", "livenessProbe", "readinessProbe"):
    SCHEMA[f"spec.template.spec.containers[].{_probe}"] = "httpGet periodSeconds timeoutSeconds failureThreshold"
    SCHEMA[f"spec.template.spec.containers[].{_probe}.httpGet"] = "path port"


def unknown_keys(value, place="", schema=None):
    schema = schema or SCHEMA
    if isinstance(value, list):
        return [each for item in value for each in unknown_keys(item, place + "[]", schema)]
    if not isinstance(value, dict) or place not in schema:
        return []
    found = [f"{place}.{key} is no field" for key in value if key not in schema[place].split()]
    for key, inner in value.items():
        found += unknown_keys(inner, f"{place}.{key}".lstrip("."), schema)
    return found


def pod_problems(document):
    found = unknown_keys(document)
    template = document["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    labels = template["metadata"]["labels"]
    if document["spec"]["selector"]["matchLabels"] != labels or document["metadata"]["labels"] != labels:
        found.append("the selector selects others")
    if not all(isinstance(each.get("value", ""), str) for each in container["env"]):
        found.append("a variable that is no text")
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    env = {each["name"]: each.get("value") for each in container["env"]}
    if env["MYCOJOBS_HEALTH_LISTEN"] != f"0.0.0.0:{ports['health']}":
        found.append("the probes' port is not where it listens")
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        if probe == "startupProbe" and probe not in container:
            continue
        # `mycojobs health` and /readyz respond within 5 s.
        if container[probe]["httpGet"] != {"path": path, "port": "health"} or container[probe].get("timeoutSeconds", 1) <= 5:
            found.append(probe)
    rights = container["securityContext"]
    if rights["allowPrivilegeEscalation"] or not rights["readOnlyRootFilesystem"] or rights["capabilities"] != {"drop": ["ALL"]}:
        found.append("rights")
    if not pod["securityContext"]["runAsNonRoot"] or pod["securityContext"]["runAsUser"] != 10001 or pod["automountServiceAccountToken"]:
        found.append("user")
    volumes = {each["name"] for each in pod["volumes"]} | {each["metadata"]["name"] for each in document["spec"].get("volumeClaimTemplates", [])}
    if {each["name"] for each in container["volumeMounts"]} != volumes:
        found.append("volumes")
    return found


SERVICE = {"": "apiVersion kind metadata spec", "metadata": "name labels", "spec": "clusterIP publishNotReadyAddresses selector ports", "spec.ports[]": "name port targetPort"}


def service_problems(service, document):
    """Checks that a service selects the pods of the document and their ports."""
    found = unknown_keys(service, schema=SERVICE)
    if service["kind"] != "Service" or service["metadata"]["name"] != document["metadata"]["name"]:
        found.append("another service")
    if service["spec"]["selector"] != document["spec"]["template"]["metadata"]["labels"]:
        found.append("the service selects others")
    ports = {each["name"]: each["containerPort"] for each in document["spec"]["template"]["spec"]["containers"][0]["ports"]}
    for each in service["spec"]["ports"]:
        if ports.get(each["targetPort"]) != each["port"]:
            found.append(f"no such port: {each}")
    return found


API_FILES = ("MYCOJOBS_API_TLS_CERT", "MYCOJOBS_API_TLS_KEY")


def kubernetes_problems(documents):
    rpc, names, coordinator, agent = documents
    found = pod_problems(coordinator) + pod_problems(agent) + service_problems(rpc, coordinator) + service_problems(names, agent)
    if (coordinator["kind"], agent["kind"]) != ("StatefulSet", "StatefulSet"):
        found.append("kinds")
    if names["spec"].get("clusterIP") != "None" or agent["spec"]["serviceName"] != names["metadata"]["name"]:
        found.append("a StatefulSet wants a headless service")
    for document in (coordinator, agent):
        (container,) = document["spec"]["template"]["spec"]["containers"]
        claims = [each["metadata"]["name"] for each in document["spec"].get("volumeClaimTemplates", [])]
        if [each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/var/lib/mycojobs"] != claims:
            found.append("files of jobs are lost with the pod")
    env = {each["name"]: each.get("value", "") for each in coordinator["spec"]["template"]["spec"]["containers"][0]["env"]}
    if not env["MYCOJOBS_API_LISTEN"].endswith(f":{rpc['spec']['ports'][0]['port']}"):
        found.append("the service's port is not where it listens")
    mounts = coordinator["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    if not any(env["MYCOJOBS_API_TOKENS"] == each["mountPath"] + "/tokens" and each.get("readOnly") for each in mounts):
        found.append("no tokens")
    if any(not any(os.path.dirname(env[name]) == each["mountPath"] and each.get("readOnly") for each in mounts) for name in API_FILES):
        found.append("no certificate")
    if env["CREDENTIALS_DIRECTORY"] != os.path.dirname(env["MYCOJOBS_API_TLS_KEY"]):
        found.append("a key that fsGroup may read is refused")
    pod = agent["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    if pod["terminationGracePeriodSeconds"] != drain_s():
        found.append("the time to drain differs from the unit's")
    if container["securityContext"].get("procMount") != "Unmasked" or pod.get("hostUsers") is not False:
        found.append("procMount needs hostUsers: false, and the sandbox needs procMount: Unmasked")
    if pod["securityContext"]["seccompProfile"] != {"type": "Localhost", "localhostProfile": "mycojobs.json"}:
        found.append("the profile")
    if "--runner" not in container["command"][-1] or "HOSTNAME##*-" not in container["command"][-1]:
        found.append("each agent needs a number of its own")
    return found


class Manifests(unittest.TestCase):
    def setUp(self):
        self.seccomp = json.loads(text_of("docker", "seccomp.json"))
        self.compose = yaml.safe_load(text_of("docker", "compose.yaml"))
        self.api = yaml.safe_load(text_of("docker", "compose.api.yaml"))
        self.kubernetes = list(yaml.safe_load_all(text_of("docker", "kubernetes.yaml")))

    def test_checks_pass(self):
        self.assertEqual(apparmor_problems(text_of("docker", "apparmor")), [])
        self.assertEqual(seccomp_problems(self.seccomp), [])
        self.assertEqual(compose_problems(self.compose), [])
        self.assertEqual(api_problems(self.compose, self.api), [])
        self.assertEqual(kubernetes_problems(self.kubernetes), [])

    def test_image_runs_unprivileged_with_a_health_check(self):
        dockerfile = text_of("docker", "Dockerfile")
        self.assertRegex(dockerfile, r"(?m)^USER 10001:10001$")
        self.assertRegex(dockerfile, r'(?m)^HEALTHCHECK .* CMD \["mycojobs", "health"\]$')
        self.assertEqual(len(re.findall(r"(?m)^FROM debian:bookworm-slim", dockerfile)), 2)

    def test_damage_is_found(self):
        def broken(problems, value, change):
            value = copy.deepcopy(value)
            change(value)
            self.assertNotEqual(problems(value), [], change)

        apparmor = text_of("docker", "apparmor")
        for old, new in (("  userns,\n", ""), ("peer=runc,", ","), ("deny @{PROC}/kcore", "deny @{PROC}/kcorn"), ("  mount,", "  mount,\n  change_profile,")):
            self.assertNotEqual(apparmor_problems(apparmor.replace(old, new)), [], old)
        broken(seccomp_problems, self.seccomp, lambda p: p["syscalls"][0]["names"].append("bpf"))
        broken(seccomp_problems, self.seccomp, lambda p: p["syscalls"][-1].pop("args"))
        broken(seccomp_problems, self.seccomp, lambda p: p.update(defaultAction="SCMP_ACT_ALLOW"))
        broken(compose_problems, self.compose, lambda c: c["services"]["redis"].update(ports=["6379:6379"]))
        broken(compose_problems, self.compose, lambda c: c["services"]["agent2"]["environment"].update(MYCOJOBS_RUNNER="21"))
        broken(compose_problems, self.compose, lambda c: c["services"]["agent1"]["security_opt"].remove("systempaths=unconfined"))
        broken(compose_problems, self.compose, lambda c: c["services"]["agent1"].pop("pids_limit"))
        broken(lambda a: api_problems(self.compose, a), self.api, lambda a: a["services"]["coordinator"].update(ports=["9652:9652"]))
        broken(lambda a: api_problems(self.compose, a), self.api, lambda a: a["services"].update(redis={"ports": ["127.0.0.1:6379:6379"]}))
        agent = lambda d: d[3]["spec"]["template"]["spec"]  # noqa: E731
        broken(kubernetes_problems, self.kubernetes, lambda d: d[0]["spec"]["ports"][0].update(port=9653))
        broken(kubernetes_problems, self.kubernetes, lambda d: d[1]["spec"].pop("clusterIP"))
        broken(kubernetes_problems, self.kubernetes, lambda d: agent(d)["containers"][0]["startupProbe"].pop("timeoutSeconds"))
        broken(kubernetes_problems, self.kubernetes, lambda d: agent(d).update(terminationGracePeriodSeconds=30))
        broken(kubernetes_problems, self.kubernetes, lambda d: agent(d).update(hostUser=False))
        broken(kubernetes_problems, self.kubernetes, lambda d: agent(d)["containers"][0]["readinessProbe"]["httpGet"].update(path="/ready"))
        broken(kubernetes_problems, self.kubernetes, lambda d: agent(d)["containers"][0]["env"][1].update(value=9653))


if __name__ == "__main__":
    unittest.main()
