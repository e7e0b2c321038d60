#!/usr/bin/python3
"""The Python client with a real coordinator and a real agent. python_test.py [FOLDER OF THE PROGRAMS]"""
import asyncio
import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref

from world import LIMIT_S, PYTHON_CLIENT, Case, eventually

import math
import mycojobs
from mycojobs import Client
from mycojobs.aio import WAIT_MS

HOSTILE = "\x1b[31mred\x1b[0m \u202e<b>&\"'\x00\x07 \u2028 end"
SLEEP = "import time\ntime.sleep(60)"
TABLE = [1, 2, 3]


@mycojobs.job(timeout=60, name="area of a circle")
def area(radius, unit="m"):
    print("computing", radius)
    return {"area": round(math.pi * radius**2, 2), "unit": unit}


def fails(number):
    raise ValueError(f"no good: {number}")


def uses_table():
    return TABLE


def returns_a_set():
    return {1, 2}


def sees_the_module_of_jobs():
    return [mycojobs.job.id, hasattr(mycojobs, "Client")]


def factorial(n: "np.ndarray") -> int:  # noqa: F821  the annotation refers to a missing name
    return 1 if n < 2 else n * factorial(n - 1)


class Jobs(Case):
    def setUp(self):
        self.client = Client(self.world.url, self.world.token)
        self.addCleanup(self.client.close)

    def test_script_returns_its_result_and_log(self):
        job = self.client.submit("import sys\nprint('one')\nprint('two', file=sys.stderr)\nresult['n'] = 42", env={"A": "b"}, name="first")
        self.assertEqual(job.result(LIMIT_S), {"n": 42})
        lines = list(job.logs())
        self.assertEqual(sorted((line["stream"], line["text"]) for line in lines), [("stderr", "two\n"), ("stdout", "one\n")])
        self.assertEqual([line["seq"] for line in job.logs(after=lines[0]["seq"])], [lines[1]["seq"]])
        self.assertEqual(job.status()["status"], "finished")
        self.assertEqual(self.client.call("job.get", {"id": job.key})["name"], "first")
        self.assertEqual(self.client.job(f"job:{job.key}").result(), {"n": 42})
        self.assertEqual(job.explain()["cause"], "finished")

    def test_a_job_brings_arguments_input_and_files_along(self):
        script = "import sys\nresult['all'] = [sys.argv[1:], sys.stdin.read(), open('/job/files/a').read(), open('/job/files/b', 'rb').read().hex()]"
        job = self.client.submit(script, args=["-x", "two words"], stdin="typed", files={"a": "text", "b": b"\xff"})
        self.assertEqual(job.result(LIMIT_S), {"all": [["-x", "two words"], "typed", "text", "ff"]})
        self.assertEqual(job.restart().result(LIMIT_S), {"all": [["-x", "two words"], "typed", "text", "ff"]})
        with self.assertRaises(mycojobs.Invalid):
            self.client.submit("x", files={"a": 7})
        with self.assertRaises(mycojobs.TooLarge) as caught:
            self.client.submit("x", stdin=b"x" * ((1 << 20) + 1))
        self.assertIn("1048576", str(caught.exception))

    def test_a_log_is_followed_until_the_end(self):
        job = self.client.submit("import time\nfor i in range(4):\n  print(i, flush=True)\n  time.sleep(0.3)")
        self.assertEqual([line["text"] for line in job.logs(follow=True)], ["0\n", "1\n", "2\n", "3\n"])
        self.assertTrue(job.status()["ended"])

    def test_a_log_may_be_left_in_the_middle(self):
        job = self.client.submit("import time\nwhile True:\n  print('x', flush=True)\n  time.sleep(0.05)")
        for _ in job.logs(follow=True):
            break
        job.cancel()
        self.assertRaises(mycojobs.JobCancelled, job.result, LIMIT_S)

    def test_function_is_shipped_and_returns_its_value(self):
        self.assertEqual(area(1), {"area": 3.14, "unit": "m"}, "here it runs as ever")
        job = self.client.submit(area, 2, kwargs={"unit": "km"})
        self.assertEqual(job.result(LIMIT_S), {"area": 12.57, "unit": "km"})
        self.assertEqual([line["text"] for line in job.logs()], ["computing 2\n"])
        stored = self.client.call("job.get", {"id": job.key})
        self.assertEqual((stored["name"], stored["timeout"]), ("area of a circle", 60))
        self.assertEqual(self.client.job(job.key).result(), {"area": 12.57, "unit": "km"}, "another handle says the same")
        self.assertEqual(self.client.submit(factorial, 10).result(LIMIT_S), 3628800)
        self.assertEqual(self.client.submit(area, 1, timeout=7).result(LIMIT_S)["unit"], "m")

    def test_arguments_arrive_unchanged(self):
        def same(value, *rest, key=None):
            return [value, list(rest), key]

        value = {"text": HOSTILE, "quote": "'''\\\"\\n", "list": [1, 2.5, None, True, {"deep": []}], "ünïcode": "\U0001f600", "big": 2**53}
        self.assertEqual(self.client.submit(same, value, "a", (1, 2), kwargs={"key": "k"}).result(LIMIT_S), [value, ["a", [1, 2]], "k"])

    def test_a_module_of_its_file_is_imported_where_it_runs(self):
        job = self.client.submit(sees_the_module_of_jobs)
        self.assertEqual(job.result(LIMIT_S), [job.id, False])

    def test_a_function_that_raises_fails_with_its_line(self):
        with self.assertRaises(mycojobs.JobFailed) as caught:
            self.client.submit(fails, 7).result(LIMIT_S)
        self.assertEqual(caught.exception.detail, "exception")
        self.assertEqual(caught.exception.error_info["type"], "ValueError")
        self.assertIn("no good: 7", str(caught.exception))
        self.assertIn("raise ValueError", caught.exception.error_info["traceback"])
        with self.assertRaisesRegex(mycojobs.JobFailed, "return sorted"):
            self.client.submit(returns_a_set).result(LIMIT_S)

    def test_hostile_text_does_nothing_to_a_terminal(self):
        job = self.client.submit(f"print({HOSTILE!r})\nresult['x'] = {HOSTILE!r}\n")
        self.assertEqual(job.result(LIMIT_S), {"x": HOSTILE})
        self.assertEqual("".join(line["text"] for line in job.logs()), HOSTILE + "\n")
        with self.assertRaises(mycojobs.JobFailed) as caught:
            self.client.submit(f"raise ValueError({HOSTILE!r})").result(LIMIT_S)
        self.assertTrue(str(caught.exception).isprintable(), ascii(str(caught.exception)))
        self.assertIn("\x1b[31m", caught.exception.error_info["message"])

    def test_a_cancelled_job_is_reported_as_such(self):
        job = self.client.submit(SLEEP)
        eventually(lambda: job.status()["status"] == "started")
        job.cancel()
        with self.assertRaises(mycojobs.JobCancelled):
            job.result(LIMIT_S)
        with self.assertRaises(mycojobs.Conflict):
            job.retry()

    def test_a_failed_job_may_be_tried_again(self):
        job = self.client.submit("import mycojobs\nassert mycojobs.job.attempt > 1")
        self.assertRaises(mycojobs.JobFailed, job.result, LIMIT_S)
        job.retry()
        self.assertEqual(job.result(LIMIT_S), {})

    def test_a_job_that_has_ended_is_run_once_more_as_a_new_one(self):
        job = self.client.submit("import os\nresult['x'] = os.environ['X']", env={"X": "y"})
        self.assertEqual(job.result(LIMIT_S), {"x": "y"})
        again = job.restart()
        self.assertNotEqual(again.key, job.key)
        self.assertEqual(again.result(LIMIT_S), {"x": "y"})

    def test_expired_wait_is_reported_and_repeatable(self):
        job = self.client.submit("import time\ntime.sleep(2)\nresult['late'] = True")
        began = time.monotonic()
        with self.assertRaises(mycojobs.WaitTimeout) as caught:
            job.result(0.2)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(job.result(LIMIT_S), {"late": True})

    def test_a_job_runs_behind_those_that_it_depends_on(self):
        first = self.client.submit("result['n'] = 20", name="first")
        second = self.client.submit("import mycojobs\nresult['n'] = mycojobs.inputs['first']['n'] + 1", depends=[first])
        self.assertEqual(second.result(LIMIT_S), {"n": 21})

    def test_large_results_arrive_up_to_the_limit(self):
        self.assertEqual(len(self.client.submit("result['x'] = 'ü' * 450_000").result(LIMIT_S)["x"]), 450_000)
        with self.assertRaises(mycojobs.JobFailed) as caught:
            self.client.submit("result['x'] = 'x' * 3_000_000").result(LIMIT_S)
        self.assertEqual(caught.exception.detail, "result_too_large")
        with self.assertRaisesRegex(mycojobs.TooLarge, "script"):
            self.client.submit("#" * 5_000_000)
        with self.assertRaises(mycojobs.TooLarge):
            self.client.submit("#" * 20_000_000)

    def test_an_idempotency_key_makes_one_job(self):
        first = self.client.submit("result['n'] = 1", idempotency_key="same")
        self.assertEqual(self.client.submit("result['n'] = 1", idempotency_key="same").key, first.key)
        with self.assertRaises(mycojobs.Conflict) as caught:
            self.client.submit("result['n'] = 2", idempotency_key="same")
        self.assertEqual(caught.exception.code, -32002)
        self.assertNotEqual(self.client.submit("result['n'] = 1").key, first.key)

    def test_a_wrong_parameter_is_named(self):
        with self.assertRaises(mycojobs.Invalid) as caught:
            self.client.submit("print(1)", timeout=0)
        self.assertEqual((caught.exception.field, caught.exception.code), ("timeout", -32602))
        with self.assertRaisesRegex(mycojobs.Invalid, "submit: unknown option 'tiemout'"):
            self.client.submit("print(1)", tiemout=3)
        self.assertRaises(mycojobs.Invalid, self.client.submit, "print(1)", 3)
        self.assertRaises(mycojobs.Invalid, self.client.call, "job.get", {"id": {1, 2}})

    def test_an_unknown_option_is_refused_before_a_request(self):
        with mycojobs.Client("http://127.0.0.1:1", retry_for=0) as nowhere:
            for call in (lambda: nowhere.submit("x", tiemout=3), lambda: mycojobs.job(retires=2)(area)):
                with self.assertRaisesRegex(mycojobs.Invalid, "unknown option '(tiemout|retires)'.*timeout"):
                    call()

    def test_time_spans_are_seconds_or_texts(self):
        job = self.client.submit("import time\ntime.sleep(0.3)", timeout="1m")
        self.assertEqual(self.client.call("job.get", {"id": job.key})["timeout"], 60)
        with self.assertRaisesRegex(mycojobs.WaitTimeout, "0.05 s"):
            job.wait("50ms")
        for wrong in (-1, float("nan"), "5", "soon", "1.5s", True, []):
            with self.assertRaisesRegex(mycojobs.Invalid, "timeout: .* is not a time span"):
                job.wait(wrong)
        job.wait(f"{LIMIT_S}s")

    def test_a_job_that_is_not_there_is_reported(self):
        self.assertRaises(mycojobs.NotFound, self.client.job(900_000).wait)
        self.assertRaises(mycojobs.NotFound, self.client.job("1:900000").result)
        self.assertRaises(mycojobs.Invalid, self.client.job("1:x").wait)

    def test_a_token_that_is_unknown_is_denied(self):
        for token in ("mj_wrong", None):
            with Client(self.world.url, token) as stranger, self.assertRaises(mycojobs.Denied) as caught:
                stranger.submit("print(1)")
            self.assertEqual(caught.exception.code, -32003)
            self.assertIn("mycojobs key token", caught.exception.remedy)
        with Client(self.world.url, self.world.new_token("--actor", "12")) as stranger:
            self.assertRaises(mycojobs.Denied, stranger.submit, "print(1)")
            self.assertRaises(mycojobs.Denied, next, stranger.events())
        self.assertRaises(mycojobs.Invalid, Client, "ftp://x")
        self.assertRaises(mycojobs.Invalid, Client, self.world.url, "a\r\nb")


