"""The client for asyncio. GET /openrpc.json of the server and docs/rpc.md describe the protocol."""
from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import time
import uuid
from typing import Any, AsyncIterator, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar, Union

from .errors import CannotShip, Conflict, Denied, Error, FlowFailed, Invalid, JobCancelled, JobFailed, NotFound, TooLarge, Unavailable, WaitTimeout
from .errors import closed_error, invalid_response_error, read_error, screen
from .http import Event, Transport, read_http_error
from .ship import RESULT_KEY, Upload, check_options, encode_files, get_options, make_script
from .timespan import Duration, parse_seconds

Json = Dict[str, Any]
T = TypeVar("T")
READ_VERBS = set(
    "get list page status result logs explain dag timeline history wait ping version info discover check overview rights verify doctor refusals "
    "cells show facts dead".split()
)
RESPONSE_TIMEOUT_S = 60.0
MAX_REQUEST_BYTES = 16 << 20
LOG_WAIT_MS = 20_000  # parameter wait_ms of job.logs
WAIT_MS, SHORT_WAIT_MS = 20_000, 250  # parameter wait_ms of jobs.wait and flows.wait
MAX_WAIT_CALLS, MAX_WAIT_ENTRIES = 4, 1000  # concurrent calls of one _WaitGroup, and entries of each call
UPLOAD_LINK_S = 45.0  # time in which the link of artifact.put can be used again; its ticket is valid for 60 s
MIN_POLL_INTERVAL_S = 0.5  # minimum interval between requests with empty responses


def is_repeatable(method: str, params: Mapping[str, Any]) -> bool:
    """Returns True if a call may be sent again after an unknown outcome. The parameter `key` is an idempotency key only in
    flow.*; in other methods it names an instance."""
    group, _, verb = method.rpartition(".")
    return verb in READ_VERBS or method == "job.cancel" or bool(params.get("idempotency_key") or (group == "flow" and params.get("key")))


def get_member(method: str, response: Any, name: str, kind: Type[T]) -> T:
    """Returns a member of a response. Raises an error if the member is missing or has another type."""
    value = response.get(name) if isinstance(response, dict) else None
    if not isinstance(value, kind):
        raise invalid_response_error(method, response)
    return value


def hash_file(file: BinaryIO) -> Tuple[int, str]:
    """Returns size and SHA-256 of a file."""
    content_hash, size = hashlib.sha256(), 0
    while block := file.read(1 << 20):
        content_hash.update(block)
        size += len(block)
    return size, content_hash.hexdigest()


