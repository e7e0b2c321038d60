"""The errors of the client. Each error has the contract's code, message and remedy; `str()` of it is safe for a
terminal."""
from __future__ import annotations

import ssl
from typing import Any, Dict, Mapping, Optional, Type


def screen(text: str) -> str:
    """Escapes control characters and direction marks in untrusted text for a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class Error(Exception):
    """`code`: the error code of JSON-RPC, or 0 if the error is not from a server. `word`: the name of the code. `field`:
    the parameter in question, or ""."""

    code = 0
    word = ""

    def __init__(self, message: str, *, remedy: str = "", field: str = "", code: Optional[int] = None, word: Optional[str] = None) -> None:
        super().__init__(message)
        self.message, self.remedy, self.field = message, remedy, field
        self.code = type(self).code if code is None else code
        self.word = type(self).word if word is None else word

    def __str__(self) -> str:
        return screen(self.message + (f" ({self.remedy})" if self.remedy else ""))


class Invalid(Error):
    """A parameter is invalid."""

    code, word = -32602, "invalid"


class NotFound(Error):
    code, word = -32001, "not_found"


class Conflict(Error):
    """The object exists with other content, or its state does not allow the operation."""

    code, word = -32002, "conflict"


class Denied(Error):
    """The token is unknown, or its actor is not allowed to do this."""

    code, word = -32003, "denied"


class Unavailable(Error):
    """The server or its store is unavailable, or does not answer. `sent`: False if the call cannot have been
    executed."""

    code, word = -32004, "unavailable"
    sent = True


class TooLarge(Error):
    code, word = -32005, "too_large"


class Unsupported(Error):
    code, word = -32006, "unsupported"


class CannotShip(Error, TypeError):
    """The function cannot run in a job; the message contains the reason."""

    word = "cannot_ship"


class WaitTimeout(Error, TimeoutError):
    """The job or flow has not ended within the time-out, and continues."""

    word = "wait_timeout"


class JobFailed(Error):
    """A job ended as error. `state`: JobResult of the contract; `detail`: exception, exit, timeout, oom, ...;
    `error_info`: type, message, traceback and line of the script's error, as far as known."""

    word = "job_failed"

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state, self.detail = state, str(state.get("detail", ""))
        self.error_info: Mapping[str, Any] = state.get("error_info") or {}
        super().__init__(f"{state.get('key')} ended as {self.detail or 'error'}: {state.get('error')}")


class JobCancelled(JobFailed):
    word = "job_cancelled"


class FlowFailed(Error):
    """A flow ended as error. `state`: FlowResult of the contract, with the results of its jobs."""

    word = "flow_failed"

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state, self.detail = state, str(state.get("detail", ""))
        super().__init__(f"flow {state.get('id')} ended as {self.detail or 'error'}: {state.get('error')}")


CODES: Dict[int, Type[Error]] = {
    error_class.code: error_class for error_class in (Invalid, NotFound, Conflict, Denied, Unavailable, TooLarge, Unsupported)
}


def read_error(error: Any) -> Error:
    """Converts the member `error` of a response to an exception. ValueError: not a JSON-RPC error."""
    if not isinstance(error, dict) or type(error.get("code")) is not int or not isinstance(error.get("message"), str):
        raise ValueError("not an error of JSON-RPC")
    data = error["data"] if isinstance(error.get("data"), dict) else {}
    remedy, field, word = (data[name] if isinstance(data.get(name), str) else "" for name in ("remedy", "field", "word"))
    return CODES.get(error["code"], Error)(error["message"], remedy=remedy, field=field, code=error["code"], word=word or None)


def invalid_response_error(subject: str, response: object) -> Error:
    """Returns the error of a response that is not from a mycojobs server, or from a server of another version."""
    return Error(f"{subject}: the response is not in the contract: {response!r:.100}", word="http", remedy="check which program runs there")


# Meaning and remedy by the verify_code of OpenSSL (X509_V_ERR_*).
_UNKNOWN_CA = ("was issued by an unknown CA", "give the client the certificate of this CA: ca=FILE or MYCOJOBS_HTTPS_CA")
_VERIFY_ERRORS = {
    9: ("is not valid yet", "check the clocks of both hosts"),
    10: ("has expired", "renew it"),
    18: ("is self-signed and not trusted", "give the client a copy of it: ca=FILE or MYCOJOBS_HTTPS_CA"),
    **dict.fromkeys((2, 7, 19, 20, 21), _UNKNOWN_CA),
    **dict.fromkeys((62, 64), ("is for another host", "use a name of the certificate in the address")),
}


def tls_error(cause: ssl.SSLError, host: str) -> Error:
    """Returns the error of a rejected certificate or a failed handshake. Such calls are not repeated."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        problem, remedy = _VERIFY_ERRORS.get(cause.verify_code, (f"is rejected: {cause.verify_message}", ""))
        return Error(f"the certificate of {host} {problem}", remedy=remedy, word="tls")
    if cause.reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return Error(f"{host} answers in plain text: the port does not use TLS", remedy="write http:// in the address", word="tls")
    return Error(f"TLS with {host} failed: {cause.reason or cause}", word="tls")


def closed_error() -> Error:
    return Error("the client was closed, or was created before a fork", remedy="create a new client", word="closed")
