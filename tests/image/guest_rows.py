#!/usr/bin/env python3
"""Inside a Debian 12 machine with systemd, cgroup v2 and Debian's podman: containers of root and of an unprivileged user.

The rows are like those of tests/vm/rows.py. The image is a folder, because loading an image takes minutes in software emulation.
"""
import json
import os
import shlex
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from vm_rows import check, do, sh, until  # pylint: disable=wrong-import-position

PAYLOAD = os.path.dirname(os.path.abspath(__file__))
OPTIONS = ("--no-healthcheck", "--network=host", "--security-opt", f"seccomp={PAYLOAD}/seccomp.json", "--security-opt", "unmask=ALL",
           "--env", "XDG_CONFIG_HOME=/etc", "--env", "HOME=/var/lib/mycojobs", "--env", "MYCOJOBS_STATE_DIR=/var/lib/mycojobs",
           "--tmpfs", "/var/lib/mycojobs:mode=1777", "--tmpfs", "/tmp", "--env", "MYCOJOBS_REDIS=redis://127.0.0.1:6379")
ROOT_USER = ("--user=0", "--cap-drop=ALL", "--cap-add=SETUID,SETGID,SETPCAP,KILL,DAC_OVERRIDE")
WORKER = ("runuser", "-u", "worker", "--", "env", "HOME=/home/worker", "XDG_RUNTIME_DIR=/run/user/1000",
          "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus")
SESSION = "user@1000.service"
PROGRAM = "/usr/local/bin/mycojobs"
ROWS = []


def row(function):
    ROWS.append(function)
    return function


class Host:
    """Containers of one user: the words before the podman command, and the path of the image's files."""

    def __init__(self, before, rootfs, more):
        self.before, self.rootfs, self.more = before, rootfs, more

    def podman(self, *words, ok=True, **more):
        return sh(*self.before, "podman", *words, ok=ok, cwd="/tmp", **more)

    def run(self, *words, options=(), ok=True):
        return self.podman("run", "--rm", *OPTIONS, *self.more, *options, "--rootfs", self.rootfs, *words, ok=ok)

    def found(self, *options):
        """Returns the results of `doctor` for each layer, with their remedies."""
        done = self.run(PROGRAM, "doctor", "--json", options=options, ok=False)
        check(done.stdout.startswith("["), done.stdout + done.stderr)
        return {each["name"]: each for each in json.loads(done.stdout) if each["area"] == "sandbox"}

    def layers(self, *options):
        return {name: each["state"] for name, each in self.found(*options).items()}

    def agent_runs_a_job(self, *options):
        """Returns the layers in the receipt of a job, and the output of the job."""
        self.podman("run", "--detach", "--name", "agent", *OPTIONS, *self.more, *options, "--rootfs", self.rootfs, PROGRAM, "agent")
        log = lambda: (lambda done: done.stdout + done.stderr)(self.podman("logs", "agent", ok=False))  # noqa: E731
        try:
            until(lambda: "serves context 1" in log(), log, 90)
            script = "import os; print(os.getuid()); print(open('/proc/self/cgroup').read())"
            # exec joins the group of the container, which then has child groups. The runtime must support this.
            done = self.podman("exec", "--interactive", "agent", "sh", "-c", f"echo {shlex.quote(script)} >/tmp/j.py; {PROGRAM} run --json /tmp/j.py")
            began = time.monotonic()
            self.podman("stop", "--time", "60", "agent")
            return json.loads(done.stdout), f"stopped in {time.monotonic() - began:.0f} s"
        finally:
            self.podman("rm", "--force", "--time", "0", "agent", ok=False)


ROOT = Host((), PAYLOAD + "/rootfs:O", ("--security-opt", "apparmor=unconfined"))
OF_PODMAN = Host((), PAYLOAD + "/rootfs:O", ())
OF_OURS = Host((), PAYLOAD + "/rootfs:O", ("--security-opt", "apparmor=mycojobs"))
USER = Host(WORKER, "/home/worker/rootfs", ())


def layers_of(answer):
    text = json.dumps(answer)
    check("cgroup:memory" in text and "cgroup:pids" in text, text)
    return "limits in force"


