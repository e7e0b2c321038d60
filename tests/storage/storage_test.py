#!/usr/bin/python3
"""Artifacts in object storage, with a real server and two agents that have a state folder each.

    storage_test.py BUILD SERVER

SERVER is a class of servers.py. All requests of the programs pass through a proxy that can cause faults. boto3 reads back what they have stored."""
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import servers

BUILD, SERVER = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1)
PROGRAM = str(BUILD / "bin" / "mycojobs")
MODULES = BUILD / "storage" / "node_modules"
LIMIT_S = 240  # reached only by a hang
try:
    import boto3
    import botocore.config
except ImportError:
    boto3 = None

MAKE = """
import mycojobs, os
(mycojobs.artifacts / "small").write_text("text of {name}")
(mycojobs.artifacts / "empty").write_bytes(b"")
with open(mycojobs.artifacts / "large", "wb") as file:
    for number in range(int(os.environ["MEBIBYTES"])):
        file.write(bytes([number % 251]) * (1 << 20))
"""
READ = """
set -- $(sha256sum /job/inputs/make/large)
echo "small=$(cat /job/inputs/make/small)" >> "$MYCOJOBS_RESULT"
echo "large=$1" >> "$MYCOJOBS_RESULT"
"""


def indent(text):
    return text.strip().replace("\n", "\n      ")


def make_flow(name, mebibytes):
    return f"""name: {name}
env: {{MEBIBYTES: "{mebibytes}"}}
defaults: {{timeout: 5m, policy: {{file_size: 200MiB}}}}
jobs:
  make:
    type: python
    script: |
      {indent(MAKE.format(name=name))}
  read:
    type: bash
    needs: make
    inputs: make
    script: |
      {indent(READ)}
"""


def wait_for(condition, what):
    end = time.monotonic() + LIMIT_S
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"did not become true in {LIMIT_S} s: {what}")
        time.sleep(0.05)
    return value


def find_missing_program():
    """Returns why the tests cannot run on this host, or None."""
    if boto3 is None:
        return "python3-boto3 is not installed"
    if SERVER == "S3rver":
        return None if (MODULES / "s3rver").is_dir() else "s3rver was not installed: npm's registry was away"
    return servers.Swift.find_missing_program()


