#!/usr/bin/python3
"""Two tenants on two hosts, which are network namespaces: work crosses, and accepted messages arrive despite an interrupted
network, half-open connections and killed programs. Each job runs once.

Needs root for the namespaces and exits with 77 otherwise. All names are unique to the test.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv[1]
TAG = f"mjt{os.getpid()}"
IP = {"left": "10.79.0.1", "right": "10.79.0.2"}
CONTEXT = {"left": "7", "right": "9"}
SLOW = "import time\nprint('begun', flush=True)\ntime.sleep(4)\nresult = {'n': '%s'}\n"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Side:
    """A host: its namespace, Redis, coordinator, agent, keys."""

    def __init__(self, name, folder):
        self.name, self.space, self.context = name, TAG + name, CONTEXT[name]
        self.folder = os.path.join(folder, name)
        os.makedirs(os.path.join(self.folder, "redis"))
        self.url = f"http://{IP[name]}:9652"
        self.running = {}
        self.env = dict(
            os.environ,
            MYCOJOBS_CONFIG="",
            MYCOJOBS_REDIS="redis://127.0.0.1:6379",
            MYCOJOBS_CONTEXT=self.context,
            MYCOJOBS_STATE_DIR=self.folder,
            MYCOJOBS_KEYS_DIR=os.path.join(self.folder, "keys"),
            MYCOJOBS_COORDINATOR_NETWORKS="10.79.0.0/24",
        )

    def inside(self, *words):
        return ["nsenter", f"--net=/run/netns/{self.space}", *words]  # `ip netns exec` would hide the cgroups

    def start(self, what, *words, state=""):
        env = dict(self.env, MYCOJOBS_STATE_DIR=self.env["MYCOJOBS_STATE_DIR"] + state)
        with open(os.path.join(self.folder, what + ".log"), "ab") as log:
            self.running[what] = subprocess.Popen(
                self.inside(*words), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env
            )

    def end(self, what, number=signal.SIGTERM):
        process = self.running.pop(what)
        process.send_signal(number)
        process.wait(30)

    def log(self, what):
        with open(os.path.join(self.folder, what + ".log"), errors="replace") as file:
            return file.read()

    def run(self, *words, check=True):
        done = subprocess.run(
            self.inside(PROGRAM, *words), capture_output=True, text=True, env=self.env, stdin=subprocess.DEVNULL, timeout=90
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{self.name}: {words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def cli(self, *words):
        done = subprocess.run(
            self.inside("redis-cli", "-n", self.context, *words), capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout.strip()

    def make_key(self, name):
        return self.run("key", "new", name).stdout.split("\n")[0]

    def redis(self):
        self.start("redis", "redis-server", "--port", "6379", "--bind", "127.0.0.1", "--save", "", "--databases", "32",
                   "--dir", os.path.join(self.folder, "redis"))  # fmt: skip
        wait(lambda: subprocess.run(self.inside("redis-cli", "ping"), capture_output=True).stdout == b"PONG\n", "redis")

    def coordinate(self):
        before = self.log("coordinator").count("JSON-RPC at") if os.path.exists(self.folder + "/coordinator.log") else 0
        self.start("coordinator", PROGRAM, "coordinator", "--api-listen", f"{IP[self.name]}:9652",
                   "--coordinator-key", "coordinator", "--coordinator-lease", "1s")  # fmt: skip
        wait(lambda: self.log("coordinator").count("JSON-RPC at") > before, f"{self.name}: coordinator")

    def work(self):
        self.start("agent", PROGRAM, "agent", "--slots", "4", "--lease", "2s", "--runner-key", "runner", state="/agent")


def wait(holds, what, limit=60):
    until = time.monotonic() + limit
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not in {limit} s")
        time.sleep(0.1)


def make_network():
    for side in ("switch", "left", "right"):
        ip("netns", "add", TAG + side)
        ip("-n", TAG + side, "link", "set", "lo", "up")
    ip("-n", TAG + "switch", "link", "add", "wire", "type", "bridge")
    ip("-n", TAG + "switch", "link", "set", "wire", "up")
    for side in ("left", "right"):
        ip("-n", TAG + "switch", "link", "add", side, "type", "veth", "peer", "name", "eth0", "netns", TAG + side)
        ip("-n", TAG + "switch", "link", "set", side, "master", "wire", "up")
        ip("-n", TAG + side, "addr", "add", IP[side] + "/24", "dev", "eth0")
        ip("-n", TAG + side, "link", "set", "eth0", "up")


def set_wire(way):
    """Sets the link of the switch up or down. Neither host sees its own link go down, so connections become half-open."""
    ip("-n", TAG + "switch", "link", "set", "wire", way)


class Tenants(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="mycojobs-network-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.addClassCleanup(cls.remove_network)
        make_network()
        cls.left, cls.right = Side("left", cls.folder), Side("right", cls.folder)
        cls.addClassCleanup(cls.end_all)
        left, right = cls.left, cls.right
        for side in (left, right):
            side.redis()
        bob = left.make_key("bob")
        supervisors = {side.name: side.make_key("coordinator") for side in (left, right)}
        left.make_key("runner")
        cls.runner_key = right.make_key("runner")
        left.run("actor", "create", "--id", "12", "--key", bob)
        left.run("context", "create", "7", "--admin", "12")
        left.run("runner", "create", "--id", "50", "--address", right.url, "--pubkey", supervisors["right"],
                 "--target-context", "9")  # fmt: skip
        right.run("actor", "create", "--id", "5", "--key", bob, "--address", left.url)
        right.run("actor", "create", "--id", "6", "--key", cls.runner_key)
        right.run("actor", "create", "--id", "7", "--key", supervisors["left"], "--address", left.url)
        right.run("context", "create", "9", "--admin", "6", "--submitter", "5", "--submitter", "7")
        right.run("runner", "create", "--id", "50", "--address", left.url, "--pubkey", supervisors["left"])
        for side in (left, right):
            side.coordinate()
            side.work()

    @classmethod
    def end_all(cls):
        for side in (cls.left, cls.right):
            for what in list(side.running)[::-1]:
                side.end(what)

    @classmethod
    def remove_network(cls):
        for side in ("left", "right", "switch"):
            subprocess.run(["ip", "netns", "del", TAG + side], capture_output=True)

    def tearDown(self):
        set_wire("up")
        for side in (self.left, self.right):
            self.assertEqual(side.run("verify", check=False).returncode, 0, side.run("verify", check=False).stdout)

    def send(self, script):
        """Sends a message without waiting and returns its number."""
        path = os.path.join(self.folder, "script.py")
        with open(path, "w") as file:
            file.write(script)
        done = self.left.run("message", "send", path, "--to", "9", "--address", self.right.url, "--caller", "12", "--key", "bob")
        return int(re.search(r"12:(\d+)", done.stdout + done.stderr)[1])

    def send_slow(self, word):
        """Sends a message whose job runs for some seconds, and waits until it is acknowledged."""
        number = self.send(SLOW % word)
        wait(lambda: self.status(number) == "acknowledged", "acknowledged")
        return number

    def status(self, number):
        return self.left.cli("HGET", f"message:12:{number}", "status")

    def expect_result(self, number, limit=60):
        wait(lambda: self.status(number) in ("processed", "error"), f"message {number}", limit)
        shown = self.left.cli("HGETALL", f"message:12:{number}") + self.left.log("coordinator")[-2000:]
        self.assertEqual(self.status(number), "processed", shown)
        self.assertEqual(self.left.run("receipt", "verify", self.job_of(number), "--key", self.runner_key).returncode, 0)

    def expect_results_over_the_wire(self, *numbers):
        set_wire("up")
        for number in numbers:
            self.expect_result(number)

    def job_of(self, number):
        return self.left.cli("HGET", f"mj:message:message:12:{number}", "jobs").removeprefix("job:")

    def runs(self, word):
        """Returns the number of deliveries of each job on the right side whose script contains the word."""
        jobs = [each for each in self.right.cli("KEYS", "job:5:*").split() if word in self.right.cli("HGET", each, "script")]
        return [self.right.cli("HGET", each, "deliveries") for each in jobs]

    def test_1_work_crosses_and_no_redis_can_be_reached(self):
        number = self.send("result = {'n': 'crossed'}")
        self.expect_result(number)
        self.assertEqual(self.runs("crossed"), ["1"])
        self.assertIn(f"message:12:{number}", self.left.cli("LRANGE", "msg_in", "0", "-1"))
        there = self.left.inside("redis-cli", "-h", IP["right"], "-t", "2", "ping")
        self.assertNotIn(b"PONG", subprocess.run(there, capture_output=True).stdout)

    def test_2_a_wire_that_is_cut_while_a_job_runs_delays_its_result(self):
        number = self.send_slow("cut")
        set_wire("down")
        late = self.send("result = {'n': 'sent while it was cut'}")
        time.sleep(12)  # longer than the time-out of one exchange
        self.assertEqual((self.status(number), self.status(late)), ("acknowledged", "dispatched"))
        self.expect_results_over_the_wire(number, late)
        self.assertEqual((self.runs("'cut'"), self.runs("sent while")), (["1"], ["1"]))

    def test_3_host_killed_during_half_open_connections(self):
        number = self.send_slow("half open")
        set_wire("down")
        self.right.end("coordinator", signal.SIGKILL)  # the other side receives no packet about it
        late = self.send("result = {'n': 'sent to nobody'}")
        time.sleep(3)
        self.right.coordinate()
        self.expect_results_over_the_wire(number, late)
        self.assertEqual((self.runs("half open"), self.runs("sent to nobody")), (["1"], ["1"]))

    def test_4_killed_sender_still_receives_the_answer(self):
        number = self.send_slow("nobody waits")
        self.left.end("coordinator", signal.SIGKILL)
        time.sleep(6)
        self.left.coordinate()
        self.expect_result(number)
        self.assertEqual(self.runs("nobody waits"), ["1"])

    def test_5_flow_node_crosses_an_unstable_wire(self):
        flow = {
            "name": "far",
            "jobs": {
                "far": {"type": "python", "supervisor_url": "runner:50", "script": SLOW % "a node"},
                "near": {"type": "python", "needs": ["far"], "script": "result = {'n': '8'}"},
            },
        }
        path = os.path.join(self.folder, "flow.json")
        with open(path, "w") as file:
            json.dump(flow, file)
        self.left.run("flow", "start", path, "--caller", "12")
        for way in ("down", "up") * 4:
            set_wire(way)
            time.sleep(1)
        wait(lambda: self.left.cli("HGET", "flow:1", "status") in ("finished", "error"), "the flow")
        self.assertEqual(self.left.cli("HGET", "flow:1", "status"), "finished", self.left.cli("HGETALL", "flow:1"))
        nodes = self.right.cli("KEYS", "job:7:*").split()
        self.assertEqual([self.right.cli("HGET", each, "deliveries") for each in nodes], ["1"])
        far = [each for each in self.left.cli("KEYS", "job:12:*").split() if self.left.cli("HGET", each, "name") == "far"][0]
        self.assertEqual(self.left.cli("HGET", far, "ran_as"), "9 " + nodes[0])
        checked = self.left.run("receipt", "verify", far.removeprefix("job:"), "--key", self.runner_key)
        self.assertIn("holds  signature", checked.stdout)


if __name__ == "__main__":
    if os.getuid() != 0:
        print("only root makes network namespaces that have names")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
