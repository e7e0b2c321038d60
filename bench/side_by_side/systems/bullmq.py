"""BullMQ: its worker and its client are Node.js processes; the client takes orders as JSON lines."""
import json
import os

from ..host import HERE, NODE_MODULES
from ..processes import Process
from .base import System


class BullMQ(System):
    title = "BullMQ in process"
    settings = "defaults (lockDuration 30 s, stalledInterval 30 s), jobs kept"
    where = "here"

    def _node(self, script, *arguments, pipes=False):
        environment = {"BENCH_LEDGER": self.ledger_path, "NODE_PATH": NODE_MODULES}
        return Process(
            ["node", os.path.join(HERE, "bullmq", script), *arguments],
            os.path.join(self.folder, "bullmq.log"),
            environment,
            pipes,
        )

    def connect(self):
        self.store = self.redis.client()
        self.client = self._node("client.js", self.redis.socket, pipes=True)
        self._answer()

    def _answer(self):
        line = self.client.popen.stdout.readline()
        if not line:
            self.client.popen.wait(5)
            self.client.check()
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.title}: {answer['error']}")
        return answer

    def order(self, **what):
        self.client.popen.stdin.write(json.dumps(what).encode() + b"\n")
        self.client.popen.stdin.flush()
        return self._answer()

    def spawn(self):
        return self._node("worker.js", self.redis.socket, str(self.slots), self.where)

    def send(self, kind, ident):
        self.fill(kind, [ident])

    def fill(self, kind, idents):
        self.order(do="fill", kind=kind, first=idents[0], count=len(idents))

    def ended(self):
        return self.store.zcard("bull:bench:completed")

    def round_trips(self, count):
        idents = self.numbers(count + 20)
        self.order(do="round_trips", first=idents[0], count=20)
        return self.order(do="round_trips", first=idents[20], count=count)["took"], self.verdict(idents)

    def send_at_rate(self, idents, rate):
        begin = self.order(do="at_rate", first=idents[0], count=len(idents), rate=rate)["begin"]
        return {ident: begin + index / rate for index, ident in enumerate(idents)}

    def chain(self, length):
        idents = self.numbers(length)
        return self.order(do="chain", first=idents[0], count=length)["took"]

    def stop(self):
        super().stop()
        if hasattr(self, "client"):
            self.client.stop()


class BullMQSandboxed(BullMQ):
    title = "BullMQ sandboxed processor"
    isolation = "none between jobs"
    settings = "a processor file: child processes that are reused"
    where = "process"
