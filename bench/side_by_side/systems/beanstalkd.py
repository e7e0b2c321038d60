"""beanstalkd with minimal Python workers: the lower limit for a queue without results, isolation and journal."""
import os
import socket
import time

from ..beanstalk_loop import Beanstalk
from ..host import PYTHON, ROOT
from ..processes import Process, read_cpu_seconds, wait_for
from .base import System


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Beanstalkd(System):
    title = "beanstalkd + bare loops"
    settings = "binlog (-b, synced each second: -f 1000) if the other systems have the AOF on, loopback TCP; a loop reserves, runs and deletes jobs"
    uses_redis = False
    durable = False

    def connect(self):
        self.port = find_free_port()
        log = ["-b", self.folder, "-f", "1000"] if self.durable else []
        self.server = Process(
            ["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), *log], os.path.join(self.folder, "beanstalkd.log")
        )
        self.sender = wait_for(self._try_connect, "beanstalkd")
        self.sender.use(b"jobs")
        self.listener = Beanstalk(self.port)
        self.listener.watch(b"replies")

    def _try_connect(self):
        self.server.raise_if_exited()
        try:
            return Beanstalk(self.port)
        except ConnectionRefusedError:
            return None

    def count_workers(self):
        return self.slots

    def start_worker(self):
        return Process(
            [PYTHON, "-m", "bench.side_by_side.beanstalk_loop", str(self.port)],
            os.path.join(self.folder, "loops.log"),
            {"BENCH_LEDGER": self.ledger_path, "PYTHONPATH": ROOT},
        )

    def submit(self, kind, ident):
        self.sender.put(f"{kind} {ident}".encode())

    def submit_many(self, kind, idents):
        self.sender.put_many([f"{kind} {ident}".encode() for ident in idents])

    def count_ended(self):
        return int(self.sender.read_stats(b"jobs").get("cmd-delete", 0))

    def _receive_reply(self):
        number, _ = self.listener.reserve()
        self.listener.delete(number)

    def round_trip(self, kind, ident):
        self.sender.put(f"{kind} {ident} 0".encode())
        self._receive_reply()

    def time_chain(self, length):
        first = self.allocate_ids(length)[0]
        begin = time.perf_counter()
        self.sender.put(f"noop {first} {length - 1}".encode())
        self._receive_reply()
        return time.perf_counter() - begin

    def read_cpu(self):
        return read_cpu_seconds([worker.pid for worker in self.workers] + [self.server.pid])

    def stop(self):
        super().stop()
        if hasattr(self, "server"):
            self.server.stop()
