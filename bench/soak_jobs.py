"""What a soak drives: a mix of jobs with a known end each, flows now and then, and the account of all of them."""
import collections
import os
import random
import subprocess
import time

from dev_agent import MYCOJOBS, ROOT

# name, jobs per thousand, type, script, time-out in s, expected end
KINDS = [
    ("no-op", 460, "python", "pass", 60, "finished ok"),
    ("warm", 100, "python", "def main(job):\n    open('/tmp/x', 'w').write('y')\n    result['n'] = job.id", 60, "finished ok"),
    ("json", 150, "python", "import json\nresult['n'] = len(json.dumps([{'id': i, 'name': 'x' * 20} for i in range(200)]))", 60, "finished ok"),
    ("output", 100, "python", "for i in range(20): print('line', i, 'of a small output')", 60, "finished ok"),
    ("failing", 50, "python", "raise ValueError('as planned')", 60, "error exception"),
    # keyctl, which no job needs: the job is killed at the call.
    ("violating", 18, "python", "import ctypes\nctypes.CDLL(None).syscall(250, 0x11, -3)", 60, "error violation"),
    ("late", 2, "python", "import time\ntime.sleep(60)", 1, "error timeout"),
    ("bash", 60, "bash", "echo hello from $MYCOJOBS_JOB_ID", 60, "finished ok"),
    ("sal", 60, "sal", "result.n = 3 * 4", 60, "finished ok"),
]
POLICIES = {"warm": '{"warm": {"runs": 100000}}'}
CONFIGURATION = '[executors.bash]\ncommand = ["/bin/bash", "{script}"]\n[ceiling]\nwarm.runs = 100000\n'
FLOW = os.path.join(ROOT, "examples/flow/pipeline.yaml")
CALLER = 9
PART = 200  # records per request


class Load:
    """Jobs under way, none forgotten: each is asked for until it has ended, and its end compared with its kind's."""

    def __init__(self, redis, first, slots, rate):
        self.redis, self.next, self.rate = redis, first, rate
        self.least, self.random = 16 * slots, random.Random(7)
        self.open = {}  # number -> kind
        self.submitted, self.ended = collections.Counter(), collections.Counter()
        self.wrong, self.unlike, self.whole_due = [], collections.Counter(), 0
        self.started = time.monotonic()
        self.lately = collections.deque()  # (time, number of ended jobs)

    def ahead(self):
        """Jobs under way that keep every slot busy until the next look, and so few that an end is seen before it is retired."""
        return max(self.least, sum(count for _, count in self.lately))

    def submit(self):
        room = self.ahead() - len(self.open)
        if self.rate:
            room = min(room, int(self.rate * (time.monotonic() - self.started)) - sum(self.submitted.values()))
        commands = []
        for kind in self.random.choices(KINDS, [each[1] for each in KINDS], k=max(0, room)):
            name, _, script_type, script, timeout, _ = kind
            key = f"job:{CALLER}:{self.next}"
            commands += [("HSET", key, "id", self.next, "caller_id", CALLER, "context_id", 1, "script", script, "script_type", script_type,
                          "timeout", timeout, "status", "dispatched", "policy", POLICIES.get(name, "")), ("LPUSH", f"queue:{script_type}", key)]
            self.open[self.next] = kind
            self.submitted[name] += 1
            self.next += 1
        if commands:
            self.redis.pipeline(commands)

    def look(self):
        """The oldest first, in parts, for as long as most of a part have ended; all of them once a second."""
        now, ended, numbers = time.monotonic(), 0, list(self.open)
        whole = now >= self.whole_due
        if whole:
            self.whole_due = now + 1
        for at in range(0, len(numbers), PART):
            part = numbers[at:at + PART]
            before = ended
            ended += self.look_at(part)
            if not whole and ended - before < len(part) / 2:
                break
        self.lately.append((now, ended))
        while self.lately[0][0] < now - 1:
            self.lately.popleft()

    def look_at(self, numbers):
        answers = self.redis.pipeline([("HMGET", f"job:{CALLER}:{number}", "status", "detail", "error") for number in numbers])
        ended = 0
        for number, (status, detail, error) in zip(numbers, answers):
            if status is not None and status not in (b"finished", b"error"):
                continue
            kind = self.open.pop(number)
            got = "no record" if status is None else f"{status.decode()} {(detail or b'').decode()}"
            if got != kind[5]:
                self.wrong.append(f"job:{CALLER}:{number} ({kind[0]}): {got}, expected {kind[5]}; {(error or b'').decode()}")
                self.unlike[kind[0]] += 1
            self.ended[kind[0]] += 1
            ended += 1
        return ended

    def done(self):
        return sum(self.ended.values())

    def account(self):
        """Rows (kind, expected end, submitted, ended so) and what is wrong with them."""
        rows = [(kind[0], kind[5], self.submitted[kind[0]], self.ended[kind[0]] - self.unlike[kind[0]]) for kind in KINDS]
        return rows, self.wrong + [f"{name}: {all_} submitted, {right} ended as expected" for name, _, all_, right in rows if all_ != right]


class Flows:
    """One flow after the other, each begun some seconds after the one before, followed to its end by a client."""

    def __init__(self, state, every_s):
        self.state, self.every, self.client = state, every_s, None
        self.begun, self.finished, self.wrong, self.due = 0, 0, [], time.monotonic()

    def step(self):
        if self.client is not None and self.client.poll() is not None:
            said = self.client.stdout.read()
            if self.client.returncode == 0:
                self.finished += 1
            else:
                self.wrong.append(f"a flow: exit {self.client.returncode}: {said[-300:]}")
            self.client.stdout.close()
            self.client = None
        if self.client is None and time.monotonic() >= self.due:
            self.due = time.monotonic() + self.every
            self.begun += 1
            self.client = subprocess.Popen([MYCOJOBS, "flow", "start", FLOW, "--follow", "--json", "--state-dir", self.state],
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self):
        self.due = float("inf")
        deadline = time.monotonic() + 60
        while self.client is not None and time.monotonic() < deadline:
            self.step()
            time.sleep(0.05)
        if self.client is not None:
            self.client.kill()
            self.client.wait()
            self.wrong.append("a flow had not ended after 60 s")