class Shipping(unittest.TestCase):
    def refused(self, function, words, *args, **kwargs):
        with self.assertRaisesRegex(mycojobs.CannotShip, words) as caught:
            from mycojobs.ship import make_script

            make_script(function, args, kwargs)
        self.assertIsInstance(caught.exception, TypeError)

    def test_unshippable_function_is_rejected_with_a_reason(self):
        outer = 3

        def closure():
            return outer

        async def asynchronous():
            pass

        def generator():
            yield 1

        def other(function):
            return function

        @other
        def decorated():
            pass

        def default(n=TABLE):
            return n

        def nested():
            return [TABLE for _ in range(3)]

        def misspelt():
            return lenght([])  # noqa: F821

        self.refused(lambda: 1, "lambda")
        self.refused(closure, "closure over outer: pass that as an argument")
        self.refused(asynchronous, "asynchronous or a generator")
        self.refused(generator, "asynchronous or a generator")
        self.refused(decorated, "a decorator besides @job")
        self.refused(default, "uses TABLE")
        self.refused(nested, "uses TABLE")
        self.refused(misspelt, "uses lenght")
        self.refused(uses_table, "uses TABLE, which is not shipped with it")
        self.refused(len, "is not a plain function")
        self.refused(Jobs.setUp, "is not a plain function")
        self.refused(self.setUp, "is not a plain function")
        namespace = {}
        exec("def without_source(): pass", namespace)
        self.refused(namespace["without_source"], "no source")
        with self.assertRaisesRegex(mycojobs.CannotShip, "lambda"):
            mycojobs.job()(lambda: 1)

    def test_non_json_arguments_are_rejected_with_their_place(self):
        self.refused(area, "missing a required argument: 'radius'")
        self.refused(area, "argument 1 is a set", {1})
        self.refused(area, r"argument unit\['a'\]\[1\] is a bytes", 1, unit={"a": [1, b""]})
        self.refused(area, "the key 1, which is not text", {1: 2})
        self.refused(area, "is nan", math.nan)

    def test_texts_of_a_nested_function_are_shipped_as_they_are(self):
        def nested(sep="\n"):
            text = """first
            second
third\u2028\t
"""
            # a comment
            both = ("a"
    "b", f"""{sep!r}
                {len(text)}
 end""")
            if text:
        # less indented
                return [text, *both]

        from mycojobs.ship import make_script

        there = {"result": {}}
        exec(make_script(nested, (), {}), there)
        self.assertEqual(there["result"], {"return": nested()})

    def test_only_a_function_of_type_python_is_shipped(self):
        with Client("http://127.0.0.1:1", retry_for=0) as client:
            self.assertRaises(mycojobs.CannotShip, client.submit, area, 1, type="sal")
            for other in (functools.partial(area, 1), 5, Jobs):
                self.assertRaises(mycojobs.CannotShip, client.submit, other)


