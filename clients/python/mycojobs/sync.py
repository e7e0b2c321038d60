"""The same client for programs without asyncio: its event loop runs in a thread of its own, and it is thread-safe."""
from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Iterator, Optional, TypeVar, Union

from .aio import AsyncClient, AsyncFlow, AsyncJob
from .errors import closed_error
from .timespan import Duration

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")


class _Loop:
    """The thread with the event loop of a client. It refers to the client's parts, not to the client, so that the
    client is destroyed when its users release it."""

    def __init__(self, async_object: AsyncClient) -> None:
        self._loop, self._async, self._pid = asyncio.new_event_loop(), async_object, os.getpid()
        self._lock, self._closed = threading.RLock(), False
        self._thread = threading.Thread(target=self._run_loop, name="mycojobs", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        # in that thread, a finalizer would wait for itself
        future = None if threading.current_thread() is self._thread else self._schedule(coroutine)
        if future is None:
            coroutine.close()
            raise closed_error()
        try:
            return future.result()
        except concurrent.futures.CancelledError:  # only when the thread ends
            raise closed_error() from None
        except BaseException:  # including Ctrl-C: the result is no longer needed
            future.cancel()
            raise

    def close_iterator(self, iterator: Any) -> None:
        """Ends an iteration without waiting: a finalizer may run in any thread, including that of the loop."""
        closing = iterator.aclose()
        if not self._schedule(closing):
            closing.close()

    def _schedule(self, coroutine: Coroutine[Any, Any, T]) -> "Optional[concurrent.futures.Future[T]]":
        if self._pid == os.getpid():  # after a fork, the lock may stay locked
            with self._lock:
                if not self._closed:
                    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return None

    def stop(self) -> None:
        """Stops the loop; pending calls raise the error `closed`."""
        if self._pid != os.getpid():
            return  # after a fork: the thread and the connections belong to the parent
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)  # after all calls that were started
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run_loop(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._async.close())
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def _make_blocking(method: "Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]") -> "Callable[Concatenate[Any, P], T]":
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._loop.run(method(self._async, *args, **kwargs))

    return call


def _make_iterator(method: "Callable[Concatenate[Any, P], AsyncIterator[T]]") -> "Callable[Concatenate[Any, P], Iterator[T]]":
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        iterator: Any = method(self._async, *args, **kwargs)
        try:
            while True:
                try:
                    yield self._loop.run(iterator.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._loop.close_iterator(iterator)

    return call


class Job:
    """AsyncJob with blocking methods."""

    def __init__(self, client: "Client", async_object: AsyncJob) -> None:
        self._client, self._loop, self._async = client, client._loop, async_object  # keeps the client open

    def __repr__(self) -> str:
        return repr(self._async)

    @property
    def key(self) -> str:
        return self._async.key

    @property
    def id(self) -> int:
        return self._async.id

    status = _make_blocking(AsyncJob.status)
    wait = _make_blocking(AsyncJob.wait)
    result = _make_blocking(AsyncJob.result)
    logs = _make_iterator(AsyncJob.logs)
    cancel = _make_blocking(AsyncJob.cancel)
    retry = _make_blocking(AsyncJob.retry)

    @functools.wraps(AsyncJob.restart)
    def restart(self) -> "Job":
        return Job(self._client, self._loop.run(self._async.restart()))

    explain = _make_blocking(AsyncJob.explain)


class Flow:
    """AsyncFlow with blocking methods."""

    def __init__(self, client: "Client", async_object: AsyncFlow) -> None:
        self._client, self._loop, self._async = client, client._loop, async_object  # keeps the client open

    def __repr__(self) -> str:
        return repr(self._async)

    @property
    def id(self) -> int:
        return self._async.id

    status = _make_blocking(AsyncFlow.status)
    dag = _make_blocking(AsyncFlow.dag)
    explain = _make_blocking(AsyncFlow.explain)
    wait = _make_blocking(AsyncFlow.wait)
    result = _make_blocking(AsyncFlow.result)
    approve = _make_blocking(AsyncFlow.approve)
    reject = _make_blocking(AsyncFlow.reject)
    signal = _make_blocking(AsyncFlow.signal)
    cancel = _make_blocking(AsyncFlow.cancel)
    pause = _make_blocking(AsyncFlow.pause)
    resume = _make_blocking(AsyncFlow.resume)
    retry = _make_blocking(AsyncFlow.retry)


def _make_factory(method: "Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]]", kind: "Callable[[Client, Any], T]") -> "Callable[Concatenate[Any, P], T]":
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return kind(self, self._loop.run(method(self._async, *args, **kwargs)))

    return call


class Client:
    """AsyncClient with blocking methods. Thread-safe. `with` closes it, as does the end of the program."""

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, context: Optional[int] = None, retry_for: Duration = 30.0) -> None:
        self._async = AsyncClient(url, token, context=context, retry_for=retry_for)
        self._loop = _Loop(self._async)
        self._finalizer = weakref.finalize(self, self._loop.stop)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._finalizer()

    def job(self, key: Union[str, int]) -> Job:
        """Returns an existing job: "CALLER:ID", "job:CALLER:ID", or an id of the token's own caller."""
        return Job(self, self._async.job(key))

    def flow(self, number: int) -> Flow:
        return Flow(self, self._async.flow(number))

    call = _make_blocking(AsyncClient.call)
    submit = _make_factory(AsyncClient.submit, Job)
    flow_start = _make_factory(AsyncClient.flow_start, Flow)
    events = _make_iterator(AsyncClient.events)
