"""Whether a series of a soak is flat. Pure: numbers in, words out (tests/soak/verdict_test.py).

The rule. A run is cut into four quarters of its time. The first is for warming up and says nothing. A series grows if the median of the last
quarter lies above that of the second by more than what is allowed: the largest of
  - the least that means something in its unit (LEAST), of amounts also 3 % of the second quarter's median,
  - how far the middle half of the second quarter's values spreads, since a series that jumps so much says no more.
Not judged, only shown: what a process has to itself, and its proportional share, which change as others that map the same pages come and go
(each child of a zygote, each call of the command). What it has made its own (`anonymous`) does not.
Medians, since a sample may fall on a moment of rewriting, replacing or reaping. What a run of this length could not have seen is told with
it: allowed, divided by the jobs between the two quarters.
"""
import statistics

# Suffix of the name of a series, minimum rise that counts, and minimum rise as a share of the value. All other series
# count objects that must stay constant, so a rise by one is a failure.
LEAST = [("MiB", 0.25, 0.03), ("bytes a job kept", 64, 0.03), ("keys a job kept", 0.05, 0.03), ("keys", 50, 0.03),
         ("ended jobs kept", 100, 0.03), ("processes below zygotes", 8, 0.03), ("cgroups of the launcher", 16, 0.03),
         # Each call of the command opens some connections. The allocator of Redis starts background threads when it
         # first releases much memory.
         ("redis clients", 5, 0), ("redis descriptors", 5, 0), ("redis threads", 4, 0), ("", 0.9, 0)]
SHOWN_ONLY = ("private, MiB", "pss, MiB")
FEWEST = 3  # minimum number of samples in a quarter


def least(name, before):
    _, value, share = next(row for row in LEAST if name.endswith(row[0]))
    return max(value, share * before)


def quarter(samples, name, number, span):
    """Values of a series in the quarter number (0 to 3) of the time from span[0] to span[1], and the jobs that were done at its middle."""
    width = (span[1] - span[0]) / 4
    first = span[0] + number * width
    inside = [each for each in samples if first <= each["at"] and (each["at"] < first + width or number == 3) and name in each["series"]]
    return [each["series"][name] for each in inside], statistics.median([each["jobs"] for each in inside]) if inside else 0


def judge(samples):
    """samples: [{"at": seconds, "jobs": done so far, "series": {name: number}}]. One row for each series, those that grow first. A series
    that is not there in a quarter cannot be called flat."""
    rows = []
    span = (samples[0]["at"], samples[-1]["at"])
    for name in sorted({name for each in samples for name in each["series"]}):
        (first, _), (second, jobs_before), (last, jobs_after) = (quarter(samples, name, number, span) for number in (0, 1, 3))
        row = {"series": name, "first": statistics.median(first) if first else None, "second": None, "last": None, "allowed": None,
               "per_million": None, "unseen_per_million": None, "verdict": "too few samples"}
        if len(second) >= FEWEST and len(last) >= FEWEST:
            before, after = statistics.median(second), statistics.median(last)
            low, _, high = statistics.quantiles(second, n=4)
            allowed = max(least(name, before), high - low)
            verdict = "not judged" if name.endswith(SHOWN_ONLY) else "grows" if after - before > allowed else "flat"
            millions = (jobs_after - jobs_before) / 1e6
            row.update(second=before, last=after, allowed=allowed, verdict=verdict)
            if millions > 0:
                row.update(per_million=(after - before) / millions, unseen_per_million=allowed / millions)
        rows.append(row)
    order = ["grows", "too few samples", "flat", "not judged"]
    return sorted(rows, key=lambda row: (order.index(row["verdict"]), row["series"]))


def shown(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.2f}"


def table(rows):
    lines = ["| series | first quarter | second | last | allowed rise | rise per 10^6 jobs | not detectable below, per 10^6 jobs | verdict |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [shown(row[key]) for key in ("first", "second", "last", "allowed", "per_million", "unseen_per_million")]
        lines.append(f"| {row['series']} | " + " | ".join(cells) + f" | {row['verdict']} |")
    return "\n".join(lines)
