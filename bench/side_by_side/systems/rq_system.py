"""RQ: workers that fork for each job."""
import os
import time

from ..host import PYTHON, ROOT
from ..processes import Process
from .base import System


class RQ(System):
    title = "RQ"
    isolation = "process"
    settings = "defaults; job_timeout 180 s; the end is polled each millisecond (RQ has no call that waits)"

    def connect(self):
        import rq

        self.connection = self.redis.client()
        self.queue = rq.Queue("bench", connection=self.connection)
        self.finished = "rq:finished:bench"

    def processes(self):
        return self.slots

    def spawn(self):
        environment = {"BENCH_LEDGER": self.ledger_path, "PYTHONPATH": ROOT}
        return Process(
            [PYTHON, "/usr/bin/rq", "worker", "--url", f"unix://{self.redis.socket}", "--quiet", "bench"],
            os.path.join(self.folder, "rq.log"),
            environment,
        )

    def send(self, kind, ident, **more):
        return self.queue.enqueue("bench.side_by_side.jobs.run", kind, ident, **more)

    def ended(self):
        return self.connection.zcard(self.finished)

    def wait(self, job):
        deadline = time.monotonic() + 60
        while job.get_status(refresh=True) != "finished":
            if time.monotonic() > deadline:
                raise TimeoutError(f"a job of RQ is {job.get_status()}")
            time.sleep(0.001)

    def round_trip(self, kind, ident):
        self.wait(self.send(kind, ident))

    def chain(self, length):
        begin, last = time.perf_counter(), None
        for ident in self.numbers(length):
            last = self.send("noop", ident, depends_on=last)
        self.wait(last)
        return time.perf_counter() - begin
