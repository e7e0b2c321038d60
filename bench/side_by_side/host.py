"""The machine, the folders and the versions of a run."""
import json
import os
import platform
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "bench/side_by_side")
BUILD = os.path.join(ROOT, "build/bench")
NODE_MODULES = os.path.join(BUILD, "npm/node_modules")
PYTHON = "/usr/bin/python3"


class Remedy(Exception):
    """What is wrong, and what to do; printed without a traceback."""


def program():
    """The measured program: $MYCOJOBS, or the built one."""
    path = os.environ.get("MYCOJOBS", os.path.join(ROOT, "build/bin/mycojobs"))
    if not os.access(path, os.X_OK):
        raise Remedy(f"{path} is missing: ./dev build, or name another with MYCOJOBS=PATH")
    return path


def facts():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(
            (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine()
        )
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpus_of_machine": os.cpu_count(),
        "cpu": model,
        "kernel": platform.release(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "user": "root" if os.getuid() == 0 else "an ordinary user",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load_at_start": os.getloadavg()[0],
    }


def _words(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def commit():
    """The commit that is measured, with + if files differ from it; "" outside of a clone."""
    git = ["git", "-C", ROOT]
    head = subprocess.run(
        [*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return head + ("+" if changed else "")


def versions():
    try:
        import celery
        import redis
        import rq
    except ImportError as error:
        raise Remedy(f"{error.name} is missing: ./dev bench installs it (python3-{error.name})") from error

    def node(package):
        path = os.path.join(NODE_MODULES, package, "package.json")
        if not os.path.exists(path):
            raise Remedy(f"{path} is missing: ./dev bench installs it (npm ci in build/bench/npm)")
        with open(path, encoding="utf-8") as file:
            return json.load(file)["version"]

    return {
        "mycojobs": _words(program(), "version")[-1],
        "commit": commit(),
        "Redis": _words("redis-server", "--version")[2].removeprefix("v="),
        "Python": platform.python_version(),
        "Celery": celery.__version__,
        "RQ": rq.VERSION,
        "redis-py": redis.__version__,
        "Node.js": _words("node", "--version")[0].removeprefix("v"),
        "BullMQ": node("bullmq"),
        "ioredis": node("ioredis"),
        "beanstalkd": _words("beanstalkd", "-v")[-1],
        "bubblewrap": _words("bwrap", "--version")[-1],
    }
