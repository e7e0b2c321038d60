"""What the targets ask of mycojobs alone, or beside bubblewrap and a bare process."""
import importlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

from ..figures import percentiles, quantile
from ..host import BUILD, ROOT, program
from ..processes import clean_environment, wait_for
from ..systems.bubblewrap import BWRAP
from ..systems.ours import CALLER

sys.path.append(os.path.join(ROOT, "tests/instructions"))


def _spawned(command):
    begin = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    status = os.waitpid(pid, 0)[1]
    took = time.perf_counter() - begin
    if status != 0:
        raise RuntimeError(f"{' '.join(command)}: status {status}")
    return took


def _native(folder):
    """A static program that does nothing."""
    source, made = os.path.join(folder, "nothing.c"), os.path.join(folder, "nothing")
    with open(source, "w", encoding="ascii") as file:
        file.write("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-O2", "-static", "-o", made, source], check=True)
    return made


def programs(stage, names, sizes):
    """bash and a native program: bare posix_spawn, bubblewrap and ours in turn, one at a time."""
    folder = tempfile.mkdtemp(dir=BUILD)
    made = _native(folder)
    script = os.path.join(folder, "script")
    with open(script, "w", encoding="ascii") as file:
        file.write(":\n")
    try:
        with stage.started("mycojobs") as system:
            said = subprocess.run(
                [program(), "program", "add", made, "--context", "1", "--state-dir", system.state],
                env=clean_environment({}),
                capture_output=True,
                text=True,
                check=True,
            )
            rows = {
                "bash": (["/bin/bash", script], ("bash", ":")),
                "native": ([made], ("native", said.stdout.split()[0])),
            }
            for name, (bare, job) in rows.items():
                times = {"posix_spawn": [], "bubblewrap": [], "mycojobs": []}
                in_bubble = [*BWRAP, "--ro-bind", folder, folder, *bare]
                for round_ in range(sizes.programs + 10):
                    ident = system.numbers(1)[0]
                    begin = time.perf_counter()
                    system.round_trip(job, ident)
                    took = time.perf_counter() - begin
                    row = {"posix_spawn": _spawned(bare), "bubblewrap": _spawned(in_bubble), "mycojobs": took}
                    for key, value in row.items():
                        if round_ >= 10:
                            times[key].append(value)
                inside = [_wall_us(system, ident - back) / 1e3 for back in range(sizes.programs)]
                yield "mycojobs", name, (
                    {key: percentiles(values) for key, values in times.items()}
                    | {"sandbox_p50_ms": quantile(inside, 0.5)}
                ), None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wall_us(system, ident):
    return json.loads(system.store.hget(f"job:{CALLER}:{ident}", "usage"))["wall_us"]


def first_output(stage, names, sizes):
    """`mycojobs run` with nothing running and an empty state folder: from exec to the first byte that the script prints."""
    folder = tempfile.mkdtemp(dir=BUILD)
    script = os.path.join(folder, "hello.py")
    with open(script, "w", encoding="ascii") as file:
        file.write("print('hello', flush=True)\n")
    try:
        for round_ in range(sizes.first_outputs):
            state = os.path.join(tempfile.mkdtemp(prefix="mjb-"), "state")
            begin = time.perf_counter()
            process = subprocess.Popen(
                [program(), "run", script, "--state-dir", state],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=clean_environment({}),
            )
            select.select([process.stdout], [], [], 30)
            took = time.perf_counter() - begin
            out, errors = process.communicate(timeout=30)
            shutil.rmtree(os.path.dirname(state), ignore_errors=True)
            if not out.startswith(b"hello"):
                raise RuntimeError(f"mycojobs run: {errors.decode()[-300:]}")
            yield "mycojobs", "", {"seconds": took}, None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def counts(stage, names, sizes):
    """A job's whole way in switches, page faults, system calls and commands of Redis, as the test WayCounts has them."""
    way = importlib.import_module("way")
    for kind, found in way.by_kind(way.count(program())).items():
        yield "mycojobs", kind, found, None


def private_mounts(stage, names, sizes):
    """A mount namespace, like all the rest, made anew for each job: whether it is so, and how fast they are drained then."""
    look = "import os, time\nresult['ns'] = str(os.stat('/proc/self/ns/mnt').st_ino)\ntime.sleep(0.5)"
    with stage.started("mycojobs-anew") as system:
        idents = system.numbers(system.slots)
        before = system.ended()
        system.fill(("python", look), idents)
        wait_for(lambda: system.ended() >= before + len(idents), "jobs that look at their namespace")
        results = [system.store.hget(f"job:{CALLER}:{ident}", "result") for ident in idents]
        own = None not in results and len(set(results)) == len(idents)
        system.seen()
        rate, cpu, verdict = (
            system.drain("noop", max(10, int(sizes.of("mycojobs-anew").drain * sizes.scale))) if own else (None, None, None)
        )
        yield "mycojobs", "", {"own": own, "jobs_per_s": rate, "cpu_ms_per_job": cpu}, verdict
