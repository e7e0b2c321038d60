"""The Redis server of one system. All systems have the same configuration."""
import os
import shutil
import tempfile

from .host import BUILD
from .processes import Process, wait_for

# Differences from the defaults of redis-server. The rounds of a run differ only in appendonly.
SETTINGS = {"port": "0", "save": "", "appendfsync": "everysec", "databases": "16", "daemonize": "no"}


class PrivateRedis:
    """A Redis server on a unix socket. Its files are below build/bench, so that the append-only file is written to a disk.
    The socket is in a folder with a short path, since sun_path is limited."""

    def __init__(self, aof):
        os.makedirs(BUILD, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="run-", dir=BUILD)
        self.socket_folder = tempfile.mkdtemp(prefix="mjb-")
        self.socket = os.path.join(self.socket_folder, "redis")
        settings = SETTINGS | {"dir": self.folder, "unixsocket": self.socket, "appendonly": "yes" if aof else "no"}
        arguments = [argument for key, value in settings.items() for argument in ("--" + key, value)]
        self.process = Process(["redis-server", *arguments], os.path.join(self.folder, "redis.log"))
        wait_for(self._is_ready, "Redis")

    def _is_ready(self):
        import redis  # not at the top of the file, since the tests of the bench run without python3-redis

        self.process.raise_if_exited()
        try:
            return self.client().ping()
        except redis.ConnectionError:
            return False

    def client(self, database=0):
        import redis

        return redis.Redis(unix_socket_path=self.socket, db=database)

    def finish_rewrites(self):
        """Waits for running rewrites of the append-only file, which are part of the cost of storing the jobs. Then runs a
        rewrite for each system: otherwise a few bytes would decide whether a rewrite runs during the measurement."""

        def is_idle():
            info = self.client().info("persistence")
            return not (
                info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"] or info["rdb_bgsave_in_progress"]
            )

        wait_for(is_idle, "the end of a rewrite of the append-only file", 300)
        if self.client().config_get("appendonly")["appendonly"] == "yes":
            self.client().bgrewriteaof()
            wait_for(is_idle, "the end of a rewrite of the append-only file", 300)

    def stop(self):
        self.process.stop()
        for folder in (self.folder, self.socket_folder):
            shutil.rmtree(folder, ignore_errors=True)
