"""A server that is not mycojobs. It responds with the bytes of a case, which the first part of the path names."""
import json
import zlib
from collections import Counter

from loopback_server import LoopbackServer, read_head


def answer(body, status="200 OK", head="", stays=False):
    """Makes a response that announces the end of the connection, unless the connection persists: a client must not send the next call
into a connection that this server is closing."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head += "" if stays else "Connection: close\r\n"
    return f"HTTP/1.1 {status}\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def result(value):
    return lambda call: answer({"jsonrpc": "2.0", "id": call["id"], "result": value})


def error(**members):
    return lambda call: answer({"jsonrpc": "2.0", "id": call["id"], "error": members})


def as_text(text):
    return lambda call: answer(text.replace("ID", str(call["id"])).encode())


def raw(*pieces):
    return lambda call: b"".join(pieces)


def zeros_packed(size):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def endless(call):
    def pieces():
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        for _ in range(200):
            yield b"100000\r\n" + bytes(1 << 20) + b"\r\n"

    return pieces()


# The ends of a call and of a wait: the name of the exception, "Error" for the base class. WaitTimeout: no response.
ANSWERS = {
    "error_that_is_a_text": (as_text('{"id": ID, "error": "x"}'), "Error", "Error"),
    "error_without_a_code": (error(message="m"), "Error", "Error"),
    "error_whose_code_is_a_text": (error(code="x", message="m"), "Error", "Error"),
    "error_whose_message_is_a_number": (error(code=-32001, message=7), "Error", "Error"),
    "error_whose_data_is_a_list": (error(code=-32001, message="m", data=[1]), "NotFound", "NotFound"),
    "error_whose_data_has_other_types": (error(code=-32001, message="m", data={"field": ["jobs[0]"], "word": 7, "remedy": {}}), "NotFound", "NotFound"),
    "error_about_a_job_that_was_not_asked_for": (error(code=-32001, message="m", data={"field": "jobs[99]"}), "NotFound", "NotFound"),
    "error_about_a_job_with_a_long_number": (error(code=-32001, message="m", data={"field": "jobs[" + "9" * 6000 + "]"}), "NotFound", "NotFound"),
    "error_that_does_things_to_a_terminal": (error(code=-32002, message="\x1b[31m\u202e\ud800"), "Conflict", "Conflict"),
    "result_that_is_a_number": (result(7), None, "Error"),
    "result_that_is_a_text": (result("x"), None, "Error"),
    "result_of_null": (result([None]), None, "Error"),
    "result_of_numbers": (result([7]), None, "Error"),
    "result_without_keys": (result([{}]), None, "Error"),
    "result_with_keys_of_another_type": (result([{"key": ["job:1:7"], "id": {}}]), None, "Error"),
    "result_about_others": (result([{"key": "job:9:9", "id": 99, "status": "finished"}]), None, "WaitTimeout"),
    "result_of_nothing_at_once": (result([]), None, "WaitTimeout"),
    "neither_result_nor_error": (as_text('{"id": ID}'), "Error", "Error"),
    "answer_to_another_call": (lambda call: answer({"id": call["id"] + 1, "result": []}, stays=True), "Error", "Error"),
    "number": (as_text("7"), "Error", "Error"),
    "text": (as_text('"error"'), "Error", "Error"),
    "list": (as_text("[]"), "Error", "Error"),
    "html": (as_text("<html>"), "Error", "Error"),
    "nothing": (as_text(""), "Error", "Error"),
    "no_utf8": (raw(answer(b'{"id": 1, "result": "\xff\xfe"')), "Error", "Error"),
    "deep": (raw(answer(b"[" * 200_000)), "Error", "Error"),
    "deep_but_whole": (as_text('{"id": ID, "result": "x", "more": ' + "[" * 100_000 + "]" * 100_000 + "}"), ("Error", None), "Error"),  # Node reads it
    "long_head": (raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n"), "Unavailable", "Unavailable"),
    "many_heads": (raw(answer(b"", head="X: y\r\n" * 5000)), ("Unavailable", "Error"), ("Unavailable", "Error")),
    "no_http": (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "Unavailable", "Unavailable"),
    "no_answer": (raw(b""), "Unavailable", "Unavailable"),
    "cut": (raw(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"id"'), "Unavailable", "Unavailable"),
    "length_that_is_none": (raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), "Unavailable", "Unavailable"),
    "chunk_that_is_none": (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "Unavailable", "Unavailable"),
    "huge_length": (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n{"), ("TooLarge", "Unavailable"), ("TooLarge", "Unavailable")),
    "endless": (endless, "TooLarge", "TooLarge"),
    "bomb": (raw(answer(zeros_packed(200 << 20), head="Content-Encoding: gzip\r\n")), ("Error", "TooLarge"), ("Error", "TooLarge")),
    "proxy_without_a_server": (raw(answer(b"<html>", "502 Bad Gateway")), "Unavailable", "Unavailable"),
    "elsewhere": (raw(answer(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n")), ("Error", "Unavailable"), ("Error", "Unavailable")),
    "teapot": (raw(answer(b'{"error": 7}', "418 I'm a teapot")), "Error", "Error"),
}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
# The events of a stream, and its end.
EVENTS = {
    "events_that_are_no_json": (STREAM + b"data: {x\n\n", [], "Unavailable"),
    "events_that_are_deep": (STREAM + b"data: " + b"[" * 100_000 + b"\n\n", [], "Unavailable"),
    "events_that_are_numbers": (STREAM + b"event: flow\ndata: 7\n\n", [], "Unavailable"),
    "events_that_are_null": (STREAM + b"event: gone\ndata: null\n\n", [], "Unavailable"),
    "events_without_an_end": (STREAM + b"data: " + b"x" * (9 << 20), [], "Unavailable"),
    "events_with_ends_of_lines": (STREAM + 'id: 5\nevent: log\ndata: {"text": "a\u2028b\u0085c"}\n\nevent: gone\ndata: {}\n\n'.encode(), ["a\u2028b\u0085c"], "Denied"),
    "events_without_a_state": (STREAM + b"event: flow\ndata: {}\n\nevent: gone\ndata: {}\n\n", [None], "Denied"),
    "events_refused": (answer({"error": {"code": -32003, "message": "no"}}, "403 Forbidden"), [], "Denied"),
    "events_elsewhere": (answer(b"<html>", "502 Bad Gateway"), [], "Unavailable"),
}


def lossy(seen):
    """Drops the first response to each call and sends the second."""

    def case(call):
        seen[what := json.dumps([call["method"], call["params"]], sort_keys=True)] += 1
        return b"" if seen[what] == 1 else answer({"id": call["id"], "result": None})

    return case


class Stranger(LoopbackServer):
    def __init__(self):
        self.seen = Counter()  # number of requests of each case
        self.lost = Counter()
        self.heads = []
        super().__init__()

    def serve(self, client, lines):
        while line := lines.readline():
            head = read_head(lines)
            self.heads.append((line.decode(), head))
            body = lines.read(int(head.get("content-length", 0)))
            case = line.split()[1].split(b"/")[1].decode()
            self.seen[case] += 1
            if not self._answer(client, case, body):
                return

    def _answer(self, client, case, body):
        if case in EVENTS:
            client.sendall(EVENTS[case][0])
            return False
        output = (lossy(self.lost) if case == "lossy" else ANSWERS[case][0])(json.loads(body))
        for piece in [output] if isinstance(output, bytes) else output:
            client.sendall(piece)
        return case == "answer_to_another_call"
