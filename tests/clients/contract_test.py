#!/usr/bin/python3
"""Compares both clients with the contract of a running server, /openrpc.json: methods, parameters and types, shapes, error codes."""
import asyncio
import contextlib
import json
import os
import re
import subprocess
import unittest
import urllib.request

from stranger import Stranger
from world import LIMIT_S, NODE_CLIENT, PYTHON_CLIENT, Case

import mycojobs
from mycojobs import errors

HERE = os.path.dirname(os.path.abspath(__file__))
METHOD = re.compile(r"""["'`]((?:artifact|job|jobs|flow|flows|system|actor|context|runner|message|queue|rpc)\.[a-z]+)["'`]""")
ALIASES = {"payload", "executor", "depends", "depends_on"}  # other names of script, script_type, dependends
RENAMED = {"script_type": "type", "env_vars": "env", "dependends": "depends"}
TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


class Recorder(mycojobs.AsyncClient):
    ANSWERS = {
        "job.start": {"key": "job:1:7"}, "flow.create": {"id": 7}, "job.status": {"key": "job:1:7"}, "job.restart": {"key": "job:1:8"},
        "job.logs": {"lines": [], "ended": True, "after_seq": 0}, "job.result": {"status": "finished", "result": {}},
        "artifact.list": [],
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
    """Calls every method of the Python client with every option."""
    c = Recorder()
    job = await c.submit("x", type="python", env={"A": "b"}, depends=[1, c.job("1:2")], id=3, caller_id=1, name="n", timeout=1, retries=1,
                         prerequisites=["wait:1s"], run_at_ms=1, priority=1, queue_timeout_ms=1, idempotency_key="k", concurrency_key="k",
                         concurrency_limit=1, inputs=["a"], args=["a"], stdin=b"\x00", files={"n": "text", "b": b"\xff"}, notify=[], policy={}, traceparent=TRACE)  # fmt: skip
    for each in (job.status, job.wait, job.result, job.cancel, job.retry, job.restart, job.explain, job.artifacts):
        await each()
    async for _ in job.logs(follow=True, after=1):
        pass
    await c.job(7).wait()
    with contextlib.suppress(mycojobs.Error):  # the recorder answers without a link
        await c.upload(__file__, caller_id=1)
    flow = await c.flow_start({"name": "n"}, inputs={"a": 1}, env={"A": "b"}, notify=[], idempotency_key="k", traceparent=TRACE)
    for each in (flow.status, flow.dag, flow.explain, flow.wait, flow.result):
        await each()
    await flow.approve("a", "c")
    await flow.reject("a", "c")
    await flow.signal("a", {"p": 1})
    await flow.cancel("c")
    await flow.pause("c")
    await flow.resume("n")
    await flow.retry("n", allow_irreversible=True)
    return c.calls


def text_of(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def members(declarations, name):
    """Returns the members of an interface and of its bases: name -> (whether it is optional, its type)."""
    found = re.search(rf"interface {name}(?: extends (\w+))? {{\n(.*?)\n}}", declarations, re.S)
    own = {each: (bool(may), type_) for each, may, type_ in re.findall(r"^  (\w+)(\??): (.*);$", found[2], re.M)}
    return {**(members(declarations, found[1]) if found[1] else {}), **own}


def json_types(type_):
    """Returns the JSON types of a TypeScript type; an empty result means any type."""
    found = set()
    for each in re.sub(r"\(.*\)|\{.*\}|<.*>", "", type_).split("|"):
        each = each.strip()
        if each in ("Json", "unknown"):
            return set()
        literal = each.startswith('"') or each in ("string", "ScriptType")
        found.add("string" if literal else "array" if each.endswith("[]") else {"number": "integer", "Duration": "integer", "boolean": "boolean"}.get(each, "object"))
    return found


def differences(declared, schemas, required):
    for name, schema in schemas.items():
        optional, type_ = declared.get(name, (None, "nothing"))
        types = schema.get("type", []) if isinstance(schema, dict) else []
        wanted = {types} if isinstance(types, str) else set(types)
        if json_types(type_) != wanted or optional == (name in required):
            yield f"{name}: {type_} for {schema}"
    yield from declared.keys() - schemas.keys()


def split(text):
    """Splits at commas outside of braces."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "{(<[") - (c in "})>]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [each.strip() for each in parts if each.strip()]


def node_parameters(text):
    """Returns the names of a method's parameters; for a destructured parameter, the names in it."""
    for each in split(text):
        inside = re.match(r"\{(.*)\}", each, re.S)
        yield sorted(re.match(r"[\w.]+", one)[0] for one in split(inside[1])) if inside else re.match(r"\w+", each)[0]


def declared_parameters(declarations, text):
    for each in split(text):
        name, type_ = re.match(r"(\w+)\??: (.*)", each, re.S).groups()
        inline = re.match(r"\{(.*)\}", type_, re.S)
        if inline:
            yield name, sorted(re.match(r"\w+", one)[0] for one in re.split(r"[;\n]\s*", inline[1].strip(" \n;")))
        else:
            yield name, sorted(members(declarations, type_)) if f"interface {type_} {{" in declarations else None


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

    def test_clients_call_only_methods_of_the_contract(self):
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

    def test_every_method_in_a_client_is_checked(self):
        sources = {"python": text_of(PYTHON_CLIENT, "mycojobs/aio.py"), "node": text_of(NODE_CLIENT, "index.js")}
        for client, source in sources.items():
            named = set(METHOD.findall(source)) - {"system.info"}  # used to find the context of an event stream
            self.assertGreater(len(named), 8)
            self.assertEqual(named - {method for method, _ in self.calls[client]}, set(), client)
        self.assertEqual({method for method, _ in self.calls["python"]}, {method for method, _ in self.calls["node"]})
        self.assertIn("system.info", self.methods)

    def test_submit_takes_all_that_a_job_may_ask_for(self):
        wanted = set(self.methods["job.start"]) - ALIASES
        for client, calls in self.calls.items():
            self.assertEqual(set(dict(map(tuple, calls))["job.start"]), wanted, client)
        declared = members(text_of(NODE_CLIENT, "index.d.ts"), "SubmitOptions")
        schemas = {RENAMED.get(name, name): self.methods["job.start"][name]["schema"] for name in wanted - {"script"}}
        self.assertEqual(list(differences(declared, schemas, ())), [])

    def test_unknown_options_are_refused_before_a_call(self):
        declarations = text_of(NODE_CLIENT, "index.d.ts")
        inline = {name: sorted(re.findall(r"(\w+)\??:", text)) for name, text in re.findall(r"(call|flowStart|events|logs)(?:<.*?>)?\([^()]*options\?: \{(.*?)\}[,)\n]", declarations, re.S)}
        limits, long_names = sorted(members(declarations, "WaitOptions")), {"script_type", "env_vars", "dependends"}
        wanted = {**inline, "Client": sorted(members(declarations, "ClientOptions")), "submit": sorted({*members(declarations, "SubmitOptions"), *long_names}),
                  **{name: limits for name in ("Job.wait", "Job.result", "Flow.wait", "Flow.result")}}  # fmt: skip
        self.assertEqual(self.node["options"], wanted)
        options = set(self.methods["job.start"]) - ALIASES - {"script"} | set(RENAMED.values())
        self.assertEqual(set(mycojobs.ship.SUBMIT_OPTIONS), options)
        self.assertEqual(set(wanted["submit"]), options)

    def test_the_error_codes_are_those_of_the_contract(self):
        contract = {each["code"]: name for name, each in self.document["components"]["errors"].items()}
        self.assertEqual({code: type_.word for code, type_ in errors.CODES.items()}, contract)
        snake = lambda name: re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
        self.assertEqual({int(code): snake(name) for code, name in self.node["codes"].items()}, contract)
        self.assertEqual({code: type_.__name__ for code, type_ in errors.CODES.items()}, {int(code): name for code, name in self.node["codes"].items()})

    def test_the_declared_shapes_are_those_of_the_contract(self):
        declarations = text_of(NODE_CLIENT, "index.d.ts")
        for name in ("JobState", "JobResult", "JobReason", "LogLine", "FlowState", "FlowResult"):
            shape = self.document["components"]["schemas"][name]
            self.assertEqual(list(differences(members(declarations, name), shape["properties"], shape["required"])), [], name)
        artifact = self.document["components"]["schemas"]["Artifact"]
        self.assertEqual(list(differences(members(declarations, "ArtifactInfo"), artifact["properties"], artifact["required"])), [])

    def test_the_declared_parameters_are_those_of_the_methods(self):
        declarations = text_of(NODE_CLIENT, "index.d.ts")
        for kind, methods in self.node["parameters"].items():
            body = re.search(rf"^export class {kind} {{\n(.*?)\n}}", declarations, re.S | re.M)[1]
            for name, text in methods.items():
                found = re.search(rf"^  {name}(?:<.*?>+)?\((.*?)\): (?:Promise|AsyncGenerator|Job|Flow)", body, re.S | re.M)
                if not found:
                    self.assertEqual(text, "", (kind, name))  # a getter
                    continue
                there, declared = list(node_parameters(text)), list(declared_parameters(declarations, found[1]))
                self.assertEqual(len(there), len(declared), (kind, name))
                for own, (declared_name, inside) in zip(there, declared):
                    if isinstance(own, list):
                        self.assertTrue("...options" in own or own == inside, (kind, name, own, inside))
                    else:
                        self.assertIn(own, (declared_name, "limits"), (kind, name))

    def test_declarations_match_the_code(self):
        declarations = text_of(NODE_CLIENT, "index.d.ts")
        self.assertEqual(set(re.findall(r"^export (?:class|const) (\w+)", declarations, re.M)), set(self.node["names"]))
        for name, there in self.node["methods"].items():
            body = re.search(rf"^export class {name} {{\n(.*?)\n}}", declarations, re.S | re.M)[1]
            declared = set(re.findall(r"^  (?:readonly )?(\w+)[(<:]", body, re.M)) - {"constructor", "private", "key", "context"}
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

    # Methods that change data, by the last part of their name. They are not repeated without an idempotency key.
    CHANGES = set("""create update delete send cancel start run retry restart approve reject replay pause resume signal apply remove requeue drop challenge begin end put""".split())

    def test_only_idempotent_calls_are_repeated(self):
        wanted = {}
        for method, params in self.methods.items():
            wanted[method, ""] = method == "job.cancel" or method.rpartition(".")[2] not in self.CHANGES
            for key in ("key", "idempotency_key"):
                if key in params:
                    wanted[method, key] = wanted[method, ""] or "the same key" in params[key]["description"]
        self.assertGreater(sum(wanted.values()), 50)
        calls = [[method, {key: "k"} if key else {}] for method, key in wanted]
        for client, sends in (("python", self.python_sends), ("node", self.node_sends)):
            stranger = Stranger()
            self.addCleanup(stranger.close)
            sends(stranger.url + "/lossy", calls)
            sent = {(method, next(iter(params), "")): stranger.lost[json.dumps([method, params], sort_keys=True)] for method, params in calls}
            self.assertEqual(sent, {each: 2 if again else 1 for each, again in wanted.items()}, client)

    @staticmethod
    def python_sends(url, calls):
        async def all_of_them():
            async with mycojobs.AsyncClient(url, "t", retry_for=LIMIT_S) as client:
                await asyncio.gather(*(client.call(method, params) for method, params in calls), return_exceptions=True)

        asyncio.run(all_of_them())

    @staticmethod
    def node_sends(url, calls):
        subprocess.run(["node", os.path.join(HERE, "reach.mjs")], input=json.dumps(calls), env={**os.environ, "COORDINATOR_URL": url, "MYCOJOBS_TOKEN": "t"},
                       capture_output=True, text=True, check=True, timeout=LIMIT_S)  # fmt: skip

    def test_every_method_of_the_contract_can_be_called(self):
        environment = {**os.environ, "COORDINATOR_URL": self.world.url, "MYCOJOBS_TOKEN": self.world.token}
        shown = json.loads(subprocess.run(["node", os.path.join(HERE, "reach.mjs")], input=json.dumps([[method, {}] for method in self.methods]), env=environment,
                                         capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout)  # fmt: skip
        known = {0} | set(errors.CODES)
        with mycojobs.Client(self.world.url, self.world.token) as client:
            for method in self.methods:
                self.assertIn(shown[method], known, method)
                try:
                    client.call(method)
                except mycojobs.Error as why:
                    self.assertIn(why.code, known, method)
            with self.assertRaises(mycojobs.Error) as caught:
                client.call("no.method")
            self.assertEqual((caught.exception.code, caught.exception.word), (-32601, "method_not_found"))


if __name__ == "__main__":
    unittest.main()
