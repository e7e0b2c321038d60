"""An HTTP/1.1 client for one server, with asyncio only. It reuses connections. It also reads event streams."""
from __future__ import annotations

import asyncio
import contextlib
import email.message
import http.client
import io
import json
import ssl
import time
from typing import AsyncIterator, Awaitable, BinaryIO, Dict, List, NamedTuple, Optional, Set, Tuple
from urllib.parse import urlencode, urlsplit

from .errors import Error, Invalid, TooLarge, Unavailable, closed_error, invalid_response_error, read_error, tls_error

MAX_CONNECTIONS = 8  # for calls; event streams and followed logs have their own connections
MAX_IDLE_S = 10.0  # the server closes idle connections after 15 s
CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 45.0  # an event stream receives a heartbeat at least every 15 s
MAX_HEAD_BYTES = 65536
UPLOAD_BLOCK_BYTES = 65536
UPLOAD_RESPONSE_TIMEOUT_S = 120.0  # the server writes the file to its disk before it responds
MAX_RESPONSE_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
CONNECTION_ERRORS = (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError, ValueError, RecursionError, http.client.HTTPException)


class Event(NamedTuple):
    """An event of /events. kind: fact, flow, log or job (docs/rpc.md, Events), or "" for a heartbeat. id: the
    position in the stream, for the parameter `after` of the next call."""

    kind: str
    id: str
    data: Dict[str, object]


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Transport:
    """The connections to one server. Use it in one event loop only."""

    def __init__(self, url: str, token: Optional[str], ca: Optional[str] = None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # "http://[", "http://h:99999"
            host = None
        if not host or parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable() or " " in url:
            raise Invalid(f"{url!r} is not an address of a server", remedy="give http://HOST:PORT or https://HOST:PORT")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise Invalid("the token has invalid characters")
        self._host, self._path = host, parts.path.rstrip("/")
        self._tls_context = _make_tls_context(ca) if parts.scheme == "https" else None
        self._port = port or (443 if self._tls_context else 80)
        self._common_headers = f"Host: {parts.netloc.rpartition('@')[2]}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._idle: List[Tuple[float, _Connection]] = []  # with the time.monotonic() at which each became idle
        self._connections: Set[_Connection] = set()  # all open connections
        self._slots: Optional[asyncio.Semaphore] = None  # created by the first call, inside the event loop
        self.closed = False

    async def post(self, body: bytes, timeout_s: float, *, takes_slot: bool = True) -> Tuple[int, bytes]:
        """Returns status and body of the response. takes_slot: waits for one of MAX_CONNECTIONS slots; False: sends at
        once, for a call that the server may answer late. Error Unavailable: no response arrived."""
        self._slots = self._slots or asyncio.Semaphore(MAX_CONNECTIONS)
        if not takes_slot:
            return await self._post(body, timeout_s)
        async with self._slots:
            return await self._post(body, timeout_s)

    async def _post(self, body: bytes, timeout_s: float) -> Tuple[int, bytes]:
        connection = self._pop_idle() or await self._open()
        is_reusable = False
        try:
            await self._send(connection, "POST", "/rpc", f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n", body)
            status, headers, data = await asyncio.wait_for(self._read_response(connection.reader), timeout_s)
            is_reusable = status < 400 and headers.get("Connection", "").lower() != "close" and "Content-Length" in headers
            return status, data
        except CONNECTION_ERRORS as cause:
            raise self._make_connection_error(cause) from cause
        finally:
            if is_reusable and not self.closed:
                self._idle.append((time.monotonic(), connection))
            else:
                self._discard(connection)

    async def events(self, **query: object) -> AsyncIterator[Event]:
        """Yields the events of one connection until its end. Error Unavailable: the connection failed."""
        connection = await self._open()
        try:
            await self._send(connection, "GET", "/events?" + urlencode({name: value for name, value in query.items() if value}), "")
            status, headers = await asyncio.wait_for(_read_head(connection.reader), SILENCE_TIMEOUT_S)
            if status != 200:
                raise read_http_error(status, await _join_blocks(_read_body_blocks(connection.reader, headers)))
            async for event in _parse_events(_read_body_blocks(connection.reader, headers)):
                yield event
        except CONNECTION_ERRORS as cause:
            raise self._make_connection_error(cause) from cause
        finally:
            self._discard(connection)

    async def download(self, query: Dict[str, object], offset: int) -> AsyncIterator[bytes]:
        """Yields the bytes of a file of a job from the offset on (GET /artifacts). Error Unavailable: the connection failed,
        or the server cannot send the file now."""
        connection = await self._open()
        try:
            headers = f"Range: bytes={offset}-\r\n" if offset else ""
            await self._send(connection, "GET", "/artifacts?" + urlencode({name: value for name, value in query.items() if value}), headers)
            status, answer_headers = await asyncio.wait_for(_read_head(connection.reader), SILENCE_TIMEOUT_S)
            if status not in (200, 206):
                raise read_http_error(status, await _join_blocks(_read_body_blocks(connection.reader, answer_headers)))
            begin = int(answer_headers.get("Content-Range", "bytes 0-").partition(" ")[2].partition("-")[0])
            if begin != offset or "Content-Length" not in answer_headers:
                raise invalid_response_error("GET /artifacts", f"status {status}, {begin} in place of {offset}")
            async for block in _read_exactly(connection.reader, int(answer_headers["Content-Length"])):
                yield block
        except CONNECTION_ERRORS as cause:
            raise self._make_connection_error(cause) from cause
        finally:
            self._discard(connection)

    async def upload(self, link: str, file: BinaryIO, size: int) -> bytes:
        """Sends a file to the link of artifact.put (PUT /artifacts), and returns the body of the response. Error Unavailable:
        the connection failed, or the server cannot store the file now."""
        connection = await self._open()
        try:
            await self._send(connection, "PUT", link, f"Content-Length: {size}\r\n")
            with contextlib.suppress(ConnectionError):  # a server that refuses the file may have responded before its end
                while block := file.read(UPLOAD_BLOCK_BYTES):
                    connection.writer.write(block)
                    await asyncio.wait_for(connection.writer.drain(), SILENCE_TIMEOUT_S)
            status, _, data = await asyncio.wait_for(self._read_response(connection.reader), UPLOAD_RESPONSE_TIMEOUT_S)
            if status != 201:
                raise read_http_error(status, data)
            return data
        except CONNECTION_ERRORS as cause:
            raise self._make_connection_error(cause) from cause
        finally:
            self._discard(connection)

    def close_idle(self) -> None:
        """Closes idle connections."""
        while self._idle:
            self._discard(self._idle.pop()[1])

    def close(self) -> None:
        """Closes all connections; pending calls raise the error `closed`."""
        self.closed = True
        self._idle.clear()
        for connection in list(self._connections):
            self._discard(connection)

    def _discard(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        connection.writer.close()

    def _make_connection_error(self, cause: object, was_sent: bool = True) -> Error:
        if self.closed:
            return closed_error()
        error = Unavailable(f"the server does not answer: {str(cause) or repr(cause)}", remedy="see whether `mycojobs coordinator` or `dev` runs there")
        error.sent = was_sent
        return error

    def _pop_idle(self) -> Optional[_Connection]:
        while self._idle:
            idle_since, connection = self._idle.pop()
            if time.monotonic() - idle_since < MAX_IDLE_S and not connection.reader.at_eof():
                return connection
            self._discard(connection)
        return None

    async def _open(self) -> _Connection:
        try:
            open_coroutine = asyncio.open_connection(self._host, self._port, ssl=self._tls_context, limit=MAX_HEAD_BYTES)
            connection = _Connection(*await asyncio.wait_for(open_coroutine, CONNECT_TIMEOUT_S))
        except (OSError, asyncio.TimeoutError, ValueError) as cause:  # ValueError: an invalid host name
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) and not self.closed:
                raise tls_error(cause, self._host) from cause
            raise self._make_connection_error(cause, was_sent=False) from cause
        self._connections.add(connection)
        if self.closed:
            self._discard(connection)
            raise closed_error()
        return connection

    async def _send(self, connection: _Connection, verb: str, path: str, headers: str, body: bytes = b"") -> None:
        head = f"{verb} {self._path}{path} HTTP/1.1\r\n{self._common_headers}{headers}\r\n"
        connection.writer.write(head.encode("latin-1") + body)
        try:
            await asyncio.wait_for(connection.writer.drain(), SILENCE_TIMEOUT_S)
        except ConnectionError:
            pass  # a server that refuses a body may have responded before it received all of it

    @staticmethod
    async def _read_response(reader: asyncio.StreamReader) -> Tuple[int, email.message.Message, bytes]:
        status, headers = await _read_head(reader)
        return status, headers, await _join_blocks(_read_body_blocks(reader, headers))


def _make_tls_context(ca: Optional[str]) -> ssl.SSLContext:
    """`ca`: a file with the certificates (PEM) of the trusted CAs, in place of those of the system."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # also ssl.SSLError: no certificate in the file
        raise Invalid(f"ca: {ca}: {error.strerror or error}", remedy="give a file with certificates in PEM") from None


def read_http_error(status: int, data: bytes) -> Error:
    """Returns the error of a response with a status other than 200. Status 503 means that the server refused the call
    before processing it. Any other status may be from a proxy, after the server has processed the call."""
    try:
        error = read_error(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = f"HTTP {status}: {data[:200].decode(errors='replace')}"
        error = Unavailable(text) if status >= 500 else Error(text, word="http")
    if isinstance(error, Unavailable):
        error.sent = status != 503
    return error


async def _read_head(reader: asyncio.StreamReader) -> Tuple[int, email.message.Message]:
    status_line, _, header_lines = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
    status_parts = status_line.split(None, 2)
    if len(status_parts) < 2 or not status_parts[0].startswith(b"HTTP/1.") or not status_parts[1].isdigit():
        raise ValueError("not an HTTP response")
    return int(status_parts[1]), http.client.parse_headers(io.BytesIO(header_lines))


async def _read_body_blocks(reader: asyncio.StreamReader, headers: email.message.Message) -> AsyncIterator[bytes]:
    """Yields the body in blocks. It ends after the last chunk, after Content-Length bytes, or with the connection."""
    if headers.get("Transfer-Encoding", "").lower() == "chunked":
        while True:
            size = _parse_size((await _wait_for_data(reader.readuntil(b"\r\n"))).split(b";")[0], 16)
            async for block in _read_exactly(reader, size):
                yield block
            await _wait_for_data(reader.readexactly(2))
            if size == 0:
                return
    elif "Content-Length" in headers:
        async for block in _read_exactly(reader, _parse_size(headers["Content-Length"].encode(), 10)):
            yield block
    else:
        while True:
            block = await _wait_for_data(reader.read(MAX_HEAD_BYTES))
            if not block:
                return
            yield block


async def _read_exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size > 0:
        block = await _wait_for_data(reader.read(min(size, MAX_HEAD_BYTES)))
        if not block:
            raise EOFError("the response is truncated")
        size -= len(block)
        yield block


def _parse_size(digits: bytes, base: int) -> int:
    size = int(digits, base)
    if size < 0:
        raise ValueError("a negative length")
    return _check_size(size)


def _check_size(size: int) -> int:
    if size > MAX_RESPONSE_BYTES:
        raise TooLarge(f"a response of {size} bytes is over the limit of {MAX_RESPONSE_BYTES}", remedy="request less at a time")
    return size


async def _wait_for_data(read: Awaitable[bytes]) -> bytes:
    return await asyncio.wait_for(read, SILENCE_TIMEOUT_S)


async def _join_blocks(blocks: AsyncIterator[bytes]) -> bytes:
    data = bytearray()
    async for block in blocks:
        _check_size(len(data) + len(block))
        data += block
    return bytes(data)


async def _parse_events(blocks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Parses a text/event-stream body. The server ends each line with LF, so CR is not handled."""
    buffer, fields = b"", {}  # type: bytes, Dict[str, str]
    async for block in blocks:
        *lines, buffer = (buffer + block).split(b"\n")
        if len(buffer) > MAX_EVENT_BYTES:
            raise ValueError("an event without an end")
        for line in lines:
            text = line.rstrip(b"\r").decode()
            name, _, value = text.partition(":")
            if name in ("event", "id", "data"):
                fields[name] = value[1:] if value.startswith(" ") else value
            elif not text:
                data = json.loads(fields.get("data", "{}"))
                if not isinstance(data, dict):
                    raise ValueError("an event that is not an object")
                yield Event(fields.get("event", "message") if "data" in fields else "", fields.get("id", ""), data)
                fields = {}
