"""RQ. A worker forks for each job."""
import os
import time

from ..host import PYTHON, ROOT
from ..processes import Process
from .base import System


class RQ(System):
    title = "RQ"
    isolation = "process"
    settings = "defaults; job_timeout 180 s; the client polls the end each millisecond (RQ has no blocking call)"

    def connect(self):
        import rq

        self.connection = self.redis.client()
        self.queue = rq.Queue("bench", connection=self.connection)
        self.finished = "rq:finished:bench"

    def count_workers(self):
        return self.slots

    def start_worker(self):
        environment = {"BENCH_LEDGER": self.ledger_path, "PYTHONPATH": ROOT}
        return Process(
            [PYTHON, "/usr/bin/rq", "worker", "--url", f"unix://{self.redis.socket}", "--quiet", "bench"],
            os.path.join(self.folder, "rq.log"),
            environment,
        )

    def submit(self, kind, ident, **more):
        return self.queue.enqueue("bench.side_by_side.jobs.run_job", kind, ident, **more)

    def count_ended(self):
        return self.connection.zcard(self.finished)

    def wait_for_end(self, job):
        deadline = time.monotonic() + 60
        while job.get_status(refresh=True) != "finished":
            if time.monotonic() > deadline:
                raise TimeoutError(f"a job of RQ is {job.get_status()}")
            time.sleep(0.001)

    def round_trip(self, kind, ident):
        self.wait_for_end(self.submit(kind, ident))

    def time_chain(self, length):
        begin, last = time.perf_counter(), None
        for ident in self.allocate_ids(length):
            last = self.submit("noop", ident, depends_on=last)
        self.wait_for_end(last)
        return time.perf_counter() - begin
