#!/usr/bin/python3
"""Both clients with servers that send arbitrary responses (stranger.py): each call, wait and stream ends soon with an error of the
client, and after few requests."""
import asyncio
import json
import os
import subprocess
import unittest

from stranger import ANSWERS, EVENTS, Stranger
from world import LIMIT_S

import mycojobs
from mycojobs.http import read_http_error

HERE = os.path.dirname(os.path.abspath(__file__))
WAIT_S = 1.2  # time-out if there is no response
MOST_REQUESTS = 16  # per case: one call, and two waits that ask again after half a second


def output(doing):
    """Returns the name of the exception. An exception that is not of the client's classes ends the test."""
    try:
        doing()
    except mycojobs.Error as why:
        assert not isinstance(why, mycojobs.CannotShip) and str(why).replace("\n", "").isprintable(), ascii(str(why))
        return type(why).__name__
    return None


def limit_s(end):
    return WAIT_S if end == "WaitTimeout" else LIMIT_S


def python_says(url):
    calls, waits, flows, events = {}, {}, {}, {}
    for case, (*_, end) in ANSWERS.items():
        with mycojobs.Client(f"{url}/{case}", "t", context=1, retry_for=0) as client:
            calls[case] = output(lambda: client.call("job.get", {"id": "1:7"}))
            waits[case] = output(lambda: client.job("1:7").wait(limit_s(end)))
            flows[case] = output(lambda: client.flow(7).wait(limit_s(end)))
    for case in EVENTS:
        with mycojobs.Client(f"{url}/{case}", "t", context=1, retry_for=0) as client:
            texts = []
            events[case] = [texts, output(lambda: texts.extend(event.data.get("text") for event in client.events(job="1:7", after="3")))]
    return {"calls": calls, "waits": waits, "flows": flows, "events": events}


def node_says(url):
    cases = [[case, limit_s(end)] for case, (*_, end) in ANSWERS.items()]
    done = subprocess.run(["node", os.path.join(HERE, "hostile.mjs"), url], input=json.dumps([cases, list(EVENTS)]), capture_output=True, text=True,
                          check=False, timeout=LIMIT_S * 3)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


class Hostile(unittest.TestCase):
    def meets(self, says, which):
        stranger = Stranger()
        self.addCleanup(stranger.close)
        found = says(stranger.url)
        for case, (_, call, wait) in ANSWERS.items():
            with self.subTest(case):
                call, wait = (each[which] if isinstance(each, tuple) else each for each in (call, wait))
                self.assertEqual((found["calls"][case], found["waits"][case], found["flows"][case]), (call, wait, wait))
                self.assertLessEqual(stranger.seen[case], MOST_REQUESTS)
        for case, (_, texts, end) in EVENTS.items():
            with self.subTest(case):
                self.assertEqual(found["events"][case], [texts, end])

    def test_python(self):
        self.meets(python_says, 0)

    def test_node(self):
        self.meets(node_says, 1)

    def test_arguments_are_not_written_into_the_head(self):
        stranger = Stranger()
        self.addCleanup(stranger.close)
        evil = "1:7\r\nX-Evil: yes\r\n&context=9"
        with mycojobs.Client(f"{stranger.url}/events_refused", "t", context=1, retry_for=0) as client:
            self.assertEqual(output(lambda: list(client.events(job=evil, after="5\r\nX-Evil: yes"))), "Denied")
        ((line, head),) = stranger.heads
        self.assertNotIn("x-evil", head)
        self.assertEqual(line.count("context="), 1, line)

    def test_invalid_addresses_and_tokens_are_rejected(self):
        for url in ("http://h:99999", "http://h:x", "http://[", "http://", "ftp://h", "h", "http://h/ü", "http://h/a b", "http://h/\r\nX: y"):
            with self.assertRaises(mycojobs.Invalid, msg=url):
                mycojobs.AsyncClient(url)
        self.assertRaises(mycojobs.Invalid, mycojobs.AsyncClient, "http://h", "a\r\nb")
        with mycojobs.Client("http://a..b", retry_for=0) as client:  # a name that no host can have
            self.assertRaises(mycojobs.Unavailable, client.call, "system.ping")

    def test_an_answer_to_another_call_ends_its_connection(self):
        stranger = Stranger()
        self.addCleanup(stranger.close)

        async def story():
            async with mycojobs.AsyncClient(f"{stranger.url}/answer_to_another_call", "t", retry_for=0) as client:
                for _ in range(2):
                    with self.assertRaisesRegex(mycojobs.Error, "not in the contract"):
                        await client.call("system.ping")
                    self.assertEqual(client._http._idle, [])

        asyncio.run(story())

    def test_only_the_servers_own_503_is_repeated(self):
        for status, sent in ((500, True), (502, True), (504, True), (503, False)):
            error = read_http_error(status, b"no")
            self.assertIsInstance(error, mycojobs.Unavailable)
            self.assertEqual(error.sent, sent, status)

    def test_non_json_is_rejected_before_it_is_sent(self):
        deep = []
        for _ in range(100_000):
            deep = [deep]
        with mycojobs.Client("http://127.0.0.1:1", retry_for=0) as client:
            self.assertRaises(mycojobs.Invalid, client.call, "job.get", {"id": deep})


if __name__ == "__main__":
    unittest.main()
