#!/usr/bin/python3
"""Both clients against the contract of a running server, /openrpc.json: methods, parameters and their types, shapes, error codes."""
import asyncio
import json
import os
import re
import subprocess
import unittest
import urllib.request

from world import LIMIT_S, NODE_CLIENT, PYTHON_CLIENT, Case

import mycojobs
from mycojobs import errors

HERE = os.path.dirname(os.path.abspath(__file__))
METHOD = re.compile(r"""["'`]((?:job|jobs|flow|flows|system|actor|context|runner|message|queue|rpc)\.[a-z]+)["'`]""")
ALIASES = {"payload", "executor", "depends", "depends_on"}  # other names of script, script_type, dependends
RENAMED = {"script_type": "type", "env_vars": "env", "dependends": "depends"}
TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


class Recorder(mycojobs.AsyncClient):
    ANSWERS = {
        "job.start": {"key": "job:1:7"}, "flow.create": {"id": 7}, "job.status": {"key": "job:1:7"},
        "job.logs": {"lines": [], "ended": True, "after_seq": 0}, "job.result": {"status": "finished", "result": {}},
        "jobs.wait": [{"key": "job:1:7", "status": "finished"}], "flows.wait": [{"id": 7, "status": "finished", "result": {}}],
    }  # fmt: skip

    def __init__(self):
        super().__init__("http://127.0.0.1:1", context=1)
        self.calls = []

    async def call(self, method, params=None, **_):
        self.calls.append([method, {name: value for name, value in (params or {}).items() if value is not None}])
        return self.ANSWERS.get(method, {"contexts": [1]})


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def python_calls():
    """Every method of the Python client, with every option."""
    c = Recorder()
    job = await c.submit("x", type="python", env={"A": "b"}, depends=[1, c.job("1:2")], id=3, caller_id=1, name="n", timeout=1, retries=1,
                         prerequisites=["wait:1s"], run_at_ms=1, priority=1, queue_timeout_ms=1, idempotency_key="k", concurrency_key="k",
                         concurrency_limit=1, inputs=["a"], notify=[], policy={}, traceparent=TRACE)  # fmt: skip
    for each in (job.status, job.wait, job.result, job.cancel, job.retry, job.explain):
        await each()
    async for _ in job.logs(follow=True, after=1):
        pass
    await c.job(7).wait()
    flow = await c.flow_start({"name": "n"}, inputs={"a": 1}, env={"A": "b"}, notify=[], idempotency_key="k", traceparent=TRACE)
    for each in (flow.status, flow.dag, flow.explain, flow.wait, flow.result):
        await each()
    await flow.approve("a", "c")
    await flow.reject("a", "c")
    await flow.signal("a", {"p": 1})
    await flow.cancel("c")
    await flow.pause("c")
    await flow.resume("n")
    await flow.retry("n")
    return c.calls


