"""HTTP/1.1 to one server on asyncio alone: connections that are used again, answers, streams of events."""
from __future__ import annotations

import asyncio
import email.message
import http.client
import io
import json
import ssl
import time
from typing import AsyncIterator, Awaitable, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from .errors import Error, Invalid, Unavailable, read_error

MOST_CONNECTIONS = 8  # of calls; a stream of events or a log that is followed has one of its own
IDLE_S = 10.0  # the server closes one after 15 s
CONNECT_S = 10.0
SILENCE_S = 45.0  # a stream says something every 15 s
HEAD_BYTES = 65536


class Event(NamedTuple):
    """kind: fact, flow, log or job (docs/rpc.md, Events); id: what `after` goes on behind."""

    kind: str
    id: str
    data: Dict[str, object]


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


def _lost(why: object, sent: bool = True) -> Unavailable:
    error = Unavailable(f"the server does not answer: {why}", remedy="see whether `mycojobs coordinator` or `dev` runs there")
    error.sent = sent
    return error


class Transport:
    """Of one event loop."""

    def __init__(self, url: str, token: Optional[str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid(f"{url!r} is no address of a server", remedy="give http://HOST:PORT")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise Invalid("the token has characters that no token has")
        self._host, self._path = parts.hostname, parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._common = f"Host: {parts.netloc.rpartition('@')[2]}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._idle: List[Tuple[float, _Connection]] = []
        self._free: Optional[asyncio.Semaphore] = None  # made in the loop that it belongs to

    async def post(self, body: bytes, seconds: float, *, shared: bool = True) -> Tuple[int, bytes]:
        """Status and body of the answer. shared: counts among MOST_CONNECTIONS. Error Unavailable: none came."""
        self._free = self._free or asyncio.Semaphore(MOST_CONNECTIONS)
        if not shared:
            return await self._post(body, seconds)
        async with self._free:
            return await self._post(body, seconds)

    async def _post(self, body: bytes, seconds: float) -> Tuple[int, bytes]:
        connection = self._kept() or await self._open()
        whole = False
        try:
            await self._send(connection, "POST", "/rpc", f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n", body)
            status, headers, data = await asyncio.wait_for(self._answer(connection.reader), seconds)
            whole = status < 400 and headers.get("Connection", "").lower() != "close" and "Content-Length" in headers
            return status, data
        except (OSError, EOFError, asyncio.TimeoutError, ValueError, http.client.HTTPException) as why:
            raise _lost(repr(why)) from why
        finally:
            if whole:
                self._idle.append((time.monotonic(), connection))
            else:
                connection.writer.close()

    async def events(self, query: str, after: str) -> AsyncIterator[Event]:
        """Of one connection, until that ends. Error Unavailable: it broke."""
        connection = await self._open()
        try:
            await self._send(connection, "GET", f"/events?{query}", f"Last-Event-ID: {after}\r\n" if after else "")
            status, headers = await asyncio.wait_for(_read_head(connection.reader), SILENCE_S)
            if status != 200:
                data = b"".join([block async for block in _blocks(connection.reader, headers)])
                raise refused(status, data)
            async for event in _events(_blocks(connection.reader, headers)):
                yield event
        except (OSError, EOFError, asyncio.TimeoutError, ValueError, http.client.HTTPException) as why:
            raise _lost(repr(why)) from why
        finally:
            connection.writer.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].writer.close()

    def _kept(self) -> Optional[_Connection]:
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE_S and not connection.reader.at_eof():
                return connection
            connection.writer.close()
        return None

    async def _open(self) -> _Connection:
        try:
            opening = asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=HEAD_BYTES)
            return _Connection(*await asyncio.wait_for(opening, CONNECT_S))
        except (OSError, asyncio.TimeoutError) as why:
            raise _lost(why or "no connection", sent=False) from why

    async def _send(self, connection: _Connection, verb: str, path: str, more: str, body: bytes = b"") -> None:
        head = f"{verb} {self._path}{path} HTTP/1.1\r\n{self._common}{more}\r\n"
        connection.writer.write(head.encode("latin-1") + body)
        try:
            await asyncio.wait_for(connection.writer.drain(), SILENCE_S)
        except ConnectionError:
            pass  # a server that refuses a body may have answered before it had all of it

    @staticmethod
    async def _answer(reader: asyncio.StreamReader) -> Tuple[int, email.message.Message, bytes]:
        status, headers = await _read_head(reader)
        return status, headers, b"".join([block async for block in _blocks(reader, headers)])


def refused(status: int, data: bytes) -> Error:
    """What an answer says that has no 200."""
    try:
        error = read_error(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        error = Unavailable(f"HTTP {status}: {data[:200].decode(errors='replace')}") if status >= 500 else Error(f"HTTP {status}", word="http")
    if isinstance(error, Unavailable):
        error.sent = False  # refused before it was looked at
    return error


async def _read_head(reader: asyncio.StreamReader) -> Tuple[int, email.message.Message]:
    line, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
    words = line.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("no answer of HTTP")
    return int(words[1]), http.client.parse_headers(io.BytesIO(rest))


async def _blocks(reader: asyncio.StreamReader, headers: email.message.Message) -> AsyncIterator[bytes]:
    """The body, by length, in chunks, or until the connection ends."""
    if headers.get("Transfer-Encoding", "").lower() == "chunked":
        while True:
            size = int((await _said(reader.readuntil(b"\r\n"))).split(b";")[0], 16)
            block = await reader.readexactly(size + 2)
            if size == 0:
                return
            yield block[:-2]
    elif "Content-Length" in headers:
        yield await reader.readexactly(int(headers["Content-Length"]))
    else:
        while True:
            block = await _said(reader.read(HEAD_BYTES))
            if not block:
                return
            yield block


async def _said(reading: Awaitable[bytes]) -> bytes:
    return await asyncio.wait_for(reading, SILENCE_S)


async def _events(blocks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """text/event-stream, as far as the server writes it: lines end in LF."""
    rest, fields = b"", {}  # type: bytes, Dict[str, str]
    async for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").decode().partition(":")
            if name:
                fields[name] = value[1:] if value.startswith(" ") else value
            elif not line.strip() and "data" in fields:
                yield Event(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"]))
            if not line.strip():
                fields = {}