class Flows(Case):
    def setUp(self):
        self.client = Client(self.world.url, self.world.token)
        self.addCleanup(self.client.close)

    DEFINITION = {
        "name": "story",
        "inputs": {"n": {"type": "number", "default": 1}},
        "jobs": {
            "make": {"type": "python", "script": "import mycojobs, os\nresult['n'] = mycojobs.flow.inputs['n']\nresult['env'] = os.environ['STAGE']"},
            "ok": {"needs": "make", "approval": {}},
            "ship": {"needs": "ok", "prerequisites": ["signal:go"], "type": "python", "script": "import mycojobs\nresult['go'] = mycojobs.flow.signals['go']"},
        },
    }

    def start(self, definition=None, **more):
        return self.client.flow_start(definition or self.DEFINITION, env={"STAGE": "test"}, **more)

    def until(self, flow, node, status):
        eventually(lambda: any(each["name"] == node and each["node_status"] == status for each in flow.dag()["nodes"]))

    def test_flow_is_approved_signalled_and_returns_its_results(self):
        flow = self.start(inputs={"n": 7})
        self.until(flow, "make", "completed")
        self.assertRaises(mycojobs.WaitTimeout, flow.wait, 0.1)
        eventually(lambda: flow.explain()[0]["cause"] == "approval")
        flow.approve("ok", comment="read it")
        flow.signal("go", {"to": "you"})
        result = flow.result(LIMIT_S)
        self.assertEqual((result["make.n"], result["make.env"], result["ship.go"]), (7, "test", {"to": "you"}))
        self.assertEqual(flow.status()["status"], "finished")
        events = list(self.client.events(flow=flow.id, after="0"))
        self.assertEqual(events[-1].data["status"], "finished")
        self.assertIn("node_completed", [each.data.get("kind") for each in events])

    def test_failed_flow_reports_its_error(self):
        flow = self.start()
        self.until(flow, "make", "completed")
        flow.reject("ok")
        with self.assertRaises(mycojobs.FlowFailed) as caught:
            flow.result(LIMIT_S)
        self.assertEqual(caught.exception.state["result"]["make.n"], 1)

    def test_pause_resume_retry_and_cancel(self):
        flow = self.start({"name": "n", "jobs": {"a": {"type": "python", "script": "import mycojobs\nassert mycojobs.job.attempt > 1"}}})
        self.assertRaises(mycojobs.FlowFailed, flow.result, LIMIT_S)
        flow.retry()
        self.assertEqual(flow.result(LIMIT_S), {})
        flow = self.start()
        self.assertEqual(flow.pause("lunch")["id"], flow.id)
        flow.resume()
        flow.cancel("enough")
        with self.assertRaises(mycojobs.FlowFailed) as caught:
            flow.result(LIMIT_S)
        self.assertEqual(caught.exception.detail, "cancelled")
        self.assertRaises(mycojobs.NotFound, self.client.flow(900_000).wait, 1)

    def test_retry_repeats_an_irreversible_node_of_a_child_only_if_allowed(self):
        child = {"name": "child", "jobs": {"pay": {"type": "python", "script": "pass", "irreversible": True}, "x": {"needs": "pay", "type": "python", "script": "1/0"}}}
        flow = self.start({"name": "n", "jobs": {"c": {"flow": child}}})
        self.assertRaises(mycojobs.FlowFailed, flow.result, LIMIT_S)
        with self.assertRaises(mycojobs.Conflict) as caught:
            flow.retry()
        self.assertIn("node pay is irreversible and has completed", str(caught.exception))
        flow.retry(allow_irreversible=True)
        self.assertRaises(mycojobs.FlowFailed, flow.result, LIMIT_S)

    def test_an_idempotency_key_makes_one_flow(self):
        self.assertEqual(self.start(idempotency_key="same").id, self.start(idempotency_key="same").id)
        with self.assertRaises(mycojobs.Conflict):
            self.start({"name": "other", "jobs": {"a": {"log": "x"}}}, idempotency_key="same")
        with self.assertRaises(mycojobs.Invalid):
            self.start({"name": "n", "jobs": {}})


