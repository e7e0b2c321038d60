#!/usr/bin/python3
"""Imitates Mycelium nodes for tests: the message API of threefoldtech/mycelium v0.7.10 with its pitfalls, without the overlay.

    mycelium_node.py NODES [WINDOW]     WINDOW: seconds for which a node retries an unreachable peer (default 300)

All nodes of one process know each other. The kernel chooses the ports, on loopback. The first line on standard output
lists the nodes: {"control": URL, "nodes": [{"rest": URL, "rpc": URL, "key": HEX, "ip": IP}, ...]}. The program exits
when its parent exits.

The imitation reproduces these pitfalls of the real program:
  - a blocked pop holds the lock of its node, which every other call needs;
  - a filter matches a whole topic; a peek removes no message; a pop or a peek changes the sender's state `received` to
    `read`;
  - a message of more than 1300 bytes is split into chunks of 1300 bytes; the receiver always drops a last chunk of less
    than 250 bytes, so the message stays `sending`, becomes `aborted`, and never arrives;
  - a reply has no topic; it is passed to the call that waits for its id, or else put into the inbox. The same applies to
    any message with that id, whether or not it is a reply, and from any sender: a node that sends a message to itself
    receives its own message as the reply;
  - the inbox is in memory: a restart empties it, and popped messages are lost;
  - a message to an unreachable or unknown peer stays `pending` for WINDOW, then becomes `aborted`;
  - the body of a REST request is at most 2 MiB, a topic at most 255 bytes.

Control: POST {"node": N, "do": WHAT, ...} ->
  offline, online          disconnects the node from its peers, or reconnects it; its API keeps answering
  stop, start              stops or starts the whole node; a started node has an empty inbox and outbox and the same ports
  lose, double   count     the next messages to the node are lost (their sender sees `received`), or delivered twice
  stick          count     the next messages to the node stay `sending` and never arrive
  forge          message   puts a message into the node's inbox: {"from": N, "topic", "payload", "id"}; payload in base64
  count                    returns {"pushed", "pending", "sending", "inbox", "longest_hold"}: messages accepted from
                           programs; messages not yet sent, not yet delivered, and waiting in the inbox; the longest
                           time in seconds for which one call held the lock
"""
import base64, hashlib, json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv6Address, IPv6Network, ip_address
from urllib.parse import parse_qs, urlsplit

MAX_REST_BODY_BYTES = 2 << 20
MAX_RPC_BODY_BYTES = 10 << 20
CHUNK_BYTES, MIN_LAST_CHUNK_BYTES = 1300, 250


class RequestRejected(Exception):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


