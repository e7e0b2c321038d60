"""Time spans: a number of seconds, or a text with a unit such as "500ms", "30s", "5m", "2h" or "1d"."""
from __future__ import annotations

import re
from typing import Union

from .errors import Invalid

Duration = Union[float, str]

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_seconds(name: str, span: Duration) -> float:
    """Converts the time span to seconds, as an int if that is exact. Raises Invalid, which names the option."""
    if isinstance(span, (int, float)) and not isinstance(span, bool) and span >= 0:
        return span
    match = re.fullmatch(r"([0-9]+)(ms|[smhd])", span) if isinstance(span, str) else None
    if match is None:
        raise Invalid(f"{name}: {str(span)[:40]!r} is not a time span", remedy='give seconds, or a text such as "500ms", "30s", "5m", "2h" or "1d"')
    milliseconds = int(match[1]) * _UNITS_MS[match[2]]
    return milliseconds / 1000 if milliseconds % 1000 else milliseconds // 1000
