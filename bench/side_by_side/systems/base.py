"""What the bench asks of each system."""
import os
import signal
import time

from ..delivery import Ledger, Skipped, check
from ..processes import cpu_seconds, tree, wait_for


class System:
    """One system with its own Redis and workers, from start() to stop(). Jobs have numbers that are never used twice.

    A job is of a kind: noop, cpu (300 ms of CPU), sleep (100 ms), hang (an hour). The plan asks a system only for what it
    can do."""

    uses_redis = True
    title = ""
    isolation = "none"
    settings = ""  # settings of the run, for the reader of the report

    def __init__(self, redis, folder, slots):
        self.redis = redis
        self.folder = folder
        self.slots = slots
        self.workers = []
        self.next = 1
        self.start_seconds = None
        self.redis_ms_per_job = None  # CPU of Redis in the last drain
        self.ledger_path = os.path.join(folder, f"ledger-{type(self).__name__}")
        self.ledger = Ledger(self.ledger_path)

    # Methods that each system implements.
    def connect(self):
        """A client, before there are workers."""

    def spawn(self):
        """One worker, as a Process."""
        raise NotImplementedError

    def send(self, kind, ident):
        """Submits a job, as a program that uses the system does."""
        raise NotImplementedError

    def fill(self, kind, idents):
        """Submits many, in the quickest way that the system offers."""
        for ident in idents:
            self.send(kind, ident)

    def ended(self):
        """How many jobs have ended since the start, in one cheap question."""
        raise NotImplementedError

    def round_trip(self, kind, ident):
        """Submits a job and waits for its result."""
        raise NotImplementedError

    def chain(self, length):
        """Seconds for so many jobs, each of which begins when the one before has ended; uses the next numbers."""
        raise NotImplementedError

    def seen(self):
        """[(id, moment of its start)] of all jobs that have run since the last call."""
        return self.ledger.news()

    def audit(self):
        """What else can be checked of the store when all is done: a list of complaints."""
        return []

    def about(self):
        """More figures that belong to a drain."""
        return {}

    def idle_figures(self):
        """More figures that belong to an idle system."""
        return {}

    def runs_of(self, ident):
        """How often this job has begun to run."""
        self.begun = getattr(self, "begun", []) + [each for each, _ in self.seen()]
        return self.begun.count(ident)

    # Methods shared by all systems.
    def numbers(self, count):
        first, self.next = self.next, self.next + count
        return range(first, first + count)

    def start(self):
        """Up when a job has gone through; the seconds from the start of the first worker are kept."""
        self.connect()
        self.fill("noop", self.numbers(1))
        begin = time.perf_counter()
        self.workers.append(self.spawn())
        wait_for(self._first_ended, f"the first job of {self.title}", 60)
        self.start_seconds = time.perf_counter() - begin
        for _ in range(1, self.processes()):
            self.workers.append(self.spawn())
        self.seen()

    def _first_ended(self):
        for worker in self.workers:
            worker.check()
        return self.ended() >= 1

    def processes(self):
        """How many workers are started."""
        return 1

    def hold(self):
        """Stops the workers where they stand; release() lets them go on."""
        for worker in self.workers:
            worker.signal(signal.SIGSTOP)

    def release(self):
        for worker in self.workers:
            worker.signal(signal.SIGCONT)

    def drain(self, kind, count, limit=120):
        """Jobs that are there when the workers are let go: (jobs a second to the last end, CPU ms a job, verdict)."""
        idents = self.numbers(count)
        before = self.ended()
        self.hold()
        self.fill(kind, idents)
        cpu, redis_cpu = self.cpu(), self.redis_cpu()
        begin = time.perf_counter()
        self.release()
        try:
            wait_for(lambda: self.ended() >= before + count, f"{count} jobs of {self.title}", limit, 0.004)
        except TimeoutError:
            left = before + count - self.ended()
            raise Skipped(f"is too slow here: {left} of {count} jobs were left after {limit} s", left=True) from None
        took = time.perf_counter() - begin
        self.redis_ms_per_job = (self.redis_cpu() - redis_cpu) / count * 1e3
        return count / took, (self.cpu() - cpu) / count * 1e3, self.verdict(idents)

    def round_trips(self, count):
        """([seconds], verdict), one at a time, after some that are not counted."""
        warm = self.numbers(20)
        for ident in warm:
            self.round_trip("noop", ident)
        idents, took = self.numbers(count), []
        for ident in idents:
            begin = time.perf_counter()
            self.round_trip("noop", ident)
            took.append(time.perf_counter() - begin)
        return took, self.verdict([*warm, *idents])

    def send_at_rate(self, idents, rate):
        """{id: scheduled moment}: sends at the moments that the rate says, late or not."""
        begin = time.monotonic() + 0.05
        planned = {ident: begin + index / rate for index, ident in enumerate(idents)}
        for ident, moment in planned.items():
            wait = moment - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            self.send("noop", ident)
        return planned

    def open_loop(self, rate, seconds):
        """([seconds from the scheduled moment to the job's first line], verdict)"""
        before = self.ended()
        idents = self.numbers(int(rate * seconds))
        planned = self.send_at_rate(idents, rate)
        try:
            wait_for(lambda: self.ended() >= before + len(planned), f"{len(planned)} jobs of {self.title}", 60, 0.05)
        except TimeoutError:
            raise Skipped(f"cannot sustain {rate}/s: jobs were left a minute later", left=True) from None
        seen = self.seen()
        return [moment - planned[ident] for ident, moment in seen if ident in planned], check(
            idents, [ident for ident, _ in seen]
        )

    def chained(self, length):
        first = self.next
        took = self.chain(length)
        return took, self.verdict(range(first, self.next))

    def verdict(self, idents):
        return check(idents, [ident for ident, _ in self.seen()])

    def cpu(self):
        """CPU seconds so far of all that belongs to it, Redis too."""
        return cpu_seconds([worker.pid for worker in self.workers] + ([self.redis.process.pid] if self.redis else []))

    def redis_cpu(self):
        return cpu_seconds([self.redis.process.pid]) if self.redis else 0.0

    def pids(self):
        return [pid for worker in self.workers for pid in tree(worker.pid)]

    def stop(self):
        for worker in self.workers:
            worker.stop()
        self.workers = []
