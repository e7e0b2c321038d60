"""bubblewrap without a queue: the cost of a fresh sandbox with a common tool."""
import os
import subprocess
import time

from ..delivery import check_delivery
from .base import System

BWRAP = [
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--symlink",
    "usr/bin",
    "/bin",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
]


class Bubblewrap(System):
    title = "bubblewrap python3 -I -S -c pass"
    isolation = "namespaces"
    settings = (
        "--unshare-all, read-only /usr, tmpfs /tmp; no queue, no Redis, no seccomp filter, no Landlock, no limits"
    )
    uses_redis = False
    command = ["/usr/bin/python3", "-I", "-S", "-c", "pass"]

    def start(self):
        subprocess.run(BWRAP + self.command, check=True)

    def drain(self, kind, count, limit=120):
        running, ended = {}, []
        idents = list(self.allocate_ids(count))
        begin = time.perf_counter()
        waiting = idents[::-1]
        while waiting or running:
            while waiting and len(running) < self.slots:
                # posix_spawn does not copy the page tables of the bench, unlike fork.
                running[os.posix_spawnp(BWRAP[0], BWRAP + self.command, os.environ)] = waiting.pop()
            pid, status = os.waitpid(-1, 0)
            if pid in running:
                ident = running.pop(pid)
                ended += [ident] if status == 0 else []
        took = time.perf_counter() - begin
        # The CPU time is unknown, since the last process of a sandbox is not a child of this process.
        return count / took, None, check_delivery(idents, ended)

    def round_trip(self, kind, ident):
        pid = os.posix_spawnp(BWRAP[0], BWRAP + self.command, os.environ)
        if os.waitpid(pid, 0)[1] == 0:
            self.ended_ids.append((ident, 0.0))

    def round_trips(self, count):
        self.ended_ids = []
        return super().round_trips(count)

    def read_started(self):
        return self.ended_ids

    def list_pids(self):
        return []


class BubblewrapTrue(Bubblewrap):
    title = "bubblewrap /usr/bin/true"
    command = ["/usr/bin/true"]
