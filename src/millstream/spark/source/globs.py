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
            inside = pattern[place + 1 : end]
            negated = inside.startswith("^")
            body = re.escape(inside.removeprefix("^")).replace(r"\-", "-")
            parts.append(f"[{'^' if negated else ''}{body}]")
            place = end
        else:
            parts.append(re.escape(char))
        place += 1
    return "".join(parts)
