"""./dev bench: compares mycojobs with other job systems. Writes results/NAME.json, plots and README.md."""
import argparse
import dataclasses
import os
import signal
import sys
import time

from . import host, plan, results
from .page import Page
from .run import Run

MODES = {"aof": [True], "none": [False], "both": [False, True]}


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, only with the AOF on: about four minutes")
    parser.add_argument("--only", metavar="NAME,...", default="", help="run only these workloads: " + ", ".join(plan.WORKLOADS))
    parser.add_argument("--rounds", type=int, metavar="N", help="number of rounds (default 3, with --quick 1)")
    parser.add_argument("--redis", choices=MODES, help="append-only file of Redis (default both, with --quick aof)")
    parser.add_argument("--name", help="name of the results (default: the date; with --quick, quick)")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder for README.md and results/ (default bench; with --quick or --only, build/bench/page)",
    )
    parser.add_argument("--page", metavar="FILE", help="write the report of these results without a measurement")
    return parser.parse_args()


def parse_workload_names(only):
    names = [name for name in only.split(",") if name] or list(plan.WORKLOADS)
    unknown = [name for name in names if name not in plan.WORKLOADS]
    if unknown:
        raise host.UserError(f"--only {','.join(unknown)}: unknown workload; use {', '.join(plan.WORKLOADS)}")
    return names


def measure(options):
    names = parse_workload_names(options.only)
    rounds = options.rounds or (1 if options.quick else 3)
    modes = MODES[options.redis or ("aof" if options.quick else "both")]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.CPUS])  # inherited by all child processes
    data = {"machine": host.read_machine_facts(), "versions": host.read_versions()}
    if data["machine"]["load_at_start"] > 0.5:
        print(
            f"warning: other programs use this machine (load {data['machine']['load_at_start']:.1f}), so rates and latencies will be worse",
            file=sys.stderr,
        )
    sizes = plan.QUICK_SIZES if options.quick else plan.FULL_SIZES
    run = Run(names, modes, rounds, sizes)
    begin = time.monotonic()
    run.run_all()
    settings = {
        "quick": options.quick,
        "rounds": rounds,
        "workloads": names,
        "sizes": dataclasses.asdict(sizes),
        "seconds": round(time.monotonic() - begin),
    }
    return results.Results(data | {"settings": settings, "problems": run.list_problems(), "rows": run.rows})


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the exception stops the processes
    options = parse_arguments()
    if options.page:
        run_results, path = results.load(options.page), os.path.abspath(options.page)
        folder = os.path.dirname(os.path.dirname(path))
    else:
        run_results = measure(options)
        is_partial = options.quick or options.only
        folder = os.path.abspath(
            options.out or (os.path.join(host.BUILD, "page") if is_partial else os.path.join(host.ROOT, "bench"))
        )
        path = os.path.join(
            folder, "results", (options.name or ("quick" if options.quick else time.strftime("%Y-%m-%d"))) + ".json"
        )
        run_results.save(path)
    print(f"{path}\n{Page(run_results, folder, path).write()}")
    for text in run_results.data["problems"]:
        print(f"problem: {text}", file=sys.stderr)
    return 1 if run_results.data["problems"] else 0


try:
    sys.exit(main())
except host.UserError as error:
    print(f"./dev bench: {error}", file=sys.stderr)
    sys.exit(69)
