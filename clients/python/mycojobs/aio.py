"""The client for asyncio. The protocol is described by the server's contract: GET /openrpc.json, docs/rpc.md."""
from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import time
import uuid
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Type, TypeVar, Union

from .errors import CannotShip, Denied, Error, FlowFailed, Invalid, JobCancelled, JobFailed, NotFound, TooLarge, Unavailable, WaitTimeout
from .errors import closed, no_answer, read_error
from .http import Event, Transport, refused
from .ship import RETURN, check_options, options_of, script_of
from .timespan import Duration, seconds_of

Json = Dict[str, Any]
T = TypeVar("T")
READS = set(
    "get list page status result logs explain dag timeline history wait ping version info discover check overview rights verify doctor refusals "
    "cells show facts dead".split()
)
ANSWER_S = 60.0  # time-out of a response
MOST_BYTES = 16 << 20  # maximum size of a request
LOG_WAIT_MS = 20_000
WAIT_MS, SHORT_WAIT_MS = 20_000, 250
MOST_WAITS, MOST_OF_A_WAIT = 4, 1000
EMPTY_S = 0.5  # minimum interval between requests with empty responses


def harmless(method: str, params: Mapping[str, Any]) -> bool:
    """True if a call may be sent again after an unknown outcome. `key` is an idempotency key only in flow.*; elsewhere
    it names an instance."""
    group, _, verb = method.rpartition(".")
    return verb in READS or method == "job.cancel" or bool(params.get("idempotency_key") or (group == "flow" and params.get("key")))


def member(method: str, answer: Any, name: str, kind: Type[T]) -> T:
    """Returns a member of a response after a type check."""
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, kind):
        raise no_answer(method, answer)
    return found


