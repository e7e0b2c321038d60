"""Celery with Redis as broker and result backend, both on the unix socket."""
import base64
import gc
import json
import os
import time
import uuid

from ..host import PYTHON, ROOT
from ..processes import Process
from .base import System


class Celery(System):
    title = "Celery prefork"
    settings = "defaults; a task is acknowledged before it runs (task_acks_late off), prefetch of 4 tasks for each process, results kept"
    pool = ["--pool", "prefork"]

    def environment(self):
        return {
            "BENCH_LEDGER": self.ledger_path,
            "BENCH_REDIS": self.redis.socket,
            "PYTHONPATH": ROOT,
            "C_FORCE_ROOT": "1",
        }

    def connect(self):
        os.environ["BENCH_REDIS"] = self.redis.socket
        from .. import celery_app

        self.app = celery_app.make_app()
        self.task = self.app.tasks["run"]
        self.broker = self.redis.client(0)
        self.results = self.redis.client(1)

    def start_worker(self):
        log = os.path.join(self.folder, "celery.log")
        return Process(
            [
                PYTHON,
                "-m",
                "celery",
                "-A",
                "bench.side_by_side.celery_app",
                "worker",
                "--concurrency",
                str(self.slots),
                "--loglevel",
                "ERROR",
                "-n",
                f"bench{len(self.workers)}@localhost",
                *self.pool,
            ],
            log,
            self.environment(),
        )

    def submit(self, kind, ident):
        self.task.apply_async((kind, ident))

    def submit_many(self, kind, idents):
        """Copies a message of apply_async(), which writes only about 1,000 messages per second."""
        if len(idents) < 5000:
            return super().submit_many(kind, idents)
        with self.app.connection_for_write() as connection:
            queue = connection.SimpleQueue("sample")
            self.task.apply_async((kind, 987654321), task_id="SAMPLE-ID", queue="sample", connection=connection)
            message = json.loads(self.broker.lpop("sample"))
            queue.close()
        message["properties"]["delivery_info"]["routing_key"] = "celery"
        body = base64.b64decode(message["body"]).decode()
        pipe = self.broker.pipeline(transaction=False)
        for number, ident in enumerate(idents, 1):
            message["body"] = base64.b64encode(body.replace("987654321", str(ident)).encode()).decode()
            message["headers"]["argsrepr"] = repr((kind, ident))
            pipe.lpush("celery", json.dumps(message).replace("SAMPLE-ID", str(uuid.uuid4())))
            if number % 5000 == 0:
                pipe.execute()
        pipe.execute()

    def count_ended(self):
        return self.results.dbsize()

    def round_trip(self, kind, ident):
        self.task.apply_async((kind, ident)).get(timeout=30)

    def time_chain(self, length):
        from celery import chain

        steps = chain(*[self.task.si("noop", ident) for ident in self.allocate_ids(length)])
        begin = time.perf_counter()
        steps.apply_async().get(timeout=60)
        return time.perf_counter() - begin

    def stop(self):
        super().stop()
        if hasattr(self, "app"):
            self.app.backend.result_consumer.stop()
            self.app.close()
            gc.collect()  # pending results unsubscribe while Redis still runs


class CeleryFresh(Celery):
    title = "Celery, a fresh process for each task"
    isolation = "process"
    settings = "prefork with --max-tasks-per-child=1"
    pool = ["--pool", "prefork", "--max-tasks-per-child", "1"]


class CeleryThreads(Celery):
    title = "Celery threads"
    pool = ["--pool", "threads"]
    settings = "as Celery prefork, with --pool threads"
