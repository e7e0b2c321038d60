#!/usr/bin/python3
"""Artifacts with both clients: files of an agent with a state folder of its own, and servers that send wrong or few bytes."""
import hashlib
import json
import os
import shutil
import stat
import tempfile
import unittest

from loopback_server import LoopbackServer, read_head
from world import LIMIT_S, Case, run_node

import mycojobs

SCRIPT = """
import mycojobs, os
folder = mycojobs.artifacts
(folder / 'dist').mkdir()
(folder / 'dist' / 'report "1".txt').write_text('done')
(folder / 'empty').write_bytes(b'')
(folder / 'large').write_bytes(bytes(range(256)) * 12000 + b'x')
os.chmod(folder / 'large', 0o755)
"""
LARGE = bytes(range(256)) * 12000 + b"x"


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


class RealServer(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = mycojobs.Client(cls.world.url, cls.world.token)
        cls.addClassCleanup(cls.client.close)
        cls.job = cls.client.submit(SCRIPT)
        cls.job.wait(LIMIT_S)

    def folder(self, name):
        path = self.world.path(name)
        os.makedirs(path)
        return path

    def test_python_lists_and_saves(self):
        artifacts = self.job.artifacts()
        self.assertEqual([each.name for each in artifacts], ['dist/report "1".txt', "empty", "large"])
        self.assertEqual([each.bytes for each in artifacts], [4, 0, len(LARGE)])
        self.assertEqual([each.media_type for each in artifacts], ["text/plain", "text/plain", "application/octet-stream"])
        self.assertEqual([(each.readable, each.problem, each.runner_id) for each in artifacts], [(True, "", 20)] * 3)
        self.assertEqual(artifacts[2].sha256, hashlib.sha256(LARGE).hexdigest())
        folder = self.folder("python")
        for number, artifact in enumerate(artifacts):
            artifact.save(os.path.join(folder, f"file{number}"))
        self.check(folder)

    def test_node_saves(self):
        folder = self.folder("node")
        self.assertEqual(run_node("save.mjs", self.world.url, self.world.token, self.job.key, folder), {'dist/report "1".txt': "", "empty": "", "large": ""})
        self.check(folder)

    def check(self, folder):
        self.assertEqual(sorted(os.listdir(folder)), ["file0", "file1", "file2"], "no temporary file remains")
        contents = [read_file(os.path.join(folder, name)) for name in ("file0", "file1", "file2")]
        self.assertEqual(contents, [b"done", b"", LARGE])
        self.assertTrue(os.stat(os.path.join(folder, "file2")).st_mode & stat.S_IXUSR)
        self.assertFalse(os.stat(os.path.join(folder, "file0")).st_mode & stat.S_IXUSR)

    def test_existing_file_is_replaced_and_kept_after_an_error(self):
        path = os.path.join(self.folder("existing"), "file")
        with open(path, "w", encoding="utf-8") as file:
            file.write("earlier")
        (artifact, *_) = self.job.artifacts()
        artifact._async.sha256 = "0" * 64
        with self.assertRaisesRegex(mycojobs.NotFound, "has other content now"):
            artifact.save(path)
        self.assertEqual(read_file(path), b"earlier")
        self.job.artifacts()[0].save(path)
        self.assertEqual(read_file(path), b"done")
        self.assertEqual(os.listdir(os.path.dirname(path)), ["file"])
        with self.assertRaises(mycojobs.Invalid):
            artifact.save(os.path.dirname(path))

    def test_strangers_get_nothing(self):
        token = self.world.new_token("--actor", "99")
        self.client.call("context.create", {"id": 1, "admins": [1]})
        with mycojobs.Client(self.world.url, token) as stranger, self.assertRaises(mycojobs.Denied):
            stranger.job(self.job.key).artifacts()


class FakeServer(LoopbackServer):
    """Answers artifact.list with one file, and each download with the next of `downloads`."""

    def __init__(self, content, downloads):
        self.ranges, self._content, self._downloads = [], content, downloads
        super().__init__()

    def serve(self, client, lines):
        request, head = lines.readline(), read_head(lines)
        if request.startswith(b"POST"):
            call = json.loads(lines.read(int(head["content-length"])))
            entry = {"name": "../x\n", "bytes": len(self._content), "sha256": hashlib.sha256(self._content).hexdigest(), "media_type": "text/plain",
                     "executable": False, "runner_id": 1, "readable": True, "problem": ""}  # fmt: skip
            body = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": [entry]}).encode()
            client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        else:
            self.ranges.append(head.get("range"))
            client.sendall(self._downloads[min(len(self.ranges), len(self._downloads)) - 1])


def whole(content, length=None):
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (len(content) if length is None else length) + content


def rest(content, begin, size):
    return b"HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n\r\n" % (
        begin, size - 1, size, len(content)) + content  # fmt: skip


class UnreliableServers(unittest.TestCase):
    CONTENT = b"0123456789" * 1000

    def saves(self, downloads, retry_for):
        """Returns for each client: the ranges that it requested, the error or "", and the content of the saved file."""
        results = []
        for client in ("python", "node"):
            server = FakeServer(self.CONTENT, downloads)
            self.addCleanup(server.close)
            folder = tempfile.mkdtemp(prefix="mycojobs-save-")
            self.addCleanup(shutil.rmtree, folder)
            if client == "node":
                (error,) = run_node("save.mjs", server.url, "t", "1:7", folder, RETRY_FOR=retry_for).values()
            else:
                error = self.python_saves(server.url, folder, retry_for)
            path = os.path.join(folder, "file0")
            content = read_file(path) if os.path.exists(path) else None
            self.assertEqual(os.listdir(folder), ["file0"] if content is not None else [], "no temporary file remains")
            results.append((server.ranges, error, content))
        self.assertEqual(results[0], results[1])
        return results[0]

    @staticmethod
    def python_saves(url, folder, retry_for):
        with mycojobs.Client(url, "t", retry_for=retry_for) as client:
            try:
                client.job("1:7").artifacts()[0].save(os.path.join(folder, "file0"))
            except mycojobs.Error as error:
                return f"{type(error).__name__.replace('Error', 'MycojobsError')} {error.word}"
        return ""

    def test_wrong_bytes_are_refused(self):
        for wrong in (self.CONTENT[:-1] + b"x", self.CONTENT + b"more"):
            with self.subTest(size=len(wrong)):
                _, error, content = self.saves([whole(wrong)], "1s")
                self.assertEqual((error, content), ("MycojobsError damaged", None))

    def test_download_continues_after_a_lost_connection(self):
        size = len(self.CONTENT)
        ranges, error, content = self.saves([whole(self.CONTENT[:4000], size), rest(self.CONTENT[4000:], 4000, size)], "30s")
        self.assertEqual((error, content), ("", self.CONTENT))
        self.assertEqual(ranges, [None, "bytes=4000-"])

    def test_errors_of_the_server(self):
        error = json.dumps({"error": {"code": -32001, "message": "gone", "data": {"word": "artifact_lost", "remedy": "run it again"}}}).encode()
        _, kind, content = self.saves([b"HTTP/1.1 410 Gone\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(error) + error], "1s")
        self.assertEqual((kind, content), ("NotFound artifact_lost", None))


if __name__ == "__main__":
    unittest.main()
