"""mycojobs with the complete path of a job and the complete sandbox. Each job runs in a fresh process."""
import json
import os
import re
import subprocess
import time
import urllib.request

from ..delivery import check_delivery
from ..host import find_program
from ..processes import Process, list_process_tree, make_environment, read_memory_kib, read_process_name, wait_for
from .base import System
from .beanstalkd import find_free_port

CALLER, FLOW_CALLER, CONTEXT = 9, 8, 1
SCRIPTS = {
    "noop": "pass",
    "stamp": "import time\nresult['at'] = time.monotonic()",
    "cpu": "import time\nend = time.thread_time() + 0.3\nwhile time.thread_time() < end:\n    pass",
    "sleep": "import time\ntime.sleep(0.1)",
    "hang": "import time\ntime.sleep(3600)",
}
# The executor for the bash jobs of the targets.
CONFIG = '[executors.bash]\ncommand = ["/bin/bash", "{script}"]\n'
# Submits the jobs with the ids ARGV[1] to ARGV[2]. ARGV[3]: caller; ARGV[4]: queue; then the fields of the jobs.
FILL_SCRIPT = """
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

    def start_worker(self, runner=None):
        runner = runner or len(self.workers) + 1
        return Process(
            [
                find_program(),
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

    def make_record(self, kind, ident):
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
        key, record = self.make_record(kind, ident)
        pipe.hset(key, mapping=record)
        pipe.lpush("queue:" + record["script_type"], key)
        return key

    def submit(self, kind, ident):
        pipe = self.store.pipeline(transaction=False)
        key = self._write(pipe, kind, ident)
        pipe.execute()
        return key

    def submit_many(self, kind, idents):
        if len(idents) > 20000:
            return self._submit_by_script(kind, idents)
        pipe = self.store.pipeline(transaction=False)
        for number, ident in enumerate(idents, 1):
            self._write(pipe, kind, ident)
            if number % 1000 == 0:
                pipe.execute()
        pipe.execute()

    def _submit_by_script(self, kind, idents):
        """Submits the jobs by a script in Redis, since a client needs a minute for a million jobs."""
        _, record = self.make_record(kind, idents[0])
        fields = [text for pair in record.items() if pair[0] != "id" for text in pair]
        script = self.store.register_script(FILL_SCRIPT)
        for first in range(idents[0], idents[-1] + 1, 10000):
            script(args=[first, min(first + 9999, idents[-1]), CALLER, "queue:" + record["script_type"], *fields])

    def count_ended(self):
        return self.store.zcard("mj:ended")

    def round_trip(self, kind, ident):
        pipe = self.store.pipeline(transaction=False)
        # The end of a job is appended to its log only if the log exists.
        pipe.xgroup_create(f"mj:log:{self.make_record(kind, ident)[0]}", "wait", mkstream=True)
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

    def submit_at_rate(self, idents, rate):
        """Submits jobs whose commands were encoded before, on one connection, so that redis-py does not delay them."""
        connection = self.store.connection_pool.get_connection("HSET")
        packed = {}
        for ident in idents:
            key, record = self.make_record("stamp", ident)
            fields = [text for pair in record.items() for text in pair]
            packed[ident] = b"".join(connection.pack_commands([("HSET", key, *fields), ("LPUSH", "queue:python", key)]))
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

    def time_chain(self, length):
        """Creates and starts a flow by JSON-RPC, and waits for its end."""
        jobs = {
            f"n{index}": {"type": "python", "script": "pass"} | ({"needs": [f"n{index - 1}"]} if index else {})
            for index in range(length)
        }
        if not self.coordinator:
            self._start_coordinator()
        begin = time.perf_counter()
        definition = {"name": "chain", "jobs": jobs}
        created = self.rpc("flow.create", definition=definition, context_id=CONTEXT, caller_id=FLOW_CALLER)
        self.flow = created["id"]
        self.rpc("flow.start", id=self.flow, context_id=CONTEXT)
        wait_for(
            lambda: self.store.hget(f"flow:{self.flow}", "status") in (b"finished", b"error"), "the flow", 60, 0.001
        )
        took = time.perf_counter() - begin
        if self.store.hget(f"flow:{self.flow}", "status") != b"finished":
            raise RuntimeError(f"the flow of {length} jobs failed")
        return took

    def run_chain(self, length):
        """Compares the runs with the jobs in the record of the flow, since the coordinator chooses their ids."""
        took = self.time_chain(length)
        expected = [f"job:{FLOW_CALLER}:{ident}" for ident in json.loads(self.store.hget(f"flow:{self.flow}", "jobs"))]
        if len(expected) != length:
            raise RuntimeError(f"a flow of {length} jobs has {len(expected)}")
        return took, check_delivery(expected, [key for key in self._read_journal() if not key.startswith(f"job:{CALLER}:")])

    def _start_coordinator(self):
        port = find_free_port()
        tokens = os.path.join(self.folder, "tokens")
        environment = make_environment({"MYCOJOBS_API_TOKENS": tokens})
        process = subprocess.run(
            [find_program(), "key", "token", "--operator", "--note", "bench"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self.token = re.findall(r"\S{20,}", process.stdout)[0]
        self.api = f"http://127.0.0.1:{port}/rpc"
        self.coordinator = Process(
            [
                find_program(),
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
        wait_for(self._is_coordinator_ready, "the coordinator")

    def _is_coordinator_ready(self):
        self.coordinator.raise_if_exited()
        try:
            return self.rpc("system.ping") == "pong" and self.store.exists("mj:coordinator")
        except OSError:
            return False

    def rpc(self, method, **parameters):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
        request = urllib.request.Request(
            self.api, body, {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read_journal(self):
        """Returns the job keys of the journal entries since the previous call: one key for each completion, and for each
        repeated delivery."""
        keys = []
        while True:
            entries = self.store.xrange("mj:journal:queue:python", min="(" + self.journal, count=5000)
            if not entries:
                return keys
            self.journal = entries[-1][0].decode()
            for _, fact in entries:
                is_repeated = fact[b"f"] == b"claimed" and int(fact[b"d"]) > 1
                if fact[b"f"] == b"completed" or is_repeated:
                    keys.append(fact[b"j"].decode())

    def read_started(self):
        """Returns the jobs that have ended according to the journal, and finished at the first delivery according to their
        records. The start time is the result of jobs of the kind `stamp`, and 0 for other kinds."""
        keys = [key for key in self._read_journal() if key.startswith(f"job:{CALLER}:")]
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

    def read_drain_figures(self):
        """Returns the active layers of the sandbox in the latest job."""
        layers = self.store.hget(f"job:{CALLER}:{self.next_id - 1}", "layers")
        return {"layers": layers.decode().split() if layers else []}

    def read_idle_figures(self):
        """Returns the private memory of the child processes that wait for a job, which are the leaves of the process trees of
        the script hosts, and of their init processes."""
        hosts = [pid for pid in self.list_pids() if read_process_name(pid) == "mj-python"]
        pids = {pid for host in hosts for pid in list_process_tree(host)} - set(hosts)
        leaves = [pid for pid in pids if len(list_process_tree(pid)) == 1]
        kib = {"ready_child_kib": leaves, "ready_init_kib": pids - set(leaves)}
        return {field: sorted(read_memory_kib(pid, "Private_Dirty") or 0 for pid in group) for field, group in kib.items()}

    def count_runs(self, ident):
        return int(self.store.hget(f"job:{CALLER}:{ident}", "deliveries") or 0)

    def audit(self):
        process = subprocess.run(
            [find_program(), "verify", "--redis", self.url, "--context", str(CONTEXT), "--state-dir", self.state],
            env=make_environment({}),
            capture_output=True,
            text=True,
            check=False,
        )
        return (
            []
            if process.returncode == 0
            else [f"mycojobs verify: exit {process.returncode}: {process.stdout.strip()[-400:]} {process.stderr.strip()[-200:]}"]
        )

    def stop(self):
        if getattr(self, "coordinator", None):
            self.coordinator.stop()
        super().stop()


class MycojobsNewSandbox(Mycojobs):
    title = "mycojobs, new sandbox for each job"
    isolation = "process, namespaces, mounts, seccomp, Landlock, cgroups, all new for each job"
    settings = "sandbox.reused_runs = 1, 8 slots"
    sandbox = "[sandbox]\nreused_runs = 1\n"


class MycojobsWarm(Mycojobs):
    """Runs the jobs of a script in one process, like the systems without isolation between jobs (docs/warm.md)."""

    title = "mycojobs, warm script"
    isolation = "none between the jobs of one script and caller; for all other jobs as for mycojobs"
    settings = "policy warm.runs = 1000000, 8 slots"
    sandbox = "[ceiling]\nwarm.runs = 1000000\n"

    def make_record(self, kind, ident):
        key, record = super().make_record(kind, ident)
        if record["script_type"] == "python":
            head, *lines = record["script"].split("\n")
            imports, lines = ([head], lines) if head.startswith("import") else ([], [head, *lines])
            body = ["def main(job):", *("    " + line for line in lines)]
            record |= {"script": "\n".join([*imports, *body]), "policy": '{"warm": {"runs": 1000000}}'}
        return key, record
