"""A small writer of plots: bars with ranges, and curves. Readable on light and on dark pages."""
import math
from xml.sax.saxutils import escape

from .figures import short

LIGHT = ("#0b6bcb", "#c2410c", "#15803d", "#9333ea", "#b58900", "#0e7490", "#be185d", "#57534e")
DARK = ("#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#facc15", "#22d3ee", "#f472b6", "#a8a29e")


def _style():
    def colours(palette):
        return "".join(f".f{i}{{fill:{c}}}.s{i}{{stroke:{c}}}" for i, c in enumerate(palette))

    return (
        "<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-size:14px;font-weight:600}.q{fill:#59636e}"
        ".g{stroke:#d1d9e0;stroke-width:1}.r{stroke:#1f2328;stroke-width:1.5}.c{fill:none;stroke-width:2}"
        f"{colours(LIGHT)}@media (prefers-color-scheme:dark){{text{{fill:#f0f6fc}}.q{{fill:#9198a1}}.g{{stroke:#3d444d}}"
        f".r{{stroke:#f0f6fc}}{colours(DARK)}}}</style>"
    )


def _whole(width, height, title, parts):
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-label="{escape(title, {chr(34): "&quot;"})}">',
            _style(),
            f'<text class="t" x="12" y="22">{escape(title)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _decades(least, most):
    """Powers of ten around both; at least one decade."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return low, max(high, low + 1)


def _number(value):
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def bars(title, unit, rows):
    """rows: [(label, least, median, most, ours)]; on a logarithmic axis, since they lie decades apart."""
    rows = [row for row in rows if row[1] > 0]
    if not rows:
        return _whole(760, 60, title, ['<text class="q" x="12" y="46">nothing was measured</text>'])
    left, right, top, step = 300, 640, 40, 26
    low, high = _decades(min(row[1] for row in rows), max(row[3] for row in rows))
    height = top + step * len(rows) + 34

    def at(value):
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    parts = []
    for decade in range(low, high + 1):
        x = at(10**decade)
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 28}"/>')
        parts.append(
            f'<text class="q" x="{x:.1f}" y="{height - 12}" text-anchor="middle">{_number(10 ** decade)}</text>'
        )
    for index, (label, least, median, most, ours) in enumerate(rows):
        y = top + step * index + 4
        parts += [
            f'<text x="{left - 10}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="f{0 if ours else 7}" x="{left}" y="{y}" width="{max(1.0, at(median) - left):.1f}" '
            f'height="{step - 8}" rx="2" fill-opacity="{1 if ours else 0.6}"/>',
            f'<line class="r" x1="{at(least):.1f}" x2="{at(most):.1f}" y1="{y + 9}" y2="{y + 9}"/>',
            f'<text x="{right + 14}" y="{y + 13}">{short(median)} {escape(unit)}</text>',
        ]
    return _whole(760, height, title, parts)


def curves(title, series, ticks, x_of=None):
    """series: {label: [(x, y)]}, y on a logarithmic axis; ticks: [(x, text)]; x_of spreads x (default: as it is)."""
    series = {label: [(x, y) for x, y in points if y > 0] for label, points in series.items()}
    series = {label: points for label, points in series.items() if points}
    if not series:
        return _whole(760, 60, title, ['<text class="q" x="12" y="46">nothing was measured</text>'])
    x_of = x_of or (lambda x: x)
    left, right, top, bottom = 60, 520, 44, 330
    low, high = _decades(
        min(y for points in series.values() for _, y in points), max(y for points in series.values() for _, y in points)
    )
    first, last = x_of(ticks[0][0]), x_of(ticks[-1][0])

    def place(x, y):
        return (
            left + (right - left) * (x_of(x) - first) / (last - first),
            bottom - (bottom - top) * (math.log10(y) - low) / (high - low),
        )

    parts = []
    for decade in range(low, high + 1):
        y = place(ticks[0][0], 10**decade)[1]
        parts.append(f'<line class="g" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="q" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(10 ** decade)}</text>')
    for x, text in ticks:
        across = place(x, 10**low)[0]
        parts.append(f'<line class="g" x1="{across:.1f}" x2="{across:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="q" x="{across:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(text)}</text>')
    for index, (label, points) in enumerate(series.items()):
        colour = index % len(LIGHT)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        y = top + 14 + 20 * index
        parts += [
            f'<polyline class="c s{colour}" points="{line}"/>',
            f'<rect class="f{colour}" x="{right + 20}" y="{y - 9}" width="14" height="4"/>',
            f'<text x="{right + 40}" y="{y - 3}">{escape(label)}</text>',
        ]
    return _whole(860, bottom + 34, title, parts)


def nines(q):
    """Spreads quantiles so that each further nine is as wide as the one before."""
    return -math.log10(1 - min(q, 0.9999))


NINES = [(0, "least"), (0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")]