class AsyncClient:
    """A connection to a server, by default to COORDINATOR_URL with the token MYCOJOBS_TOKEN. context: default: the
    server's first.

    While the server is unavailable, calls are repeated for retry_for seconds if they are read-only or have an
    idempotency key; submit, restart, flow_start and the controls of flows create one. Belongs to one event loop;
    `async with` closes its connections.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, context: Optional[int] = None, retry_for: Duration = 30.0) -> None:
        self.url = url or os.environ.get("COORDINATOR_URL") or "http://127.0.0.1:9652"
        self.context, self.retry_for = context, seconds_of("retry_for", retry_for)
        self._http = Transport(self.url, token or os.environ.get("MYCOJOBS_TOKEN") or None)
        self._numbers = itertools.count(1)
        self._jobs = _Waits(self, "jobs.wait", "jobs", "key")
        self._flows = _Waits(self, "flows.wait", "flows", "id")

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all waits and connections: pending calls raise the error `closed`."""
        self._jobs.close()
        self._flows.close()
        self._http.close()

    async def call(self, method: str, params: Optional[Mapping[str, Any]] = None, *, repeat: Optional[bool] = None, answer_within: Duration = ANSWER_S) -> Any:
        """Calls any method of the contract, with its own parameter names. repeat: whether the call may be sent again if
        no response arrived; None: if that is harmless."""
        params = {name: value for name, value in (params or {}).items() if value is not None}
        repeat = harmless(method, params) if repeat is None else repeat
        within = seconds_of("answer_within", answer_within)
        until, pause = time.monotonic() + self.retry_for, 0.05
        while True:
            try:
                return await self._once(method, params, within)
            except Unavailable as why:
                if (why.sent and not repeat) or time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # random, so that clients do not retry simultaneously
            pause = min(pause * 2, 2.0)

    async def _once(self, method: str, params: Mapping[str, Any], seconds: float) -> Any:
        if self._http.closed:
            raise closed()
        number = next(self._numbers)
        try:
            body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as why:
            raise Invalid(f"{method}: a parameter is not JSON: {why}") from None
        if len(body) > MOST_BYTES:  # the server would close the connection at once, and its response could be lost
            raise TooLarge(f"{method}: {len(body)} bytes are over the limit of {MOST_BYTES}", remedy="send less at a time")
        status, data = await self._http.post(body, seconds, shared=not method.endswith(".logs"))
        if status != 200:
            raise refused(status, data)
        try:
            answer = json.loads(data)
            if "error" in answer and answer["id"] in (number, None):
                raise read_error(answer["error"])
            if answer["id"] == number:
                return answer["result"]
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        self._http.forget()  # the idle connections may have responses of other requests
        raise no_answer(self.url, data)

    async def submit(self, what: Union[str, Callable[..., Any]], /, *args: Any, kwargs: Optional[Mapping[str, Any]] = None, **options: Any) -> "AsyncJob":
        """Queues a script, or a function that a job calls with these arguments. options: parameters of `job.start` with
        its names (timeout, retries, name, priority, policy, ...), and type, env, depends (jobs or ids) for script_type,
        env_vars, dependends."""
        if not isinstance(what, str):
            script, options = script_of(what, args, kwargs or {}), {**options_of(what), **options}
            if options.get("type", "python") != "python":
                raise CannotShip(f"{what.__name__}: a function is a job of type python")
            options.setdefault("name", what.__name__)
            what = script
        elif args or kwargs:
            raise Invalid("a script has no arguments", remedy="pass them in env, or ship a function")
        check_options(options)
        if options.get("timeout") is not None:
            options["timeout"] = seconds_of("timeout", options["timeout"])
        for short, name in (("type", "script_type"), ("env", "env_vars"), ("depends", "dependends")):
            if short in options:
                options[name] = options.pop(short)
        if "dependends" in options:
            options["dependends"] = [each if isinstance(each, int) else each.id for each in options["dependends"]]
        params: Json = {"script": what, "script_type": "python", "context_id": self.context, "idempotency_key": uuid.uuid4().hex, **options}
        return AsyncJob(self, member("job.start", await self.call("job.start", params), "key", str), params["context_id"])

    def job(self, key: Union[str, int]) -> "AsyncJob":
        """Returns an existing job: "CALLER:ID", "job:CALLER:ID", or an id of the token's own caller."""
        return AsyncJob(self, str(key), self.context)

    async def flow_start(self, definition: Mapping[str, Any], *, inputs: Optional[Mapping[str, Any]] = None, env: Optional[Mapping[str, str]] = None,
                         notify: Any = None, idempotency_key: Optional[str] = None, traceparent: Optional[str] = None) -> "AsyncFlow":  # fmt: skip
        """Creates a flow from a definition (docs/flows.md) and starts it."""
        params = {"definition": definition, "inputs": inputs, "env_vars": env, "notify": notify, "context_id": self.context, "traceparent": traceparent}
        made = await self.call("flow.create", {**params, "idempotency_key": idempotency_key or uuid.uuid4().hex})
        number = member("flow.create", made, "id", int)
        await self.call("flow.start", {"id": number, "context_id": self.context}, repeat=True)
        return self.flow(number)

    def flow(self, number: int) -> "AsyncFlow":
        return AsyncFlow(self, int(number), self.context)

    async def events(self, *, flow: Optional[int] = None, job: Optional[str] = None, after: str = "") -> AsyncIterator[Event]:
        """Yields events as they occur: of a flow or a job until its end, otherwise of all flows of the context.
        Reconnects after a lost connection."""
        context = self.context or [*member("system.info", await self.call("system.info"), "contexts", list), 1][0]
        until = time.monotonic() + self.retry_for
        while True:
            try:
                async for event in self._http.events(context=context, flow=flow, job=job, after=after):
                    after, until = event.id or after, time.monotonic() + self.retry_for
                    if event.kind == "gone":
                        raise Denied(str(event.data.get("message")))
                    if event.kind:
                        yield event
                    if (job and event.data.get("ended")) or (flow and event.kind == "flow" and event.data.get("status") in ("finished", "error")):
                        return
            except Unavailable:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(random.uniform(0.25, 0.75))


