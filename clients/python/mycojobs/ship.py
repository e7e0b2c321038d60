"""Converts a function to the script of a job: its source, and its arguments as JSON; its return value is the result's
key `return`."""
from __future__ import annotations

import ast
import base64
import builtins
import inspect
import json
import math
import os
import symtable
import types
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Sequence, Tuple, TypeVar

from .errors import CannotShip, Invalid

RESULT_KEY = "return"
F = TypeVar("F", bound=Callable[..., Any])


# Parameters of `job.start`; type, env and depends are short forms of script_type, env_vars and dependends.
SUBMIT_OPTIONS = frozenset(
    """type env depends script_type env_vars dependends id context_id caller_id name timeout retries prerequisites run_at_ms priority
    queue_timeout_ms idempotency_key concurrency_key concurrency_limit inputs args stdin files notify policy traceparent""".split()
)


def check_options(options: Mapping[str, Any]) -> None:
    """Raises Invalid for an option that `submit` does not have. Called before a request is sent."""
    for name in options:
        if name not in SUBMIT_OPTIONS:
            raise Invalid(f"submit: unknown option {name!r}", remedy="the options are " + ", ".join(sorted(SUBMIT_OPTIONS)))


class Upload(NamedTuple):
    """A file that the server has, for `files` of jobs. It expires at until_ms unless a job uses it."""

    reference: str
    bytes: int
    sha256: str
    until_ms: int


def encode_content(name: str, content: Any) -> Any:
    """Returns a file of a job as JSON: texts and bytes are contents, and a path is read."""
    if isinstance(content, os.PathLike):
        with open(content, "rb") as file:
            content = file.read()
    if isinstance(content, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(content).decode()}
    if not isinstance(content, str):
        raise Invalid(f"{name}: {type(content).__name__} is not a content", remedy="give a text, bytes, or a pathlib.Path")
    return content


def encode_files(options: Dict[str, Any]) -> None:
    """Replaces the contents in the options stdin and files by JSON."""
    if options.get("stdin") is not None:
        options["stdin"] = encode_content("stdin", options["stdin"])
    if options.get("files") is not None:
        options["files"] = {
            name: {"upload": content.reference} if isinstance(content, Upload) else encode_content(f"files[{name!r}]", content)
            for name, content in options["files"].items()
        }


def job(**options: Any) -> Callable[[F], F]:
    """Marks a function for shipping, with options of `submit`: `@job(timeout=60, retries=2)`. A direct call still runs
    locally."""

    check_options(options)

    def decorate(function: F) -> F:
        get_source(function, 1)  # raises errors where the function is defined
        setattr(function, "__mycojobs__", options)
        return function

    return decorate


def get_options(function: Callable[..., Any]) -> Dict[str, Any]:
    return dict(getattr(function, "__mycojobs__", {}))


def make_script(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Returns the whole script. CannotShip: the message says why the function cannot run in a job."""
    source = get_source(function, 1 if hasattr(function, "__mycojobs__") else 0)
    name = function.__name__
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise CannotShip(f"{name}: {error}") from None
    for label, value in [(f"argument {i + 1}", argument) for i, argument in enumerate(args)] + [(f"argument {key}", argument) for key, argument in kwargs.items()]:
        check_json(value, f"{name}: {label}")
    arguments_json = json.dumps([args, dict(kwargs)], allow_nan=False)
    imports = "".join(f"; import {module}" + (f" as {alias}" if alias != module else "") for alias, module in find_imports(function, source))
    # Stores the mapping of the job before the function can reuse its name: a value that it cannot hold fails the job.
    call = f"_mycojobs_result[{RESULT_KEY!r}] = (lambda args, kwargs: {name}(*args, **kwargs))(*__import__('json').loads({arguments_json!r}))"
    return f"from __future__ import annotations; _mycojobs_result = result{imports}\n{source}\n{call}\n"


def get_source(function: Callable[..., Any], max_decorators: int) -> str:
    """Returns the source from `def` on, without indentation and decorators. CannotShip: the function has more
    than max_decorators decorators, or its source cannot be shipped."""
    name = getattr(function, "__name__", repr(function))
    if not isinstance(function, types.FunctionType) or not (function.__qualname__ == name or function.__qualname__.endswith("<locals>." + name)):
        raise CannotShip(f"{name} is not a plain function: ship a function that is defined with def, outside of a class")
    if name == "<lambda>":
        raise CannotShip("a lambda cannot be shipped: define a function with def")
    if function.__code__.co_freevars:
        raise CannotShip(f"{name} is a closure over {', '.join(function.__code__.co_freevars)}: pass that as an argument")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise CannotShip(f"{name} is asynchronous or a generator: ship a function that returns its result")
    try:
        text = inspect.getsource(function)
        # in both cases, lines count from 2
        block = ast.parse("if 1:\n" + text).body[0] if text[0].isspace() else ast.parse("\n" + text)
    except (OSError, SyntaxError, ValueError) as error:
        raise CannotShip(f"{name} has no source that can be shipped: {error}") from None
    tree = getattr(block, "body")[0]
    if not isinstance(tree, ast.FunctionDef) or len(tree.decorator_list) > max_decorators:
        raise CannotShip(f"{name} has a decorator besides @job, which would not be shipped: call it inside of {name}")
    text_nodes = [text_node for text_node in ast.walk(tree) if isinstance(text_node, (ast.Constant, ast.JoinedStr))]
    # lines inside of texts keep their blanks
    text_lines = {line for text_node in text_nodes for line in range(text_node.lineno + 1, (text_node.end_lineno or 0) + 1)}
    lines = list(enumerate(text.rstrip("\n").split("\n"), 2))[tree.lineno - 2 :]
    return "\n".join(line if number in text_lines else line[: tree.col_offset].lstrip() + line[tree.col_offset :] for number, line in lines)


def find_imports(function: Callable[..., Any], source: str) -> Iterator[Tuple[str, str]]:
    """Yields the modules of its file that the function uses, as (name, module); the script imports them. Other globals
    raise CannotShip."""
    module_globals = getattr(function, "__globals__")
    for name in sorted(find_globals(symtable.symtable("from __future__ import annotations\n" + source, "<job>", "exec"))):
        if name == function.__name__ or name in ("result", "__name__"):
            continue
        if isinstance(module_globals.get(name), types.ModuleType):
            yield name, module_globals[name].__name__
        elif name in module_globals or not hasattr(builtins, name):
            raise CannotShip(f"{function.__name__} uses {name}, which is not shipped with it: define or import it inside, or pass it as an argument")


def find_globals(table: symtable.SymbolTable) -> Iterator[str]:
    if table.get_type() == "module":
        yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and not symbol.is_imported())
    else:
        yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for child in table.get_children():
        if child.get_type() != "annotation":
            yield from find_globals(child)


def check_json(value: Any, path: str) -> None:
    """Raises CannotShip, with the position, for a value that JSON cannot represent."""
    if isinstance(value, dict):
        for key, element in value.items():
            if not isinstance(key, str):
                raise CannotShip(f"{path} has the key {key!r}, which is not text: use {str(key)!r}")
            check_json(element, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, element in enumerate(value):
            check_json(element, f"{path}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise CannotShip(f"{path} is {value}, which JSON cannot represent: pass None or text")
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        raise CannotShip(f"{path} is a {type(value).__name__}, which is not JSON: pass text, numbers, lists and dicts")
