"""The interface of a measured system."""
import os
import signal
import time

from ..delivery import Skipped, StartLedger, check_delivery
from ..processes import list_process_tree, read_cpu_seconds, wait_for


class System:
    """A system with its own Redis and workers, from start() to stop(). Each job has an id that is used once.

    The kinds of jobs are noop, cpu (300 ms of CPU time), sleep (100 ms) and hang (one hour). plan.py lists the workloads
    that a system supports."""

    uses_redis = True
    title = ""
    isolation = "none"
    settings = ""  # the settings that the report shows

    def __init__(self, redis, folder, slots):
        self.redis = redis
        self.folder = folder
        self.slots = slots
        self.workers = []
        self.next_id = 1
        self.start_seconds = None  # time from the start of the first worker to the end of the first job
        self.started_ids = []  # used by count_runs()
        self.redis_ms_per_job = None  # CPU time of Redis in the latest drain
        self.ledger_path = os.path.join(folder, f"ledger-{type(self).__name__}")
        self.ledger = StartLedger(self.ledger_path)

    # Methods that each system implements.
    def connect(self):
        """Connects a client. Called before a worker starts."""

    def start_worker(self):
        """Starts a worker, and returns the Process."""
        raise NotImplementedError

    def submit(self, kind, ident):
        """Submits a job like a program that uses the system."""
        raise NotImplementedError

    def submit_many(self, kind, idents):
        """Submits many jobs with the fastest function of the system."""
        for ident in idents:
            self.submit(kind, ident)

    def count_ended(self):
        """Returns the number of ended jobs since the start. Called often, so it must be cheap."""
        raise NotImplementedError

    def round_trip(self, kind, ident):
        """Submits a job and waits for its result."""
        raise NotImplementedError

    def time_chain(self, length):
        """Runs a chain of jobs, each of which starts when the previous job has ended. Returns the seconds."""
        raise NotImplementedError

    def read_started(self):
        """Returns [(id, monotonic seconds of the start)] of the jobs that started since the previous call."""
        return self.ledger.read_new_entries()

    def audit(self):
        """Checks the store after the workloads. Returns a list of findings."""
        return []

    def read_drain_figures(self):
        """Returns additional figures of a drain."""
        return {}

    def read_idle_figures(self):
        """Returns additional figures of an idle system."""
        return {}

    def count_runs(self, ident):
        """Returns how often a job has started."""
        self.started_ids += [started for started, _ in self.read_started()]
        return self.started_ids.count(ident)

    # Methods shared by all systems.
    def allocate_ids(self, count):
        first, self.next_id = self.next_id, self.next_id + count
        return range(first, first + count)

    def start(self):
        """Starts the workers, and waits until a first job has ended. Sets start_seconds."""
        self.connect()
        self.submit_many("noop", self.allocate_ids(1))
        begin = time.perf_counter()
        self.workers.append(self.start_worker())
        wait_for(self._first_ended, f"the first job of {self.title}", 60)
        self.start_seconds = time.perf_counter() - begin
        for _ in range(1, self.count_workers()):
            self.workers.append(self.start_worker())
        self.read_started()

    def _first_ended(self):
        for worker in self.workers:
            worker.raise_if_exited()
        return self.count_ended() >= 1

    def count_workers(self):
        """Returns the number of workers that start() starts."""
        return 1

    def pause_workers(self):
        """Stops the workers with SIGSTOP until resume_workers()."""
        for worker in self.workers:
            worker.signal(signal.SIGSTOP)

    def resume_workers(self):
        for worker in self.workers:
            worker.signal(signal.SIGCONT)

    def drain(self, kind, count, limit=120):
        """Submits jobs while the workers are paused, and measures from their resumption to the end of the last job. Returns
        (jobs per second, CPU ms per job, verdict)."""
        idents = self.allocate_ids(count)
        before = self.count_ended()
        self.pause_workers()
        self.submit_many(kind, idents)
        cpu, redis_cpu = self.read_cpu(), self.read_redis_cpu()
        begin = time.perf_counter()
        self.resume_workers()
        try:
            wait_for(lambda: self.count_ended() >= before + count, f"{count} jobs of {self.title}", limit, 0.004)
        except TimeoutError:
            remaining = before + count - self.count_ended()
            raise Skipped(f"is too slow here: {remaining} of {count} jobs remained after {limit} s", has_remaining_jobs=True) from None
        took = time.perf_counter() - begin
        self.redis_ms_per_job = (self.read_redis_cpu() - redis_cpu) / count * 1e3
        return count / took, (self.read_cpu() - cpu) / count * 1e3, self.check_started(idents)

    def round_trips(self, count):
        """Runs single jobs one after another. Returns ([seconds], verdict). The first 20 jobs are not measured."""
        warm_up_ids = self.allocate_ids(20)
        for ident in warm_up_ids:
            self.round_trip("noop", ident)
        idents, took = self.allocate_ids(count), []
        for ident in idents:
            begin = time.perf_counter()
            self.round_trip("noop", ident)
            took.append(time.perf_counter() - begin)
        return took, self.check_started([*warm_up_ids, *idents])

    def submit_at_rate(self, idents, rate):
        """Submits jobs at fixed times. A late submission does not delay the scheduled times of later jobs. Returns {id:
        scheduled monotonic seconds}."""
        begin = time.monotonic() + 0.05
        planned = {ident: begin + index / rate for index, ident in enumerate(idents)}
        for ident, moment in planned.items():
            wait = moment - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            self.submit("noop", ident)
        return planned

    def open_loop(self, rate, seconds):
        """Submits jobs at a rate. Returns ([seconds from the scheduled time to the start of the job], verdict)."""
        before = self.count_ended()
        idents = self.allocate_ids(int(rate * seconds))
        planned = self.submit_at_rate(idents, rate)
        try:
            wait_for(lambda: self.count_ended() >= before + len(planned), f"{len(planned)} jobs of {self.title}", 60, 0.05)
        except TimeoutError:
            raise Skipped(f"cannot sustain {rate}/s: jobs remained after a minute", has_remaining_jobs=True) from None
        started = self.read_started()
        pickups = [moment - planned[ident] for ident, moment in started if ident in planned]
        return pickups, check_delivery(idents, [ident for ident, _ in started])

    def run_chain(self, length):
        """Runs a chain, and returns (seconds, verdict)."""
        first = self.next_id
        took = self.time_chain(length)
        return took, self.check_started(range(first, self.next_id))

    def check_started(self, idents):
        return check_delivery(idents, [ident for ident, _ in self.read_started()])

    def read_cpu(self):
        """Returns the CPU seconds that workers and Redis have used."""
        return read_cpu_seconds([worker.pid for worker in self.workers] + ([self.redis.process.pid] if self.redis else []))

    def read_redis_cpu(self):
        return read_cpu_seconds([self.redis.process.pid]) if self.redis else 0.0

    def list_pids(self):
        return [pid for worker in self.workers for pid in list_process_tree(worker.pid)]

    def stop(self):
        for worker in self.workers:
            worker.stop()
        self.workers = []
