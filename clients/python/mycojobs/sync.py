"""The same client for programs without asyncio: its loop runs in a thread of its own, which any number of threads share."""
from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Iterator, Optional, TypeVar, Union

from .aio import AsyncClient, AsyncFlow, AsyncJob
from .errors import Error

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mycojobs", daemon=True)
        self._thread.start()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid() or self._loop.is_closed():
            doing.close()
            raise Error("this client is closed, or was made before a fork", remedy="make a new Client")
        future = asyncio.run_coroutine_threadsafe(doing, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: nobody waits for it any more
            future.cancel()
            raise

    def stop(self) -> None:
        if self._pid != os.getpid() or self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @staticmethod
    async def _end() -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()


def _blocking(method: "Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]") -> "Callable[Concatenate[Any, P], T]":
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._loop.run(method(self._of, *args, **kwargs))

    return call


def _iterating(method: "Callable[Concatenate[Any, P], AsyncIterator[T]]") -> "Callable[Concatenate[Any, P], Iterator[T]]":
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        each: Any = method(self._of, *args, **kwargs)
        try:
            while True:
                try:
                    yield self._loop.run(each.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run(each.aclose())

    return call


class Job:
    """AsyncJob, whose methods block."""

    def __init__(self, client: "Client", of: AsyncJob) -> None:
        self._client, self._loop, self._of = client, client._loop, of  # a client that nobody holds is closed

    def __repr__(self) -> str:
        return repr(self._of)

    @property
    def key(self) -> str:
        return self._of.key

    @property
    def id(self) -> int:
        return self._of.id

    status = _blocking(AsyncJob.status)
    wait = _blocking(AsyncJob.wait)
    result = _blocking(AsyncJob.result)
    logs = _iterating(AsyncJob.logs)
    cancel = _blocking(AsyncJob.cancel)
    retry = _blocking(AsyncJob.retry)
    explain = _blocking(AsyncJob.explain)


class Flow:
    """AsyncFlow, whose methods block."""

    def __init__(self, client: "Client", of: AsyncFlow) -> None:
        self._client, self._loop, self._of = client, client._loop, of  # a client that nobody holds is closed

    def __repr__(self) -> str:
        return repr(self._of)

    @property
    def id(self) -> int:
        return self._of.id

    status = _blocking(AsyncFlow.status)
    dag = _blocking(AsyncFlow.dag)
    explain = _blocking(AsyncFlow.explain)
    wait = _blocking(AsyncFlow.wait)
    result = _blocking(AsyncFlow.result)
    approve = _blocking(AsyncFlow.approve)
    reject = _blocking(AsyncFlow.reject)
    signal = _blocking(AsyncFlow.signal)
    cancel = _blocking(AsyncFlow.cancel)
    pause = _blocking(AsyncFlow.pause)
    resume = _blocking(AsyncFlow.resume)
    retry = _blocking(AsyncFlow.retry)


def _making(method: "Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]]", kind: "Callable[[Client, Any], T]") -> "Callable[Concatenate[Any, P], T]":
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return kind(self, self._loop.run(method(self._of, *args, **kwargs)))

    return call


class Client:
    """AsyncClient, whose methods block. Any thread may use it. `with` closes it; the end of the program does, too."""

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, context: Optional[int] = None, retry_for: float = 30.0) -> None:
        self._of = AsyncClient(url, token, context=context, retry_for=retry_for)
        self._loop = _Loop()
        self._finish = weakref.finalize(self, _close, self._loop, self._of)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._finish()

    def job(self, key: Union[str, int]) -> Job:
        """One that exists: "CALLER:ID", "job:CALLER:ID", or an id of the token's own."""
        return Job(self, self._of.job(key))

    def flow(self, number: int) -> Flow:
        return Flow(self, self._of.flow(number))

    call = _blocking(AsyncClient.call)
    submit = _making(AsyncClient.submit, Job)
    flow_start = _making(AsyncClient.flow_start, Flow)
    events = _iterating(AsyncClient.events)


def _close(loop: _Loop, of: AsyncClient) -> None:
    loop.run(of.close())
    loop.stop()
