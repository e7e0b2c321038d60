#!/usr/bin/python3
"""Two tenants on two hosts, which are network namespaces. Accepted messages are processed and each job runs once, despite an
interrupted network, half-open connections and killed programs.

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
ADDRESSES = {"left": "10.79.0.1", "right": "10.79.0.2"}
CONTEXT = {"left": "7", "right": "9"}
SLOW_SCRIPT = "import time\nprint('begun', flush=True)\ntime.sleep(4)\nresult = {'n': '%s'}\n"


def run_ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Host:
    """A simulated host: a network namespace with Redis, a coordinator, an agent and keys."""

    def __init__(self, name, folder):
        self.name, self.namespace, self.context = name, TAG + name, CONTEXT[name]
        self.folder = os.path.join(folder, name)
        os.makedirs(os.path.join(self.folder, "redis"))
        self.url = f"http://{ADDRESSES[name]}:9652"
        self.processes = {}
        self.env = dict(
            os.environ,
            MYCOJOBS_CONFIG="",
            MYCOJOBS_REDIS="redis://127.0.0.1:6379",
            MYCOJOBS_CONTEXT=self.context,
            MYCOJOBS_STATE_DIR=self.folder,
            MYCOJOBS_KEYS_DIR=os.path.join(self.folder, "keys"),
            MYCOJOBS_COORDINATOR_NETWORKS="10.79.0.0/24",
        )

    def in_namespace(self, *words):
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *words]  # `ip netns exec` would hide the cgroups

    def start(self, program, *words, state=""):
        env = dict(self.env, MYCOJOBS_STATE_DIR=self.env["MYCOJOBS_STATE_DIR"] + state)
        with open(os.path.join(self.folder, program + ".log"), "ab") as log:
            self.processes[program] = subprocess.Popen(
                self.in_namespace(*words), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env
            )

    def stop(self, program, number=signal.SIGTERM):
        process = self.processes.pop(program)
        process.send_signal(number)
        process.wait(30)

    def read_log(self, program):
        with open(os.path.join(self.folder, program + ".log"), errors="replace") as file:
            return file.read()

    def run(self, *words, check=True):
        result = subprocess.run(
            self.in_namespace(PROGRAM, *words), capture_output=True, text=True, env=self.env, stdin=subprocess.DEVNULL, timeout=90
        )
        if check and result.returncode != 0:
            raise AssertionError(f"{self.name}: {words}: {result.returncode}: {result.stdout}{result.stderr}")
        return result

    def cli(self, *words):
        result = subprocess.run(
            self.in_namespace("redis-cli", "-n", self.context, *words), capture_output=True, text=True, check=True, timeout=20
        )
        return result.stdout.strip()

    def make_key(self, name):
        return self.run("key", "new", name).stdout.split("\n")[0]

    def start_redis(self):
        self.start("redis", "redis-server", "--port", "6379", "--bind", "127.0.0.1", "--save", "", "--databases", "32",
                   "--dir", os.path.join(self.folder, "redis"))  # fmt: skip
        wait_until(lambda: subprocess.run(self.in_namespace("redis-cli", "ping"), capture_output=True).stdout == b"PONG\n", "redis")

    def start_coordinator(self):
        starts_before = self.read_log("coordinator").count("JSON-RPC at") if os.path.exists(self.folder + "/coordinator.log") else 0
        self.start("coordinator", PROGRAM, "coordinator", "--api-listen", f"{ADDRESSES[self.name]}:9652", "--api-insecure",
                   "--coordinator-key", "coordinator", "--coordinator-lease", "1s")  # fmt: skip
        wait_until(lambda: self.read_log("coordinator").count("JSON-RPC at") > starts_before, f"{self.name}: coordinator")

    def start_agent(self):
        self.start("agent", PROGRAM, "agent", "--slots", "4", "--lease", "2s", "--runner-key", "runner", state="/agent")


def wait_until(condition, description, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{description}: not in {limit_s} s")
        time.sleep(0.1)


def make_network():
    for side in ("switch", "left", "right"):
        run_ip("netns", "add", TAG + side)
        run_ip("-n", TAG + side, "link", "set", "lo", "up")
    run_ip("-n", TAG + "switch", "link", "add", "wire", "type", "bridge")
    run_ip("-n", TAG + "switch", "link", "set", "wire", "up")
    for side in ("left", "right"):
        run_ip("-n", TAG + "switch", "link", "add", side, "type", "veth", "peer", "name", "eth0", "netns", TAG + side)
        run_ip("-n", TAG + "switch", "link", "set", side, "master", "wire", "up")
        run_ip("-n", TAG + side, "addr", "add", ADDRESSES[side] + "/24", "dev", "eth0")
        run_ip("-n", TAG + side, "link", "set", "eth0", "up")


def set_link_state(state):
    """Sets the link of the switch up or down. Neither host sees its own link go down, so connections become half-open."""
    run_ip("-n", TAG + "switch", "link", "set", "wire", state)


class Tenants(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="mycojobs-network-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.addClassCleanup(cls.remove_network)
        make_network()
        cls.left, cls.right = Host("left", cls.folder), Host("right", cls.folder)
        cls.addClassCleanup(cls.stop_all)
        left, right = cls.left, cls.right
        for side in (left, right):
            side.start_redis()
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
            side.start_coordinator()
            side.start_agent()

    @classmethod
    def stop_all(cls):
        for side in (cls.left, cls.right):
            for program in list(side.processes)[::-1]:
                side.stop(program)

    @classmethod
    def remove_network(cls):
        for side in ("left", "right", "switch"):
            subprocess.run(["ip", "netns", "del", TAG + side], capture_output=True)

    def tearDown(self):
        set_link_state("up")
        for side in (self.left, self.right):
            self.assertEqual(side.run("verify", check=False).returncode, 0, side.run("verify", check=False).stdout)

    def send(self, script):
        """Sends a message without waiting and returns its number."""
        path = os.path.join(self.folder, "script.py")
        with open(path, "w") as file:
            file.write(script)
        result = self.left.run("message", "send", path, "--to", "9", "--address", self.right.url, "--caller", "12", "--key", "bob")
        return int(re.search(r"12:(\d+)", result.stdout + result.stderr)[1])

    def send_slow(self, word):
        """Sends a message whose job runs for some seconds, and waits until it is acknowledged."""
        number = self.send(SLOW_SCRIPT % word)
        wait_until(lambda: self.read_status(number) == "acknowledged", "acknowledged")
        return number

    def read_status(self, number):
        return self.left.cli("HGET", f"message:12:{number}", "status")

    def expect_result(self, number, limit_s=60):
        wait_until(lambda: self.read_status(number) in ("processed", "error"), f"message {number}", limit_s)
        shown = self.left.cli("HGETALL", f"message:12:{number}") + self.left.read_log("coordinator")[-2000:]
        self.assertEqual(self.read_status(number), "processed", shown)
        self.assertEqual(self.left.run("receipt", "verify", self.read_job_of_message(number), "--key", self.runner_key).returncode, 0)

    def restore_link_and_expect_results(self, *numbers):
        set_link_state("up")
        for number in numbers:
            self.expect_result(number)

    def read_job_of_message(self, number):
        return self.left.cli("HGET", f"mj:message:message:12:{number}", "jobs").removeprefix("job:")

    def list_deliveries(self, word):
        """Returns the number of deliveries of each job on the right side whose script contains the word."""
        jobs = [job for job in self.right.cli("KEYS", "job:5:*").split() if word in self.right.cli("HGET", job, "script")]
        return [self.right.cli("HGET", job, "deliveries") for job in jobs]

    def test_1_message_is_processed_and_remote_redis_is_unreachable(self):
        number = self.send("result = {'n': 'crossed'}")
        self.expect_result(number)
        self.assertEqual(self.list_deliveries("crossed"), ["1"])
        self.assertIn(f"message:12:{number}", self.left.cli("LRANGE", "msg_in", "0", "-1"))
        ping_remote_redis = self.left.in_namespace("redis-cli", "-h", ADDRESSES["right"], "-t", "2", "ping")
        self.assertNotIn(b"PONG", subprocess.run(ping_remote_redis, capture_output=True).stdout)

    def test_2_interrupted_link_delays_the_result(self):
        number = self.send_slow("cut")
        set_link_state("down")
        late_number = self.send("result = {'n': 'sent while it was cut'}")
        time.sleep(12)  # longer than the time-out of one exchange
        self.assertEqual((self.read_status(number), self.read_status(late_number)), ("acknowledged", "dispatched"))
        self.restore_link_and_expect_results(number, late_number)
        self.assertEqual((self.list_deliveries("'cut'"), self.list_deliveries("sent while")), (["1"], ["1"]))

    def test_3_host_killed_during_half_open_connections(self):
        number = self.send_slow("half open")
        set_link_state("down")
        self.right.stop("coordinator", signal.SIGKILL)  # the other host receives no packet that closes its connections
        late_number = self.send("result = {'n': 'sent to nobody'}")
        time.sleep(3)
        self.right.start_coordinator()
        self.restore_link_and_expect_results(number, late_number)
        self.assertEqual((self.list_deliveries("half open"), self.list_deliveries("sent to nobody")), (["1"], ["1"]))

    def test_4_killed_sender_still_receives_the_answer(self):
        number = self.send_slow("nobody waits")
        self.left.stop("coordinator", signal.SIGKILL)
        time.sleep(6)
        self.left.start_coordinator()
        self.expect_result(number)
        self.assertEqual(self.list_deliveries("nobody waits"), ["1"])

    def test_5_flow_node_runs_over_an_unstable_link(self):
        flow = {
            "name": "far",
            "jobs": {
                "far": {"type": "python", "supervisor_url": "runner:50", "script": SLOW_SCRIPT % "a node"},
                "near": {"type": "python", "needs": ["far"], "script": "result = {'n': '8'}"},
            },
        }
        path = os.path.join(self.folder, "flow.json")
        with open(path, "w") as file:
            json.dump(flow, file)
        self.left.run("flow", "start", path, "--caller", "12")
        for state in ("down", "up") * 4:
            set_link_state(state)
            time.sleep(1)
        wait_until(lambda: self.left.cli("HGET", "flow:1", "status") in ("finished", "error"), "the flow")
        self.assertEqual(self.left.cli("HGET", "flow:1", "status"), "finished", self.left.cli("HGETALL", "flow:1"))
        nodes = self.right.cli("KEYS", "job:7:*").split()
        self.assertEqual([self.right.cli("HGET", job, "deliveries") for job in nodes], ["1"])
        far = [job for job in self.left.cli("KEYS", "job:12:*").split() if self.left.cli("HGET", job, "name") == "far"][0]
        self.assertEqual(self.left.cli("HGET", far, "ran_as"), "9 " + nodes[0])
        checked = self.left.run("receipt", "verify", far.removeprefix("job:"), "--key", self.runner_key)
        self.assertIn("holds  signature", checked.stdout)


if __name__ == "__main__":
    if os.getuid() != 0:
        print("only root makes network namespaces that have names")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