class AsyncClient:
    """A client of one server. `url` and `token` default to the environment variables COORDINATOR_URL and MYCOJOBS_TOKEN,
    and `context` to the first context of the server. `ca`: for https://, a file with the certificates (PEM) of the trusted
    CAs; it defaults to MYCOJOBS_HTTPS_CA, otherwise to the CAs of the system.

    While the server is unavailable, calls are repeated for `retry_for` seconds if they are read-only or have an
    idempotency key. submit, restart, flow_start and the methods that control flows create an idempotency key. A client
    belongs to one event loop. `async with` closes its connections.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, context: Optional[int] = None, retry_for: Duration = 30.0, ca: Optional[str] = None) -> None:
        self.url = url or os.environ.get("COORDINATOR_URL") or "http://127.0.0.1:9652"
        self.context, self.retry_for = context, parse_seconds("retry_for", retry_for)
        self._http = Transport(self.url, token or os.environ.get("MYCOJOBS_TOKEN") or None, ca or os.environ.get("MYCOJOBS_HTTPS_CA") or None)
        self._request_ids = itertools.count(1)
        self._jobs = _WaitGroup(self, "jobs.wait", "jobs", "key")
        self._flows = _WaitGroup(self, "flows.wait", "flows", "id")

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all waits and connections: pending calls raise the error `closed`."""
        self._jobs.close()
        self._flows.close()
        self._http.close()

    async def call(
        self, method: str, params: Optional[Mapping[str, Any]] = None, *, repeat: Optional[bool] = None, answer_within: Duration = RESPONSE_TIMEOUT_S
    ) -> Any:
        """Calls any method of the server. `repeat` determines whether the call may be sent again if no response arrived;
        by default this depends on the method (is_repeatable). `answer_within` limits the wait for each response."""
        params = {name: value for name, value in (params or {}).items() if value is not None}
        repeat = is_repeatable(method, params) if repeat is None else repeat
        response_timeout = parse_seconds("answer_within", answer_within)
        deadline, pause_s = time.monotonic() + self.retry_for, 0.05
        while True:
            try:
                return await self._call_once(method, params, response_timeout)
            except Unavailable as error:
                if (error.sent and not repeat) or time.monotonic() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # random, so that clients do not retry simultaneously
            pause_s = min(pause_s * 2, 2.0)

    async def _call_once(self, method: str, params: Mapping[str, Any], timeout: float) -> Any:
        if self._http.closed:
            raise closed_error()
        request_id = next(self._request_ids)
        try:
            body = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(f"{method}: a parameter is not JSON: {error}") from None
        if len(body) > MAX_REQUEST_BYTES:  # the server would close the connection at once, and the error response could be lost
            raise TooLarge(f"{method}: {len(body)} bytes are over the limit of {MAX_REQUEST_BYTES}", remedy="send less at a time")
        status, data = await self._http.post(body, timeout, takes_slot=not method.endswith(".logs"))
        if status != 200:
            raise read_http_error(status, data)
        try:
            response = json.loads(data)
            if "error" in response and response["id"] in (request_id, None):
                raise read_error(response["error"])
            if response["id"] == request_id:
                return response["result"]
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        self._http.close_idle()  # the idle connections may contain responses of other requests
        raise invalid_response_error(self.url, data)

    async def submit(self, work: Union[str, Callable[..., Any]], /, *args: Any, kwargs: Optional[Mapping[str, Any]] = None, **options: Any) -> "AsyncJob":
        """Queues a script, or a function that a job calls with these arguments. `options` are parameters of `job.start`,
        such as timeout, retries, name, priority, policy, args, stdin and files; contents of stdin and files are texts,
        bytes or pathlib.Path, and a file can be the result of `upload`. type, env and depends (a list of jobs or ids) are short names
        for script_type, env_vars and dependends."""
        if not isinstance(work, str):
            script, options = make_script(work, args, kwargs or {}), {**get_options(work), **options}
            if options.get("type", "python") != "python":
                raise CannotShip(f"{work.__name__}: a function is a job of type python")
            options.setdefault("name", work.__name__)
        elif args or kwargs:
            raise Invalid("a script has no arguments of Python", remedy="pass texts in the option args, or ship a function")
        else:
            script = work
        check_options(options)
        if options.get("timeout") is not None:
            options["timeout"] = parse_seconds("timeout", options["timeout"])
        for short_name, name in (("type", "script_type"), ("env", "env_vars"), ("depends", "dependends")):
            if short_name in options:
                options[name] = options.pop(short_name)
        encode_files(options)
        if "dependends" in options:
            options["dependends"] = [dependency if isinstance(dependency, int) else dependency.id for dependency in options["dependends"]]
        params: Json = {"script": script, "script_type": "python", "context_id": self.context, "idempotency_key": uuid.uuid4().hex, **options}
        return AsyncJob(self, get_member("job.start", await self.call("job.start", params), "key", str), params["context_id"])

    async def upload(self, path: Union[str, "os.PathLike[str]"], *, caller_id: Optional[int] = None) -> Upload:
        """Sends a file to the server, for `files` of jobs of this caller: `submit(..., files={"data.bin": upload})`. Files of
        more than 1 MiB must be uploaded. After a lost connection the whole file is sent again, within `retry_for`."""
        with open(path, "rb") as file:
            size, sha256 = await asyncio.get_running_loop().run_in_executor(None, hash_file, file)
            params = {"bytes": size, "sha256": sha256, "context_id": self.context, "caller_id": caller_id}
            deadline, pause_s = time.monotonic() + self.retry_for, 0.05
            link, link_deadline, is_repeat = "", 0.0, False
            while True:
                try:
                    # Each call of artifact.put reserves bytes of the quota, so that a file is sent again to the first link.
                    is_repeat = time.monotonic() < link_deadline
                    if not is_repeat:
                        link = get_member("artifact.put", await self.call("artifact.put", params, repeat=True), "link", str)
                        link_deadline = time.monotonic() + UPLOAD_LINK_S
                    return await self._send_upload(link, file, size, sha256)
                except (Unavailable, Conflict, Denied, NotFound) as error:
                    # A conflict: the server has not noticed yet that the last connection was lost.
                    if not (is_repeat or isinstance(error, Unavailable)) or time.monotonic() + pause_s > deadline:
                        raise
                    if isinstance(error, (Denied, NotFound)):
                        link_deadline = 0.0
                await asyncio.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(pause_s * 2, 2.0)

    async def _send_upload(self, link: str, file: BinaryIO, size: int, sha256: str) -> Upload:
        file.seek(0)
        data = await self._http.upload(link, file, size)
        try:
            response = json.loads(data)
        except ValueError:
            raise invalid_response_error("PUT /artifacts", data) from None
        return Upload(get_member("PUT /artifacts", response, "upload", str), size, sha256, get_member("PUT /artifacts", response, "until_ms", int))

    def job(self, key: Union[str, int]) -> "AsyncJob":
        """Returns an existing job. `key` is "CALLER:ID", "job:CALLER:ID", or the id of a job of the token's actor."""
        return AsyncJob(self, str(key), self.context)

    async def flow_start(self, definition: Mapping[str, Any], *, inputs: Optional[Mapping[str, Any]] = None, env: Optional[Mapping[str, str]] = None,
                         notify: Any = None, idempotency_key: Optional[str] = None, traceparent: Optional[str] = None) -> "AsyncFlow":  # fmt: skip
        """Creates a flow from a definition (docs/flows.md) and starts it."""
        params = {"definition": definition, "inputs": inputs, "env_vars": env, "notify": notify, "context_id": self.context, "traceparent": traceparent}
        flow = await self.call("flow.create", {**params, "idempotency_key": idempotency_key or uuid.uuid4().hex})
        number = get_member("flow.create", flow, "id", int)
        await self.call("flow.start", {"id": number, "context_id": self.context}, repeat=True)
        return self.flow(number)

    def flow(self, number: int) -> "AsyncFlow":
        return AsyncFlow(self, int(number), self.context)

    async def events(self, *, flow: Optional[int] = None, job: Optional[str] = None, after: str = "") -> AsyncIterator[Event]:
        """Yields the events of a flow or a job until its end, or the events of all flows of the context without an end.
        Reconnects after a lost connection. `after` is the id of the last event that the caller has processed."""
        context = self.context or [*get_member("system.info", await self.call("system.info"), "contexts", list), 1][0]
        deadline = time.monotonic() + self.retry_for
        while True:
            try:
                async for event in self._http.events(context=context, flow=flow, job=job, after=after):
                    after, deadline = event.id or after, time.monotonic() + self.retry_for
                    if event.kind == "gone":
                        raise Denied(str(event.data.get("message")))
                    if event.kind:
                        yield event
                    if (job and event.data.get("ended")) or (flow and event.kind == "flow" and event.data.get("status") in ("finished", "error")):
                        return
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(random.uniform(0.25, 0.75))

    async def _download(self, subject: str, query: Dict[str, Any], size: int, sha256: str, output: BinaryIO) -> None:
        """Writes a file of a job. Continues after a lost connection, as long as bytes arrive within `retry_for`."""
        content_hash, received = hashlib.sha256(), 0
        deadline, pause_s = time.monotonic() + self.retry_for, 0.05
        is_first = True
        while is_first or received < size:
            start = received
            try:
                async for block in self._http.download(query, received):
                    received += len(block)
                    if received > size:
                        break
                    output.write(block)
                    content_hash.update(block)
                    deadline, pause_s = time.monotonic() + self.retry_for, 0.05
                if received == start < size:
                    raise Unavailable(f"{subject}: the server has sent no bytes")
                is_first = False
            except Unavailable:
                if time.monotonic() + pause_s > deadline:
                    raise
                await asyncio.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(pause_s * 2, 2.0)
        if received != size or content_hash.hexdigest() != sha256:
            raise Error(f"{subject}: the received content is not that of the job's record", word="damaged", remedy="run the job again")


