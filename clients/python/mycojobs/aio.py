"""The client for asyncio. Everything that it knows is in the contract of the server: GET /openrpc.json, docs/rpc.md."""
from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Union

from .errors import CannotShip, Denied, Error, FlowFailed, Invalid, JobCancelled, JobFailed, NotFound, TooLarge, Unavailable, WaitTimeout, read_error
from .http import Event, Transport, refused
from .ship import RETURN, options_of, script_of

Json = Dict[str, Any]
READS = {"get", "list", "status", "result", "logs", "explain", "dag", "timeline", "wait", "ping", "version", "info", "discover"}
ANSWER_S = 60.0  # a server that is silent for longer is away
MOST_BYTES = 16 << 20  # of a call
LOG_WAIT_MS = 20_000
WAIT_MS, SHORT_WAIT_MS = 20_000, 250
MOST_WAITS, MOST_OF_A_WAIT = 4, 1000


class AsyncClient:
    """A server, by default that of COORDINATOR_URL with the token of MYCOJOBS_TOKEN. context: its first, if none is given.

    What may be repeated is, for retry_for seconds, when the server is away: what only reads, and what carries an idempotency key, which submit,
    flow_start and the controls of flows make themselves. Of one event loop; `async with` closes its connections.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, context: Optional[int] = None, retry_for: float = 30.0) -> None:
        self.url = url or os.environ.get("COORDINATOR_URL") or "http://127.0.0.1:9652"
        self.context, self.retry_for = context, retry_for
        self._http = Transport(self.url, token or os.environ.get("MYCOJOBS_TOKEN") or None)
        self._jobs = _Waits(self, "jobs.wait", "jobs", "key")
        self._flows = _Waits(self, "flows.wait", "flows", "id")

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends its waits and connections."""
        self._jobs.close()
        self._flows.close()
        self._http.close()

    async def call(self, method: str, params: Optional[Mapping[str, Any]] = None, *, repeat: Optional[bool] = None, answer_within: float = ANSWER_S) -> Any:
        """Any method of the contract, by its own names. repeat: whether it may be sent again if no answer came; None: if that is harmless."""
        params = {name: value for name, value in (params or {}).items() if value is not None}
        harmless = method.rpartition(".")[2] in READS or method == "job.cancel" or bool(params.get("idempotency_key") or params.get("key"))
        until, pause = time.monotonic() + self.retry_for, 0.05
        while True:
            try:
                return await self._once(method, params, answer_within)
            except Unavailable as why:
                may = not why.sent or (harmless if repeat is None else repeat)
                if not may or time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _once(self, method: str, params: Mapping[str, Any], seconds: float) -> Any:
        try:
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, allow_nan=False).encode()
        except (TypeError, ValueError) as why:
            raise Invalid(f"{method}: a parameter is no JSON: {why}") from None
        if len(body) > MOST_BYTES:  # a server closes the connection at once: its answer might be lost
            raise TooLarge(f"{method}: {len(body)} bytes are over the limit of {MOST_BYTES}", remedy="send less at one time")
        status, data = await self._http.post(body, seconds, shared=not method.endswith(".logs"))
        if status != 200:
            raise refused(status, data)
        try:
            answer = json.loads(data)
            if "error" not in answer:
                return answer["result"]
        except (ValueError, KeyError, TypeError) as why:
            raise Error(f"{self.url} answers what is no JSON-RPC: {data[:100]!r}") from why
        raise read_error(answer["error"])

    async def submit(self, what: Union[str, Callable[..., Any]], /, *args: Any, kwargs: Optional[Mapping[str, Any]] = None, **options: Any) -> "AsyncJob":
        """Queues a script, or a function that is called there with these arguments. options: what `job.start` takes, by its names (timeout,
        retries, name, priority, policy, ...), and type, env, depends (jobs or ids) for script_type, env_vars, dependends."""
        if not isinstance(what, str):
            options = {**options_of(what), **options}
            if options.get("type", "python") != "python":
                raise CannotShip(f"{what.__name__}: a function is a job of type python")
            options.setdefault("name", what.__name__)
            what = script_of(what, args, kwargs or {})
        elif args or kwargs:
            raise Invalid("a script takes no arguments", remedy="give them in env, or ship a function")
        for short, name in (("type", "script_type"), ("env", "env_vars"), ("depends", "dependends")):
            if short in options:
                options[name] = options.pop(short)
        if "dependends" in options:
            options["dependends"] = [each if isinstance(each, int) else each.id for each in options["dependends"]]
        params: Json = {"script": what, "script_type": "python", "context_id": self.context, "idempotency_key": uuid.uuid4().hex, **options}
        return AsyncJob(self, (await self.call("job.start", params))["key"], params["context_id"])

    def job(self, key: Union[str, int]) -> "AsyncJob":
        """One that exists: "CALLER:ID", "job:CALLER:ID", or an id of the token's own."""
        return AsyncJob(self, str(key), self.context)

    async def flow_start(self, definition: Mapping[str, Any], *, inputs: Optional[Mapping[str, Any]] = None, env: Optional[Mapping[str, str]] = None,
                         notify: Any = None, idempotency_key: Optional[str] = None, traceparent: Optional[str] = None) -> "AsyncFlow":  # fmt: skip
        """Makes a flow of a definition (docs/flows.md) and begins it."""
        params = {"definition": definition, "inputs": inputs, "env_vars": env, "notify": notify, "context_id": self.context, "traceparent": traceparent}
        made = await self.call("flow.create", {**params, "idempotency_key": idempotency_key or uuid.uuid4().hex})
        await self.call("flow.start", {"id": made["id"], "context_id": self.context}, repeat=True)
        return self.flow(made["id"])

    def flow(self, number: int) -> "AsyncFlow":
        return AsyncFlow(self, number, self.context)

    async def events(self, *, flow: Optional[int] = None, job: Optional[str] = None, after: str = "") -> AsyncIterator[Event]:
        """What happens, as it happens: to a flow or a job until it has ended, else to all flows of the context. Goes on after a lost connection."""
        context = self.context or (await self.call("system.info"))["contexts"][0]
        query = f"context={context}" + (f"&flow={flow}" if flow else "") + (f"&job={job}" if job else "")
        until = time.monotonic() + self.retry_for
        while True:
            try:
                async for event in self._http.events(query, after):
                    after, until = event.id or after, time.monotonic() + self.retry_for
                    if event.kind == "gone":
                        raise Denied(str(event.data.get("message")))
                    yield event
                    if (job and event.data.get("ended")) or (flow and event.kind == "flow" and event.data["status"] in ("finished", "error")):
                        return
            except Unavailable:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(0.5)


