"""Patterns for names, as Redis has them: ``*``, ``?``, ``[…]`` and a backslash before what means itself."""

from __future__ import annotations

import re
from functools import lru_cache


def fits(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern, as Redis would say on every broker."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(_regex(pattern), re.DOTALL)


def _regex(pattern: str) -> str:
    """The pattern as a regular expression."""
    parts = []
    place = 0
    while place < len(pattern):
        char = pattern[place]
        end = pattern.find("]", place + 1)
        if char == "*":
            parts.append(".*")
        elif char == "?":
            parts.append(".")
        elif char == "\\" and place + 1 < len(pattern):
            place += 1
            parts.append(re.escape(pattern[place]))
        elif char == "[" and end > place + 1:
            parts.append(_set(pattern[place + 1 : end]))
            place = end
        else:
            parts.append(re.escape(char))
        place += 1
    return "".join(parts)


def _set(inside: str) -> str:
    """What stands between brackets. Redis turns a range around that is written backwards."""
    negated, chars = inside.startswith("^"), inside.removeprefix("^")
    if not chars:
        return "."  # anything but nothing
    parts, place = [], 0
    while place < len(chars):
        if chars[place + 1 : place + 2] == "-" and place + 2 < len(chars):
            low, high = sorted((chars[place], chars[place + 2]))
            parts.append(f"{re.escape(low)}-{re.escape(high)}")
            place += 3
        else:
            parts.append(re.escape(chars[place]))
            place += 1
    return f"[{'^' if negated else ''}{''.join(parts)}]"
