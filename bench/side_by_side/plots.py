"""Creates the plots of the report as SVG texts. title_of: function that returns the title of a system."""
import math

from . import svg
from .figures import summarize_rounds
from .plan import WORKLOADS


def _make_bars(results, aof, systems, title_of):
    rows = []
    for name in systems:
        summary = summarize_rounds(results.find_values("drain", name, "jobs_per_s", aof=aof))
        if summary:
            rows.append((title_of(name), summary["minimum"], summary["median"], summary["maximum"], name == "mycojobs"))
    return sorted(rows, key=lambda row: -row[2])


def plot_drain(results, aof, systems, title_of):
    return svg.draw_bars(f"No-op jobs a second, AOF {'on' if aof else 'off'}", "/s", _make_bars(results, aof, systems, title_of))


def plot_fresh_processes(results, aof, systems, title_of):
    return svg.draw_bars(
        f"No-op jobs a second, each in a fresh process, AOF {'on' if aof else 'off'}",
        "/s",
        _make_bars(results, aof, systems, title_of),
    )


def plot_latencies(results, workload, systems, title_of):
    """Plots the quantiles of a workload. The value of a quantile is the median of the rounds."""
    series = {}
    for name in systems:
        rounds = results.find_values(workload, name, "curve")
        if rounds:
            quantiles = [q for q, _ in rounds[0]]
            series[title_of(name)] = [
                (q, summarize_rounds([curve[index][1] for curve in rounds])["median"]) for index, q in enumerate(quantiles)
            ]
    return svg.draw_curves(f"{WORKLOADS[workload].title}, ms by quantile", series, svg.QUANTILE_TICKS, svg.spread_quantile)


def plot_concurrency(results, systems, slots, title_of):
    series = {}
    for name in systems:
        points = [(int(count), results.median("concurrency", name, "jobs_per_s", variant=count)) for count in slots]
        series[title_of(name)] = [(count, rate) for count, rate in points if rate]
    return svg.draw_curves("No-op jobs a second, by concurrency", series, [(int(count), count) for count in slots], math.log10)


def plot_sleeps(results, systems, title_of):
    series = {"all slots busy": [(slots, slots * 10) for slots in (2, 10, 50, 100)]}
    for name in systems:
        points = [
            (slots, results.median("sleeps", name, "jobs_per_s", variant=str(slots))) for slots in (2, 10, 50, 100)
        ]
        series[title_of(name)] = [(slots, rate) for slots, rate in points if rate]
    return svg.draw_curves(
        "Jobs of 100 ms a second, by slots",
        series,
        [(slots, str(slots)) for slots in (2, 10, 50, 100)],
        math.log10,
    )
