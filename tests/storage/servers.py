"""Object storage for tests on loopback: s3rver (npm) and the S3 interface of OpenStack Swift (Debian), and a proxy that causes faults."""
import http.client
import http.server
import os
import pathlib
import pwd
import socket
import ssl
import subprocess
import sys
import threading
import time

LIMIT_S = 240  # reached only by a hang
BUCKET = "artifacts"
PROGRAM = str(pathlib.Path(__file__).with_name("swift_server.py"))


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_serving(port, process):
    """Waits until the process accepts connections. Returns False if it has ended."""
    end = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process.poll() is None
        except OSError:
            time.sleep(0.05)
    return False


def make_certificates(folder):
    """Creates a CA, a certificate of it for 127.0.0.1 with its key, and another CA. Returns their files."""
    def run_openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=folder)

    folder.mkdir()
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for name in ("ca", "other-ca"):
        run_openssl("req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", 2)
    run_openssl("req", *new_key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=storage")
    (folder / "names").write_text("subjectAltName = IP:127.0.0.1\n")
    run_openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 2, "-extfile", "names", "-out", "server.crt")
    (folder / "server.pem").write_text((folder / "server.crt").read_text() + (folder / "server.key").read_text())
    return folder / "ca.pem", folder / "server.pem", folder / "other-ca.pem"


class Processes:
    """Server processes, which write to log files in a folder."""

    def __init__(self, folder):
        self.folder, self._processes = pathlib.Path(folder), []
        self.folder.mkdir(parents=True, exist_ok=True)

    def start(self, make_command, name):
        """Starts a server on a free port, and returns the port. Another process can take the port before the server, which is then started again."""
        log = self.folder / f"{name}.log"
        for _ in range(5):
            port = find_free_port()
            with log.open("ab") as output:
                process = subprocess.Popen(make_command(port), stdout=output, stderr=output, cwd=self.folder)
            self._processes.append(process)
            if is_serving(port, process):
                return port
        self.stop()
        raise RuntimeError(f"the server does not start: {log.read_text(errors='replace')[-2000:]}")

    def stop(self):
        for process in self._processes:
            process.kill()
            process.wait()


class S3rver(Processes):
    access_key, secret_key = "S3RVER", "S3RVER"

    def __init__(self, folder, modules):
        super().__init__(folder)
        os.environ["NODE_PATH"] = str(modules)
        self.port = self.start(lambda port: [
            "node", "-e", f"new (require('s3rver'))({{address: '127.0.0.1', port: {port}, silent: true, directory: {str(self.folder / 'data')!r}, "
            f"configureBuckets: [{{name: '{BUCKET}'}}]}}).run().catch((error) => {{ console.error(error); process.exit(1) }})"], "s3rver")


class Swift(Processes):
    """One process for each of account, container, object and proxy server (swift_server.py), with one replica in a folder."""

    access_key, secret_key = "tests:alice", "key_of_alice"
    SERVERS = ("account", "container", "object")

    @staticmethod
    def find_missing_program():
        done = subprocess.run(["/usr/bin/python3", "-c", "import swift.proxy.server, swift.obj.server"], capture_output=True, check=False)
        return None if done.returncode == 0 else "python3-swift is not installed"

    def __init__(self, folder):
        super().__init__(folder)
        (self.folder / "devices" / "disk").mkdir(parents=True)
        (self.folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = only\ndefault = yes\n")
        for name in self.SERVERS:
            self.start(lambda port, name=name: self._make_storage_command(name, port), name)
        filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in ("catch_errors", "s3api", "slo", "bulk"))
        proxy = ("[pipeline:main]\npipeline = catch_errors cache s3api tempauth bulk slo proxy-server\n"
                 "[app:proxy-server]\nuse = egg:swift#proxy\nallow_account_management = true\naccount_autocreate = true\n"
                 "[filter:tempauth]\nuse = egg:swift#tempauth\nuser_tests_alice = key_of_alice .admin\n"
                 f"[filter:cache]\npaste.filter_factory = swift_server:make_cache_filter\n{filters}")
        self.port = self.start(lambda port: self._make_command("proxy", port, proxy), "proxy")

    def _make_storage_command(self, name, port):
        builder = self.folder / f"{name}.builder"
        builder.unlink(missing_ok=True)
        for words in (["create", "4", "1", "0"], ["add", f"r1z1-127.0.0.1:{port}/disk", "1"], ["rebalance"]):
            subprocess.run([PROGRAM, self.folder, "ring", builder, *words], check=True, stdout=subprocess.DEVNULL)
        return self._make_command(name, port, f"[pipeline:main]\npipeline = {name}-server\n[app:{name}-server]\nuse = egg:swift#{name}\n")

    def _make_command(self, name, port, text):
        file = self.folder / f"{name}.conf"
        file.write_text(f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {port}\nworkers = 0\nuser = {pwd.getpwuid(os.geteuid()).pw_name}\n"
                        f"swift_dir = {self.folder}\ndevices = {self.folder}/devices\nmount_check = false\nlog_level = WARNING\n"
                        f"recon_cache_path = {self.folder}\nlog_address = {self.folder}/no-log\n{text}")
        return [PROGRAM, self.folder, name, file]


class FaultyProxy:
    """Passes requests on to a server on loopback. `fault` changes answers: a function of the method and the path that returns None, "away", "slow_down",
    "wrong_bytes" or "truncated". With a certificate, which has its key in the same file, clients use TLS."""

    def __init__(self, port, certificate=None):
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
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake takes place at the first read, in the thread of the connection.
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":  # servers.py FOLDER MODULES: for a person who tries something
    for made in (S3rver(sys.argv[1] + "/s3rver", sys.argv[2]), Swift(sys.argv[1] + "/swift")):
        print(type(made).__name__, made.port, made.access_key, made.secret_key, flush=True)
    time.sleep(1e6)
