"""Runs the plan: systems in turn, round after round; rows are all that is kept."""
import sys
import time
import traceback

from .delivery import Skipped
from .plan import WORKLOADS
from .processes import Others
from .stage import Stage


class Run:
    """rows: {workload, variant, system, aof, round, figures} others (use of the machine, 0 to 1),
    and one of {delivery, exact}, {skipped}, {error}."""

    def __init__(self, names, aof_modes, rounds, sizes):
        self.workloads = {name: WORKLOADS[name] for name in names}
        self.aof_modes = aof_modes
        self.rounds = rounds
        self.sizes = sizes
        self.rows = []
        self.complaints = []
        self.begin = time.monotonic()

    def say(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self.begin), 60)
        print(f"[{minutes:02}:{seconds:02}] {text}", file=sys.stderr, flush=True)

    def all(self):
        for round_ in range(self.rounds):
            for aof in self.aof_modes:
                self._shared(round_, aof)
                self._own(round_, aof)

    def _shared(self, round_, aof):
        workloads = {name: each for name, each in self.workloads.items() if each.shared}
        systems = list(dict.fromkeys(system for each in workloads.values() for system in each.systems))
        turn = round_ % len(systems) if systems else 0
        for system in systems[turn:] + systems[:turn]:
            wanted = [name for name, each in workloads.items() if system in each.systems]
            while wanted:  # repeats for the workloads after a failed workload
                wanted = self._session(system, wanted, round_, aof)

    def _session(self, name, wanted, round_, aof):
        """Runs workloads on one start of the system; what is left if one of them failed."""
        done = 0
        try:
            with Stage(aof, self.complaints).started(name) as system:
                for done, workload in enumerate(wanted, 1):
                    self.say(f"round {round_ + 1}/{self.rounds} · AOF {'on' if aof else 'off'} · {name} · {workload}")
                    row = {"workload": workload, "variant": "", "system": name, "aof": aof, "round": round_}
                    others = Others()
                    try:
                        figures, verdict = WORKLOADS[workload].run(system, self.sizes.of(name))
                        self._keep(row | {"others": others.share()}, figures, verdict)
                    except Skipped as why:
                        self.rows.append(row | {"skipped": str(why)})
                        if why.left:  # the other workloads need a system without the remaining jobs
                            return wanted[done:]
            return []
        except Exception as error:
            if not done:  # the system did not start, so all workloads fail
                self._failed(name, wanted, round_, aof, error)
                return []
            self._failed(name, wanted[done - 1 : done], round_, aof, error)
            return wanted[done:]

    def _failed(self, name, workloads, round_, aof, error):
        traceback.print_exception(error)
        said = f"{type(error).__name__}: {error}"
        for workload in workloads:
            row = {"workload": workload, "variant": "", "system": name, "aof": aof, "round": round_}
            self.rows.append(row | {"error": said})
        self.say(f"{name} · {', '.join(workloads)} failed: {error}; logs are below build/bench")

    def _own(self, round_, aof):
        for name, workload in self.workloads.items():
            repeat = min(self.rounds, workload.repeats)
            if workload.shared or round_ >= repeat or (not workload.both_aof and aof != self.aof_modes[-1]):
                continue
            self.say(f"round {round_ + 1}/{repeat} · AOF {'on' if aof else 'off'} · {name}")
            try:
                for system, variant, figures, verdict in workload.run(
                    Stage(aof, self.complaints), workload.systems, self.sizes
                ):
                    self.say(f"round {round_ + 1}/{repeat} · {name} · {system} {variant}".rstrip() + " done")
                    row = {"workload": name, "variant": variant, "system": system, "aof": aof, "round": round_}
                    if isinstance(figures, Skipped):
                        self.rows.append(row | {"skipped": str(figures)})
                    else:
                        self._keep(row, figures, verdict)
            except Exception as error:
                self._failed("mycojobs" if len(workload.systems) == 1 else "all", [name], round_, aof, error)

    def _keep(self, row, figures, verdict):
        row["figures"] = figures
        if verdict:
            row |= {"exact": verdict.exact, "delivery": verdict.text()}
            if not verdict.exact:
                self.say(f"{row['system']} · {row['workload']} · DELIVERY: {verdict.text()}")
        self.rows.append(row)

    def problems(self):
        """What makes the run fail: ours failed or was not exact, or a check found something."""
        bad = [
            f"{row['workload']}: {row.get('error') or row['delivery']}"
            for row in self.rows
            if row["system"].startswith(("mycojobs", "all")) and ("error" in row or not row.get("exact", True))
        ]
        return bad + self.complaints
