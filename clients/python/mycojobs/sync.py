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
from .errors import closed
from .timespan import Duration

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")


class _Loop:
    """The thread with the event loop of a client. It refers to the client's parts, not to the client, so that the
    client is destroyed when its users release it."""

    def __init__(self, of: AsyncClient) -> None:
        self._loop, self._of, self._pid = asyncio.new_event_loop(), of, os.getpid()
        self._lock, self._closed = threading.RLock(), False
        self._thread = threading.Thread(target=self._live, name="mycojobs", daemon=True)
        self._thread.start()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        # in that thread, a finalizer would wait for itself
        future = None if threading.current_thread() is self._thread else self._begin(doing)
        if future is None:
            doing.close()
            raise closed()
        try:
            return future.result()
        except concurrent.futures.CancelledError:  # only when the thread ends
            raise closed() from None
        except BaseException:  # including Ctrl-C: the result is no longer needed
            future.cancel()
            raise

    def leave(self, iterator: Any) -> None:
        """Ends an iteration without waiting: a finalizer may run in any thread, including that of the loop."""
        ending = iterator.aclose()
        if not self._begin(ending):
            ending.close()

    def _begin(self, doing: Coroutine[Any, Any, T]) -> "Optional[concurrent.futures.Future[T]]":
        if self._pid == os.getpid():  # after a fork, the lock may stay locked
            with self._lock:
                if not self._closed:
                    return asyncio.run_coroutine_threadsafe(doing, self._loop)
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

    def _live(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._of.close())
        while rest := asyncio.all_tasks(self._loop):
            for task in rest:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


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
            self._loop.leave(each)

    return call


class Job:
    """AsyncJob with blocking methods."""

    def __init__(self, client: "Client", of: AsyncJob) -> None:
        self._client, self._loop, self._of = client, client._loop, of  # keeps the client open

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

    @functools.wraps(AsyncJob.restart)
    def restart(self) -> "Job":
        return Job(self._client, self._loop.run(self._of.restart()))

    explain = _blocking(AsyncJob.explain)


class Flow:
    """AsyncFlow with blocking methods."""

    def __init__(self, client: "Client", of: AsyncFlow) -> None:
        self._client, self._loop, self._of = client, client._loop, of  # keeps the client open

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
    """AsyncClient with blocking methods. Thread-safe. `with` closes it, as does the end of the program."""

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, context: Optional[int] = None, retry_for: Duration = 30.0) -> None:
        self._of = AsyncClient(url, token, context=context, retry_for=retry_for)
        self._loop = _Loop(self._of)
        self._finish = weakref.finalize(self, self._loop.stop)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._finish()

    def job(self, key: Union[str, int]) -> Job:
        """Returns an existing job: "CALLER:ID", "job:CALLER:ID", or an id of the token's own caller."""
        return Job(self, self._of.job(key))

    def flow(self, number: int) -> Flow:
        return Flow(self, self._of.flow(number))

    call = _blocking(AsyncClient.call)
    submit = _making(AsyncClient.submit, Job)
    flow_start = _making(AsyncClient.flow_start, Flow)
    events = _iterating(AsyncClient.events)
