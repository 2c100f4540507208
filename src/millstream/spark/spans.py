"""Lengths of time as people write them. Needs no PySpark, so that a command can check them without it."""

from __future__ import annotations

import math
import re

from millstream.errors import InvalidInput

_UNITS = {"ms": 0.001, "millisecond": 0.001, "s": 1.0, "second": 1.0, "m": 60.0, "minute": 60.0}
_UNITS |= {"h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0, "week": 604800.0}
_WINDOW = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def seconds_of(text: str | float, what: str) -> float:
    """The seconds in ``"5 minutes"``, ``"30s"`` or a number. Raises InvalidInput."""
    found = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        value = float(text)
    elif found and (size := _UNITS.get(found[2].lower()) or _UNITS.get(found[2].lower().removesuffix("s"))):
        value = float(found[1]) * size
    else:
        raise InvalidInput(
            f"{what} {text!r} is no length of time; use seconds, or '30s', '5 minutes', '1 hour'"
        )
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"{what} must be above 0 seconds, not {text!r}")
    return value