class AsyncJob:
    def __init__(self, client: AsyncClient, key: str, context: Optional[int]) -> None:
        self._client, self.key, self._context = client, key[4:] if key.startswith("job:") else key, context

    def __repr__(self) -> str:
        return f"<job {self.key}>"

    @property
    def id(self) -> int:
        return int(self.key.rpartition(":")[2])

    async def _call(self, method: str, **params: Any) -> Any:
        return await self._client.call(method, {"id": self.key, "context_id": self._context, **params})

    async def status(self) -> Json:
        """Where it is: JobState."""
        state: Json = await self._call("job.status")
        return state

    async def wait(self, timeout: Optional[float] = None) -> Json:
        """Its JobState when it has ended, however. WaitTimeout: it has not in so many seconds."""
        if ":" not in self.key:
            self.key = (await self.status())["key"][4:]
        return await self._client._jobs.wait("job:" + self.key, self._context, timeout, f"job {self.key}")

    async def result(self, timeout: Optional[float] = None) -> Any:
        """What it has handed back, when it has ended: a function's value, a script's `result`. JobFailed, JobCancelled: it has not finished."""
        await self.wait(timeout)
        state: Json = await self._call("job.result")
        if state["status"] != "finished":
            raise (JobCancelled if state["detail"] == "cancelled" else JobFailed)(state)
        result = state["result"]
        return result[RETURN] if list(result) == [RETURN] else result

    async def logs(self, follow: bool = False, after: int = 0) -> AsyncIterator[Json]:
        """Its LogLines behind that number: those that there are, or, with follow, until it has ended."""
        while True:
            page = await self._call("job.logs", after_seq=after, wait_ms=LOG_WAIT_MS if follow else 0)
            for line in page["lines"]:
                yield line
            after = page["after_seq"]
            if page["ended"] or not (follow or page["lines"]):
                return

    async def cancel(self) -> Json:
        """Ends it wherever it is, for ever. One that runs has its grace time: wait() for its end."""
        state: Json = await self._call("job.cancel")
        return state

    async def retry(self) -> Json:
        """Runs it again, if it has ended as error."""
        state: Json = await self._call("job.retry")
        return state

    async def explain(self) -> Json:
        """Why it is where it is: JobReason."""
        reason: Json = await self._call("job.explain")
        return reason


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
        """FlowResult, as far as it is."""
        state: Json = await self._call("flow.result")
        return state

    async def dag(self) -> Json:
        """Its nodes and edges, and how they stand: FlowDag."""
        dag: Json = await self._call("flow.dag")
        return dag

    async def explain(self) -> List[Json]:
        """Why it is where it is: FlowReasons, the first one first."""
        reasons: List[Json] = await self._call("flow.explain")
        return reasons

    async def wait(self, timeout: Optional[float] = None) -> Json:
        """Its FlowResult when it has ended, however. WaitTimeout: it has not in so many seconds."""
        return await self._client._flows.wait(self.id, self._context, timeout, f"flow {self.id}")

    async def result(self, timeout: Optional[float] = None) -> Json:
        """What its jobs have handed back, by <node>.<key>, when it has ended. FlowFailed: it has not finished."""
        state = await self.wait(timeout)
        if state["status"] != "finished":
            raise FlowFailed(state)
        result: Json = state["result"]
        return result

    async def approve(self, name: str, comment: Optional[str] = None) -> Json:
        return await self._control("approve", name=name, comment=comment)

    async def reject(self, name: str, comment: Optional[str] = None) -> Json:
        return await self._control("reject", name=name, comment=comment)

    async def signal(self, name: str, payload: Any = None) -> Json:
        """Opens what waits for signal:NAME. payload: JSON that the jobs behind it get."""
        return await self._control("signal", name=name, payload=payload)

    async def cancel(self, comment: Optional[str] = None) -> Json:
        return await self._control("cancel", comment=comment)

    async def pause(self, comment: Optional[str] = None) -> Json:
        return await self._control("pause", comment=comment)

    async def resume(self, node: Optional[str] = None) -> Json:
        return await self._control("resume", node=node)

    async def retry(self, node: Optional[str] = None) -> Json:
        """Runs what has failed again."""
        return await self._control("retry", node=node)