class AsyncJob:
    def __init__(self, client: AsyncClient, key: str, context: Optional[int]) -> None:
        self._client, self.key, self._context = client, key[4:] if key.startswith("job:") else key, context

    def __repr__(self) -> str:
        return f"<job {self.key}>"

    @property
    def id(self) -> int:
        return int(self.key.rpartition(":")[2])

    async def _call(self, method: str, **params: Any) -> Json:
        answer: Json = await self._client.call(method, {"id": self.key, "context_id": self._context, **params})
        return answer

    async def status(self) -> Json:
        """The current state: JobState."""
        return await self._call("job.status")

    async def wait(self, timeout: Optional[Duration] = None) -> Json:
        """Waits for the end and returns the JobState, also of a failed job. WaitTimeout: not ended within the
        time-out."""
        if ":" not in self.key:
            self.key = member("job.status", await self.status(), "key", str)[4:]
        return await self._client._jobs.wait("job:" + self.key, self._context, timeout, f"job {self.key}")

    async def result(self, timeout: Optional[Duration] = None) -> Any:
        """Waits for the end and returns the result: a function's value, or a script's `result`. JobFailed,
        JobCancelled: the job has not finished."""
        await self.wait(timeout)
        state = await self._call("job.result")
        if member("job.result", state, "status", str) != "finished":
            raise (JobCancelled if state.get("detail") == "cancelled" else JobFailed)(state)
        result = member("job.result", state, "result", dict)
        return result[RETURN] if list(result) == [RETURN] else result

    async def logs(self, follow: bool = False, after: int = 0) -> AsyncIterator[Json]:
        """Yields the LogLines after this number: the existing ones, or with `follow` all until the end of the job."""
        while True:
            began = time.monotonic()
            page = await self._call("job.logs", after_seq=after, wait_ms=LOG_WAIT_MS if follow else 0)
            lines, last = member("job.logs", page, "lines", list), member("job.logs", page, "after_seq", int)
            if lines and last <= after:
                raise no_answer("job.logs", page)
            for line in lines:
                yield line
            after = last
            if page.get("ended") or not (follow or lines):
                return
            if not lines:
                await asyncio.sleep(began + EMPTY_S - time.monotonic())

    async def cancel(self) -> Json:
        """Cancels the job permanently in any state. A running job has its grace time: wait() for its end."""
        return await self._call("job.cancel")

    async def retry(self) -> Json:
        """Runs the job again if it has ended with an error."""
        return await self._call("job.retry")

    async def restart(self) -> "AsyncJob":
        """Starts the same job again as a new job of the same caller, if it has ended."""
        return AsyncJob(self._client, member("job.restart", await self._call("job.restart", idempotency_key=uuid.uuid4().hex), "key", str), self._context)

    async def explain(self) -> Json:
        """The reason of the current state: JobReason."""
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
        """The current FlowResult."""
        state: Json = await self._call("flow.result")
        return state

    async def dag(self) -> Json:
        """The nodes and edges with their states: FlowDag."""
        dag: Json = await self._call("flow.dag")
        return dag

    async def explain(self) -> List[Json]:
        """The reasons of the current state: FlowReasons, the primary one first."""
        reasons: List[Json] = await self._call("flow.explain")
        return reasons

    async def wait(self, timeout: Optional[Duration] = None) -> Json:
        """Waits for the end and returns the FlowResult, also of a failed flow. WaitTimeout: not ended within the
        time-out."""
        return await self._client._flows.wait(self.id, self._context, timeout, f"flow {self.id}")

    async def result(self, timeout: Optional[Duration] = None) -> Json:
        """Waits for the end and returns the results of the jobs, by <node>.<key>. FlowFailed: the flow has not
        finished."""
        state = await self.wait(timeout)
        if member("flows.wait", state, "status", str) != "finished":
            raise FlowFailed(state)
        result: Json = member("flows.wait", state, "result", dict)
        return result

    async def approve(self, name: str, comment: Optional[str] = None) -> Json:
        return await self._control("approve", name=name, comment=comment)

    async def reject(self, name: str, comment: Optional[str] = None) -> Json:
        return await self._control("reject", name=name, comment=comment)

    async def signal(self, name: str, payload: Any = None) -> Json:
        """Opens the nodes that wait for signal:NAME. payload: JSON for the jobs after them."""
        return await self._control("signal", name=name, payload=payload)

    async def cancel(self, comment: Optional[str] = None) -> Json:
        return await self._control("cancel", comment=comment)

    async def pause(self, comment: Optional[str] = None) -> Json:
        return await self._control("pause", comment=comment)

    async def resume(self, node: Optional[str] = None) -> Json:
        return await self._control("resume", node=node)

    async def retry(self, node: Optional[str] = None, *, allow_irreversible: bool = False) -> Json:
        """Runs failed nodes again. allow_irreversible: also if a new child flow repeats a finished node that is marked
        irreversible."""
        return await self._control("retry", node=node, allow_irreversible=True if allow_irreversible else None)


