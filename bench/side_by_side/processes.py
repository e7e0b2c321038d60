"""Processes that the bench starts, and what they cost."""
import os
import signal
import subprocess
import time

from .host import Remedy

TICK = os.sysconf("SC_CLK_TCK")


def clean_environment(more):
    """The caller's environment without what changes how Python and Node.js behave."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NODE_", "MYCOJOBS"))}
    return kept | more


def wait_for(condition, what, seconds=30, pause=0.002):
    """Asks until the condition is true, and returns what it said."""
    deadline = time.monotonic() + seconds
    while True:
        said = condition()
        if said:
            return said
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(pause)


class Process:
    """One process in a group of its own, which dies with the bench. Its output goes to a file."""

    def __init__(self, command, log, environment=None, pipes=False):
        self.log = log
        with open(log, "ab") as file:
            ends = (
                {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                if pipes
                else {"stdin": subprocess.DEVNULL, "stdout": file}
            )
            try:
                self.popen = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", *command],
                    stderr=file,
                    start_new_session=True,
                    env=clean_environment(environment or {}),
                    **ends,
                )
            except OSError as error:
                raise Remedy(
                    f"cannot start {command[0]}: {error.strerror}; ./dev bench installs what is missing"
                ) from error
        self.pid = self.popen.pid
        self.command = command

    def check(self):
        """Raises if it has ended by itself."""
        if self.popen.poll() is not None:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                last = " | ".join(file.read().strip().splitlines()[-3:])
            raise Remedy(f"{self.command[0]} ended with {self.popen.returncode}: {last} ({self.log})")

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self, seconds=20):
        """TERM, and KILL to its group if that does not help."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self):
        """KILL to all below it, other groups too (RQ's jobs have their own): what becomes of a worker whose host fails."""
        for pid in [self.pid, *tree(self.pid)] if self.popen.poll() is None else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()


def tree(pid):
    """The process and all below it, parents first."""
    pids = [pid]
    for each in pids:
        try:
            for task in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{task}/children", encoding="ascii") as file:
                    pids += [int(child) for child in file.read().split()]
        except OSError:
            pass  # the process has exited
    return pids


def name(pid):
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return file.read().strip()


def cpu_seconds(roots):
    """CPU time of the trees so far, with that of children that have ended and were waited for."""
    total = 0
    for pid in {pid for root in roots for pid in tree(root)}:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                total += sum(int(field) for field in file.read().rsplit(")", 1)[1].split()[11:15])
        except OSError:
            pass
    return total / TICK


def busy_seconds():
    """CPU time that the whole machine has used so far, steal included: that is somebody else's too."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = (int(word) for word in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


class Others:
    """How much of the machine others use while something is measured."""

    def __init__(self):
        self.begin = self._now()

    @staticmethod
    def _now():
        return time.monotonic(), busy_seconds(), cpu_seconds([os.getpid()])

    def share(self):
        """0 to 1; all that the bench started is in its own tree."""
        wall, busy, own = (now - begin for now, begin in zip(self._now(), self.begin))
        return min(1.0, max(0.0, busy - own) / (wall * os.cpu_count()))


def memory_kib(pid, field):
    """A field of smaps_rollup, such as Pss or Private_Dirty; None if it may not be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(field + ":"))
    except (OSError, StopIteration):
        return None
