"""A Redis, an agent and a coordinator for one test. A relay in front of the coordinator keeps its address while servers restart."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = sys.argv.pop(1) if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]) else os.path.join(ROOT, "build/bin")
PROGRAM = os.path.join(BIN, "mycojobs")
PYTHON_CLIENT = os.path.join(ROOT, "clients/python")
NODE_CLIENT = os.path.join(ROOT, "clients/node")
LIMIT_S = 60  # reached only by a hang
sys.path.insert(0, PYTHON_CLIENT)


def run_node(script, url, token, *arguments, **more):
    """Runs a program of this folder with the client of Node.js, and returns what it prints as JSON."""
    environment = {**os.environ, "COORDINATOR_URL": url, "MYCOJOBS_TOKEN": token, **more}
    command = ["node", os.path.join(os.path.dirname(os.path.abspath(__file__)), script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    return json.loads(done.stdout or done.stderr)


def eventually(what, limit=LIMIT_S):
    deadline = time.monotonic() + limit
    while not (found := what()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(0.02)
    return found


class Relay:
    """Forwards connections to the current server. Counts open connections, and can drop the response to the next call."""

    def __init__(self):
        self.target = None  # none: connections are closed without a response
        self.most_open = self._open = self.requests = 0
        self.lose_answers = 0
        self._pairs = {}  # (client, server): open directions
        self._losing = set()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target)) if self.target else None
            except OSError:
                server = None
            if server is None:
                client.close()
                continue
            with self._lock:
                self._pairs[client, server] = 2
                self._open += 1
                self.most_open = max(self.most_open, self._open)
            for is_request in (True, False):
                threading.Thread(target=self._pass, args=((client, server), is_request), daemon=True).start()

    def _pass(self, pair, is_request):
        source, sink = pair if is_request else pair[::-1]
        try:
            while data := source.recv(65536):
                if is_request and data.startswith(b"POST"):
                    self.requests += 1
                    if self.lose_answers > 0:
                        self.lose_answers -= 1
                        self._losing.add(pair)  # but not the remaining data of a stream that is being closed
                if not is_request and pair in self._losing:
                    break
                sink.sendall(data)
        except OSError:
            pass
        with self._lock:
            self._losing.discard(pair)
            self._shut(pair)
            self._open -= is_request
            self._pairs[pair] -= 1
            if self._pairs[pair] == 0:
                del self._pairs[pair]
                for each in pair:
                    each.close()

    @staticmethod
    def _shut(pair):
        for each in pair:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side has closed first

    def cut(self):
        """Closes all connections."""
        with self._lock:
            for pair in self._pairs:
                self._shut(pair)

    def begin_count(self):
        with self._lock:
            self.most_open, self.requests = self._open, 0

    def open_now(self):
        with self._lock:
            return self._open

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()


class World:
    def __init__(self, agent=True):
        self.folder = tempfile.mkdtemp(prefix="mycojobs-clients-")
        self._processes = []
        self.relay = Relay()
        self.url = self.relay.url
        self._coordinator = None
        try:
            self._begin(agent)
        except BaseException:
            self.close()
            raise

    def _begin(self, agent):
        path = os.path.join(self.folder, "redis.sock")
        self.redis = f"unix://{path}"
        self._start("redis-server", "--port", "0", "--unixsocket", path, "--dir", self.folder, "--appendonly", "yes", "--save", "",
                    "--maxmemory-policy", "noeviction", "--databases", "16")  # fmt: skip
        eventually(lambda: self._connects(path))
        self.token = self.new_token("--operator")
        self.start_coordinator()
        if agent:
            self._start(PROGRAM, "agent", "--redis", self.redis, "--context", "1", "--runner", "20", "--slots", "8", "--grace", "1s",
                        "--state-dir", os.path.join(self.folder, "agent"))  # fmt: skip

    def new_token(self, *words):
        done = subprocess.run([PROGRAM, "key", "token", *words, "--api-tokens", self.path("tokens")], capture_output=True, text=True, check=True)
        return done.stdout.split()[0]

    def path(self, name):
        return os.path.join(self.folder, name)

    @staticmethod
    def _connects(path):
        with socket.socket(socket.AF_UNIX) as one:
            return one.connect_ex(path) == 0

    def _start(self, *words):
        log = open(self.path(f"{os.path.basename(words[0])}{len(self._processes)}.log"), "w+", encoding="utf-8", errors="replace")
        # The child processes end when this program ends for any reason.
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        process.log = log
        self._processes.append(process)
        return process

    def start_coordinator(self):
        process = self._start(PROGRAM, "coordinator", "--redis", self.redis, "--context", "1", "--api-listen", "127.0.0.1:0",
                              "--api-tokens", self.path("tokens"), "--state-dir", self.path("coordinator"))  # fmt: skip

        def port():
            process.log.seek(0)
            output = process.log.read()
            found = re.search(r"JSON-RPC at http://127\.0\.0\.1:(\d+)", output)
            if process.poll() is not None:
                raise AssertionError(f"the coordinator has ended: {output}")
            return found and int(found[1])

        self.relay.target = eventually(port)
        self._coordinator = process

    def stop_coordinator(self):
        self.relay.target = None
        self._end(self._coordinator, signal.SIGTERM)

    @staticmethod
    def _end(process, how):
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self):
        self.relay.close()
        for process in reversed(self._processes[1:]):
            self._end(process, signal.SIGTERM)
        for process in self._processes[:1]:
            self._end(process, signal.SIGTERM)
        for process in self._processes:
            process.log.close()
        shutil.rmtree(self.folder)


class Case(unittest.TestCase):
    """One world for all tests of a class."""

    with_agent = True

    @classmethod
    def setUpClass(cls):
        cls.world = World(cls.with_agent)
        cls.addClassCleanup(cls.world.close)
