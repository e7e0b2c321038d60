"""A blocking, thread-safe client for programs without asyncio. It runs an AsyncClient in the event loop of a thread."""
from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Iterator, List, Optional, TypeVar, Union

from .aio import AsyncArtifact, AsyncClient, AsyncFlow, AsyncJob
from .errors import closed_error
from .timespan import Duration

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")


class _LoopThread:
    """A thread that runs the event loop of a client. It has no reference to the Client, so that the Client can be
    finalized while the thread runs."""

    def __init__(self, async_client: AsyncClient) -> None:
        self._event_loop, self._async_client, self._pid = asyncio.new_event_loop(), async_client, os.getpid()
        self._lock, self._closed = threading.RLock(), False
        self._thread = threading.Thread(target=self._run_loop, name="mycojobs", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine in the loop thread, and waits for its result. Error `closed`: the client was closed."""
        # A finalizer may run in the loop thread, where a wait would deadlock: treat the client as closed.
        future = None if threading.current_thread() is self._thread else self._schedule(coroutine)
        if future is None:
            coroutine.close()
            raise closed_error()
        try:
            return future.result()
        except concurrent.futures.CancelledError:  # the loop thread cancels pending calls when it stops
            raise closed_error() from None
        except BaseException:  # also KeyboardInterrupt: the result is no longer needed
            future.cancel()
            raise

    def close_iterator(self, iterator: Any) -> None:
        """Closes an asynchronous iterator without waiting, since a finalizer may run in the loop thread."""
        close_coroutine = iterator.aclose()
        if not self._schedule(close_coroutine):
            close_coroutine.close()

    def _schedule(self, coroutine: Coroutine[Any, Any, T]) -> "Optional[concurrent.futures.Future[T]]":
        """Starts the coroutine in the loop thread. Returns None if the client is closed or belongs to a parent
        process."""
        if self._pid == os.getpid():  # after a fork, another thread of the parent may have left the lock locked
            with self._lock:
                if not self._closed:
                    return asyncio.run_coroutine_threadsafe(coroutine, self._event_loop)
        return None

    def stop(self) -> None:
        """Stops the loop; pending calls raise the error `closed`."""
        if self._pid != os.getpid():
            return  # after a fork: the thread and the connections belong to the parent
        with self._lock:
            if not self._closed:
                self._closed = True
                # The loop runs callbacks in order, so the coroutines that were scheduled before have started.
                self._event_loop.call_soon_threadsafe(self._event_loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run_loop(self) -> None:
        self._event_loop.run_forever()
        self._event_loop.run_until_complete(self._async_client.close())
        while tasks := asyncio.all_tasks(self._event_loop):
            for task in tasks:
                task.cancel()
            self._event_loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._event_loop.run_until_complete(self._event_loop.shutdown_asyncgens())
        self._event_loop.close()


def _make_blocking(method: "Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]") -> "Callable[Concatenate[Any, P], T]":
    """Returns a method that runs an asynchronous method in the loop thread, and waits for its result."""
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._loop_thread.run(method(self._async, *args, **kwargs))

    return call


def _make_iterator(method: "Callable[Concatenate[Any, P], AsyncIterator[T]]") -> "Callable[Concatenate[Any, P], Iterator[T]]":
    """Returns a generator method for an asynchronous generator method."""
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        iterator: Any = method(self._async, *args, **kwargs)
        try:
            while True:
                try:
                    yield self._loop_thread.run(iterator.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._loop_thread.close_iterator(iterator)

    return call


class Artifact:
    """AsyncArtifact with blocking methods."""

    def __init__(self, client: "Client", artifact: AsyncArtifact) -> None:
        self._client, self._loop_thread, self._async = client, client._loop_thread, artifact  # keeps the client open
        self.name, self.bytes, self.sha256, self.media_type = artifact.name, artifact.bytes, artifact.sha256, artifact.media_type
        self.executable, self.runner_id, self.readable, self.problem = artifact.executable, artifact.runner_id, artifact.readable, artifact.problem

    def __repr__(self) -> str:
        return repr(self._async)

    save = _make_blocking(AsyncArtifact.save)


class Job:
    """AsyncJob with blocking methods."""

    def __init__(self, client: "Client", async_job: AsyncJob) -> None:
        self._client, self._loop_thread, self._async = client, client._loop_thread, async_job  # keeps the client open

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

    @functools.wraps(AsyncJob.artifacts)
    def artifacts(self) -> List[Artifact]:
        return [Artifact(self._client, artifact) for artifact in self._loop_thread.run(self._async.artifacts())]

    cancel = _make_blocking(AsyncJob.cancel)
    retry = _make_blocking(AsyncJob.retry)

    @functools.wraps(AsyncJob.restart)
    def restart(self) -> "Job":
        return Job(self._client, self._loop_thread.run(self._async.restart()))

    explain = _make_blocking(AsyncJob.explain)


class Flow:
    """AsyncFlow with blocking methods."""

    def __init__(self, client: "Client", async_flow: AsyncFlow) -> None:
        self._client, self._loop_thread, self._async = client, client._loop_thread, async_flow  # keeps the client open

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


def _make_wrapping_call(method: "Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]]", handle_class: "Callable[[Client, Any], T]") -> "Callable[Concatenate[Any, P], T]":
    """As _make_blocking(); wraps the result in `handle_class`, Job or Flow."""
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return handle_class(self, self._loop_thread.run(method(self._async, *args, **kwargs)))

    return call


class Client:
    """AsyncClient with blocking methods. Thread-safe. A `with` statement closes it, as does the end of the program."""

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, context: Optional[int] = None, retry_for: Duration = 30.0, ca: Optional[str] = None) -> None:
        self._async = AsyncClient(url, token, context=context, retry_for=retry_for, ca=ca)
        self._loop_thread = _LoopThread(self._async)
        self._finalizer = weakref.finalize(self, self._loop_thread.stop)

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
    submit = _make_wrapping_call(AsyncClient.submit, Job)
    upload = _make_blocking(AsyncClient.upload)
    flow_start = _make_wrapping_call(AsyncClient.flow_start, Flow)
    events = _make_iterator(AsyncClient.events)
