"""./dev bench: mycojobs and its peers in turn, in one run. Writes results/NAME.json, plots and README.md."""
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


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, AOF on alone: about four minutes")
    parser.add_argument("--only", metavar="NAME,...", default="", help="these workloads: " + ", ".join(plan.WORKLOADS))
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (default 3, with --quick 1)")
    parser.add_argument("--redis", choices=MODES, help="append-only file of Redis (default both, with --quick aof)")
    parser.add_argument("--name", help="of the results (default: the date; with --quick, quick)")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="of README.md and results/ (default bench; with --quick or --only, build/bench/page)",
    )
    parser.add_argument("--page", metavar="FILE", help="measure nothing, write the page above these results")
    return parser.parse_args()


def chosen(only):
    names = [name for name in only.split(",") if name] or list(plan.WORKLOADS)
    unknown = [name for name in names if name not in plan.WORKLOADS]
    if unknown:
        raise host.Remedy(f"--only {','.join(unknown)}: no such workload; there are {', '.join(plan.WORKLOADS)}")
    return names


def measure(options):
    names = chosen(options.only)
    rounds = options.rounds or (1 if options.quick else 3)
    modes = MODES[options.redis or ("aof" if options.quick else "both")]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.CPUS])  # inherited by all child processes
    data = {"machine": host.facts(), "versions": host.versions()}
    if data["machine"]["load_at_start"] > 0.5:
        print(
            f"others use this machine (load {data['machine']['load_at_start']:.1f}): wall-clock figures will be worse than they are",
            file=sys.stderr,
        )
    sizes = plan.QUICK if options.quick else plan.WHOLE
    run = Run(names, modes, rounds, sizes)
    begin = time.monotonic()
    run.all()
    settings = {
        "quick": options.quick,
        "rounds": rounds,
        "workloads": names,
        "sizes": dataclasses.asdict(sizes),
        "seconds": round(time.monotonic() - begin),
    }
    return results.Results(data | {"settings": settings, "problems": run.problems(), "rows": run.rows})


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the clean-up
    options = arguments()
    if options.page:
        made, path = results.load(options.page), os.path.abspath(options.page)
        folder = os.path.dirname(os.path.dirname(path))
    else:
        made = measure(options)
        partial = options.quick or options.only
        folder = os.path.abspath(
            options.out or (os.path.join(host.BUILD, "page") if partial else os.path.join(host.ROOT, "bench"))
        )
        path = os.path.join(
            folder, "results", (options.name or ("quick" if options.quick else time.strftime("%Y-%m-%d"))) + ".json"
        )
        made.save(path)
    print(f"{path}\n{Page(made, folder, path).write()}")
    for text in made.data["problems"]:
        print(f"problem: {text}", file=sys.stderr)
    return 1 if made.data["problems"] else 0


try:
    sys.exit(main())
except host.Remedy as remedy:
    print(f"./dev bench: {remedy}", file=sys.stderr)
    sys.exit(69)
