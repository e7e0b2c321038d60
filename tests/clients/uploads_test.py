#!/usr/bin/python3
"""Uploads with both clients, for jobs of an agent with a state folder of its own, and with servers that fail."""
import hashlib
import json
import os
import shutil
import tempfile
import unittest

from loopback_server import LoopbackServer, read_head
from world import LIMIT_S, Case, run_node

import mycojobs

CONTENT = bytes(range(256)) * 12000 + b"x"
SCRIPT = "import hashlib\nresult['sha256'] = hashlib.sha256(open('/job/files/data/big.bin', 'rb').read()).hexdigest()"


def write_content(path, content=CONTENT):
    with open(path, "wb") as file:
        file.write(content)
    return path


class RealServer(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = mycojobs.Client(cls.world.url, cls.world.token)
        cls.addClassCleanup(cls.client.close)
        cls.sha256 = hashlib.sha256(CONTENT).hexdigest()

    def test_python_uploads_for_jobs(self):
        upload = self.client.upload(write_content(self.world.path("big")))
        self.assertEqual((upload.bytes, upload.sha256), (len(CONTENT), self.sha256))
        jobs = [self.client.submit(SCRIPT, files={"data/big.bin": upload, "small": "text"}) for _ in range(2)]
        for job in jobs:
            self.assertEqual(job.result(timeout=LIMIT_S), {"sha256": self.sha256})

    def test_node_uploads_for_jobs(self):
        done = run_node("upload.mjs", self.world.url, self.world.token, write_content(self.world.path("big_node")))
        self.assertEqual(done.get("result"), {"sha256": self.sha256}, done)

    def test_large_content_names_the_remedy(self):
        with self.assertRaisesRegex(mycojobs.TooLarge, "upload it first"):
            self.client.submit(SCRIPT, files={"data/big.bin": CONTENT})

    def test_files_over_the_limit_are_refused(self):
        path = self.world.path("huge")
        with open(path, "wb") as file:
            file.truncate(100 << 20)
        with self.assertRaisesRegex(mycojobs.TooLarge, "job.max_artifact_bytes"):
            self.client.upload(path)


class FailingServer(LoopbackServer):
    """Answers artifact.put, and closes the first uploads without an answer."""

    def __init__(self, failures):
        self.bodies, self.reservations, self._failures = [], 0, failures
        super().__init__()

    def serve(self, client, lines):
        request, head = lines.readline(), read_head(lines)
        body = lines.read(int(head["content-length"]))
        if request.startswith(b"POST"):
            self.reservations += 1
            call = json.loads(body)
            answer = {"jsonrpc": "2.0", "id": call["id"], "result": {"upload": "r", "link": "/artifacts?upload=r&ticket=t", "until_ms": 1}}
            return self._reply(client, b"200 OK", answer)
        self.bodies.append(body)
        if len(self.bodies) > self._failures:
            self._reply(client, b"201 Created", {"upload": "r", "until_ms": 7})

    @staticmethod
    def _reply(client, status, answer):
        body = json.dumps(answer).encode()
        client.sendall(b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)


class UnreliableServers(unittest.TestCase):
    def test_lost_connection_sends_the_file_again(self):
        folder = tempfile.mkdtemp(prefix="mycojobs-upload-")
        self.addCleanup(shutil.rmtree, folder)
        path = write_content(os.path.join(folder, "file"), b"0123456789")
        for client_name in ("python", "node"):
            server = FailingServer(failures=1)
            self.addCleanup(server.close)
            if client_name == "python":
                with mycojobs.Client(server.url, "t", retry_for=30) as client:
                    self.assertEqual(client.upload(path).reference, "r")
            else:
                self.assertEqual(run_node("upload.mjs", server.url, "t", path, ONLY_UPLOAD="1").get("reference"), "r")
            self.assertEqual(server.bodies, [b"0123456789"] * 2)
            self.assertEqual(server.reservations, 1, "a second one would use up the quota")


if __name__ == "__main__":
    unittest.main()
