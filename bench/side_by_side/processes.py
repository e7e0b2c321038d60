"""Starts processes, and reads the CPU time and memory of processes."""
import os
import signal
import subprocess
import time

from .host import UserError

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def make_environment(additions):
    """Returns the environment of the bench with additions, without the variables that configure Python, Node.js and
    mycojobs."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NODE_", "MYCOJOBS"))
    }
    return inherited | additions


def wait_for(condition, description, seconds=30, pause=0.002):
    """Polls a function until it returns a true value, and returns that value. Error TimeoutError: the condition was false
    for `seconds`. description: the condition in the message of the error."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{description}: not within {seconds} s")
        time.sleep(pause)


class Process:
    """A process in its own process group, with its output in a log file. The kernel kills the process when the bench
    exits. pipes: stdin and stdout are pipes instead."""

    def __init__(self, command, log, environment=None, pipes=False):
        self.log = log
        with open(log, "ab") as file:
            streams = (
                {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                if pipes
                else {"stdin": subprocess.DEVNULL, "stdout": file}
            )
            try:
                self.popen = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", *command],
                    stderr=file,
                    start_new_session=True,
                    env=make_environment(environment or {}),
                    **streams,
                )
            except OSError as error:
                raise UserError(
                    f"cannot start {command[0]}: {error.strerror}; ./dev bench installs missing programs"
                ) from error
        self.pid = self.popen.pid
        self.command = command

    def raise_if_exited(self):
        """Raises UserError with the end of the log if the process has exited."""
        if self.popen.poll() is not None:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                last_lines = " | ".join(file.read().strip().splitlines()[-3:])
            raise UserError(f"{self.command[0]} exited with {self.popen.returncode}: {last_lines} ({self.log})")

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self, seconds=20):
        """Sends SIGTERM, waits at most `seconds` for the exit, and then kills the process and all its descendants."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self):
        """Sends SIGKILL to the process and all its descendants at once, like a failure of the host. The descendants can
        have other process groups: RQ creates a group for each job."""
        for pid in list_process_tree(self.pid) if self.popen.poll() is None else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()


def list_process_tree(pid):
    """Returns the pids of a process and all its descendants, parents first."""
    pids = [pid]
    for parent in pids:
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as file:
                    pids += [int(child) for child in file.read().split()]
        except OSError:
            pass  # the process has exited
    return pids


def read_process_name(pid):
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return file.read().strip()


def read_cpu_seconds(root_pids):
    """Returns the CPU time of process trees, including the exited children that their parents have waited for."""
    ticks = 0
    for pid in {pid for root_pid in root_pids for pid in list_process_tree(root_pid)}:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                ticks += sum(int(field) for field in file.read().rsplit(")", 1)[1].split()[11:15])
        except OSError:
            pass  # the process has exited
    return ticks / TICKS_PER_SECOND


def read_machine_cpu_seconds():
    """Returns the CPU time of all processes since boot, including the time that other virtual machines have stolen."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = (int(field) for field in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


class ForeignCpuMeter:
    """Measures the CPU time that processes outside of the bench use, from the construction on."""

    def __init__(self):
        self.begin = self._read_times()

    @staticmethod
    def _read_times():
        return time.monotonic(), read_machine_cpu_seconds(), read_cpu_seconds([os.getpid()])

    def read_fraction(self):
        """Returns the fraction of the machine's CPU time, from 0 to 1. All processes of the bench are its descendants."""
        wall, machine, own = (now - begin for now, begin in zip(self._read_times(), self.begin))
        return min(1.0, max(0.0, machine - own) / (wall * os.cpu_count()))


def read_memory_kib(pid, field):
    """Returns a field of smaps_rollup, such as Pss or Private_Dirty, or None if the file cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(field + ":"))
    except (OSError, StopIteration):
        return None
