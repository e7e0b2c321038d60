#!/usr/bin/env python3
"""Inside a Debian 12 machine with systemd, cgroup v2 and Debian's podman: containers of root's and of an ordinary user's.

Rows as in tests/vm/rows.py. The image is there as a folder, since to load one takes minutes in software emulation.
"""
import json
import os
import shlex
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from vm_rows import check, sh, until  # pylint: disable=wrong-import-position

PAYLOAD = os.path.dirname(os.path.abspath(__file__))
OPTIONS = ("--no-healthcheck", "--network=host", "--security-opt", f"seccomp={PAYLOAD}/seccomp.json", "--security-opt", "unmask=ALL",
           "--env", "XDG_CONFIG_HOME=/etc", "--env", "HOME=/var/lib/mycojobs", "--env", "MYCOJOBS_STATE_DIR=/var/lib/mycojobs",
           "--tmpfs", "/var/lib/mycojobs:mode=1777", "--tmpfs", "/tmp", "--env", "MYCOJOBS_REDIS=redis://127.0.0.1:6379")
ROOT_USER = ("--user=0", "--cap-drop=ALL", "--cap-add=SETUID,SETGID,SETPCAP,KILL,DAC_OVERRIDE")
WORKER = ("runuser", "-u", "worker", "--", "env", "HOME=/home/worker", "XDG_RUNTIME_DIR=/run/user/1000",
          "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus")
PROGRAM = "/usr/local/bin/mycojobs"
ROWS = []


def row(function):
    ROWS.append(function)
    return function


class Host:
    """Containers of one user: what stands before podman, and where the image's files are."""

    def __init__(self, before, rootfs, more):
        self.before, self.rootfs, self.more = before, rootfs, more

    def podman(self, *words, ok=True, **more):
        return sh(*self.before, "podman", *words, ok=ok, cwd="/tmp", **more)

    def run(self, *words, options=(), ok=True):
        return self.podman("run", "--rm", *OPTIONS, *self.more, *options, "--rootfs", self.rootfs, *words, ok=ok)

    def layers(self, *options):
        done = self.run(PROGRAM, "doctor", "--json", options=options, ok=False)
        check(done.stdout.startswith("["), done.stdout + done.stderr)
        return {each["name"]: each["state"] for each in json.loads(done.stdout) if each["area"] == "sandbox"}

    def agent_runs_a_job(self, *options):
        """The receipt's layers of a job, and what it printed."""
        self.podman("run", "--detach", "--name", "agent", *OPTIONS, *self.more, *options, "--rootfs", self.rootfs, PROGRAM, "agent")
        log = lambda: (lambda done: done.stdout + done.stderr)(self.podman("logs", "agent", ok=False))  # noqa: E731
        try:
            until(lambda: "serves context 1" in log(), log, 90)
            script = "import os; print(os.getuid()); print(open('/proc/self/cgroup').read())"
            # exec joins the container's group, which then has groups below it: the runtime must manage.
            done = self.podman("exec", "--interactive", "agent", "sh", "-c", f"echo {shlex.quote(script)} >/tmp/j.py; {PROGRAM} run --json /tmp/j.py")
            began = time.monotonic()
            self.podman("stop", "--time", "60", "agent")
            return json.loads(done.stdout), f"stopped in {time.monotonic() - began:.0f} s"
        finally:
            self.podman("rm", "--force", "--time", "0", "agent", ok=False)


ROOT = Host((), PAYLOAD + "/rootfs:O", ())
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


@row
def rootless_container_of_root_has_all_but_groups():
    unpack = shlex.join((*WORKER, "podman", "unshare", "sh", "-c", "mkdir ~/rootfs && tar -x -C ~/rootfs"))
    sh("sh", "-c", f"tar -c -C {PAYLOAD}/rootfs --exclude './dev/*' . | {unpack}", seconds=900, cwd="/tmp")
    # A rootless container has 65536 ids, and none of a host's users: the jobs get some of these.
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


def main():
    for each in ROWS:
        name = each.__name__.replace("_", " ")
        began = time.monotonic()
        try:
            detail = each()
            print(f"ok {name} ({time.monotonic() - began:.1f} s): {detail}", flush=True)
        except Exception as error:  # pylint: disable=broad-except
            why = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            print(f"FAILED {name}: " + why.replace("\n", "\n    "), flush=True)
    print("end of rows", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        print("FAILED the rows themselves: " + traceback.format_exc().replace("\n", "\n    "), flush=True)
        sys.exit(1)
