"""The environment of a Python job: the module mycojobs, its __main__ and the functions around it.

mycojobs-pyhost runs this file once, before any job, and then ending.py in the same namespace. The steps of every job
before and after its script are in job_steps.cpp, which fills `now`. This file has the steps that only some jobs need. A
script may replace or delete anything in builtins, in sys.modules and in the modules. Everything that is needed
afterwards is therefore bound here, and this file uses a copy of the builtins.

The host provides the functions send(kind, payload) and cancelled(), and the constants ARTIFACTS, SECRETS, NOTE and
ERROR (job_services() in run_job.cpp). send() returns whether the frame was sent. before_hooks and after_hooks are
functions that preloaded modules run in each job.
"""

import atexit
import base64
import builtins as builtins_module
import collections
import collections.abc
import contextlib
import copy
import dataclasses
import datetime
import enum
import errno
import functools
import gc
import io
import itertools
import json
import linecache
import logging
import math
import os
import pathlib
import posix
import random
import re
import signal
import string
import struct
import sys
import textwrap
import threading
import time
import traceback
import types
import typing
import uuid
from json.encoder import c_make_encoder, encode_basestring

# shutil, imported by tempfile, only checks whether these modules exist. Their libraries are mapped when a job imports
# them: four more mappings to copy in each fork cost 3 to 6 % of a job (docs/performance.md).
unmapped = {name: types.ModuleType(name) for name in ("bz2", "lzma") if name not in sys.modules}
sys.modules.update(unmapped)
import tempfile

for name in unmapped:
    del sys.modules[name]

MAX_MESSAGE = 8 << 10
MAX_TRACEBACK = 64 << 10
MAX_NOTE_TEXT = 1000
MAX_LINKED_EXCEPTIONS = 20  # maximum number of linked exceptions that are examined
GRANTABLE_FOLDERS = ("/srv", "/opt", "/home", "/var", "/mnt", "/media", "/data")
MAX_DEPTH = 48  # limit for a result value; replies that contain the value may have depth 64
MAX_BITS = 1023  # maximum size of an integer; larger integers are rejected
MAX_RETRY = 10**9  # seconds; the agent has a limit of its own

load_json = json.JSONDecoder().decode
scan_json = json.JSONDecoder().raw_decode
compile_script = compile
flush_exit = atexit._run_exitfuncs
join_threads = threading._shutdown
main_thread = threading.main_thread()
log_handlers, end_logging = logging._handlerList, logging.shutdown
# finish_job() calls it only if there are handlers: a call without effect costs 35 page faults, a fifth of a job.
atexit.unregister(end_logging)
reseed = super(random.Random, random.seed.__self__).seed  # the C implementation behind random.seed()
number_of = int.from_bytes
describe_exception = traceback.TracebackException
environment_data, set_zone = posix.environ, time.tzset  # environment_data: the dict behind os.environ
lines = linecache.cache
stdout, stderr = sys.stdout, sys.stderr
modules, exception_now = sys.modules, sys.exc_info
line_at, starts_process = linecache.getline, re.compile(r"fork|spawn|exec|Popen").search
get_native_id = threading.get_native_id
collect, freeze = gc.collect, gc.freeze
tracer, profiler = sys.gettrace, sys.getprofile

TextIOWrapper, BufferedReader, FileIO = io.TextIOWrapper, io.BufferedReader, io.FileIO
new_module = types.ModuleType
module = types.ModuleType("mycojobs", "The job that runs: its facts, its inputs, its result.")
result = {}
INITIAL_STATE = dict.fromkeys(("main", "facts", "inputs", "file_name", "loading"))
RUN_ATTRIBUTES = ("job", "inputs", "flow", "each")
now = dict(INITIAL_STATE)  # state of the current job, filled by job_steps.cpp


class Failure(Exception):
    """A failure of the job that controls the next attempt: retry=False forbids it, retry=30 delays it for at least 30
    seconds. By default, the settings of the job and the operator apply."""

    __module__ = "mycojobs"

    def __init__(self, text="", *, retry=True):
        super().__init__(text)
        if retry is not True and not is_retry_instruction(retry):
            raise ValueError(f"Failure: retry={retry!r} is neither a bool nor a number of seconds")
        self.retry = retry


def is_retry_instruction(retry):
    return retry is False or (type(retry) in (int, float) and 0 <= retry < math.inf)


class Inputs(collections.abc.Mapping):
    """Results of the jobs that this job depends on. Iteration yields each job once, by name, or by id if it has no
    name. Lookup accepts both."""

    __module__ = "mycojobs"
    __slots__ = ("_results", "_names")

    def __init__(self, results, names):
        self._results, self._names = results, names

    def __getitem__(self, job):
        key = str(job) if type(job) is int else job
        return self._results[self._names.get(key, key)]

    def __iter__(self):
        return iter(self._results)

    def __len__(self):
        return len(self._results)

    def __repr__(self):
        return f"mycojobs.inputs({self._results!r})"