def text_of(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def members(declarations, name):
    """Names of an interface's members, with those that it extends."""
    found = re.search(rf"interface {name}(?: extends (\w+))? {{\n(.*?)\n}}", declarations, re.S)
    return (members(declarations, found[1]) if found[1] else set()) | set(re.findall(r"^  (\w+)\??:", found[2], re.M))


class Contract(Case):
    with_agent = False

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        asking = urllib.request.Request(cls.world.url + "/openrpc.json", headers={"Authorization": "Bearer " + cls.world.token})
        with urllib.request.urlopen(asking, timeout=LIMIT_S) as answer:
            cls.document = json.load(answer)
        cls.methods = {each["name"]: {param["name"]: param for param in each["params"]} for each in cls.document["methods"]}
        cls.node = json.loads(subprocess.run(["node", os.path.join(HERE, "calls.mjs")], capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout)
        cls.calls = {"python": asyncio.run(python_calls()), "node": cls.node["calls"]}

    def test_the_clients_call_what_the_contract_has(self):
        for client, calls in self.calls.items():
            for method, params in calls:
                self.assertIn(method, self.methods, client)
                for name, value in params.items():
                    self.assertIn(name, self.methods[method], (client, method))
                    schema = self.methods[method][name]["schema"]
                    types = schema.get("type", []) if isinstance(schema, dict) else []
                    wanted = tuple(TYPES[each] for each in ([types] if isinstance(types, str) else types))
                    self.assertTrue(not wanted or isinstance(value, wanted), (client, method, name, value))
                for name, param in self.methods[method].items():
                    self.assertTrue(name in params or not param["required"], (client, method, name))

    def test_no_method_is_named_in_a_client_that_was_not_looked_at(self):
        sources = {"python": text_of(PYTHON_CLIENT, "mycojobs/aio.py"), "node": text_of(NODE_CLIENT, "index.js")}
        for client, source in sources.items():
            named = set(METHOD.findall(source)) - {"system.info"}  # which context an event stream is of
            self.assertGreater(len(named), 8)
            self.assertEqual(named - {method for method, _ in self.calls[client]}, set(), client)
        self.assertEqual({method for method, _ in self.calls["python"]}, {method for method, _ in self.calls["node"]})
        self.assertIn("system.info", self.methods)

    def test_submit_takes_all_that_a_job_may_ask_for(self):
        wanted = set(self.methods["job.start"]) - ALIASES
        for client, calls in self.calls.items():
            self.assertEqual(set(dict(map(tuple, calls))["job.start"]), wanted, client)
        declared = members(text_of(NODE_CLIENT, "index.d.ts"), "SubmitOptions")
        self.assertEqual(declared, {RENAMED.get(name, name) for name in wanted - {"script"}})

    def test_the_error_codes_are_those_of_the_contract(self):
        contract = {each["code"]: name for name, each in self.document["components"]["errors"].items()}
        self.assertEqual({code: type_.word for code, type_ in errors.CODES.items()}, contract)
        snake = lambda name: re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
        self.assertEqual({int(code): snake(name) for code, name in self.node["codes"].items()}, contract)
        self.assertEqual({code: type_.__name__ for code, type_ in errors.CODES.items()}, {int(code): name for code, name in self.node["codes"].items()})

    def test_the_declared_shapes_are_those_of_the_contract(self):
        declarations = text_of(NODE_CLIENT, "index.d.ts")
        for name in ("JobState", "JobResult", "JobReason", "LogLine", "FlowState", "FlowResult"):
            self.assertEqual(members(declarations, name), set(self.document["components"]["schemas"][name]["properties"]), name)

    def test_the_declarations_name_what_is_there(self):
        declarations = text_of(NODE_CLIENT, "index.d.ts")
        self.assertEqual(set(re.findall(r"^export (?:class|const) (\w+)", declarations, re.M)), set(self.node["names"]))
        for name, there in self.node["methods"].items():
            body = re.search(rf"^export class {name} {{\n(.*?)\n}}", declarations, re.S | re.M)[1]
            declared = set(re.findall(r"^  (?:readonly )?(\w+)[(<:]", body, re.M)) - {"constructor", "private", "key", "context", "retryFor"}
            self.assertEqual(declared - {"id"}, set(there) - {"id"}, name)
        self.assertEqual(set(mycojobs.__all__) - set(dir(mycojobs)), set())

    def test_versions_are_that_of_the_program(self):
        self.assertEqual(self.document["info"]["version"], mycojobs.__version__)
        self.assertEqual(self.document["info"]["version"], json.loads(text_of(NODE_CLIENT, "package.json"))["version"])

    def test_both_clients_can_do_the_same(self):
        camel = lambda name: re.sub(r"_(\w)", lambda found: found[1].upper(), name)
        for name, there in self.node["methods"].items():
            for kind in (name, "Async" + name):
                of_python = {camel(each) for each in vars(getattr(mycojobs, kind)) if not each.startswith("_")} - {"key", "close", "id"}
                self.assertEqual(of_python, set(there) - {"id"}, kind)

    def test_every_method_of_the_contract_can_be_called(self):
        environment = {**os.environ, "COORDINATOR_URL": self.world.url, "MYCOJOBS_TOKEN": self.world.token}
        told = json.loads(subprocess.run(["node", os.path.join(HERE, "reach.mjs")], input=json.dumps(list(self.methods)), env=environment,
                                         capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout)  # fmt: skip
        known = {0} | set(errors.CODES)
        with mycojobs.Client(self.world.url, self.world.token) as client:
            for method in self.methods:
                self.assertIn(told[method], known, method)
                try:
                    client.call(method)
                except mycojobs.Error as why:
                    self.assertIn(why.code, known, method)
            with self.assertRaises(mycojobs.Error) as caught:
                client.call("no.method")
            self.assertEqual((caught.exception.code, caught.exception.word), (-32601, "method_not_found"))


if __name__ == "__main__":
    unittest.main()