class _Waits:
    """Any number of waits over at most MOST_WAITS calls: each takes everything that no other call asks for. The last of them is short, so that
    who begins to wait then is not left out for long."""

    def __init__(self, client: AsyncClient, method: str, param: str, name: str) -> None:
        self._client, self._method, self._param, self._name = client, method, param, name
        self._waiting: Dict[Any, Set["asyncio.Future[Json]"]] = {}
        self._unasked: Set[Any] = set()
        self._calls: Set["asyncio.Task[None]"] = set()

    async def wait(self, key: Any, context: Optional[int], timeout: Optional[float], what: str) -> Json:
        future: "asyncio.Future[Json]" = asyncio.get_running_loop().create_future()
        place = (context, key)
        if place not in self._waiting:
            self._unasked.add(place)
        self._waiting.setdefault(place, set()).add(future)
        self._ask()
        done, _ = await self._until(future, place, timeout)
        if not done:
            raise WaitTimeout(f"{what} has not ended after {timeout:g} s", remedy="it goes on: wait again, or cancel it")
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
            future.set_exception(Error("the client was closed", remedy="wait with another one", word="closed"))
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
        try:
            for state in await self._client.call(self._method, {self._param: keys, "context_id": context, "wait_ms": wait_ms}):
                for future in self._leave(context, state[self._name]):
                    future.set_result(state)
        except Error as why:
            # "jobs[3]": that one cannot be waited for; the others can
            at = why.field[len(self._param) + 1 : -1] if isinstance(why, (NotFound, Denied, Invalid)) else ""
            for key in [keys[int(at)]] if at.isdigit() else keys:
                for future in self._leave(context, key):
                    future.set_exception(why)
        finally:
            self._calls.discard(asyncio.current_task())  # type: ignore[arg-type]
            self._unasked.update(place for place in ((context, key) for key in keys) if place in self._waiting)
            if self._waiting:
                self._ask()

    def _leave(self, context: Optional[int], key: Any) -> Iterator["asyncio.Future[Json]"]:
        return (future for future in self._waiting.pop((context, key), set()) if not future.done())