class Message:
    def __init__(self, message_id, source, destination, topic, payload, window):
        self.id, self.source, self.destination = message_id, source, destination
        self.topic, self.payload = topic, payload
        self.state = "pending"
        self.created = int(time.time())
        self.end = time.monotonic() + window
        self.is_stuck = len(payload) > CHUNK_BYTES and 0 < len(payload) % CHUNK_BYTES < MIN_LAST_CHUNK_BYTES

    def progress(self):
        if self.state != "sending":
            return self.state
        return {"sending": {"pending": 0, "sent": 1, "acked": (len(self.payload) - 1) // CHUNK_BYTES}}

    def to_json(self, to):
        out = {"id": self.id, "srcIp": self.source.ip, "srcPk": self.source.key, "dstIp": to.ip, "dstPk": to.key,
               "payload": base64.b64encode(self.payload).decode()}
        if self.topic:
            out["topic"] = base64.b64encode(self.topic).decode()
        return out


class Node:
    def __init__(self, mesh):
        self.mesh = mesh
        self.key = os.urandom(32).hex()
        digest = bytearray(hashlib.sha256(bytes.fromhex(self.key)).digest()[:16])
        digest[0] = 4 | digest[0] & 1
        self.ip = str(IPv6Address(bytes(digest)))
        self.subnet = IPv6Network((bytes(digest[:8]) + bytes(8), 64))
        self.lock = threading.Lock()  # serializes the API calls
        self.online = True
        self.lose = self.double = self.stick = self.pushed = 0
        self.longest_hold = 0.0
        self.ports = {}
        self.servers = {}
        self.start()

    def start(self):
        self.inbox, self.outbox, self.waiting = [], {}, {}
        self.running = True
        for name, handler in (("rest", RestHandler), ("rpc", RpcHandler)):
            server = Server(("127.0.0.1", self.ports.get(name, 0)), handler)
            server.node = self
            self.ports[name] = server.server_address[1]
            self.servers[name] = server
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self.running = False
        for server in self.servers.values():
            server.shutdown()
            server.server_close()
            server.drop_connections()

    def url(self, name):
        return f"http://127.0.0.1:{self.ports[name]}"

    # --- API: each call holds the lock -------------------------------------------------------------------------
    def call_with_lock(self, call):
        with self.lock:
            start_s = time.monotonic()
            try:
                return call()
            finally:
                self.longest_hold = max(self.longest_hold, time.monotonic() - start_s)

    def info(self):
        return {"nodeSubnet": str(self.subnet), "nodePubkey": self.key}

    def push(self, body, message_id=None):
        topic = b"" if message_id else decode(body.get("topic") or "")
        payload = decode(body.get("payload"))
        if len(topic) > 255:
            raise RequestRejected(400)
        destination = body.get("dst")
        if not isinstance(destination, dict) or len(destination) != 1 or not {"pk", "ip"} & set(destination):
            raise RequestRejected(422)
        if "pk" in destination and len(bytes.fromhex(destination["pk"])) != 32:
            raise RequestRejected(422)
        if "ip" in destination:
            ip_address(destination["ip"])
        message = Message(message_id or os.urandom(8).hex(), self, destination, topic, payload, self.mesh.window)
        with self.mesh.changed:
            self.outbox[message.id] = message
            self.pushed += 1
            self.mesh.changed.notify_all()
        return message

    def push_and_wait(self, body, wait):
        waiter = [threading.Event(), None]

        def push_and_register():
            with self.mesh.changed:  # no message is delivered before the waiter is registered
                message = self.push(body)
                if wait is not None:
                    self.waiting[message.id] = waiter
                return message
        message = self.call_with_lock(push_and_register)
        if wait is None:
            return "sent", {"id": message.id}
        if waiter[0].wait(wait):
            return "reply", waiter[1]
        with self.mesh.changed:
            self.waiting.pop(message.id, None)
        return "late", {"id": message.id}

    def pop(self, peek, wait, topic):
        def find_message():
            end = time.monotonic() + wait
            with self.mesh.changed:
                while True:
                    for message in self.inbox:
                        if topic is None or message.topic == topic:
                            if not peek:
                                self.inbox.remove(message)
                            if message.state == "received":
                                message.state = "read"
                            return message.to_json(self)
                    if time.monotonic() >= end or not self.running:
                        return None
                    self.mesh.changed.wait(max(0.0, end - time.monotonic()))
        return self.call_with_lock(find_message)

    def state(self, message_id):
        message = self.outbox.get(message_id)
        if message is None:
            return None
        return {"dst": message.destination.get("ip") or self.mesh.find_ip(message.destination["pk"]),
                "state": message.progress(), "created": message.created, "deadline": int(message.created + self.mesh.window),
                "msgLen": len(message.payload)}

    # --- overlay: requires mesh.changed ----------------------------------------------------------------------------
    def receive(self, message):
        waiter = self.waiting.pop(message.id, None)
        if waiter:
            waiter[1] = message.to_json(self)
            waiter[0].set()
        else:
            self.inbox.append(message)


class Mesh:
    def __init__(self, count, window):
        self.window = window
        self.changed = threading.Condition(threading.RLock())
        self.nodes = [Node(self) for _ in range(count)]
        threading.Thread(target=self.deliver_messages, daemon=True).start()

    def find_ip(self, key):
        for node in self.nodes:
            if node.key == key:
                return node.ip
        return "400::1"

    def find(self, destination):
        for node in self.nodes:
            if destination.get("pk", "").lower() == node.key:
                return node
            if "ip" in destination and ip_address(destination["ip"]) in node.subnet:
                return node
        return None

    def deliver_messages(self):
        with self.changed:
            while True:
                for node in self.nodes:
                    for message in list(node.outbox.values()):
                        if message.state in ("pending", "sending"):
                            self.deliver_message(node, message)
                self.changed.wait(0.02)

    def deliver_message(self, node, message):
        if time.monotonic() > message.end:
            message.state = "aborted"
            return
        to = self.find(message.destination)
        if to is None or not (to.online and to.running and node.online and node.running):
            return
        if to.stick > 0 and message.state == "pending":
            to.stick -= 1
            message.is_stuck = True
        if message.is_stuck:
            message.state = "sending"
            return
        message.state = "received"
        if to.lose > 0:
            to.lose -= 1
            return
        to.receive(message)
        if to.double > 0:
            to.double -= 1
            to.receive(message)
        self.changed.notify_all()

    def control(self, order):
        node, action = self.nodes[order["node"]], order["do"]
        if action == "stop":
            with self.changed:
                node.running = False
                self.changed.notify_all()
            node.stop()
            return {}
        with self.changed:
            if action == "start":
                node.start()
            elif action in ("offline", "online"):
                node.online = action == "online"
            elif action in ("lose", "double", "stick"):
                setattr(node, action, order["count"])
            elif action == "forge":
                forged = Message(order.get("id") or os.urandom(8).hex(), self.nodes[order["from"]], {"pk": node.key},
                                 order.get("topic", "").encode(), decode(order["payload"]), self.window)
                node.receive(forged)
            elif action != "count":
                raise RequestRejected(400)
            self.changed.notify_all()
            states = [message.state for message in node.outbox.values()]
            return {"pushed": node.pushed, "pending": states.count("pending"), "sending": states.count("sending"),
                    "inbox": len(node.inbox), "longest_hold": node.longest_hold}


def decode(text):
    return base64.b64decode(text, validate=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    block_on_close = False

    def __init__(self, *arguments):
        self.open_connections = set()
        super().__init__(*arguments)

    def process_request(self, request, address):
        self.open_connections.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request):
        self.open_connections.discard(request)
        super().shutdown_request(request)

    def drop_connections(self):
        for request in list(self.open_connections):
            try:
                request.shutdown(2)
            except OSError:
                pass  # the client has already disconnected

    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    max_body_bytes = MAX_REST_BODY_BYTES

    def log_message(self, *_):
        pass

    def send_answer(self, status, value=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def read_body(self):
        size = int(self.headers.get("Content-Length", 0))
        text = self.rfile.read(size)
        if size > self.max_body_bytes:
            raise RequestRejected(413)
        return json.loads(text)

    def serve(self):
        try:
            self.run(urlsplit(self.path))
        except RequestRejected as rejection:
            self.send_answer(rejection.status)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.send_answer(422)

    do_GET = do_POST = serve


class RestHandler(Handler):
    def run(self, url):
        node, path, get = self.server.node, url.path, self.command == "GET"
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if get and path == "/api/v1/admin":
            return self.send_answer(200, node.call_with_lock(node.info))
        if get and path == "/api/v1/messages":
            topic = decode(query["topic"]) if "topic" in query else None
            found = node.pop(query.get("peek") == "true", int(query.get("timeout", 0)), topic)
            return self.send_answer(200, found) if found else self.send_answer(204)
        if not get and path == "/api/v1/messages":
            wait = int(query["reply_timeout"]) if "reply_timeout" in query else None
            outcome, value = node.push_and_wait(self.read_body(), wait)
            return self.send_answer({"sent": 201, "reply": 200, "late": 408}[outcome], value)
        kind, message_id = path.rsplit("/", 1)
        if not get and kind == "/api/v1/messages/reply" and len(bytes.fromhex(message_id)) == 8:
            body = self.read_body()
            node.call_with_lock(lambda: node.push(body, message_id))
            return self.send_answer(204)
        if get and kind == "/api/v1/messages/status" and len(bytes.fromhex(message_id)) == 8:
            found = node.call_with_lock(lambda: node.state(message_id))
            return self.send_answer(200, found) if found else self.send_answer(404)
        return self.send_answer(404 if get else 405)


class RpcHandler(Handler):
    max_body_bytes = MAX_RPC_BODY_BYTES

    def run(self, url):
        if self.command != "POST":
            return self.send_answer(405)
        call = self.read_body()
        try:
            out = {"result": self.call(call["method"], call.get("params") or [])}
        except RequestRejected as rejection:
            out = {"error": {"code": -32000 - rejection.status % 100, "message": "Server error"}}
        except (ValueError, TypeError, KeyError, IndexError):
            out = {"error": {"code": -32602, "message": "Invalid params"}}
        return self.send_answer(200, {"jsonrpc": "2.0", "id": call.get("id"), **out})

    def call(self, method, params):
        node = self.server.node
        arguments = list(params) + [None] * 3
        if method == "getInfo":
            return node.call_with_lock(node.info)
        if method == "popMessage":
            return node.pop(bool(arguments[0]), arguments[1] or 0, None if arguments[2] is None else decode(arguments[2]))
        if method == "pushMessage":
            return node.push_and_wait(arguments[0], arguments[1])[1]
        if method == "pushMessageReply":
            node.call_with_lock(lambda: node.push(arguments[1], arguments[0]))
            return True
        if method == "getMessageInfo":
            found = node.call_with_lock(lambda: node.state(arguments[0]))
            if found is None:
                raise RequestRejected(404)
            return found
        raise RequestRejected(404)


class ControlHandler(Handler):
    max_body_bytes = MAX_RPC_BODY_BYTES

    def run(self, url):
        self.send_answer(200, self.server.mesh.control(self.read_body()))


def main():
    parent = os.getppid()
    mesh = Mesh(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 300)
    control = Server(("127.0.0.1", 0), ControlHandler)
    control.mesh = mesh
    threading.Thread(target=control.serve_forever, daemon=True).start()
    print(json.dumps({"control": f"http://127.0.0.1:{control.server_address[1]}",
                      "nodes": [{"rest": node.url("rest"), "rpc": node.url("rpc"), "key": node.key, "ip": node.ip}
                                for node in mesh.nodes]}), flush=True)
    while os.getppid() == parent:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
