"""beanstalkd and bare Python loops: what a queue without results, isolation and journal can be."""
import os
import socket
import time

from ..beanstalk_loop import Beanstalk
from ..host import PYTHON, ROOT
from ..processes import Process, cpu_seconds, wait_for
from .base import System


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Beanstalkd(System):
    title = "beanstalkd + bare loops"
    settings = "its binlog (-b, synced each second: -f 1000) where the other systems have AOF, loopback TCP; a loop reserves, runs, deletes"
    uses_redis = False
    durable = False

    def connect(self):
        self.port = free_port()
        log = ["-b", self.folder, "-f", "1000"] if self.durable else []
        self.server = Process(
            ["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), *log], os.path.join(self.folder, "beanstalkd.log")
        )
        self.sender = wait_for(self._client, "beanstalkd")
        self.sender.use(b"jobs")
        self.listener = Beanstalk(self.port)
        self.listener.watch(b"replies")

    def _client(self):
        self.server.check()
        try:
            return Beanstalk(self.port)
        except ConnectionRefusedError:
            return None

    def processes(self):
        return self.slots

    def spawn(self):
        return Process(
            [PYTHON, "-m", "bench.side_by_side.beanstalk_loop", str(self.port)],
            os.path.join(self.folder, "loops.log"),
            {"BENCH_LEDGER": self.ledger_path, "PYTHONPATH": ROOT},
        )

    def send(self, kind, ident):
        self.sender.put(f"{kind} {ident}".encode())

    def fill(self, kind, idents):
        self.sender.put_many([f"{kind} {ident}".encode() for ident in idents])

    def ended(self):
        return int(self.sender.stats(b"jobs").get("cmd-delete", 0))

    def _reply(self):
        number, _ = self.listener.reserve()
        self.listener.delete(number)

    def round_trip(self, kind, ident):
        self.sender.put(f"{kind} {ident} 0".encode())
        self._reply()

    def chain(self, length):
        first = self.numbers(length)[0]
        begin = time.perf_counter()
        self.sender.put(f"noop {first} {length - 1}".encode())
        self._reply()
        return time.perf_counter() - begin

    def cpu(self):
        return cpu_seconds([worker.pid for worker in self.workers] + [self.server.pid])

    def stop(self):
        super().stop()
        if hasattr(self, "server"):
            self.server.stop()
