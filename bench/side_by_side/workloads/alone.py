"""Workloads of mycojobs alone, or in comparison with bubblewrap and posix_spawn. Generators like those of own.py."""
import importlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

from ..figures import quantile, summarize_latencies
from ..host import BUILD, ROOT, find_program
from ..processes import make_environment, wait_for
from ..systems.bubblewrap import BWRAP
from ..systems.ours import CALLER

sys.path.append(os.path.join(ROOT, "tests/instructions"))


def _time_command(command):
    begin = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    status = os.waitpid(pid, 0)[1]
    took = time.perf_counter() - begin
    if status != 0:
        raise RuntimeError(f"{' '.join(command)}: status {status}")
    return took


def _build_native_program(folder):
    """Builds a static program that exits at once."""
    source, program = os.path.join(folder, "nothing.c"), os.path.join(folder, "nothing")
    with open(source, "w", encoding="ascii") as file:
        file.write("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-O2", "-static", "-o", program, source], check=True)
    return program


def programs(factory, names, sizes):
    """Runs bash and a native program with posix_spawn, bubblewrap and mycojobs, one at a time in alternation."""
    folder = tempfile.mkdtemp(dir=BUILD)
    native_program = _build_native_program(folder)
    script = os.path.join(folder, "script")
    with open(script, "w", encoding="ascii") as file:
        file.write(":\n")
    try:
        with factory.start_system("mycojobs") as system:
            added = subprocess.run(
                [find_program(), "program", "add", native_program, "--context", "1", "--state-dir", system.state],
                env=make_environment({}),
                capture_output=True,
                text=True,
                check=True,
            )
            rows = {
                "bash": (["/bin/bash", script], ("bash", ":")),
                "native": ([native_program], ("native", added.stdout.split()[0])),
            }
            for name, (command, job) in rows.items():
                times = {"posix_spawn": [], "bubblewrap": [], "mycojobs": []}
                bubblewrap_command = [*BWRAP, "--ro-bind", folder, folder, *command]
                for round_ in range(sizes.programs + 10):
                    ident = system.allocate_ids(1)[0]
                    begin = time.perf_counter()
                    system.round_trip(job, ident)
                    took = time.perf_counter() - begin
                    row = {"posix_spawn": _time_command(command), "bubblewrap": _time_command(bubblewrap_command), "mycojobs": took}
                    for key, value in row.items():
                        if round_ >= 10:
                            times[key].append(value)
                sandbox_ms = [_read_wall_us(system, ident - back) / 1e3 for back in range(sizes.programs)]
                yield "mycojobs", name, (
                    {key: summarize_latencies(values) for key, values in times.items()}
                    | {"sandbox_p50_ms": quantile(sandbox_ms, 0.5)}
                ), None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_wall_us(system, ident):
    return json.loads(system.store.hget(f"job:{CALLER}:{ident}", "usage"))["wall_us"]


def first_output(factory, names, sizes):
    """Measures `mycojobs run` without a running agent and with an empty state folder, from exec to the first byte of output."""
    folder = tempfile.mkdtemp(dir=BUILD)
    script = os.path.join(folder, "hello.py")
    with open(script, "w", encoding="ascii") as file:
        file.write("print('hello', flush=True)\n")
    try:
        for round_ in range(sizes.first_outputs):
            state = os.path.join(tempfile.mkdtemp(prefix="mjb-"), "state")
            begin = time.perf_counter()
            process = subprocess.Popen(
                [find_program(), "run", script, "--state-dir", state],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=make_environment({}),
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


def counts(factory, names, sizes):
    """Counts the context switches, page faults, system calls and commands of Redis for a job, like the test WayCounts."""
    way = importlib.import_module("way")
    for variant, figures in way.by_kind(way.count(find_program())).items():
        yield "mycojobs", variant, figures, None


def private_mounts(factory, names, sizes):
    """Checks that each job has its own mount namespace if sandbox.reused_runs is 1, and measures the drain."""
    script = "import os, time\nresult['ns'] = str(os.stat('/proc/self/ns/mnt').st_ino)\ntime.sleep(0.5)"
    with factory.start_system("mycojobs-new-sandbox") as system:
        idents = system.allocate_ids(system.slots)
        before = system.count_ended()
        system.submit_many(("python", script), idents)
        wait_for(lambda: system.count_ended() >= before + len(idents), "jobs that read their namespace")
        results = [system.store.hget(f"job:{CALLER}:{ident}", "result") for ident in idents]
        own = None not in results and len(set(results)) == len(idents)
        system.read_started()
        rate, cpu, verdict = (
            system.drain("noop", max(10, int(sizes.for_system("mycojobs-new-sandbox").drained_jobs * sizes.scale))) if own else (None, None, None)
        )
        yield "mycojobs", "", {"own": own, "jobs_per_s": rate, "cpu_ms_per_job": cpu}, verdict
