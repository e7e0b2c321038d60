"""Medians, ranges, quantiles."""
import statistics


def quantile(values, q):
    """The value below which q of them are (nearest rank), so that p99 of few is their worst."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def percentiles(seconds):
    """Of latencies in seconds, what a result keeps, in ms, with a curve for the plots. No p99.9 of less than a thousand."""
    curve = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999]
    return {
        "count": len(seconds),
        "p50_ms": quantile(seconds, 0.5) * 1e3,
        "p99_ms": quantile(seconds, 0.99) * 1e3,
        "p999_ms": quantile(seconds, 0.999) * 1e3 if len(seconds) >= 1000 else None,
        "max_ms": max(seconds) * 1e3,
        "curve": [[q, quantile(seconds, q) * 1e3] for q in curve],
    }


def summary(values):
    """{median, least, most} of the rounds that have a value; None if none has."""
    known = [value for value in values if value is not None]
    return {"median": statistics.median(known), "least": min(known), "most": max(known)} if known else None


def short(value):
    """Three digits that count, as people read them."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ranged(values, unit=""):
    """median (least to most) unit"""
    found = summary(values)
    if not found:
        return "-"
    unit = f" {unit}" if unit else ""
    if found["least"] == found["most"]:
        return short(found["median"]) + unit
    return f"{short(found['median'])} ({short(found['least'])} to {short(found['most'])}){unit}"