class Storage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        reason = find_missing_program()
        if reason:
            print(f"{reason}\n[  SKIPPED ] Storage{SERVER}")
            sys.exit(77)
        # Not in /tmp: Swift needs extended attributes, which tmpfs has only in newer kernels.
        cls.path = pathlib.Path(tempfile.mkdtemp(prefix="storage-", dir=BUILD))
        cls.addClassCleanup(shutil.rmtree, cls.path, ignore_errors=True)
        cls.server = servers.S3rver(cls.path / "server", MODULES) if SERVER == "S3rver" else servers.Swift(cls.path / "server")
        cls.addClassCleanup(cls.server.stop)
        cls.proxy = servers.FaultyProxy(cls.server.port)
        cls.addClassCleanup(cls.proxy.stop)
        cls.bucket = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{cls.server.port}", region_name="us-east-1",
                                  aws_access_key_id=cls.server.access_key, aws_secret_access_key=cls.server.secret_key,
                                  config=botocore.config.Config(s3={"addressing_style": "path"}))
        with contextlib.suppress(cls.bucket.exceptions.ClientError):
            cls.bucket.create_bucket(Bucket=servers.BUCKET)
        cls.write_credentials(cls.server.access_key, cls.server.secret_key)

    @classmethod
    def write_credentials(cls, access_key, secret_key):
        file = cls.path / "credentials"
        file.unlink(missing_ok=True)
        file.touch(0o600)
        file.write_text(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n")

    def setUp(self):
        self.folder = self.path / self._testMethodName
        self.folder.mkdir()
        self.prefix = "some/" + self._testMethodName
        sockets = tempfile.TemporaryDirectory(prefix="mj-", dir="/tmp")  # the path of a socket has at most 107 bytes
        self.addCleanup(sockets.cleanup)
        self.socket = pathlib.Path(sockets.name) / "redis.sock"
        self.processes = {}
        self.addCleanup(self.stop_all)
        self.proxy.fault = lambda method, path: None
        self.proxy.requests.clear()
        self.start("redis", ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", ""])
        wait_for(self.socket.exists, "Redis answers")

    def start(self, name, command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=self.environment())

    def environment(self):
        return {**os.environ, "HOME": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state")}

    def stop(self, name, number=signal.SIGKILL):
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(LIMIT_S)

    def stop_all(self):
        for name in list(self.processes)[::-1]:
            self.stop(name)

    def settings(self, host, **changes):
        """Writes the settings of a host, and returns the options of its programs."""
        settings = {"store": f"s3://{servers.BUCKET}/{self.prefix}", "store_endpoint": f"http://127.0.0.1:{self.proxy.port}",
                    "store_path_style": True, "store_credentials": str(self.path / "credentials"), **changes}
        file = self.folder / f"{host}.toml"
        ca = settings.pop("ca", None)
        file.write_text((f"[https]\nca = {json.dumps(str(ca))}\n" if ca else "") + "[artifacts]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()) +
                        '[executors.bash]\ncommand = ["/bin/bash", "{script}"]\n')
        return ["--config", str(file), "--redis", f"unix://{self.socket}", "--state-dir", str(self.folder / host)]

    def start_agent(self, host, runner, script_type, *more, lease="30s", **changes):
        self.start(host, [PROGRAM, "agent", *self.settings(host, **changes), "--runner", str(runner), "--script-types", script_type, "--slots", "1",
                          "--lease", lease, "--job-max-artifact-bytes", "256MiB", "--sandbox-tmp", "256MiB", "--sandbox-memory", "1GiB", *more])

    def start_hosts(self, **changes):
        self.start("coordinator", [PROGRAM, "coordinator", *self.settings("coordinator"), "--api-listen", ""])
        self.start_agent("first", 21, "python", **changes)
        self.start_agent("second", 22, "bash", **changes)

    def run_program(self, *words, check=True):
        server = [] if "--redis" in words else ["--redis", f"unix://{self.socket}"]
        done = subprocess.run([PROGRAM, *words, *server], capture_output=True, text=True, cwd=self.folder, env=self.environment(),
                              timeout=LIMIT_S)
        if check and done.returncode != 0:
            raise AssertionError(f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, name="make", mebibytes=1):
        file = self.folder / "make.py"
        file.write_text(MAKE.format(name=name))
        policy = self.folder / "policy.toml"
        policy.write_text('file_size = "200MiB"\n')
        return self.run_program("job", "submit", str(file), "--env", f"MEBIBYTES={mebibytes}", "--policy", str(policy)).split()[0]

    def show(self, key):
        return json.loads(self.run_program("job", "show", key, "--json"))

    def explain(self, key):
        return json.loads(self.run_program("job", "explain", key, "--json"))

    def wait_for_end(self, key):
        return wait_for(lambda: (job := self.show(key)) and job["status"] in ("finished", "error") and job, f"the end of {key}")

    def list_objects(self):
        pages = self.bucket.get_paginator("list_objects_v2").paginate(Bucket=servers.BUCKET, Prefix=self.prefix + "/")
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def objects_of(self, key):
        folder = "/" + key.removeprefix("job:").replace(":", ".") + "/"
        return {name.rpartition("/")[2]: name for name in self.list_objects() if folder in name}

    def read_object(self, name):
        return self.bucket.get_object(Bucket=servers.BUCKET, Key=name)["Body"].read()

    def check_objects(self, key):
        """Reads the objects of a job with boto3, and compares them with its record."""
        artifacts = self.show(key)["artifacts"]
        artifacts = json.loads(artifacts) if isinstance(artifacts, str) else artifacts
        objects = self.objects_of(key)
        self.assertEqual(set(objects), {entry["sha256"] for entry in artifacts.values()})
        for entry in artifacts.values():
            self.assertEqual(entry["store"], f"s3://{servers.BUCKET}/{self.prefix}")
            content = self.read_object(objects[entry["sha256"]])
            self.assertEqual((hashlib.sha256(content).hexdigest(), len(content)), (entry["sha256"], entry["bytes"]))
        return artifacts

    def download(self, key, name, host, check=True):
        return self.run_program("job", "artifacts", key, name, "--output", str(self.folder / "downloaded"), *self.settings(host), check=check)

    def saved_ends(self):
        return list((self.folder / "first" / "contexts").glob("*/ends/*/*"))

    # Tests.

    def test_flow_of_two_hosts_uses_the_store(self):
        self.start_hosts()
        file = self.folder / "flow.yaml"
        file.write_text(make_flow("travel", 130))
        self.run_program("flow", "start", str(file), "--follow")
        keys = [key for key in self.run_program("job", "list", "--json").split('"') if key.startswith("job:")]
        maker = next(key for key in keys if self.show(key).get("artifacts"))
        artifacts = self.check_objects(maker)
        self.assertEqual(set(artifacts), {"small", "empty", "large"})
        methods = [method for method, path, _ in self.proxy.requests if "partNumber" in path]
        self.assertEqual(methods.count("PUT"), 3, "130 MiB are three parts")
        read_hashes = {path.rpartition("/")[2] for method, path, _ in self.proxy.requests if method == "GET" and "?" not in path}
        self.assertEqual(read_hashes, {entry["sha256"] for entry in artifacts.values()}, "the other host has read the objects")
        self.stop("first")  # the host of the job is away for good
        for name in ("small", "empty"):
            self.download(maker, name, "elsewhere")
            (self.folder / "downloaded").unlink()

    def test_runner_sends_a_file_that_the_storage_has_lost(self):
        self.start_hosts()
        key = self.submit()
        self.wait_for_end(key)
        for name in self.objects_of(key).values():
            self.bucket.delete_object(Bucket=servers.BUCKET, Key=name)
        self.download(key, "small", "elsewhere")
        self.assertEqual((self.folder / "downloaded").read_text(), "text of make")

    def test_storage_is_away_at_the_end_of_a_run(self):
        self.proxy.fault = lambda method, path: "away"
        self.start_hosts()
        key = self.submit()
        explained = wait_for(lambda: (found := self.explain(key)) and "has failed since" in found["reason"] and found, "a reason")
        self.assertEqual(explained["cause"], "artifact_store")
        self.assertIn(f"s3://{servers.BUCKET}", json.dumps(explained))
        self.assertNotIn(self.server.secret_key + "\n", json.dumps(explained))
        other = self.folder / "other.py"
        other.write_text("result['slot'] = 'free'")
        self.run_program("job", "submit", str(other), "--follow")  # the agent has one slot
        self.assertNotIn(self.show(key)["status"], ("finished", "error"))
        self.proxy.fault = lambda method, path: None
        self.assertEqual(self.wait_for_end(key)["status"], "finished")
        self.check_objects(key)
        self.assertFalse(self.saved_ends(), "the saved end was deleted")

    def test_agent_is_killed_before_the_upload(self):
        self.proxy.fault = lambda method, path: "slow_down"
        self.start_hosts()
        key = self.submit()
        wait_for(lambda: self.explain(key)["cause"] == "artifact_store", "the run has ended")
        wait_for(lambda: self.saved_ends(), "the end is saved")
        self.stop("first")
        self.start_agent("first", 21, "python")
        self.proxy.fault = lambda method, path: None
        job = self.wait_for_end(key)
        self.assertEqual((job["status"], int(job["deliveries"])), ("finished", 1), "the job has run once")
        self.check_objects(key)

    def test_agent_is_killed_between_upload_and_end(self):
        stored = []

        def kill_at_the_last_file(method, path):
            if method == "PUT":
                stored.append(path)
            if len(stored) == 3:
                wait_for(lambda: "artifact_store" in self.run_program("job", "list", "--json"), "the claim is marked")
                self.processes["first"].kill()  # the storage stores the file, and no agent receives the answer

        self.proxy.fault = kill_at_the_last_file
        self.start_agent("first", 21, "python", lease="60s")
        key = self.submit()
        wait_for(lambda: self.processes["first"].poll() is not None, "the agent was killed")
        wait_for(lambda: len(self.objects_of(key)) == 3, "all files are stored")
        self.assertEqual(self.show(key)["detail"], "artifact_store")
        self.proxy.fault = lambda method, path: None
        self.start_agent("first", 21, "python", lease="60s")
        job = self.wait_for_end(key)
        self.assertEqual((job["status"], int(job["deliveries"])), ("finished", 1), "the job has run once")
        self.check_objects(key)
        wait_for(lambda: not self.saved_ends(), "the saved end is deleted")

    def test_lost_lease_does_not_mix_deliveries(self):
        self.proxy.fault = lambda method, path: "away" if method == "PUT" else None
        self.start_hosts()
        key = self.submit()
        wait_for(lambda: self.explain(key)["cause"] == "artifact_store", "the run has ended")
        self.processes["first"].send_signal(signal.SIGSTOP)
        self.start_agent("third", 23, "python")
        self.proxy.fault = lambda method, path: None
        job = self.wait_for_end(key)
        self.assertEqual((job["status"], int(job["deliveries"]), int(job["runner_id"])), ("finished", 2, 23))
        self.processes["first"].send_signal(signal.SIGCONT)
        wait_for(lambda: not self.saved_ends(), "the stale end is dropped")
        self.assertEqual(int(self.show(key)["runner_id"]), 23)
        self.check_objects(key)

    def test_time_limit_of_the_upload(self):
        self.proxy.fault = lambda method, path: "slow_down"
        self.start_hosts(store_timeout="3s")
        job = self.wait_for_end(self.submit())
        self.assertEqual((job["status"], job["detail"]), ("error", "artifact_store"))
        self.assertIn("SlowDown", job["error"])
        self.assertIn("artifacts.store_timeout", job["error"])

    def test_cancellation_ends_the_wait(self):
        self.proxy.fault = lambda method, path: "away"
        self.start_hosts()
        key = self.submit()
        wait_for(lambda: self.explain(key)["cause"] == "artifact_store", "the run has ended")
        self.run_program("job", "cancel", key)
        self.assertEqual(self.wait_for_end(key)["detail"], "cancelled")

    def test_wrong_answers_of_downloads(self):
        self.start_hosts()
        key = self.submit()
        self.wait_for_end(key)
        self.stop("first")  # its runner would send the file
        for fault in ("wrong_bytes", "truncated", "slow_down"):
            self.proxy.fault = lambda method, path: fault if method == "GET" and "list-type" not in path else None
            output = subprocess.run([PROGRAM, "job", "artifacts", key, "small", "--output", str(self.folder / fault),
                                     *self.settings("elsewhere")], capture_output=True, text=True,
                                    env=self.environment(), timeout=LIMIT_S)
            self.assertNotEqual(output.returncode, 0, fault)
            self.assertIn(f"s3://{servers.BUCKET}", output.stderr, fault)
            self.assertFalse((self.folder / fault).exists(), fault)
        answers = iter(["wrong_bytes", "truncated", "slow_down"])
        self.proxy.fault = lambda method, path: next(answers, None) if method == "GET" else None
        self.download(key, "small", "elsewhere")
        self.assertEqual((self.folder / "downloaded").read_text(), "text of make", "correct after three wrong answers")

    def test_retention_and_orphans(self):
        self.start_agent("first", 21, "python", "--retention", "20s")
        key = self.submit()
        self.wait_for_end(key)
        objects = self.objects_of(key)
        self.assertEqual(len(objects), 3)
        store = next(iter(objects.values())).removeprefix(self.prefix + "/").rsplit("/", 2)[0]
        orphan = f"{self.prefix}/{store}/12.99/{'a' * 64}"
        kept = [f"{self.prefix}/{'b' * 24}/1/12.99/{'a' * 64}", f"{self.prefix}/{store}/notes", f"other/{self.prefix}/{store}/12.99/{'a' * 64}"]
        for name in (orphan, *kept):
            self.bucket.put_object(Bucket=servers.BUCKET, Key=name, Body=b"orphan")
        wait_for(lambda: orphan not in self.list_objects(), "the orphan is deleted")
        wait_for(lambda: not self.objects_of(key), "the objects are deleted with the record")
        for name in kept:
            self.assertEqual(self.read_object(name), b"orphan", "objects of others and of other forms stay")

    def test_storage_with_tls_and_the_ca_of_the_operator(self):
        ca, certificate, other_ca = servers.make_certificates(self.folder / "certificates")
        proxy = servers.FaultyProxy(self.server.port, certificate)
        self.addCleanup(proxy.stop)
        https = {"store_endpoint": f"https://127.0.0.1:{proxy.port}"}
        self.start_agent("first", 21, "python", ca=other_ca, **https)
        key = self.submit(mebibytes=70)  # two parts
        explained = wait_for(lambda: (found := self.explain(key)) and "has failed since" in found["reason"] and found, "a reason")
        self.assertIn("set https.ca to the file with the certificate of this CA", json.dumps(explained))
        self.assertFalse(proxy.requests, "no request was sent to a server that was not verified")
        self.stop("first")
        self.start_agent("first", 21, "python", ca=ca, **https)
        self.assertEqual(self.wait_for_end(key)["status"], "finished")
        self.check_objects(key)
        self.assertTrue(any("partNumber" in path for _, path, _ in proxy.requests))
        self.stop("first")
        arguments = ["job", "artifacts", key, "small", "--output", str(self.folder / "downloaded")]
        self.run_program(*arguments, *self.settings("elsewhere", ca=other_ca, **https), check=False)
        self.assertFalse((self.folder / "downloaded").exists())
        self.run_program(*arguments, *self.settings("elsewhere", ca=ca, **https))
        self.assertEqual((self.folder / "downloaded").read_text(), "text of make")
        for wrong, text in ((other_ca, "issued by an unknown CA"), (None, "issued by an unknown CA"), (self.folder / "none.pem", "https.ca")):
            done = subprocess.run([PROGRAM, "doctor", "--json", *self.settings("first", ca=wrong, **https)], capture_output=True, text=True,
                                  env=self.environment(), timeout=LIMIT_S)
            self.assertIn(text, done.stdout + done.stderr)

    def test_doctor_names_causes(self):
        def check(**changes):
            done = subprocess.run([PROGRAM, "doctor", "--json", *self.settings("first", **changes)], capture_output=True, text=True,
                                  env=self.environment(), timeout=LIMIT_S)
            (row,) = [row for row in json.loads(done.stdout) if row["name"].startswith("artifacts.store")]
            self.assertNotIn("a wrong secret", done.stdout)
            return row["state"], row["detail"]

        self.assertEqual(check()[0], "ok")
        self.assertFalse([name for name in self.list_objects() if "probe" in name])
        self.assertIn("the bucket does not exist", check(store="s3://missing-bucket")[1])
        self.write_credentials("unknown", "a wrong secret")
        self.addCleanup(self.write_credentials, self.server.access_key, self.server.secret_key)
        self.assertIn("artifacts.store_credentials", check()[1])
        (self.path / "credentials").chmod(0o644)
        self.assertIn("chmod 600", check()[1])


if __name__ == "__main__":
    unittest.main()
