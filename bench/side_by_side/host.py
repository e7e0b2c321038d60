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


class UserError(Exception):
    """An error that the user can correct. The message has the problem and the remedy, and is printed without a
    traceback."""


def find_program():
    """Returns the path of the measured program: the environment variable MYCOJOBS, or the program of the build."""
    path = os.environ.get("MYCOJOBS", os.path.join(ROOT, "build/bin/mycojobs"))
    if not os.access(path, os.X_OK):
        raise UserError(f"{path} is missing: run ./dev build, or name another program with MYCOJOBS=PATH")
    return path


def read_machine_facts():
    """Returns the properties of the machine for the results."""
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


def _read_output_words(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def read_commit():
    """Returns the measured commit, with "+" if tracked files differ from the commit, or "" outside of a git clone."""
    git = ["git", "-C", ROOT]
    head = subprocess.run(
        [*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return head + ("+" if changed else "")


def read_versions():
    """Returns the versions of the programs and libraries for the results."""
    try:
        import celery
        import redis
        import rq
    except ImportError as error:
        raise UserError(f"{error.name} is missing: ./dev bench installs it (python3-{error.name})") from error

    def read_node_version(package):
        path = os.path.join(NODE_MODULES, package, "package.json")
        if not os.path.exists(path):
            raise UserError(f"{path} is missing: ./dev bench installs it (npm ci in build/bench/npm)")
        with open(path, encoding="utf-8") as file:
            return json.load(file)["version"]

    return {
        "mycojobs": _read_output_words(find_program(), "version")[-1],
        "commit": read_commit(),
        "Redis": _read_output_words("redis-server", "--version")[2].removeprefix("v="),
        "Python": platform.python_version(),
        "Celery": celery.__version__,
        "RQ": rq.VERSION,
        "redis-py": redis.__version__,
        "Node.js": _read_output_words("node", "--version")[0].removeprefix("v"),
        "BullMQ": read_node_version("bullmq"),
        "ioredis": read_node_version("ioredis"),
        "beanstalkd": _read_output_words("beanstalkd", "-v")[-1],
        "bubblewrap": _read_output_words("bwrap", "--version")[-1],
    }