class AsyncArtifact:
    """A file that a job has stored. `problem` is the reason if the server cannot send it now (`readable` is False). The name
    is a relative path that the job has chosen: do not use it as a path without a check."""

    def __init__(self, client: AsyncClient, job_key: str, context: Optional[int], entry: Json) -> None:
        self._client, self._job_key, self._context = client, job_key, context
        self.name, self.sha256, self.media_type, self.problem = (get_member("artifact.list", entry, name, str) for name in ("name", "sha256", "media_type", "problem"))
        self.bytes, self.runner_id = get_member("artifact.list", entry, "bytes", int), get_member("artifact.list", entry, "runner_id", int)
        self.executable, self.readable = (get_member("artifact.list", entry, name, bool) for name in ("executable", "readable"))

    def __repr__(self) -> str:
        return f"<artifact {screen(self.name)} of job {self._job_key}>"

    async def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Downloads the file to `path`, which is replaced if it exists. The bytes are written to a temporary file in the same
        folder, which gets the name `path` after its size and SHA-256 were verified."""
        target = os.path.abspath(os.fspath(path))
        if os.path.isdir(target):
            raise Invalid(f"{target} is a folder", remedy="give the path of a file")
        temporary = os.path.join(os.path.dirname(target), f".mycojobs-{uuid.uuid4().hex}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        query = {"context": self._context, "job": self._job_key, "name": self.name, "sha256": self.sha256}
        with os.fdopen(os.open(temporary, flags, 0o777 if self.executable else 0o666), "wb") as output:
            try:
                await self._client._download(f"{self._job_key}: artifact {self.name}", query, self.bytes, self.sha256, output)
                output.close()  # some systems rename closed files only
                os.replace(temporary, target)
            except BaseException:
                output.close()
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise


class AsyncJob:
    def __init__(self, client: AsyncClient, key: str, context: Optional[int]) -> None:
        self._client, self.key, self._context = client, key[4:] if key.startswith("job:") else key, context

    def __repr__(self) -> str:
        return f"<job {self.key}>"

    @property
    def id(self) -> int:
        return int(self.key.rpartition(":")[2])

    async def _call(self, method: str, **params: Any) -> Json:
        response: Json = await self._client.call(method, {"id": self.key, "context_id": self._context, **params})
        return response

    async def status(self) -> Json:
        """Returns the current state (JobState)."""
        return await self._call("job.status")

    async def wait(self, timeout: Optional[Duration] = None) -> Json:
        """Waits for the end of the job and returns its JobState, even if the job has failed. Raises WaitTimeout if the job
        has not ended within the time-out."""
        if ":" not in self.key:
            self.key = get_member("job.status", await self.status(), "key", str)[4:]
        return await self._client._jobs.wait("job:" + self.key, self._context, timeout, f"job {self.key}")

    async def result(self, timeout: Optional[Duration] = None) -> Any:
        """Waits for the end of the job and returns the value of its function, or the `result` of its script. Raises
        JobFailed or JobCancelled if the job has not finished successfully."""
        await self.wait(timeout)
        state = await self._call("job.result")
        if get_member("job.result", state, "status", str) != "finished":
            raise (JobCancelled if state.get("detail") == "cancelled" else JobFailed)(state)
        result = get_member("job.result", state, "result", dict)
        return result[RESULT_KEY] if list(result) == [RESULT_KEY] else result

    async def logs(self, follow: bool = False, after: int = 0) -> AsyncIterator[Json]:
        """Yields the log lines with a sequence number above `after`. With `follow`, waits for further lines until the end of
        the job."""
        while True:
            started_at = time.monotonic()
            page = await self._call("job.logs", after_seq=after, wait_ms=LOG_WAIT_MS if follow else 0)
            lines, last_seq = get_member("job.logs", page, "lines", list), get_member("job.logs", page, "after_seq", int)
            if lines and last_seq <= after:
                raise invalid_response_error("job.logs", page)
            for line in lines:
                yield line
            after = last_seq
            if page.get("ended") or not (follow or lines):
                return
            if not lines:
                await asyncio.sleep(started_at + MIN_POLL_INTERVAL_S - time.monotonic())

    async def artifacts(self) -> List[AsyncArtifact]:
        """Returns the files that the job has stored."""
        entries: Any = await self._call("artifact.list")
        if not isinstance(entries, list):
            raise invalid_response_error("artifact.list", entries)
        return [AsyncArtifact(self._client, self.key, self._context, entry) for entry in entries]

    async def cancel(self) -> Json:
        """Cancels the job permanently in any state. A running job ends within its grace time; use wait() to wait for it."""
        return await self._call("job.cancel")

    async def retry(self) -> Json:
        """Runs the job again if it has ended with an error."""
        return await self._call("job.retry")

    async def restart(self) -> "AsyncJob":
        """Starts the same job again as a new job of the same caller, if it has ended."""
        return AsyncJob(self._client, get_member("job.restart", await self._call("job.restart", idempotency_key=uuid.uuid4().hex), "key", str), self._context)

    async def explain(self) -> Json:
        """Returns the reason of the current state (JobReason)."""
        return await self._call("job.explain")


class AsyncFlow:
    def __init__(self, client: AsyncClient, number: int, context: Optional[int]) -> None:
        self._client, self.id, self._context = client, number, context

    def __repr__(self) -> str:
        return f"<flow {self.id}>"

    async def _call(self, method: str, **params: Any) -> Any:
        return await self._client.call(method, {"id": self.id, "context_id": self._context, **params})

    async def _control(self, verb: str, **params: Any) -> Json:
        state: Json = await self._call("flow." + verb, key=uuid.uuid4().hex, **params)
        return state

    async def status(self) -> Json:
        """Returns the current state (FlowResult)."""
        state: Json = await self._call("flow.result")
        return state

    async def dag(self) -> Json:
        """Returns the nodes and edges with their states (FlowDag)."""
        dag: Json = await self._call("flow.dag")
        return dag

    async def explain(self) -> List[Json]:
        """Returns the reasons of the current state (a list of FlowReason), the primary reason first."""
        reasons: List[Json] = await self._call("flow.explain")
        return reasons

    async def wait(self, timeout: Optional[Duration] = None) -> Json:
        """Waits for the end of the flow and returns its FlowResult, even if the flow has failed. Raises WaitTimeout if the
        flow has not ended within the time-out."""
        return await self._client._flows.wait(self.id, self._context, timeout, f"flow {self.id}")

    async def result(self, timeout: Optional[Duration] = None) -> Json:
        """Waits for the end of the flow and returns the results of its jobs, with keys of the form <node>.<key>. Raises
        FlowFailed if the flow has not finished successfully."""
        state = await self.wait(timeout)
        if get_member("flows.wait", state, "status", str) != "finished":
            raise FlowFailed(state)
        result: Json = get_member("flows.wait", state, "result", dict)
        return result

    async def approve(self, name: str, comment: Optional[str] = None) -> Json:
        return await self._control("approve", name=name, comment=comment)

    async def reject(self, name: str, comment: Optional[str] = None) -> Json:
        return await self._control("reject", name=name, comment=comment)

    async def signal(self, name: str, payload: Any = None) -> Json:
        """Opens the nodes that wait for signal:NAME. `payload` is a JSON value for the jobs after these nodes."""
        return await self._control("signal", name=name, payload=payload)

    async def cancel(self, comment: Optional[str] = None) -> Json:
        return await self._control("cancel", comment=comment)

    async def pause(self, comment: Optional[str] = None) -> Json:
        return await self._control("pause", comment=comment)

    async def resume(self, node: Optional[str] = None) -> Json:
        return await self._control("resume", node=node)

    async def retry(self, node: Optional[str] = None, *, allow_irreversible: bool = False) -> Json:
        """Runs failed nodes again. `allow_irreversible` permits this even if a new child flow would repeat a finished node
        that is marked irreversible."""
        return await self._control("retry", node=node, allow_irreversible=True if allow_irreversible else None)


class _WaitGroup:
    """Combines any number of waits in at most MAX_WAIT_CALLS concurrent calls. Each call waits for up to MAX_WAIT_ENTRIES
    entries that no other call contains. A call that takes the last free place waits only SHORT_WAIT_MS, so that
    new waits are not delayed for long."""

    def __init__(self, client: AsyncClient, method: str, param: str, id_member: str) -> None:
        self._client, self._method, self._param, self._id_member = client, method, param, id_member
        self._waiters: Dict[Any, Set["asyncio.Future[Json]"]] = {}
        self._unrequested: Set[Any] = set()
        self._calls: Set["asyncio.Task[None]"] = set()

    async def wait(self, key: Any, context: Optional[int], timeout: Optional[Duration], subject: str) -> Json:
        timeout_s = None if timeout is None else parse_seconds("timeout", timeout)
        future: "asyncio.Future[Json]" = asyncio.get_running_loop().create_future()
        # retrieves the error, so that asyncio does not log a warning if the caller has stopped waiting
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        entry = (context, key)
        if entry not in self._waiters:
            self._unrequested.add(entry)
        self._waiters.setdefault(entry, set()).add(future)
        self._start_call()
        done, _ = await self._wait_for_future(future, entry, timeout_s)
        if not done:
            raise WaitTimeout(f"{subject} has not ended after {timeout_s:g} s", remedy="it continues: wait again, or cancel it")
        return future.result()

    async def _wait_for_future(self, future: "asyncio.Future[Json]", entry: Any, timeout: Optional[float]) -> Any:
        try:
            return await asyncio.wait([future], timeout=timeout)
        finally:
            waiters = self._waiters.get(entry, set())
            waiters.discard(future)
            if not waiters:
                self._waiters.pop(entry, None)
                self._unrequested.discard(entry)
            if not self._waiters:
                self.stop()

    def stop(self) -> None:
        for call in self._calls:
            call.cancel()

    def close(self) -> None:
        for future in [waiter for waiters in self._waiters.values() for waiter in waiters if not waiter.done()]:
            future.set_exception(closed_error())
        self._waiters.clear()
        self._unrequested.clear()
        self.stop()

    def _start_call(self) -> None:
        if self._unrequested and len(self._calls) < MAX_WAIT_CALLS:
            context = next(iter(self._unrequested))[0]
            entries = [entry for entry in self._unrequested if entry[0] == context][:MAX_WAIT_ENTRIES]
            self._unrequested.difference_update(entries)
            is_last = len(self._calls) == MAX_WAIT_CALLS - 1
            call = asyncio.ensure_future(self._wait_once(context, [key for _, key in entries], SHORT_WAIT_MS if is_last else WAIT_MS))
            self._calls.add(call)

    async def _wait_once(self, context: Optional[int], keys: Sequence[Any], wait_ms: int) -> None:
        started_at = time.monotonic()
        try:
            ended_count = self._complete(context, keys, await self._client.call(self._method, {self._param: keys, "context_id": context, "wait_ms": wait_ms}))
            if not ended_count:
                await asyncio.sleep(started_at + min(MIN_POLL_INTERVAL_S, wait_ms / 1000) - time.monotonic())
        except Exception as error:  # any error is reported to the waiters, since no other code receives it
            # an error with the field "jobs[3]" concerns only this entry, so the other waits continue
            index_match = re.fullmatch(re.escape(self._param) + r"\[([0-9]{1,4})\]", error.field) if isinstance(error, (NotFound, Denied, Invalid)) else None
            for key in keys[int(index_match[1]) :][:1] if index_match and int(index_match[1]) < len(keys) else keys:
                for future in self._pop_waiters(context, key):
                    future.set_exception(error)
        finally:
            self._calls.discard(asyncio.current_task())  # type: ignore[arg-type]
            self._unrequested.update(entry for entry in ((context, key) for key in keys) if entry in self._waiters)
            if self._waiters:
                self._start_call()

    def _complete(self, context: Optional[int], keys: Sequence[Any], states: Any) -> int:
        """Completes the waits for the jobs or flows in `states`, which have ended. Returns their number. Entries that were not
        requested are ignored."""
        if not isinstance(states, list):
            raise invalid_response_error(self._method, states)
        requested, kind = set(keys), type(keys[0])
        ended_states = {key: state for state in states for key in [get_member(self._method, state, self._id_member, kind)] if key in requested}
        for key, state in ended_states.items():
            for future in self._pop_waiters(context, key):
                future.set_result(state)
        return len(ended_states)

    def _pop_waiters(self, context: Optional[int], key: Any) -> Iterator["asyncio.Future[Json]"]:
        return (future for future in self._waiters.pop((context, key), set()) if not future.done())
