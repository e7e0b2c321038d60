"""The Celery application. Workers load `app` (celery -A); the bench calls make_app() for each Celery system."""
import os

from celery import Celery

from . import jobs


def make_app():
    """Creates an application with the Redis of the environment variable BENCH_REDIS as its broker and result backend."""
    socket = os.environ["BENCH_REDIS"]
    celery = Celery(
        "bench",
        broker=f"redis+socket://{socket}?virtual_host=0",
        backend=f"redis+socket://{socket}?virtual_host=1",
        set_as_current=False,
    )
    celery.task(jobs.run_job, name="run")
    return celery


app = make_app() if "BENCH_REDIS" in os.environ else None