class ResultError(Exception):
    """An invalid value of the result; the text names its key."""


def refuse(value):
    raise TypeError(f"{type(value).__name__} is not a result value")


to_chunks = c_make_encoder(None, refuse, encode_basestring, None, ":", ",", False, False, False)


def to_json(value):
    return "".join(to_chunks(value, 0))


def progress(fraction=None, text=""):
    """Adds a line to the job's log: the progress from 0 to 1, and a description."""
    note = {"text": str(text)[:MAX_NOTE_TEXT]}
    if fraction is not None:
        share = float(fraction)
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"progress: {fraction!r} is not from 0 to 1")
        note["fraction"] = share
    send(NOTE, to_json(note).encode("utf-8", "replace"))


def secret(name):
    """Returns the text of a secret that the job's policy names and the operator has granted."""
    if not isinstance(name, str) or "/" in name or name not in now["facts"]["granted"]["secrets"]:
        raise LookupError(f"secret {name!r}: not granted to this job: name it in its policy, secrets = [{name!r}]")
    with open(f"{SECRETS}/{name}", encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


# Before the script.


def warm():
    """Prepares the module mycojobs and the hooks; runs in the zygote, before any job."""
    stdout.reconfigure(line_buffering=True)
    module.__dict__.update(progress=progress, cancelled=cancelled, result=result, Failure=Failure, secret=secret)
    module.artifacts = pathlib.Path(ARTIFACTS)
    module.__getattr__, module.__dir__ = make_attribute, list_attributes
    module.__all__ = [
        "Failure", "artifacts", "cancelled", "each", "flow", "inputs", "job", "progress", "result", "secret"
    ]
    modules["mycojobs"] = module
    # Modules such as code and doctest compare both hooks to detect a hook of the script.
    sys.excepthook = sys.__excepthook__ = show_exception
    threading.excepthook = threading.__excepthook__ = show_thread_exception
    signal.signal(signal.SIGINT, signal.default_int_handler)  # these three as in python3
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    collect()
    freeze()


def gather():
    """Recreates the objects that every job writes to, so that they are adjacent."""
    global lines, now, result, scan_json
    previous = now, result, lines, main_thread.__dict__, scan_json, sys.argv
    now, result = dict(INITIAL_STATE), {}
    module.result = result
    lines = linecache.cache = {}
    scan_json = json.JSONDecoder().raw_decode  # contains a cache of keys
    main_thread.__dict__ = dict(main_thread.__dict__)
    sys.argv = [""]
    all_modules = dict(modules)
    modules.clear()
    modules.update(all_modules)
    del previous  # freed last; otherwise the new objects would reuse the memory


def add_packages(folder):
    """Makes the packages of the job importable, after the standard library and before the packages of the host."""
    path = sys.path
    index = next((at for at, entry in enumerate(path) if entry.endswith("-packages")), len(path))
    path.insert(index, folder)


def cool():
    """Removes all traces of the rehearsals."""
    now.update(INITIAL_STATE)
    result.clear()
    forget_run()
    lines.clear()
    environment_data.clear()
    collect()
    freeze()


def forget_run():
    for name in RUN_ATTRIBUTES:
        module.__dict__.pop(name, None)


def make_attribute(name):
    """Creates an attribute of the module mycojobs at its first use."""
    if now["loading"] and name in RUN_ATTRIBUTES:
        raise AttributeError(f"mycojobs.{name} belongs to one run: read it in main(job)")
    if name == "job":
        facts = now["facts"]
        hidden = ("max_artifact_bytes", "flow", "input_names", "args", "packages")
        visible = {key: value for key, value in facts.items() if key not in hidden}
        module.job = types.SimpleNamespace(deadline=facts["deadline_unix_ms"] / 1000, **visible)
        module.job.granted = dict(facts["granted"])
    elif name == "inputs":
        module.inputs = Inputs(load_json(now["inputs"].decode()), now["facts"].get("input_names", {}))
    elif name in ("flow", "each"):
        data = now["facts"].get("flow", {})
        each = data.get("each", {})
        module.each = each.get("value")
        module.flow = types.SimpleNamespace(
            inputs=types.MappingProxyType(data.get("inputs", {})),
            signals=types.MappingProxyType(data.get("signals", {})),
            index=each.get("index"),
            count=each.get("count"),
        )
    else:
        raise AttributeError(f"module 'mycojobs' has no attribute {name!r}")
    return module.__dict__[name]


def list_attributes():
    return sorted({*module.__dict__, *RUN_ATTRIBUTES})
