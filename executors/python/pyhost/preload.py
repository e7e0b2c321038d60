"""Checks the virtual environment of a context and preloads its modules.

preload.cpp runs this file in the zygote, never in a job. check_venv() and load_module() return an error as one line, or
None. Each job calls the functions in before_fork_hooks and then those in after_fork_hooks (job_steps.cpp), as Python
would at a fork.
"""

import importlib
import os
import re
import sys
import time

MAX_WAIT_SECONDS = 2.0  # maximum wait for the end of threads and processes
THREAD_COUNT_VARIABLES = (
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "RAYON_NUM_THREADS", "GOTO_NUM_THREADS",
)  # fmt: skip

before_fork_hooks, after_fork_hooks = [], []  # functions that the modules have registered with os.register_at_fork()
register_at_fork = os.register_at_fork


def check_venv(folder):
    """Checks the folder of a virtual environment, after Python has started with it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        with open(f"{folder}/pyvenv.cfg", encoding="utf-8") as file:
            settings = dict(re.findall(r"(?m)^\s*([\w-]+)\s*=\s*(.*?)\s*$", file.read()))
    except (OSError, ValueError) as error:
        return f"is not a virtual environment: pyvenv.cfg: {one_line(error)}"
    venv_version = settings.get("version") or settings.get("version_info") or ""
    if venv_version.split(".")[:2] != version.split("."):
        return f"is for Python {venv_version or 'of unknown version'}, and jobs have {version}: create it again"
    if not os.path.isdir(f"{folder}/lib/python{version}/site-packages"):
        return f"has no lib/python{version}/site-packages"
    if sys.prefix != folder:
        return f"is not used by Python: sys.prefix is {sys.prefix}"
    return None


def begin_preload():
    """Called before the first module. Limits numeric libraries to one thread, because the zygote is single-threaded."""
    os.register_at_fork = record_hooks
    os.environ.update(dict.fromkeys(THREAD_COUNT_VARIABLES, "1"))


def load_module(name):
    descriptors = open_descriptors()
    try:
        importlib.import_module(name)
    except BaseException as error:
        return one_line(error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()  # otherwise each job would write the buffered text again
            except Exception:
                pass
    return check_leftovers(descriptors)


def end_preload():
    """Called after the last module."""
    os.register_at_fork = register_at_fork
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        # numpy registers no fork hook, so without a new seed all jobs would get the same random numbers
        after_fork_hooks.append(numpy_random.seed)


def list_module_files():
    """Returns the file names of the modules that are imported."""
    paths = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [file for file in paths if type(file) is str and file.isascii()]


def record_hooks(**hooks):
    """Replaces os.register_at_fork() while modules are loaded."""
    register_at_fork(**hooks)
    if "before" in hooks:
        before_fork_hooks.insert(0, hooks["before"])
    if "after_in_child" in hooks:
        after_fork_hooks.append(hooks["after_in_child"])


def one_line(error):
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}"[:1000]


def open_descriptors():
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            pass  # the descriptor of the listing itself
    return descriptors


def check_leftovers(descriptors):
    """Returns an error if an import has left threads, processes or descriptors other than `descriptors`."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        threads = len(os.listdir("/proc/self/task")) - 1
        if threads == 0 and not has_children():
            break
        if time.monotonic() > deadline:
            if threads == 0:
                return "has left a process running"
            return f"has left {threads} thread{'s' if threads > 1 else ''} running"
        time.sleep(0.02)
    leaked = open_descriptors() - descriptors
    if leaked:
        return f"has left open: {', '.join(sorted(target for _, target in leaked))}"
    return None


def has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False
