"""BullMQ. Worker and client are Node.js processes. The client receives commands as JSON lines."""
import json
import os

from ..host import HERE, NODE_MODULES
from ..processes import Process
from .base import System


class BullMQ(System):
    title = "BullMQ in process"
    settings = "defaults (lockDuration 30 s, stalledInterval 30 s), jobs kept"
    process_mode = "here"  # argument of worker.js: jobs run in the process of the worker

    def _start_node(self, script, *arguments, pipes=False):
        environment = {"BENCH_LEDGER": self.ledger_path, "NODE_PATH": NODE_MODULES}
        return Process(
            ["node", os.path.join(HERE, "bullmq", script), *arguments],
            os.path.join(self.folder, "bullmq.log"),
            environment,
            pipes,
        )

    def connect(self):
        self.store = self.redis.client()
        self.client = self._start_node("client.js", self.redis.socket, pipes=True)
        self._read_answer()

    def _read_answer(self):
        line = self.client.popen.stdout.readline()
        if not line:
            self.client.popen.wait(5)
            self.client.raise_if_exited()
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.title}: {answer['error']}")
        return answer

    def send_command(self, **command):
        self.client.popen.stdin.write(json.dumps(command).encode() + b"\n")
        self.client.popen.stdin.flush()
        return self._read_answer()

    def start_worker(self):
        return self._start_node("worker.js", self.redis.socket, str(self.slots), self.process_mode)

    def submit(self, kind, ident):
        self.submit_many(kind, [ident])

    def submit_many(self, kind, idents):
        self.send_command(do="fill", kind=kind, first=idents[0], count=len(idents))

    def count_ended(self):
        return self.store.zcard("bull:bench:completed")

    def round_trips(self, count):
        idents = self.allocate_ids(count + 20)
        self.send_command(do="round_trips", first=idents[0], count=20)
        return self.send_command(do="round_trips", first=idents[20], count=count)["took"], self.check_started(idents)

    def submit_at_rate(self, idents, rate):
        begin = self.send_command(do="at_rate", first=idents[0], count=len(idents), rate=rate)["begin"]
        return {ident: begin + index / rate for index, ident in enumerate(idents)}

    def time_chain(self, length):
        idents = self.allocate_ids(length)
        return self.send_command(do="chain", first=idents[0], count=length)["took"]

    def stop(self):
        super().stop()
        if hasattr(self, "client"):
            self.client.stop()


class BullMQSandboxed(BullMQ):
    title = "BullMQ sandboxed processor"
    isolation = "none between jobs"
    settings = "a processor file: child processes that are reused"
    process_mode = "process"  # jobs run in child processes
