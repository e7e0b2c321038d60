"""mycojobs: the whole path, whole sandbox, every job in a fresh process."""
import json
import os
import re
import subprocess
import time
import urllib.request

from ..delivery import check
from ..host import program
from ..processes import Process, clean_environment, memory_kib, name, tree, wait_for
from .base import System
from .beanstalkd import free_port

CALLER, FLOW_CALLER, CONTEXT = 9, 8, 1
SCRIPTS = {
    "noop": "pass",
    "stamp": "import time\nresult['at'] = time.monotonic()",
    "cpu": "import time\nend = time.thread_time() + 0.3\nwhile time.thread_time() < end:\n    pass",
    "sleep": "import time\ntime.sleep(0.1)",
    "hang": "import time\ntime.sleep(3600)",
}
# Jobs of other script types for the targets: (type, script).
CONFIG = '[executors.bash]\ncommand = ["/bin/bash", "{script}"]\n'
FILL = """
local fields = {unpack(ARGV, 5)}
for id = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local key = string.format('job:%s:%d', ARGV[3], id)
  redis.call('HSET', key, 'id', string.format('%d', id), unpack(fields))
  redis.call('LPUSH', ARGV[4], key)
end
"""


class Mycojobs(System):
    title = "mycojobs"
    isolation = "process, namespaces, seccomp, Landlock, cgroups"
    settings = "defaults (lease 30 s, 8 prewarmed), 8 slots"
    sandbox = ""  # additional lines of the section [sandbox]

    def connect(self):
        self.store = self.redis.client(CONTEXT)
        self.journal = "0"
        self.state = os.path.join(self.folder, "state")
        self.config = os.path.join(self.folder, "config.toml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG + self.sandbox)
        self.url = f"unix:{self.redis.socket}"
        self.coordinator = None

    def spawn(self, runner=None):
        runner = runner or len(self.workers) + 1
        return Process(
            [
                program(),
                "agent",
                "--redis",
                self.url,
                "--context",
                str(CONTEXT),
                "--runner",
                str(runner),
                "--slots",
                str(self.slots),
                "--config",
                self.config,
                "--state-dir",
                self.state,
                "--log-level",
                "error",
            ],
            os.path.join(self.folder, "agent.log"),
        )

    def record(self, kind, ident):
        type_, script = kind if isinstance(kind, tuple) else ("python", SCRIPTS[kind])
        return f"job:{CALLER}:{ident}", {
            "id": ident,
            "caller_id": CALLER,
            "context_id": CONTEXT,
            "script": script,
            "script_type": type_,
            "timeout": 3600,
            "status": "dispatched",
        }

    def _write(self, pipe, kind, ident):
        key, record = self.record(kind, ident)
        pipe.hset(key, mapping=record)
        pipe.lpush("queue:" + record["script_type"], key)
        return key

    def send(self, kind, ident):
        pipe = self.store.pipeline(transaction=False)
        key = self._write(pipe, kind, ident)
        pipe.execute()
        return key

    def fill(self, kind, idents):
        if len(idents) > 20000:
            return self._fill_inside(kind, idents)
        pipe = self.store.pipeline(transaction=False)
        for number, ident in enumerate(idents, 1):
            self._write(pipe, kind, ident)
            if number % 1000 == 0:
                pipe.execute()
        pipe.execute()

    def _fill_inside(self, kind, idents):
        """The same commands, called by a script in the server: a million from outside take a minute."""
        _, record = self.record(kind, idents[0])
        words = [word for pair in record.items() if pair[0] != "id" for word in pair]
        script = self.store.register_script(FILL)
        for first in range(idents[0], idents[-1] + 1, 10000):
            script(args=[first, min(first + 9999, idents[-1]), CALLER, "queue:" + record["script_type"], *words])

    def ended(self):
        return self.store.zcard("mj:ended")

    def round_trip(self, kind, ident):
        pipe = self.store.pipeline(transaction=False)
        # The end of a job is appended to its log only if the log exists.
        pipe.xgroup_create(f"mj:log:{self.record(kind, ident)[0]}", "wait", mkstream=True)
        key = self._write(pipe, kind, ident)
        pipe.execute()
        at = "0"
        while True:
            found = self.store.xread({f"mj:log:{key}": at}, block=30000)
            if not found:
                raise TimeoutError(f"{key} has not ended after 30 s")
            at, fields = found[0][1][-1]
            if b"end" in fields:
                break
        status = self.store.hget(key, "status")
        if status != b"finished":
            raise RuntimeError(f"{key}: {self.store.hmget(key, 'status', 'detail', 'error')}")

    def send_at_rate(self, idents, rate):
        """Packed beforehand and sent on one connection: what is measured is the pickup, not redis-py."""
        connection = self.store.connection_pool.get_connection("HSET")
        packed = {}
        for ident in idents:
            key, record = self.record("stamp", ident)
            pairs = [word for pair in record.items() for word in pair]
            packed[ident] = b"".join(connection.pack_commands([("HSET", key, *pairs), ("LPUSH", "queue:python", key)]))
        begin = time.monotonic() + 0.05
        planned = {ident: begin + index / rate for index, ident in enumerate(idents)}
        for ident, moment in planned.items():
            wait = moment - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            connection.send_packed_command([packed[ident]])
            for _ in range(2):
                connection.read_response()
        self.store.connection_pool.release(connection)
        return planned

    def chain(self, length):
        """A flow, created and started by JSON-RPC."""
        jobs = {
            f"n{index}": {"type": "python", "script": "pass"} | ({"needs": [f"n{index - 1}"]} if index else {})
            for index in range(length)
        }
        if not self.coordinator:
            self._start_coordinator()
        begin = time.perf_counter()
        definition = {"name": "chain", "jobs": jobs}
        made = self.rpc("flow.create", definition=definition, context_id=CONTEXT, caller_id=FLOW_CALLER)
        self.flow = made["id"]
        self.rpc("flow.start", id=self.flow, context_id=CONTEXT)
        wait_for(
            lambda: self.store.hget(f"flow:{self.flow}", "status") in (b"finished", b"error"), "the flow", 60, 0.001
        )
        took = time.perf_counter() - begin
        if self.store.hget(f"flow:{self.flow}", "status") != b"finished":
            raise RuntimeError(f"the flow of {length} jobs failed")
        return took

    def chained(self, length):
        """The flow's jobs have another caller and the ids that the flow gave them: its record lists them."""
        took = self.chain(length)
        expected = [f"job:{FLOW_CALLER}:{ident}" for ident in json.loads(self.store.hget(f"flow:{self.flow}", "jobs"))]
        if len(expected) != length:
            raise RuntimeError(f"a flow of {length} jobs has {len(expected)}")
        return took, check(expected, [key for key in self._runs() if not key.startswith(f"job:{CALLER}:")])

    def _start_coordinator(self):
        port = free_port()
        tokens = os.path.join(self.folder, "tokens")
        environment = clean_environment({"MYCOJOBS_API_TOKENS": tokens})
        said = subprocess.run(
            [program(), "key", "token", "--operator", "--note", "bench"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self.token = re.findall(r"\S{20,}", said.stdout)[0]
        self.api = f"http://127.0.0.1:{port}/rpc"
        self.coordinator = Process(
            [
                program(),
                "coordinator",
                "--redis",
                self.url,
                "--context",
                str(CONTEXT),
                "--api-listen",
                f"127.0.0.1:{port}",
                "--api-tokens",
                tokens,
                "--state-dir",
                self.state,
                "--log-level",
                "error",
            ],
            os.path.join(self.folder, "coordinator.log"),
        )
        wait_for(self._coordinator_up, "the coordinator")

    def _coordinator_up(self):
        self.coordinator.check()
        try:
            return self.rpc("system.ping") == "pong" and self.store.exists("mj:coordinator")
        except OSError:
            return False

    def rpc(self, method, **parameters):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
        request = urllib.request.Request(
            self.api, body, {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            said = json.load(answer)
        if "error" in said:
            raise RuntimeError(f"{method}: {said['error']}")
        return said["result"]

    def _runs(self):
        """Job keys of the journal since the last call: one for each completion, and for each delivery after the first."""
        keys = []
        while True:
            entries = self.store.xrange("mj:journal:queue:python", min="(" + self.journal, count=5000)
            if not entries:
                return keys
            self.journal = entries[-1][0].decode()
            for _, fact in entries:
                again = fact[b"f"] == b"claimed" and int(fact[b"d"]) > 1
                if fact[b"f"] == b"completed" or again:
                    keys.append(fact[b"j"].decode())

    def seen(self):
        """What has run by the journal and finished at its first delivery by its record; the moment is what the job wrote."""
        keys = [key for key in self._runs() if key.startswith(f"job:{CALLER}:")]
        pipe = self.store.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(key, "status", "deliveries", "result")
        rows = []
        for key, (status, deliveries, result) in zip(keys, pipe.execute()):
            if status != b"finished" or deliveries != b"1":
                continue  # the job counts as lost
            at = float(json.loads(result).get("at", 0)) if result else 0.0
            rows.append((int(key.rsplit(":", 1)[1]), at))
        return rows

    def about(self):
        """The layers that were in force in the last job that was made."""
        layers = self.store.hget(f"job:{CALLER}:{self.next - 1}", "layers")
        return {"layers": layers.decode().split() if layers else []}

    def idle_figures(self):
        """Private memory of the children that wait for a job: the leaves below the script hosts."""
        hosts = [pid for pid in self.pids() if name(pid) == "mj-python"]
        pids = {pid for host in hosts for pid in tree(host)} - set(hosts)
        leaves = [pid for pid in pids if len(tree(pid)) == 1]
        kib = {"ready_child_kib": leaves, "ready_init_kib": pids - set(leaves)}
        return {field: sorted(memory_kib(pid, "Private_Dirty") or 0 for pid in group) for field, group in kib.items()}

    def runs_of(self, ident):
        return int(self.store.hget(f"job:{CALLER}:{ident}", "deliveries") or 0)

    def audit(self):
        said = subprocess.run(
            [program(), "verify", "--redis", self.url, "--context", str(CONTEXT), "--state-dir", self.state],
            env=clean_environment({}),
            capture_output=True,
            text=True,
            check=False,
        )
        return (
            []
            if said.returncode == 0
            else [f"mycojobs verify: exit {said.returncode}: {said.stdout.strip()[-400:]} {said.stderr.strip()[-200:]}"]
        )

    def stop(self):
        if getattr(self, "coordinator", None):
            self.coordinator.stop()
        super().stop()


class MycojobsAnew(Mycojobs):
    title = "mycojobs, new sandbox for each job"
    isolation = "process, namespaces, mounts, seccomp, Landlock, cgroups, all new for each job"
    settings = "sandbox.reused_runs = 1, 8 slots"
    sandbox = "[sandbox]\nreused_runs = 1\n"


class MycojobsWarm(Mycojobs):
    """Another promise: its jobs share a process, as those of the peers in process do (docs/warm.md)."""

    title = "mycojobs, warm script"
    isolation = "none between the jobs of one script and caller; for all other jobs as for mycojobs"
    settings = "policy warm.runs = 1000000, 8 slots"
    sandbox = "[ceiling]\nwarm.runs = 1000000\n"

    def record(self, kind, ident):
        key, record = super().record(kind, ident)
        if record["script_type"] == "python":
            head, *lines = record["script"].split("\n")
            imports, lines = ([head], lines) if head.startswith("import") else ([], [head, *lines])
            body = ["def main(job):", *("    " + line for line in lines)]
            record |= {"script": "\n".join([*imports, *body]), "policy": '{"warm": {"runs": 1000000}}'}
        return key, record
