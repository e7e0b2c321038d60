"""Celery's application: named with -A by its worker, made anew by the bench for each of its systems."""
import os

from celery import Celery

from . import jobs


def make():
    socket = os.environ["BENCH_REDIS"]
    made = Celery(
        "bench",
        broker=f"redis+socket://{socket}?virtual_host=0",
        backend=f"redis+socket://{socket}?virtual_host=1",
        set_as_current=False,
    )
    made.task(jobs.run, name="run")
    return made


app = make() if "BENCH_REDIS" in os.environ else None
