"""Starts systems for a workload, each with its own Redis and folder, and takes everything away again."""
import contextlib
import os
import shutil
import tempfile

from .host import BUILD
from .redis_server import PrivateRedis
from .systems.table import SYSTEMS


class Stage:
    def __init__(self, aof, complaints):
        self.aof = aof
        self.complaints = complaints  # findings of the audits, as text

    @contextlib.contextmanager
    def _made(self, name, slots=None, audit=True):
        kind, usual, _, _ = SYSTEMS[name]
        os.makedirs(BUILD, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f"{name}-", dir=BUILD)
        redis = PrivateRedis(self.aof) if kind.uses_redis else None
        system = kind(redis, folder, slots or usual)
        system.durable = self.aof
        good = False
        try:
            yield system
            good = True
        finally:
            try:
                if good and audit:
                    self.complaints += [f"{name}: {text}" for text in system.audit()]
            finally:
                system.stop()
                if redis:
                    redis.stop()
                if good:
                    shutil.rmtree(folder, ignore_errors=True)  # after a failure, the logs are kept

    @contextlib.contextmanager
    def started(self, name, slots=None):
        with self._made(name, slots) as system:
            system.start()
            yield system

    @contextlib.contextmanager
    def connected(self, name, audit=True):
        """With a client but without workers. An audit of a million jobs takes more than a minute: it may be left out."""
        with self._made(name, audit=audit) as system:
            system.connect()
            yield system

    @contextlib.contextmanager
    def several(self, wanted):
        """[(name, system)] with one worker each, for [(name, slots)]."""
        with contextlib.ExitStack() as stack:
            made = []
            for name, slots in wanted:
                system = stack.enter_context(self._made(name, slots))
                system.processes = lambda: 1
                system.start()
                made.append((name, system))
            yield made
