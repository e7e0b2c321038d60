"""`mycojobs dev` with a state folder of its own, and a client of its Redis that needs nothing installed: what soak.py runs."""
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MYCOJOBS = os.environ.get("MYCOJOBS") or os.path.join(ROOT, "build/bin/mycojobs")  # MYCOJOBS selects another build


class Redis:
    """As much of the protocol as this needs, on a unix socket."""

    def __init__(self, path, database):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.reader = self.socket.makefile("rb")
        self.call("SELECT", database)

    @staticmethod
    def encode(*words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        return b"".join(parts)

    def answer(self):
        line = self.reader.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.reader.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.answer() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def call(self, *words):
        self.socket.sendall(self.encode(*words))
        return self.answer()

    def pipeline(self, commands):
        self.socket.sendall(b"".join(self.encode(*words) for words in commands))
        return [self.answer() for _ in commands]


def descendants(pid):
    found = [pid]
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
                for child in children.read().split():
                    found += descendants(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass  # the process has just exited
    return found


def end_process(process):
    """Ends a process with SIGTERM, and with SIGKILL after a minute."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_of(pid):
    """Seconds of CPU of a process and its ended children. 0 for an ended process, whose parent then counts them."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def switches_of(pid):
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as status:
            total += next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches:"))
    return total


def comm_of(pid):
    with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
        return comm.read().strip()


def submit_commands(number, script="pass", context=1, script_type="python"):
    key = f"job:9:{number}"
    return [("HSET", key, "id", number, "caller_id", 9, "context_id", context, "script", script, "script_type", script_type,
             "timeout", 60, "status", "dispatched"), ("LPUSH", f"queue:{script_type}", key)]


def await_commands(number):
    """Creates the log of a job, so that its end is appended to it, and clients may block on it."""
    return [("XGROUP", "CREATE", f"mj:log:job:9:{number}", "wait", "0", "MKSTREAM")]


class Agent:
    def __init__(self, slots, *arguments):
        self.state = tempfile.mkdtemp(prefix="mycojobs-bench-")
        self.process = subprocess.Popen([MYCOJOBS, "dev", "--state-dir", self.state, "--slots", str(slots), "--log-level", "error", *arguments])
        path = os.path.join(self.state, "redis/redis.sock")
        deadline = time.monotonic() + 10
        while True:
            try:
                self.redis = Redis(path, 1)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self.next = 1
        self.one()  # the agent is ready when a job has finished

    def commands(self, number):
        return submit_commands(number)

    def one(self):
        """Submit to result, in seconds."""
        number, self.next = self.next, self.next + 1
        start = time.perf_counter()
        self.redis.pipeline(await_commands(number) + self.commands(number))
        self.redis.call("XREAD", "BLOCK", 20000, "STREAMS", f"mj:log:job:9:{number}", "0")
        took = time.perf_counter() - start
        assert self.redis.call("HGET", f"job:9:{number}", "status") == b"finished", self.redis.call("HGETALL", f"job:9:{number}")
        return took

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        shutil.rmtree(self.state)