class Away(Case):
    """The behaviour of clients when servers and connections fail."""

    def setUp(self):
        self.client = Client(self.world.url, self.world.token)
        self.addCleanup(self.client.close)

    def named(self, name):
        return self.client.call("job.list", {"name": name})

    def test_a_wait_outlives_the_server(self):
        job = self.client.submit("import time\ntime.sleep(4)\nresult['n'] = 1")
        flow = self.client.flow_start({"name": "n", "jobs": {"a": {"wait": "3s"}}})
        output = []
        threads = [threading.Thread(target=lambda of=of: output.append(of.result(LIMIT_S))) for of in (job, flow)]
        threads.append(threading.Thread(target=lambda: output.append([line["text"] for line in job.logs(follow=True)])))
        for each in threads:
            each.start()
        time.sleep(0.5)
        self.world.stop_coordinator()
        time.sleep(1)
        self.world.start_coordinator()
        for each in threads:
            each.join(LIMIT_S)
        self.assertEqual(len(output), 3)
        self.assertIn({"n": 1}, output)

    def test_call_during_an_outage_is_served_afterwards(self):
        self.world.stop_coordinator()
        made = []
        thread = threading.Thread(target=lambda: made.append(self.client.submit("result['n'] = 2", name="patient")))
        thread.start()
        time.sleep(1)
        self.assertEqual(made, [])
        self.world.start_coordinator()
        thread.join(LIMIT_S)
        self.assertEqual(made[0].result(LIMIT_S), {"n": 2})
        self.assertEqual(len(self.named("patient")), 1)

    def test_an_answer_that_was_lost_makes_no_second_job(self):
        self.client.call("system.ping")
        self.world.relay.lose_answers = 1
        job = self.client.submit("result['n'] = 3", name="only once")
        self.assertEqual(job.result(LIMIT_S), {"n": 3})
        self.assertEqual(len(self.named("only once")), 1)
        self.assertEqual(self.world.relay.lose_answers, 0)

    def test_other_calls_are_not_repeated(self):
        request = {"script": "x", "script_type": "python", "name": "unsafe"}
        self.world.relay.lose_answers = 1
        with self.assertRaises(mycojobs.Unavailable) as caught:
            self.client.call("job.create", request)
        self.assertTrue(caught.exception.remedy)
        self.assertEqual(len(eventually(lambda: self.named("unsafe"))), 1)
        self.world.relay.lose_answers = 1
        self.client.call("job.create", {**request, "id": 700_000, "name": "named by its id"}, repeat=True)
        self.assertEqual(len(self.named("named by its id")), 1)

    def test_instance_key_answers_a_gate_once(self):
        for verb in ("approve", "reject", "cancel", "remove"):
            self.world.relay.begin_count()
            self.world.relay.lose_answers = 1
            with self.assertRaises(mycojobs.Unavailable):
                self.client.call("workflow." + verb, {"workflow": "acme/order@1", "key": "7"})
            self.assertEqual(self.world.relay.requests, 1, verb)

    def test_missing_server_is_an_error_after_the_timeout(self):
        with Client("http://127.0.0.1:1", "t", retry_for=0.3) as client:
            began = time.monotonic()
            with self.assertRaises(mycojobs.Unavailable) as caught:
                client.submit("print(1)")
            self.assertLess(time.monotonic() - began, 20)
            self.assertIn("mycojobs coordinator", caught.exception.remedy)

    def test_events_resume_after_the_last_one(self):
        job = self.client.submit("import time\nfor i in range(30):\n  print(i, flush=True)\n  time.sleep(0.05)")
        seen, states = [], []
        for event in self.client.events(job=job.key):
            if event.kind == "log":
                seen.append(event.data["text"])
                if len(seen) in (3, 12):
                    self.world.relay.cut()
            else:
                states.append(event.data["status"])
        self.assertEqual(seen, [f"{i}\n" for i in range(30)])
        self.assertEqual(states[-1], "finished")

    def test_events_of_a_context_cover_all_flows(self):
        events = self.client.events()
        shown = threading.Thread(target=lambda: setattr(self, "first", next(events)))
        shown.start()
        while shown.is_alive():
            self.client.flow_start({"name": "n", "jobs": {"a": {"log": "x"}}}).wait(LIMIT_S)
        self.assertIn(self.first.kind, ("fact", "flow"))
        events.close()

    def test_a_hundred_threads_wait_over_few_connections(self):
        self.client.call("queue.pause", {"queue": "python"})
        jobs = [self.client.submit(f"result['n'] = {i}") for i in range(100)]
        self.world.relay.begin_count()
        output = {}
        threads = [threading.Thread(target=lambda i=i: output.update({i: jobs[i].result(LIMIT_S)["n"]})) for i in range(100)]
        for each in threads:
            each.start()
        time.sleep(0.5)
        began = time.monotonic()
        self.client.call("system.ping")
        self.assertLess(time.monotonic() - began, WAIT_MS / 2000, "waits leave connections for calls")
        self.client.call("queue.resume", {"queue": "python"})
        for each in threads:
            each.join(LIMIT_S)
        self.assertEqual(output, {i: i for i in range(100)})
        self.assertLessEqual(self.world.relay.most_open, 8)

    def test_ctrl_c_ends_a_wait(self):
        job = self.client.submit(SLEEP)
        program = f"import sys; sys.path.insert(0, {PYTHON_CLIENT!r})\nimport mycojobs\nprint('waiting', flush=True)\nmycojobs.Client().job({job.key!r}).result()"
        environment = {**os.environ, "COORDINATOR_URL": self.world.url, "MYCOJOBS_TOKEN": self.world.token}
        with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
            waiting.stdout.readline()
            time.sleep(0.3)
            waiting.send_signal(signal.SIGINT)
            _, output = waiting.communicate(timeout=LIMIT_S)
        self.assertEqual(waiting.returncode, -signal.SIGINT, output)
        self.assertTrue(output.rstrip().endswith("KeyboardInterrupt"), output)
        self.assertNotIn("Task was destroyed", output)
        job.cancel()

    def test_client_is_bound_to_its_process_and_reports_closing(self):
        program = f"""import os, sys; sys.path.insert(0, {PYTHON_CLIENT!r})
import mycojobs
client = mycojobs.Client()
events = client.events()
child = os.fork()
try:
    client.call('system.ping')
    next(events) if child == 0 else os.waitpid(child, 0)
except mycojobs.Error as why:
    print(why.word)
sys.exit(7)"""
        environment = {**os.environ, "COORDINATOR_URL": self.world.url, "MYCOJOBS_TOKEN": self.world.token}
        # Since 3.12, Python warns of a fork in a process with threads, and the client has a thread.
        words = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "closed\n", ""))
        self.assertEqual(self.client.call("system.ping"), "pong")
        self.client.close()
        self.assertRaises(mycojobs.Error, self.client.call, "system.ping")

    def test_call_on_a_closed_client_is_an_error(self):
        job = self.client.submit(SLEEP)
        began, output = threading.Barrier(9), []

        def calls(doing):
            began.wait()
            try:
                while True:
                    doing()
            except BaseException as why:  # the test examines it
                output.append(why)

        waits = [lambda: job.wait(), lambda: list(job.logs(follow=True)), lambda: list(self.client.events(job=job.key))]
        threads = [threading.Thread(target=calls, args=(each,)) for each in [*waits, *[lambda: self.client.call("system.ping")] * 5]]
        for each in threads:
            each.start()
        began.wait()
        time.sleep(0.5)
        self.client.close()
        for each in threads:
            each.join(LIMIT_S)
        self.assertEqual([(type(why), getattr(why, "word", "")) for why in output], [(mycojobs.Error, "closed")] * 8)
        with Client(self.world.url, self.world.token) as another:
            another.job(job.key).cancel()

    def test_a_client_may_be_collected_in_its_own_thread(self):
        class Holds:
            pass

        for what in ("client", "iterator", "finalizer"):
            holds, output = Holds(), []
            holds.client = Client(self.world.url, self.world.token)
            holds.self = holds
            loop = holds.client._loop_thread
            if what == "iterator":
                holds.events = holds.client.events(flow=self.flow().id, after="0")
                next(holds.events)
            elif what == "finalizer":
                client = holds.client
                weakref.finalize(holds, lambda: output.append(type(self.error_of(lambda: client.call("system.ping")))))
            gc.disable()
            self.addCleanup(gc.enable)
            del holds
            loop._event_loop.call_soon_threadsafe(gc.collect)
            if what == "finalizer":
                eventually(lambda: output)
                self.assertEqual(output, [mycojobs.Error])
                client.close()
            loop._thread.join(LIMIT_S)
            self.assertFalse(loop._thread.is_alive(), what)

    def flow(self):
        return self.client.flow_start({"name": "n", "jobs": {"a": {"wait": "1s"}}})

    @staticmethod
    def error_of(doing):
        try:
            doing()
        except BaseException as why:
            return why
        return None


