"""The plots of the page."""
import math

from . import svg
from .figures import summary
from .plan import WORKLOADS


def _bars(results, aof, systems, title_of):
    rows = []
    for name in systems:
        found = summary(results.values("drain", name, "jobs_per_s", aof=aof))
        if found:
            rows.append((title_of(name), found["least"], found["median"], found["most"], name == "mycojobs"))
    return sorted(rows, key=lambda row: -row[2])


def drain(results, aof, systems, title_of):
    return svg.bars(f"No-op jobs a second, AOF {'on' if aof else 'off'}", "/s", _bars(results, aof, systems, title_of))


def isolated(results, aof, systems, title_of):
    return svg.bars(
        f"No-op jobs a second, a fresh process each, AOF {'on' if aof else 'off'}",
        "/s",
        _bars(results, aof, systems, title_of),
    )


def latencies(results, workload, systems, title_of):
    """Medians over the rounds of each quantile."""
    series = {}
    for name in systems:
        rounds = results.values(workload, name, "curve")
        if rounds:
            quantiles = [q for q, _ in rounds[0]]
            series[title_of(name)] = [
                (q, summary([curve[index][1] for curve in rounds])["median"]) for index, q in enumerate(quantiles)
            ]
    return svg.curves(f"{WORKLOADS[workload].title}, ms by quantile", series, svg.NINES, svg.nines)


def concurrency(results, systems, slots, title_of):
    series = {}
    for name in systems:
        points = [(int(each), results.median("concurrency", name, "jobs_per_s", variant=each)) for each in slots]
        series[title_of(name)] = [(number, rate) for number, rate in points if rate]
    return svg.curves("No-op jobs a second, by concurrency", series, [(int(each), each) for each in slots], math.log10)


def sleeps(results, systems, title_of):
    series = {"all slots busy": [(slots, slots * 10) for slots in (2, 10, 50, 100)]}
    for name in systems:
        points = [
            (slots, results.median("sleeps", name, "jobs_per_s", variant=str(slots))) for slots in (2, 10, 50, 100)
        ]
        series[title_of(name)] = [(slots, rate) for slots, rate in points if rate]
    return svg.curves(
        "Jobs of 100 ms a second, by slots",
        series,
        [(slots, str(slots)) for slots in (2, 10, 50, 100)],
        math.log10,
    )
