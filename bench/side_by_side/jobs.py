"""The job that the Python peers run, in their worker processes; what it is called with says what it does.

BENCH_LEDGER names the file of ledger lines (delivery.Ledger); it is opened once a worker process."""
import os
import time

_ledger = (
    os.open(os.environ["BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "BENCH_LEDGER" in os.environ else -1
)


def burn(seconds):
    """Uses so much CPU time of its thread, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


KINDS = {
    "noop": lambda: None,
    "cpu": lambda: burn(0.3),
    "sleep": lambda: time.sleep(0.1),
    "hang": lambda: time.sleep(3600),
}


def run(kind, ident):
    os.write(_ledger, f"{ident} {time.monotonic()}\n".encode())
    KINDS[kind]()
