"""Object storage for tests on loopback: s3rver (npm) and the S3 interface of OpenStack Swift (Debian), and a proxy that causes faults."""
import http.client
import http.server
import os
import pathlib
import pwd
import socket
import subprocess
import sys
import threading
import time

LIMIT_S = 60
BUCKET = "artifacts"


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, process, log):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the server does not start: {pathlib.Path(log).read_text(errors='replace')[-2000:]}")


class Processes:
    """Server processes, which write to log files in a folder."""

    def __init__(self, folder):
        self.folder, self._processes = pathlib.Path(folder), []
        self.folder.mkdir(parents=True, exist_ok=True)

    def start(self, command, port, name):
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.folder)
        self._processes.append(process)
        wait_for_port(port, process, log)

    def stop(self):
        for process in self._processes:
            process.kill()
            process.wait()


class S3rver(Processes):
    access_key, secret_key = "S3RVER", "S3RVER"

    def __init__(self, folder, modules):
        super().__init__(folder)
        self.port = find_free_port()
        program = (f"new (require('s3rver'))({{address: '127.0.0.1', port: {self.port}, silent: true, directory: {str(self.folder / 'data')!r}, "
                   f"configureBuckets: [{{name: '{BUCKET}'}}]}}).run()")
        os.environ["NODE_PATH"] = str(modules)
        self.start(["node", "-e", program], self.port, "s3rver")


class Swift(Processes):
    """One process for each of account, container, object and proxy server, with one replica in a folder."""

    access_key, secret_key = "tests:alice", "key_of_alice"
    SERVERS = ("account", "container", "object")

    def __init__(self, folder):
        super().__init__(folder)
        (self.folder / "devices" / "disk").mkdir(parents=True)
        ports = {name: find_free_port() for name in self.SERVERS}
        for name, port in ports.items():
            self._make_ring(name, port)
            self._start_server(name, port, f"[pipeline:main]\npipeline = {name}-server\n[app:{name}-server]\nuse = egg:swift#{name}\n")
        memory = find_free_port()
        user = ["-u", "root"] if os.geteuid() == 0 else []
        self.start(["memcached", "-l", "127.0.0.1", "-p", str(memory), "-U", "0", *user], memory, "memcached")
        self.port = find_free_port()
        filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in ("catch_errors", "s3api", "slo", "bulk"))
        self._start_server("proxy", self.port, "[pipeline:main]\npipeline = catch_errors cache s3api tempauth bulk slo proxy-server\n"
                           "[app:proxy-server]\nuse = egg:swift#proxy\nallow_account_management = true\naccount_autocreate = true\n"
                           f"[filter:tempauth]\nuse = egg:swift#tempauth\nuser_tests_alice = key_of_alice .admin\n"
                           f"[filter:cache]\nuse = egg:swift#memcache\nmemcache_servers = 127.0.0.1:{memory}\n{filters}")

    def _make_ring(self, name, port):
        builder = str(self.folder / f"{name}.builder")
        for words in (["create", "4", "1", "0"], ["add", f"r1z1-127.0.0.1:{port}/disk", "1"], ["rebalance"]):
            subprocess.run(["swift-ring-builder", builder, *words], check=True, stdout=subprocess.DEVNULL)

    def _start_server(self, name, port, text):
        file = self.folder / f"{name}.conf"
        file.write_text(f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {port}\nworkers = 0\nuser = {pwd.getpwuid(os.geteuid()).pw_name}\n"
                        f"swift_dir = {self.folder}\ndevices = {self.folder}/devices\nmount_check = false\nlog_level = WARNING\n"
                        f"recon_cache_path = {self.folder}\nlog_address = {self.folder}/no-log\n{text}")
        self.start([f"/usr/bin/swift-{name}-server", str(file), "--verbose"], port, name)


class FaultyProxy:
    """Passes requests on to a server on loopback. `fault` changes answers: a function of the method and the path that returns None, "away", "slow_down",
    "wrong_bytes" or "truncated"."""

    def __init__(self, port):
        proxy = self
        self.target, self.fault, self.requests = port, lambda method, path: None, []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                fault = proxy.fault(self.command, self.path)
                proxy.requests.append((self.command, self.path, fault))
                if fault == "away":
                    self.close_connection = True
                    return
                if fault == "slow_down":
                    text = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
                    self.send(503, [("content-type", "application/xml")], text, len(text))
                    return
                connection = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=LIMIT_S)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                content = answer.read()
                size = len(content)
                headers = [(name, value) for name, value in answer.getheaders()
                           if name.lower() not in ("content-length", "transfer-encoding", "connection")]
                if fault == "wrong_bytes" and content:
                    content = bytes([content[0] ^ 1]) + content[1:]
                if fault == "truncated":
                    content = content[:len(content) // 2]
                    self.close_connection = True
                self.send(answer.status, headers, content, size)
                connection.close()

            def send(self, status, headers, content, size):
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("content-length", str(size))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # a client may be killed
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":  # servers.py FOLDER MODULES: for a person who tries something
    for made in (S3rver(sys.argv[1] + "/s3rver", sys.argv[2]), Swift(sys.argv[1] + "/swift")):
        print(type(made).__name__, made.port, made.access_key, made.secret_key, flush=True)
    time.sleep(1e6)
