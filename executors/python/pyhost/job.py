"""What a Python job meets: its environment, the module mycojobs, its __main__, and the telling of its end.

mycojobs-pyhost runs this file once, before any job. In the process of a job it calls prepare(), then the script, then
report() if an exception came out, then finish(), which are in ending.py: one namespace in two files. A script may replace or delete anything in builtins, in sys.modules
and in the modules: whatever is needed after it is bound here, and the builtins of this file are a copy.

Given by the host: send(kind, payload) -> sent, send_artifacts(folder, most), cancelled(), ARTIFACTS, SECRETS, NOTE,
RESULT, ERROR, DONE; before_hooks and after_hooks, what modules that were loaded beforehand want done in each job.
"""

import atexit
import base64
import collections
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
import random
import re
import signal
import string
import struct
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import types
import typing
import uuid
from json.encoder import c_make_encoder, encode_basestring

MAX_MESSAGE = 8 << 10
MAX_TRACEBACK = 64 << 10
MAX_NOTE_TEXT = 1000
MAX_FILE_NAME = 200
MOST_LINKED = 20  # exceptions that hang together, looked at
FOLDERS_OF_GRANTS = ("/srv", "/opt", "/home", "/var", "/mnt", "/media", "/data")
MAX_RETRY = 10**9  # seconds; the agent has a limit of its own
REHEARSALS = 20

load_json = json.JSONDecoder().decode
flush_exit = atexit._run_exitfuncs
join_threads = threading._shutdown
main_thread = threading.main_thread()
reseed = random.seed
describe_exception = traceback.TracebackException
environment_data, putenv, set_zone = os.environ._data, os.putenv, time.tzset
stdout, stderr = sys.stdout, sys.stderr
modules, exception_now = sys.modules, sys.exc_info
line_at, starts_process = linecache.getline, re.compile(r"fork|spawn|exec|Popen").search
getpid, get_native_id = os.getpid, threading.get_native_id
collect, freeze = gc.collect, gc.freeze

main = None
new_module = types.ModuleType
module = types.ModuleType("mycojobs", "The job that runs: its facts, its inputs, its result.")
result = {}
file_name = ""
pid = 0
granted = {}
max_artifact_bytes = 0


class Failure(Exception):
    """A failure of the job that says about another attempt: retry=False, there is to be none; retry=30, not before 30
    seconds have passed. Without it: as the job and the operator have it."""

    __module__ = "mycojobs"

    def __init__(self, text="", *, retry=True):
        super().__init__(text)
        if retry is not True and not is_answer(retry):
            raise ValueError(f"Failure: retry={retry!r} is neither a bool nor a number of seconds")
        self.retry = retry


def is_answer(retry):
    return retry is False or (type(retry) in (int, float) and 0 <= retry < math.inf)


class ResultError(Exception):
    """A value of the result that cannot be handed back; the text names its key."""


def refuse(value):
    raise TypeError(f"a value of type {type(value).__name__} is not JSON")


to_chunks = c_make_encoder({}, refuse, encode_basestring, None, ":", ",", False, False, False)


def to_json(value):
    return "".join(to_chunks(value, 0))


def progress(fraction=None, text=""):
    """Puts a line into the job's log: how far it is, from 0 to 1, and what it is doing."""
    note = {"text": str(text)[:MAX_NOTE_TEXT]}
    if fraction is not None:
        share = float(fraction)
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"progress: {fraction!r} is not from 0 to 1")
        note["fraction"] = share
    send(NOTE, to_json(note).encode("utf-8", "replace"))


def secret(name):
    """The value of a secret that the job's policy names and its operator has granted; text."""
    if not isinstance(name, str) or "/" in name or name not in module.job.granted["secrets"]:
        raise LookupError(f"secret {name!r}: not granted to this job: name it in its policy, secrets = [{name!r}]")
    with open(f"{SECRETS}/{name}", encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


# Before the script.


def warm():
    """In the zygote, before any job: everything once that each job does, except what belongs to one job."""
    stdout.reconfigure(line_buffering=True)
    module.__dict__.update(progress=progress, cancelled=cancelled, result=result, Failure=Failure, secret=secret)
    module.artifacts = pathlib.Path(ARTIFACTS)
    modules["mycojobs"] = module
    sys.excepthook = show_exception
    threading.excepthook = show_thread_exception
    signal.signal(signal.SIGINT, signal.default_int_handler)  # these three as python3 has them
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    collect()
    freeze()
    for number in range(REHEARSALS):
        rehearse(number)
    linecache.cache.clear()
    os.environ.clear()
    collect()
    freeze()


def rehearse(number):
    """A job of ours, so that caches and specialised code are as a job needs them: what is written here, is shared."""
    facts = {"id": number, "caller_id": 1, "name": "", "deadline_unix_ms": 1, "attempt": 1, "max_artifact_bytes": 0}
    facts["granted"] = {}
    code, names = prepare(to_json(facts).encode(), b'{"A":"1","B":"2"}', b"{}", b"result['x'] = 1\nresult['y'] = 'z'\n")
    exec(code, names)
    hand_over()
    drop_main()
    flush(stdout)
    result.clear()


def prepare(facts, environment, inputs, script):
    """Returns the script's code and the globals to run it with."""
    global file_name, pid, main, granted, max_artifact_bytes
    pid = getpid()
    # New here, not in the zygote: its heap is frozen, and drop_main() could not collect it.
    main = modules["__main__"] = new_module("__main__")
    main.__dict__.update(__builtins__=modules["builtins"], __annotations__={}, result=result)
    facts = load_json(facts.decode())
    set_environment(load_json(environment.decode()))
    reseed()
    for hook in (*before_hooks, *after_hooks):
        hook()
    main_thread._set_native_id()
    file_name = facts["name"]
    if not file_name.isprintable() or not 0 < len(file_name) <= MAX_FILE_NAME:
        file_name = f"<job {facts['caller_id']}:{facts['id']}>"
    sys.argv[:] = [file_name]
    granted = dict(facts["granted"])
    max_artifact_bytes = facts.pop("max_artifact_bytes")
    module.inputs = types.MappingProxyType(load_json(inputs.decode()))
    module.job = types.SimpleNamespace(deadline=facts["deadline_unix_ms"] / 1000, **facts)
    source = script.decode()
    linecache.cache[file_name] = (len(script), None, source.splitlines(True), file_name)
    return compile(source, file_name, "exec", dont_inherit=True), main.__dict__


def set_environment(values):
    for name, value in values.items():  # nothing is there before: the zygote has no environment
        name, value = name.encode(), value.encode()
        putenv(name, value)
        environment_data[name] = value
    if "TZ" in values:
        set_zone()