class _Waits:
    """Combines any number of waits in at most MOST_WAITS calls: each call waits for all entries that no other call
    contains. The last call is short, so that new waits are not delayed for long."""

    def __init__(self, client: AsyncClient, method: str, param: str, name: str) -> None:
        self._client, self._method, self._param, self._name = client, method, param, name
        self._waiting: Dict[Any, Set["asyncio.Future[Json]"]] = {}
        self._unasked: Set[Any] = set()
        self._calls: Set["asyncio.Task[None]"] = set()

    async def wait(self, key: Any, context: Optional[int], timeout: Optional[Duration], what: str) -> Json:
        limit = None if timeout is None else seconds_of("timeout", timeout)
        future: "asyncio.Future[Json]" = asyncio.get_running_loop().create_future()
        # avoids a warning about an error that is not retrieved
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        place = (context, key)
        if place not in self._waiting:
            self._unasked.add(place)
        self._waiting.setdefault(place, set()).add(future)
        self._ask()
        done, _ = await self._until(future, place, limit)
        if not done:
            raise WaitTimeout(f"{what} has not ended after {limit:g} s", remedy="it continues: wait again, or cancel it")
        return future.result()

    async def _until(self, future: "asyncio.Future[Json]", place: Any, timeout: Optional[float]) -> Any:
        try:
            return await asyncio.wait([future], timeout=timeout)
        finally:
            waiters = self._waiting.get(place, set())
            waiters.discard(future)
            if not waiters:
                self._waiting.pop(place, None)
                self._unasked.discard(place)
            if not self._waiting:
                self.stop()

    def stop(self) -> None:
        for call in self._calls:
            call.cancel()

    def close(self) -> None:
        for future in [each for waiters in self._waiting.values() for each in waiters if not each.done()]:
            future.set_exception(closed())
        self._waiting.clear()
        self._unasked.clear()
        self.stop()

    def _ask(self) -> None:
        if self._unasked and len(self._calls) < MOST_WAITS:
            context = next(iter(self._unasked))[0]
            places = [each for each in self._unasked if each[0] == context][:MOST_OF_A_WAIT]
            self._unasked.difference_update(places)
            last = len(self._calls) == MOST_WAITS - 1
            call = asyncio.ensure_future(self._one(context, [key for _, key in places], SHORT_WAIT_MS if last else WAIT_MS))
            self._calls.add(call)

    async def _one(self, context: Optional[int], keys: Sequence[Any], wait_ms: int) -> None:
        began = time.monotonic()
        try:
            settled = self._settle(context, keys, await self._client.call(self._method, {self._param: keys, "context_id": context, "wait_ms": wait_ms}))
            if not settled:
                await asyncio.sleep(began + min(EMPTY_S, wait_ms / 1000) - time.monotonic())
        except Exception as why:  # any error is reported to the waiters, since no other code receives it
            # "jobs[3]": this entry cannot be waited for; the others can
            one = re.fullmatch(re.escape(self._param) + r"\[([0-9]{1,4})\]", why.field) if isinstance(why, (NotFound, Denied, Invalid)) else None
            for key in keys[int(one[1]) :][:1] if one and int(one[1]) < len(keys) else keys:
                for future in self._leave(context, key):
                    future.set_exception(why)
        finally:
            self._calls.discard(asyncio.current_task())  # type: ignore[arg-type]
            self._unasked.update(place for place in ((context, key) for key in keys) if place in self._waiting)
            if self._waiting:
                self._ask()

    def _settle(self, context: Optional[int], keys: Sequence[Any], states: Any) -> int:
        """Returns the number of ended waits. Entries that were not requested are ignored."""
        if not isinstance(states, list):
            raise no_answer(self._method, states)
        asked, kind = set(keys), type(keys[0])
        ended = {key: state for state in states for key in [member(self._method, state, self._name, kind)] if key in asked}
        for key, state in ended.items():
            for future in self._leave(context, key):
                future.set_result(state)
        return len(ended)

    def _leave(self, context: Optional[int], key: Any) -> Iterator["asyncio.Future[Json]"]:
        return (future for future in self._waiting.pop((context, key), set()) if not future.done())
