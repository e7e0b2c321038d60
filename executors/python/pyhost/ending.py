"""The end of a Python job: reports its exception, its exit and its result. Runs in the namespace of job.py, after
job.py.

This file must not use names that a script can reach: job.py binds everything before the script runs.
"""


def get_text(error):
    try:
        if isinstance(error, SyntaxError) and error.filename == now["file_name"]:
            return str(error.msg)  # str(error) repeats file and line
        return str(error)
    except Exception:
        return "<its text is not available>"


def list_linked_exceptions(error):
    """Returns the exception and its linked exceptions, members of groups first."""
    exceptions, pending = [], [error]
    while pending and len(exceptions) < MAX_LINKED_EXCEPTIONS:
        each = pending.pop()
        if not isinstance(each, BaseException) or any(each is other for other in exceptions):
            continue
        exceptions.append(each)
        pending += [each.__context__, each.__cause__, getattr(each, "reason", None)]
        if isinstance(each, BaseExceptionGroup):
            pending += reversed(each.exceptions)
    return exceptions


def get_message(error):
    """Returns the message; the message of a group also names its first member."""
    text = get_text(error)
    leaves = [each for each in list_linked_exceptions(error) if not isinstance(each, BaseExceptionGroup)]
    if isinstance(error, BaseExceptionGroup) and leaves:
        text += f": {type_name(type(leaves[0]))}: {get_text(leaves[0])}"
    return text


def find_grant_hint(error):
    """Returns a hint about the missing grant if an error of the system reveals it, otherwise an empty text."""
    try:
        for each in list_linked_exceptions(error):
            if isinstance(each, OSError) and (hint := find_refusal_hint(each)):
                return hint
            if isinstance(each, ModuleNotFoundError) and (hint := find_package_hint(each)):
                return hint
    except Exception:
        pass
    return ""


def find_refusal_hint(error):
    kind, path, granted = type(error).__name__, str(error.filename or ""), now["facts"]["granted"]
    if not granted.get("exec") and isinstance(error, PermissionError) and starts_process(innermost_line(error)):
        return "to start processes, its policy must have exec = true"
    if granted.get("net") == "none" and (error.errno == errno.EAFNOSUPPORT or kind == "gaierror"):
        return 'to use the network, its policy must name where to, as in net = ["example.org:443"]'
    top = "/" + path.split("/")[1] if path.startswith("/") else ""
    if top in GRANTABLE_FOLDERS and error.errno == errno.EROFS:
        return f"to write there, its policy must name the folder, as in fs.write = [\"{top}/...\"]"
    if top in GRANTABLE_FOLDERS and error.errno in (errno.ENOENT, errno.EACCES) and not is_granted(path, granted):
        return f"of {top} it sees only paths that its policy names, as in fs.read = [\"{top}/...\"]"
    return ""


def find_package_hint(error):
    module_name, facts = str(error.name or "").partition(".")[0], now["facts"]
    if not module_name or module_name in modules:  # a missing part of a module that is installed
        return ""
    if "packages" in facts:
        line = f'# dependencies = ["{module_name}"]'
        return f"to have it installed, name its package in the comment of the script (PEP 723): {line}"
    source = lines.get(now["file_name"], (0, None, []))[2]
    if "# /// script" not in [line.rstrip() for line in source]:
        return ""
    context = facts.get("context_id")
    return (
        f"the script names packages, and its context installs none: "
        f"the operator must set [contexts.{context}.python.packages]"
    )


