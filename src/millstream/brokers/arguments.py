"""Checks of arguments that every stream broker makes, so that all of them refuse the same calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

from millstream.errors import InvalidId, InvalidInput
from millstream.message import canonical_id, parse_id

# Ids as a broker writes them, each followed by a comma; up to 19 digits always fit into 64 bits. Nearly every
# id comes straight from a message, and one match over all of them costs a fifth of taking each apart.
_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_ALL_CANONICAL = re.compile(f"(?:{_NUMBER}-{_NUMBER},)+").fullmatch


def check_count(count: int | None) -> None:
    """Raise InvalidInput unless ``count`` is None or at least 1."""
    if count is not None and (not _is_int(count) or count < 1):
        raise InvalidInput(f"count must be a whole number of at least 1, not {count!r}")


def check_block(block_ms: int | None) -> None:
    """Raise InvalidInput unless ``block_ms`` is None (wait for ever) or at least 0 (do not wait)."""
    if block_ms is not None and (not _is_int(block_ms) or block_ms < 0):
        raise InvalidInput(
            f"block_ms must be whole milliseconds, 0 for no wait or None for ever, not {block_ms!r}"
        )


def check_idle(min_idle_ms: int) -> None:
    """Raise InvalidInput unless ``min_idle_ms`` is a number of milliseconds, 0 or more."""
    if not _is_int(min_idle_ms) or min_idle_ms < 0:
        raise InvalidInput(
            f"min_idle_ms must be a whole number of milliseconds, 0 or more, not {min_idle_ms!r}"
        )


def check_limits(maxlen: int | None, minid: str | None, *, required: bool = False) -> None:
    """Raise InvalidInput for two limits at once, for none where one is ``required``, or for a bad one."""
    if maxlen is not None and minid is not None:
        raise InvalidInput("give a greatest length or a smallest id to trim by, not both")
    if required and maxlen is None and minid is None:
        raise InvalidInput("give what to trim by: a greatest length (max_len) or a smallest id (min_id)")
    if maxlen is not None and (not _is_int(maxlen) or maxlen < 0):
        raise InvalidInput(f"the greatest length must be a whole number, 0 or more, not {maxlen!r}")
    if minid is not None:
        parse_id(minid)


def id_list(ids: str | Sequence[str]) -> list[str]:
    """The canonical ids of ``ids``, each once; a single text is one id. Raises InvalidId."""
    if isinstance(ids, str):
        return [canonical_id(ids)]
    try:
        wanted = list(ids)
    except TypeError as error:
        raise InvalidId(ids, "an id, or a list of them") from error
    try:
        joined = ",".join(wanted) + ","
    except TypeError:
        joined = ""  # something is not a text; canonical_id() will say what
    # As many commas as ids: then no id has one inside, and the match speaks for each of them.
    if joined.count(",") != len(wanted) or not _ALL_CANONICAL(joined):
        wanted = [canonical_id(text) for text in wanted]
    return list(dict.fromkeys(wanted))


def _is_int(value: object) -> bool:
    # True and False are ints to Python, and surely a mistake here.
    return isinstance(value, int) and not isinstance(value, bool)
