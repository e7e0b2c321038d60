"""The private Redis of one system: the same configuration for all of them."""
import os
import shutil
import tempfile

from .host import BUILD
from .processes import Process, wait_for

# Differences from the defaults of redis-server. A run varies only appendonly.
SETTINGS = {"port": "0", "save": "", "appendfsync": "everysec", "databases": "16", "daemonize": "no"}


class PrivateRedis:
    """On a unix socket in a short folder (sun_path is short), its files below build/bench: on a disk, so that appending
    to them costs what it costs."""

    def __init__(self, aof):
        os.makedirs(BUILD, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="run-", dir=BUILD)
        self.sockets = tempfile.mkdtemp(prefix="mjb-")
        self.socket = os.path.join(self.sockets, "redis")
        settings = SETTINGS | {"dir": self.folder, "unixsocket": self.socket, "appendonly": "yes" if aof else "no"}
        words = [word for key, value in settings.items() for word in ("--" + key, value)]
        self.process = Process(["redis-server", *words], os.path.join(self.folder, "redis.log"))
        wait_for(self._up, "Redis")

    def _up(self):
        import redis  # here, as in client(): the bench's own tests do without Debian's python3-redis

        self.process.check()
        try:
            return self.client().ping()
        except redis.ConnectionError:
            return False

    def client(self, database=0):
        import redis

        return redis.Redis(unix_socket_path=self.socket, db=database)

    def settle(self):
        """Until no child rewrites what has been stored: that is a cost of the storing. A rewrite that storing has nearly
        made due would fall into what is measured, or not, by a few bytes: it is done now, for each system."""

        def busy():
            info = self.client().info("persistence")
            return info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"] or info["rdb_bgsave_in_progress"]

        wait_for(lambda: not busy(), "the end of a rewrite of the append-only file", 300)
        if self.client().config_get("appendonly")["appendonly"] == "yes":
            self.client().bgrewriteaof()
            wait_for(lambda: not busy(), "the end of a rewrite of the append-only file", 300)

    def stop(self):
        self.process.stop()
        for folder in (self.folder, self.sockets):
            shutil.rmtree(folder, ignore_errors=True)
