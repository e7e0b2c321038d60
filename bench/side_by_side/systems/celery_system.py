"""Celery with Redis as broker and as result backend, both on the unix socket."""
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
    settings = "defaults; acknowledged before it runs (task_acks_late off), prefetch 4 a process, results kept"
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

        self.app = celery_app.make()
        self.task = self.app.tasks["run"]
        self.broker = self.redis.client(0)
        self.results = self.redis.client(1)

    def spawn(self):
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

    def send(self, kind, ident):
        self.task.apply_async((kind, ident))

    def fill(self, kind, idents):
        """Messages as apply_async writes them, made of one that it has written: it makes about a thousand a second."""
        if len(idents) < 5000:
            return super().fill(kind, idents)
        with self.app.connection_for_write() as connection:
            written = []
            queue = connection.SimpleQueue("sample")
            self.task.apply_async((kind, 987654321), task_id="SAMPLE-ID", queue="sample", connection=connection)
            written.append(self.broker.lpop("sample").decode())
            queue.close()
        message = json.loads(written[0])
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

    def ended(self):
        return self.results.dbsize()

    def round_trip(self, kind, ident):
        self.task.apply_async((kind, ident)).get(timeout=30)

    def chain(self, length):
        from celery import chain

        steps = chain(*[self.task.si("noop", ident) for ident in self.numbers(length)])
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
    title = "Celery, a fresh process a task"
    isolation = "process"
    settings = "prefork with --max-tasks-per-child=1"
    pool = ["--pool", "prefork", "--max-tasks-per-child", "1"]


class CeleryThreads(Celery):
    title = "Celery threads"
    pool = ["--pool", "threads"]
    settings = "as Celery prefork, with --pool threads"
