"""Runs the workloads of the plan for all systems, and collects the rows of the results."""
import sys
import time
import traceback

from .delivery import Skipped
from .plan import WORKLOADS
from .processes import ForeignCpuMeter
from .system_factory import SystemFactory


class Run:
    """A run of the bench. `rows` has one row for each measurement:

    {workload, variant, system, aof, round}    identify the measurement
    {figures, others}                          the measured values; fraction of the CPU time that other processes used
    {delivery, exact}                          the result of check_delivery(), if the workload checks the delivery
    {skipped} or {error}                       the reason why there are no figures
    """

    def __init__(self, names, aof_modes, rounds, sizes):
        self.workloads = {name: WORKLOADS[name] for name in names}
        self.aof_modes = aof_modes
        self.rounds = rounds
        self.sizes = sizes
        self.rows = []
        self.audit_findings = []
        self.begin = time.monotonic()

    def log_progress(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self.begin), 60)
        print(f"[{minutes:02}:{seconds:02}] {text}", file=sys.stderr, flush=True)

    def run_all(self):
        for round_ in range(self.rounds):
            for aof in self.aof_modes:
                self._run_shared_workloads(round_, aof)
                self._run_separate_workloads(round_, aof)

    def _run_shared_workloads(self, round_, aof):
        """Runs the workloads that use a running system. Each round begins with another system."""
        workloads = {name: workload for name, workload in self.workloads.items() if workload.uses_running_system}
        systems = list(dict.fromkeys(system for workload in workloads.values() for system in workload.systems))
        first = round_ % len(systems) if systems else 0
        for system in systems[first:] + systems[:first]:
            pending = [name for name, workload in workloads.items() if system in workload.systems]
            while pending:
                pending = self._run_session(system, pending, round_, aof)

    def _run_session(self, name, workloads, round_, aof):
        """Starts a system and runs workloads on it. After a workload that has failed or left jobs in the queue, the
        system is stopped; returns the workloads that must run on a new start of the system."""
        started = 0
        try:
            with SystemFactory(aof, self.audit_findings).start_system(name) as system:
                for started, workload in enumerate(workloads, 1):
                    self.log_progress(
                        f"round {round_ + 1}/{self.rounds} · AOF {'on' if aof else 'off'} · {name} · {workload}"
                    )
                    row = {"workload": workload, "variant": "", "system": name, "aof": aof, "round": round_}
                    foreign_cpu = ForeignCpuMeter()
                    try:
                        figures, verdict = WORKLOADS[workload].run(system, self.sizes.for_system(name))
                        self._add_figures(row | {"others": foreign_cpu.read_fraction()}, figures, verdict)
                    except Skipped as skipped:
                        self.rows.append(row | {"skipped": str(skipped)})
                        if skipped.has_remaining_jobs:
                            return workloads[started:]
            return []
        except Exception as error:
            if not started:  # the system did not start, so all workloads have failed
                self._add_failure(name, workloads, round_, aof, error)
                return []
            self._add_failure(name, workloads[started - 1 : started], round_, aof, error)
            return workloads[started:]

    def _add_failure(self, name, workloads, round_, aof, error):
        traceback.print_exception(error)
        text = f"{type(error).__name__}: {error}"
        for workload in workloads:
            row = {"workload": workload, "variant": "", "system": name, "aof": aof, "round": round_}
            self.rows.append(row | {"error": text})
        self.log_progress(f"{name} · {', '.join(workloads)} failed: {error}; the logs are below build/bench")

    def _run_separate_workloads(self, round_, aof):
        """Runs the workloads that start their own systems."""
        for name, workload in self.workloads.items():
            rounds = min(self.rounds, workload.max_rounds)
            is_other_mode = not workload.runs_in_all_aof_modes and aof != self.aof_modes[-1]
            if workload.uses_running_system or round_ >= rounds or is_other_mode:
                continue
            self.log_progress(f"round {round_ + 1}/{rounds} · AOF {'on' if aof else 'off'} · {name}")
            try:
                for system, variant, figures, verdict in workload.run(
                    SystemFactory(aof, self.audit_findings), workload.systems, self.sizes
                ):
                    self.log_progress(f"round {round_ + 1}/{rounds} · {name} · {system} {variant}".rstrip() + " done")
                    row = {"workload": name, "variant": variant, "system": system, "aof": aof, "round": round_}
                    if isinstance(figures, Skipped):
                        self.rows.append(row | {"skipped": str(figures)})
                    else:
                        self._add_figures(row, figures, verdict)
            except Exception as error:
                self._add_failure("mycojobs" if len(workload.systems) == 1 else "all", [name], round_, aof, error)

    def _add_figures(self, row, figures, verdict):
        row["figures"] = figures
        if verdict:
            row |= {"exact": verdict.is_exact, "delivery": verdict.to_text()}
            if not verdict.is_exact:
                self.log_progress(f"{row['system']} · {row['workload']} · DELIVERY: {verdict.to_text()}")
        self.rows.append(row)

    def list_problems(self):
        """Returns the reasons for which the run fails: failed workloads and inexact delivery of mycojobs, and findings of
        the audits."""
        failures = [
            f"{row['workload']}: {row.get('error') or row['delivery']}"
            for row in self.rows
            if row["system"].startswith(("mycojobs", "all")) and ("error" in row or not row.get("exact", True))
        ]
        return failures + self.audit_findings
