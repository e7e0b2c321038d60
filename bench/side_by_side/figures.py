"""Statistics of measured values, and their formats in the report."""
import statistics


def quantile(values, q):
    """Returns the q-quantile of the values by nearest rank. With few values, the 0.99-quantile is the maximum."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def summarize_latencies(seconds):
    """Returns the figures of a result for latencies in seconds: quantiles in ms, and a curve of quantiles for the plots.
    p999_ms is None for fewer than 1,000 latencies."""
    quantiles = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999]
    return {
        "count": len(seconds),
        "p50_ms": quantile(seconds, 0.5) * 1e3,
        "p99_ms": quantile(seconds, 0.99) * 1e3,
        "p999_ms": quantile(seconds, 0.999) * 1e3 if len(seconds) >= 1000 else None,
        "max_ms": max(seconds) * 1e3,
        "curve": [[q, quantile(seconds, q) * 1e3] for q in quantiles],
    }


def summarize_rounds(values):
    """Returns {median, minimum, maximum} of the values that are not None, or None without such a value."""
    known = [value for value in values if value is not None]
    return {"median": statistics.median(known), "minimum": min(known), "maximum": max(known)} if known else None


def format_number(value):
    """Formats a number with three significant digits, or "-" for None. Numbers above 1,000 keep all integer digits."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def format_range(values, unit=""):
    """Formats values as "<median> (<minimum> to <maximum>) <unit>", without the range if all values are equal."""
    summary = summarize_rounds(values)
    if not summary:
        return "-"
    unit = f" {unit}" if unit else ""
    if summary["minimum"] == summary["maximum"]:
        return format_number(summary["median"]) + unit
    minimum, maximum = format_number(summary["minimum"]), format_number(summary["maximum"])
    return f"{format_number(summary['median'])} ({minimum} to {maximum}){unit}"