class Asyncio(Case):
    def run_async(self, story):
        async def main():
            asyncio.get_running_loop().slow_callback_duration = LIMIT_S  # for busy machines
            async with mycojobs.AsyncClient(self.world.url, self.world.token) as client:
                await asyncio.wait_for(story(client), LIMIT_S)

        asyncio.run(main(), debug=True)

    def test_a_hundred_tasks_submit_and_wait(self):
        async def one(client, i):
            job = await client.submit(f"result['n'] = {i}")
            return (await job.result())["n"]

        async def story(client):
            self.world.relay.begin_count()
            self.assertEqual(await asyncio.gather(*(one(client, i) for i in range(100))), list(range(100)))
            self.assertLessEqual(self.world.relay.most_open, 8)
            self.assertEqual(await (await client.submit(area, 1)).result(), {"area": 3.14, "unit": "m"})

        self.run_async(story)

    def test_a_wait_that_is_cancelled_leaves_nothing_behind(self):
        async def story(client):
            job, other = await client.submit(SLEEP), await client.submit("import time\ntime.sleep(1.5)")
            stays = asyncio.ensure_future(other.wait())
            tasks = [asyncio.ensure_future(job.result()) for _ in range(20)]
            await asyncio.sleep(0.5)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self.assertTrue(all(isinstance(each, asyncio.CancelledError) for each in ended), ended)
            self.assertEqual((await stays)["status"], "finished", "others wait on")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(job.wait(), 0.2)
            await asyncio.sleep(0.1)
            self.assertEqual(asyncio.all_tasks(), {asyncio.current_task()} | {each for each in asyncio.all_tasks() if "main" in repr(each)})
            await job.cancel()
            await job.wait()

        self.run_async(story)
        eventually(lambda: self.world.relay.open_now() == 0)

    def test_a_job_that_is_not_there_fails_its_own_wait_alone(self):
        async def story(client):
            jobs = [await client.submit("import time\ntime.sleep(1.5)") for _ in range(6)]
            # The first four waits have one call each; later waits share a call.
            waits = [*jobs[:4], *(client.job(f"1:{900_000 + i}") for i in range(5)), *jobs[4:]]
            output = await asyncio.gather(*(each.wait() for each in waits), return_exceptions=True)
            self.assertEqual([isinstance(each, mycojobs.NotFound) for each in output], [False] * 4 + [True] * 5 + [False] * 2, output)

        self.run_async(story)

    def test_a_client_that_is_closed_ends_its_waits(self):
        async def story(client):
            job = await client.submit(SLEEP)
            wait = asyncio.ensure_future(job.wait())
            await asyncio.sleep(0.3)
            await client.close()
            with self.assertRaisesRegex(mycojobs.Error, "closed"):
                await wait
            await asyncio.sleep(0.1)
            self.assertEqual([each for each in asyncio.all_tasks() if "_Waits" in repr(each)], [])
            with self.assertRaisesRegex(mycojobs.Error, "closed"):
                await job.status()
            async with mycojobs.AsyncClient(self.world.url, self.world.token) as another:
                call = asyncio.ensure_future(another.call("jobs.wait", {"jobs": ["job:" + job.key], "wait_ms": 60_000}))
                await another.job(job.key).status()
                await another.close()
                with self.assertRaisesRegex(mycojobs.Error, "closed"):
                    await call
            self.assertEqual((another._http._idle, another._http._connections), ([], set()))
            async with mycojobs.AsyncClient(self.world.url, self.world.token) as another:
                await another.job(job.key).cancel()

        self.run_async(story)

    def test_call_has_its_own_timeout(self):
        async def story(client):
            request = {"script": SLEEP, "script_type": "python", "wait_ms": 3000, "name": "slow"}
            with self.assertRaises(mycojobs.Unavailable):
                await client.call("job.run", request, answer_within=0.5)
            self.assertFalse((await client.call("job.run", request, answer_within=30))["ended"])
            for each in await client.call("job.list", {"name": "slow"}):
                await client.job(each["key"]).cancel()

        self.run_async(story)

    def test_logs_and_events_are_iterated(self):
        async def story(client):
            job = await client.submit("print('a')\nprint('b')")
            self.assertEqual("".join([line["text"] async for line in job.logs(follow=True)]), "a\nb\n")
            kinds = [event.kind async for event in client.events(job=job.key)]
            self.assertEqual(kinds[-1], "job")
            self.assertIn("log", kinds)

        self.run_async(story)


if __name__ == "__main__":
    unittest.main()
