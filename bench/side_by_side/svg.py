"""Draws bar charts and line charts as SVG texts, with colours for light and dark pages."""
import math
from xml.sax.saxutils import escape

from .figures import format_number

LIGHT = ("#0b6bcb", "#c2410c", "#15803d", "#9333ea", "#b58900", "#0e7490", "#be185d", "#57534e")
DARK = ("#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#facc15", "#22d3ee", "#f472b6", "#a8a29e")


def _format_style():
    """Returns the style sheet. The classes f<i> and s<i> fill and stroke with the colour i of the palette."""
    def colours(palette):
        return "".join(f".f{i}{{fill:{c}}}.s{i}{{stroke:{c}}}" for i, c in enumerate(palette))

    return (
        "<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-size:14px;font-weight:600}.q{fill:#59636e}"
        ".g{stroke:#d1d9e0;stroke-width:1}.r{stroke:#1f2328;stroke-width:1.5}.c{fill:none;stroke-width:2}"
        f"{colours(LIGHT)}@media (prefers-color-scheme:dark){{text{{fill:#f0f6fc}}.q{{fill:#9198a1}}.g{{stroke:#3d444d}}"
        f".r{{stroke:#f0f6fc}}{colours(DARK)}}}</style>"
    )


def _format_svg(width, height, title, parts):
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-label="{escape(title, {chr(34): "&quot;"})}">',
            _format_style(),
            f'<text class="t" x="12" y="22">{escape(title)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _find_decades(minimum, maximum):
    """Returns the exponents of the powers of ten that enclose the values: at least one decade."""
    low, high = math.floor(math.log10(minimum)), math.ceil(math.log10(maximum))
    return low, max(high, low + 1)


def _format_tick(value):
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def draw_bars(title, unit, rows):
    """Draws a bar chart with a logarithmic axis. rows: [(label, minimum, median, maximum, is_highlighted)]; the bar shows
    the median, and a line shows the range."""
    rows = [row for row in rows if row[1] > 0]
    if not rows:
        return _format_svg(760, 60, title, ['<text class="q" x="12" y="46">no values were measured</text>'])
    left, right, top, step = 300, 640, 40, 26
    low, high = _find_decades(min(row[1] for row in rows), max(row[3] for row in rows))
    height = top + step * len(rows) + 34

    def x_of(value):
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    parts = []
    for decade in range(low, high + 1):
        x = x_of(10**decade)
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 28}"/>')
        parts.append(
            f'<text class="q" x="{x:.1f}" y="{height - 12}" text-anchor="middle">{_format_tick(10 ** decade)}</text>'
        )
    for index, (label, minimum, median, maximum, is_highlighted) in enumerate(rows):
        y = top + step * index + 4
        parts += [
            f'<text x="{left - 10}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="f{0 if is_highlighted else 7}" x="{left}" y="{y}" width="{max(1.0, x_of(median) - left):.1f}" '
            f'height="{step - 8}" rx="2" fill-opacity="{1 if is_highlighted else 0.6}"/>',
            f'<line class="r" x1="{x_of(minimum):.1f}" x2="{x_of(maximum):.1f}" y1="{y + 9}" y2="{y + 9}"/>',
            f'<text x="{right + 14}" y="{y + 13}">{format_number(median)} {escape(unit)}</text>',
        ]
    return _format_svg(760, height, title, parts)


def draw_curves(title, series, ticks, scale_x=None):
    """Draws a line chart with a logarithmic y axis. series: {label: [(x, y)]}. ticks: [(x, text)]. scale_x: function for
    the scale of the x axis; None for a linear scale."""
    series = {label: [(x, y) for x, y in points if y > 0] for label, points in series.items()}
    series = {label: points for label, points in series.items() if points}
    if not series:
        return _format_svg(760, 60, title, ['<text class="q" x="12" y="46">no values were measured</text>'])
    scale_x = scale_x or (lambda x: x)
    left, right, top, bottom = 60, 520, 44, 330
    low, high = _find_decades(
        min(y for points in series.values() for _, y in points), max(y for points in series.values() for _, y in points)
    )
    first, last = scale_x(ticks[0][0]), scale_x(ticks[-1][0])

    def position_of(x, y):
        return (
            left + (right - left) * (scale_x(x) - first) / (last - first),
            bottom - (bottom - top) * (math.log10(y) - low) / (high - low),
        )

    parts = []
    for decade in range(low, high + 1):
        y = position_of(ticks[0][0], 10**decade)[1]
        parts.append(f'<line class="g" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="q" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{_format_tick(10 ** decade)}</text>')
    for x, text in ticks:
        tick_x = position_of(x, 10**low)[0]
        parts.append(f'<line class="g" x1="{tick_x:.1f}" x2="{tick_x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="q" x="{tick_x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(text)}</text>')
    for index, (label, points) in enumerate(series.items()):
        colour = index % len(LIGHT)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (position_of(*point) for point in points))
        y = top + 14 + 20 * index
        parts += [
            f'<polyline class="c s{colour}" points="{line}"/>',
            f'<rect class="f{colour}" x="{right + 20}" y="{y - 9}" width="14" height="4"/>',
            f'<text x="{right + 40}" y="{y - 3}">{escape(label)}</text>',
        ]
    return _format_svg(860, bottom + 34, title, parts)


def spread_quantile(q):
    """Scale for quantiles: 0.9, 0.99 and 0.999 have the same distance from each other."""
    return -math.log10(1 - min(q, 0.9999))


QUANTILE_TICKS = [(0, "minimum"), (0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")]
