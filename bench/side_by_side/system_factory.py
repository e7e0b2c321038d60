"""Starts the measured systems, each with its own Redis and folder, and removes them after use."""
import contextlib
import os
import shutil
import tempfile

from .host import BUILD
from .redis_server import PrivateRedis
from .systems.table import SYSTEMS


class SystemFactory:
    """Creates systems for workloads. All functions are context managers: the system is stopped at the end of the block,
    and its folder is deleted. After an exception, the folder with the logs is kept."""

    def __init__(self, aof, audit_findings):
        self.aof = aof
        self.audit_findings = audit_findings  # list of texts, to which the audits append

    @contextlib.contextmanager
    def _create_system(self, name, slots=None, audit=True):
        system_class, default_slots, _, _ = SYSTEMS[name]
        os.makedirs(BUILD, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f"{name}-", dir=BUILD)
        redis = PrivateRedis(self.aof) if system_class.uses_redis else None
        system = system_class(redis, folder, slots or default_slots)
        system.durable = self.aof
        succeeded = False
        try:
            yield system
            succeeded = True
        finally:
            try:
                if succeeded and audit:
                    self.audit_findings += [f"{name}: {text}" for text in system.audit()]
            finally:
                system.stop()
                if redis:
                    redis.stop()
                if succeeded:
                    shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def start_system(self, name, slots=None):
        """Starts a system with its workers."""
        with self._create_system(name, slots) as system:
            system.start()
            yield system

    @contextlib.contextmanager
    def connect_system(self, name, audit=True):
        """Connects a client to a system without workers. audit: check the store at the end, which takes more than a
        minute after a million jobs."""
        with self._create_system(name, audit=audit) as system:
            system.connect()
            yield system

    @contextlib.contextmanager
    def start_systems(self, names, slots):
        """Starts several systems with one worker each. Yields [(name, system)]."""
        with contextlib.ExitStack() as stack:
            systems = []
            for name in names:
                system = stack.enter_context(self._create_system(name, slots))
                system.count_workers = lambda: 1
                system.start()
                systems.append((name, system))
            yield systems