def is_granted(path, granted):
    folders = granted.get("fs.read", []) + granted.get("fs.write", [])
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def innermost_line(error):
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return line_at(trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else ""


def format_trace(error):
    """Returns the traceback text that python3 prints for an uncaught exception."""
    try:
        return "".join(describe_exception(type(error), error, error.__traceback__, compact=True).format())
    except Exception:  # the script has changed the library
        return f"{type_name(type(error))}: {get_text(error)}\n"


default_excepthook = sys.excepthook  # used for values that are not exceptions


def show_exception(kind, error, trace):
    if not isinstance(error, BaseException):
        return default_excepthook(kind, error, trace)
    print_error(format_trace(error))


def show_thread_exception(args):
    if args.exc_type is SystemExit:
        return
    name = args.thread.name if args.thread is not None else get_native_id()
    print_error(f"Exception in thread {name}:\n{format_trace(args.exc_value)}")


def print_error(text):
    stream = sys.stderr if sys.stderr is not None else stderr
    try:
        stream.write(text)
        stream.flush()
    except Exception:
        pass


def get_script_line(error):
    """Returns the script line of the error: of a syntax error, or of the innermost frame of the script, or 0."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == now["file_name"]:
            line = trace.tb_lineno or 0
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == now["file_name"]:
        line = error.lineno or 0
    return line


def get_retry(error):
    try:
        return error.retry if isinstance(error, Failure) else True
    except Exception:
        return True


def type_name(kind):
    name, module_name = kind.__qualname__, kind.__module__
    return name if module_name in ("builtins", "__main__") else f"{module_name}.{name}"


def shorten(text, limit):
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n[{len(text) - limit} characters omitted]\n{text[-(limit // 2):]}"


def send_error(kind, message, trace="", line=0, code=None, retry=True):
    error = {"type": kind, "message": shorten(message, MAX_MESSAGE), "traceback": shorten(trace, MAX_TRACEBACK)}
    error["line"] = line
    if code is not None:
        error["exit"] = code
    if is_retry_instruction(retry):
        error["retry"] = min(retry, MAX_RETRY)
    send(ERROR, to_json(error).encode("utf-8", "replace"))


def report(error):
    """Reports an uncaught exception to the agent and on stderr; returns the exit code of python3."""
    if isinstance(error, SystemExit):
        return report_exit(error)
    trace, message, hint = format_trace(error), get_message(error), find_grant_hint(error)
    call_hook(error, trace)
    if hint:
        print_error(f"mycojobs: {hint}\n")
        message += f"; {hint}"
    send_error(type_name(type(error)), message, trace, get_script_line(error), retry=get_retry(error))
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def call_hook(error, trace):
    hook = sys.excepthook
    if hook is show_exception:
        return print_error(trace)
    try:
        hook(type(error), error, error.__traceback__)
    except BaseException as failure:
        print_error(f"Error in sys.excepthook:\n{format_trace(failure)}\nOriginal exception was:\n{trace}")


def report_exit(error):
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        code, message = error.code & 0xFF, ""
    else:
        code, message = 1, get_text(error.code)
        print_error(message + "\n")
    if code:
        send_error("SystemExit", message, line=get_script_line(error), code=code)
    return code


# A result value is text, a number, True, False, None, a list or tuple of these, or a dict of these with text keys. Lua
# has the same rule (luahost/lua/job.lua). The table maps a class name to the expression that should be returned
# instead.
REMEDIES = {
    "ndarray": ".tolist()",
    "generic": ".item()",  # scalars of numpy
    "Series": ".tolist()",
    "DataFrame": ".to_dict('list')",
    "datetime": ".isoformat()",
    "date": ".isoformat()",
    "time": ".isoformat()",
    "timedelta": ".total_seconds()",
    "bytes": ".decode(), or leave a file in mycojobs.artifacts",
    "bytearray": ".decode(), or leave a file in mycojobs.artifacts",
    "Enum": ".value",
    "set": "sorted()",
    "frozenset": "sorted()",
}


def get_remedy(value):
    for kind in type(value).__mro__:
        if remedy := REMEDIES.get(kind.__name__):
            return f"return its {remedy}" if remedy[0] == "." else f"return {remedy[:-1]}VALUE)"
    if isinstance(value, collections.abc.Iterable):
        return "return list(VALUE)"
    return "return its str(), or a dict of its parts"


def check_value(value, depth=0):
    """Raises ResultError with the reason; the caller prepends the position."""
    if value is None or isinstance(value, str):
        return
    if isinstance(value, float):
        if not -math.inf < value < math.inf:
            raise ResultError(f": {float(value)} is not a result value: return None, or its str()")
    elif isinstance(value, int):
        if int.bit_length(value) > MAX_BITS:
            raise ResultError(f": a whole number of {int.bit_length(value)} bits is too large: return its str()")
    elif not isinstance(value, (dict, list, tuple)):
        raise ResultError(f": {describe_type(value)} is not a result value: {get_remedy(value)}")
    elif depth == MAX_DEPTH:
        raise ResultError(f": is nested more than {MAX_DEPTH} deep, or contains itself")
    else:
        is_map = isinstance(value, dict)
        for key, each in (dict.items(value) if is_map else enumerate(value)):
            if is_map and not isinstance(key, str):
                raise ResultError(f": its key {key!r} is not text: write str({key!r})")
            try:
                check_value(each, depth + 1)
            except ResultError as error:
                # For deep positions, the innermost parts would hide the first parts.
                raise ResultError(f"[{key!r}]{error}" if depth < 8 else str(error)) from None


def describe_type(value):
    name = type_name(type(value))
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def encode_result(values):
    entries = []
    for key, value in dict.copy(values).items():
        if not isinstance(key, str):
            raise ResultError(f"result: the key {key!r} is not text: write result[str({key!r})]")
        try:
            text = encode_basestring(value if isinstance(value, str) else encode_value(value))
            entries.append(f"{encode_basestring(key)}:{text if isinstance(value, str) else f'[{text}]'}".encode())
        except UnicodeEncodeError:
            raise ResultError(f"result[{key!r}]: contains bytes that are not text") from None
        except ResultError as error:
            raise ResultError(f"result[{key!r}]{error}") from None
        except Exception as error:
            raise ResultError(f"result[{key!r}]: {error}") from None
    return b"{" + b",".join(entries) + b"}"


def encode_value(value):
    check_value(value)
    return to_json(value)


def hand_over(values, returned=False):
    """Returns the result as JSON bytes, or None if the result is invalid. A script that never used the given mapping
    may have an unrelated variable `result`: if that value is invalid, the job finishes without a result and with a
    warning. returned: the values were returned by main(job) of a warm script."""
    try:
        if not isinstance(values, dict):
            raise ResultError(
                f"result is {describe_type(values)}, not a dict: return a value with result['NAME'] = VALUE, and give "
                "a variable of the script's own another name"
            )
        return encode_result(values)
    except Exception as error:
        message = str(error)
    if not returned and values is not result and not result:
        print_error(f"mycojobs: warning: {message}; the job finishes without a result\n")
        return b"{}"
    refuse_result(message)
    return None


def refuse_result(message):
    """Forbids a retry: another attempt would repeat the work and return the same result."""
    print_error(message + "\n")
    send_error("ResultError", message, retry=False)


# Functions for warm scripts.


def begin_run():
    forget_run()
    result.clear()
    return module.job


def set_stdin(file):
    sys.stdin = sys.__stdin__ = TextIOWrapper(BufferedReader(file), "utf-8", "surrogateescape")
    return sys.stdin


def hide_stdin():
    """Replaces sys.stdin while the module is loaded: a module that keeps it would buffer input of one run and read it in
    the next. The file is never closed, since Python can warn of a file that is dropped while it is open."""
    global empty_stdin
    empty_stdin = set_stdin(FileIO("/dev/null"))


def renew_stdin():
    """Replaces sys.stdin, whose buffer may contain input of the previous run."""
    set_stdin(FileIO(0, closefd=False))


def refuse_without_main():
    message = "the policy has warm, and the script has no function main(job): define it, or remove warm from the policy"
    print_error(message + "\n")
    send_error("WarmError", message)


def refuse_returned(value):
    refuse_result(f"main(job) has returned {describe_type(value)}: return a dict, which is the result, or nothing")


def tell(error):
    """Prints an exception of a clean-up step, like python3; the result is unaffected."""
    print_error(format_trace(error))
