"""The job that the workers of the other Python systems (Celery, RQ, beanstalkd) run.

The environment variable BENCH_LEDGER names the file of the start ledger (delivery.StartLedger). Each worker process opens
the file once."""
import os
import time

_ledger_fd = (
    os.open(os.environ["BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "BENCH_LEDGER" in os.environ else -1
)


def use_cpu(seconds):
    """Runs until the calling thread has used this CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


JOB_KINDS = {
    "noop": lambda: None,
    "cpu": lambda: use_cpu(0.3),
    "sleep": lambda: time.sleep(0.1),
    "hang": lambda: time.sleep(3600),
}


def run_job(kind, ident):
    """Writes the line of the start ledger, and does the work of the kind."""
    os.write(_ledger_fd, f"{ident} {time.monotonic()}\n".encode())
    JOB_KINDS[kind]()
