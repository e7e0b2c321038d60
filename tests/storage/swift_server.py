#!/usr/bin/python3
"""Programs of OpenStack Swift, run from its library: the packages with the programs would start services. Usage:

    swift_server.py FOLDER SERVER CONFIGURATION     SERVER: account, container, object or proxy
    swift_server.py FOLDER ring ARGUMENT...         swift-ring-builder

FOLDER has swift.conf. Cache replaces memcached, since the proxy is a single process."""
import sys

from swift.common import storage_policy, utils
from swift.common.wsgi import run_wsgi


class Cache:
    def __init__(self):
        self._values = {}

    def get(self, key, **_):
        return self._values.get(key)

    def set(self, key, value, **_):
        self._values[key] = value

    def incr(self, key, delta=1, **_):
        self._values[key] = int(self._values.get(key, 0)) + delta
        return self._values[key]

    def decr(self, key, delta=1, **_):
        return self.incr(key, -delta)

    def delete(self, key, **_):
        self._values.pop(key, None)

    def get_multi(self, keys, *_, **__):
        return [self._values.get(key) for key in keys]

    def set_multi(self, values, *_, **__):
        self._values.update(values)


def make_cache_filter(*_, **__):
    cache = Cache()

    def wrap(application):
        def call(environment, start_response):
            environment["swift.cache"] = cache
            return application(environment, start_response)
        return call
    return wrap


def main(folder, server, *arguments):
    utils.set_swift_dir(folder)
    storage_policy.reload_storage_policies()
    if server == "ring":
        from swift.cli.ringbuilder import main as build_ring
        return build_ring(["swift-ring-builder", *arguments])
    options = {"verbose": True}
    if server == "object":
        from swift.obj.server import global_conf_callback
        options["global_conf_callback"] = global_conf_callback
    return run_wsgi(arguments[0], f"{server}-server", **options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