@row
def rootful_container_of_the_images_user_has_all_but_groups():
    found = ROOT.layers("--user=10001", "--cap-drop=ALL")
    check(found["canary"] == "ok" and found["userns"] == "ok", found)
    return str({name: found[name] for name in ("uid", "landlock", "cgroup:memory", "cgroup:pids", "canary")})


@row
def rootful_container_of_root_has_every_layer():
    found = ROOT.layers(*ROOT_USER)
    check(all(state == "ok" for state in found.values()), found)
    answer, stop = ROOT.agent_runs_a_job(*ROOT_USER)
    return layers_of(answer) + ", " + stop


def denials():
    """Returns the last denials of AppArmor in the kernel's log."""
    return "\n".join([line for line in sh("dmesg").stdout.splitlines() if 'apparmor="DENIED"' in line][-8:])


@row
def apparmor_lets_a_sandbox_be_built_with_our_profile_alone():
    with open("/sys/module/apparmor/parameters/enabled", encoding="utf-8") as file:
        check(file.read().strip() == "Y", "this kernel has no AppArmor")
    with open(PAYLOAD + "/apparmor", encoding="utf-8") as file:
        # The change that the head of the file describes for AppArmor 3.
        lines = [line for line in file if not line.startswith(("abi ", "  userns,"))]
    sh("apparmor_parser", "--replace", input="".join(lines))
    user = ("--user=10001", "--cap-drop=ALL")
    refused = OF_PODMAN.found(*user)["canary"]
    check(refused["state"] == "error" and "docker/apparmor" in refused["remedy"], refused)
    ours = OF_OURS.found(*user)
    check(ours["canary"]["state"] == "ok", f"{ours['canary']} {denials()}")
    denied = "echo 1 >/proc/sys/vm/drop_caches; cat /proc/self/attr/current"
    output = OF_OURS.run("/bin/sh", "-c", denied, options=("--user=0",), ok=False)
    check("mycojobs (enforce)" in output.stdout and "enied" in output.stderr, output.stdout + output.stderr)
    of_root = OF_OURS.layers(*ROOT_USER)
    check(all(state == "ok" for state in of_root.values()), f"{of_root} {denials()}")
    return f"Podman's own: {refused['detail'][:100]}; ours: canary ok, of root every layer"


@row
def rootless_container_of_root_has_all_but_groups():
    unpack = shlex.join((*WORKER, "podman", "unshare", "sh", "-c", "mkdir ~/rootfs && tar -x -C ~/rootfs"))
    sh("sh", "-c", f"tar -c -C {PAYLOAD}/rootfs --exclude './dev/*' . | {unpack}", seconds=900, cwd="/tmp")
    # A rootless container has 65536 ids and none of the host's users, so the jobs get some of these ids.
    options = ("--user=0", "--env", "MYCOJOBS_SANDBOX_UID_RANGE=20000:40000")
    found = USER.layers(*options)
    check(all(state == "ok" for name, state in found.items() if not name.startswith("cgroup:")), found)
    _, stop = USER.agent_runs_a_job(*options, "--env", "MYCOJOBS_SANDBOX_ALLOW_MISSING=cgroup:memory,cgroup:pids")
    return str({name: found[name] for name in ("uid", "cgroup:memory", "canary")}) + ", " + stop


@row
def rootless_container_of_the_images_user_has_all_but_groups():
    found = USER.layers("--user=10001", "--cap-drop=ALL")
    check(found["canary"] == "ok" and found["userns"] == "ok", found)
    return str({name: found[name] for name in ("uid", "landlock", "cgroup:memory", "cgroup:pids", "canary")})


def the_user_has_a_session():
    """Rootless podman requests groups from the user's systemd and continues without them on a time-out, which happens on a busy host."""
    status = lambda: sh(*WORKER, "systemctl", "--user", "is-system-running", ok=False)  # noqa: E731
    until(lambda: status().stdout.strip() in ("running", "degraded"),
          lambda: f"the user's systemd: {status().stdout} {sh('systemctl', '--no-pager', 'status', SESSION, ok=False).stdout}", 180)


def main():
    the_user_has_a_session()
    do(ROWS, recover=lambda: None, units=SESSION)
    print("end of rows", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        print("FAILED the rows themselves: " + traceback.format_exc().replace("\n", "\n    "), flush=True)
        sys.exit(1)
