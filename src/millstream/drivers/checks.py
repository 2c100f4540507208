"""Checks of arguments, before anything is written, so that every driver refuses the same calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from millstream.brokers.payload import MAX_NAME, check_name
from millstream.drivers.base import PlainBatch, PushItem, RateLimit, Settlement
from millstream.envelope import PRIORITIES
from millstream.errors import InvalidInput, InvalidName, PayloadTooLarge

OUTCOMES = frozenset(("complete", "retry", "bury", "release"))
MOST_NUMBER = 1 << 53  # Lua's numbers are exact up to here
MOST_ITEMS, MOST_BYTES = 1000, 32 * 1024 * 1024  # of one step
LONGEST_DELAY = 10 * 366 * 86400.0  # ten years: more is a mistake, such as a date in place of a span


def check_queue(name: str) -> str:
    """``name`` itself, or InvalidName. Braces would break the hash tag that keeps a queue's keys together."""
    check_name("queue", name)
    if "{" in name or "}" in name:
        raise InvalidName("queue", name, "it has a brace, and braces mark the queue in the names of keys")
    return name


def check_prefix(prefix: str) -> str:
    """``prefix`` itself, or InvalidName."""
    check_name("prefix", prefix)
    if "{" in prefix or "}" in prefix:
        raise InvalidName("prefix", prefix, "it has a brace, and braces mark the queue in the names of keys")
    return prefix


def check_queues(names: Sequence[str]) -> list[str]:
    """The names without repetitions, in order."""
    if isinstance(names, str):
        raise InvalidInput(f"queues must be a list of names such as [{names!r}], not a text")
    found = list(dict.fromkeys(names))
    if not found:
        raise InvalidInput("give at least one queue")
    for name in found:
        check_queue(name)
    return found


def check_owner(name: str) -> str:
    check_name("worker", name)
    if name.startswith("~"):
        raise InvalidName("worker", name, "names that begin with '~' are the driver's own")
    return name


def check_count(name: str, count: int, least: int = 1) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, not {count!r}")
    return count


def check_seconds(name: str, value: float, *, above: float | None = None) -> float:
    """``value`` itself, or InvalidInput unless it is a finite number of seconds, 0 or more."""
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value < 0 or (above is not None and value <= above):
        least = "0 or more" if above is None else f"more than {above:g}"
        raise InvalidInput(f"{name} must be a number of seconds, {least}, not {value!r}")
    return value


def check_delay(value: float) -> float:
    check_seconds("delay", value)
    if value > LONGEST_DELAY:
        raise InvalidInput(
            f"a delay of {value:g} s is more than ten years; give seconds from now, not a date"
        )
    return value


def check_numbered(queue: str, line: str, number: int, items: Sequence[PushItem], max_payload: int) -> None:
    """Check a numbered push: one queue, at most a thousand items, a number that every server can compare."""
    check_queue(queue)
    check_name("line", line)
    check_count("number", number)
    if number > MOST_NUMBER:
        raise InvalidInput(f"the number of a push must be at most 2^53, not {number!r}")
    check_items(items, max_payload)
    if len(items) > MOST_ITEMS or sum(len(item.body) for item in items) > MOST_BYTES:
        raise InvalidInput("a numbered push is one step: at most 1000 jobs, and 32 MiB of them")
    for item in items:
        if item.queue != queue:
            raise InvalidInput(f"a numbered push is for one queue, {queue!r}, and a job wants {item.queue!r}")


def check_items(items: Sequence[PushItem], max_payload: int) -> None:
    """Check what is to be pushed."""
    if isinstance(items, PlainBatch):
        _check_batch(items, max_payload)
        return
    queue = None
    for item in items:
        if item.queue is not queue:
            queue = check_queue(item.queue)
        body, name = item.body, item.id
        # The usual item passes these at once; the long way says what is wrong.
        if not (type(body) is bytes and len(body) <= max_payload and type(name) is str and name.isalnum()):
            check_name("job id", name)
            check_body(body, max_payload)
        elif len(name) > MAX_NAME:
            check_name("job id", name)
        if item.priority not in PRIORITIES:
            raise InvalidInput(f"{item.priority!r} is not a priority; use one of {', '.join(PRIORITIES)}")
        if item.delay or item.unique_key is not None or item.unique_for:
            _check_options(item)


def _check_batch(batch: PlainBatch, max_payload: int) -> None:
    """Their ids are new and of our own making, so there is less to look at."""
    check_queue(batch.queue)
    if batch.priority not in PRIORITIES:
        raise InvalidInput(f"{batch.priority!r} is not a priority; use one of {', '.join(PRIORITIES)}")
    largest = max(map(len, batch.bodies), default=0)
    if largest > max_payload:
        raise PayloadTooLarge(largest, max_payload)


def _check_options(item: PushItem) -> None:
    if item.delay:
        check_delay(item.delay)
    if item.unique_key is not None:
        check_name("unique key", item.unique_key)
        check_seconds("unique_for", item.unique_for)
    elif item.unique_for:
        raise InvalidInput("unique_for needs a unique_key: what is to be unique for that time")


def check_body(body: bytes, max_payload: int) -> None:
    if not isinstance(body, bytes):
        raise InvalidInput(f"a job's body must be bytes, not {type(body).__name__}")
    if len(body) > max_payload:
        raise PayloadTooLarge(len(body), max_payload)


def check_settlement(settlement: Settlement, max_payload: int) -> None:
    if settlement.outcome not in OUTCOMES:
        raise InvalidInput(
            f"{settlement.outcome!r} is not an outcome; use one of {', '.join(sorted(OUTCOMES))}"
        )
    if settlement.outcome in ("retry", "bury"):
        check_body(settlement.body, max_payload)
        if not settlement.body:
            raise InvalidInput(f"{settlement.outcome} needs the body that is to be kept")
        if settlement.delay:
            check_delay(settlement.delay)


def check_limits(limits: Mapping[str, RateLimit] | None) -> Mapping[str, RateLimit]:
    for name, limit in (limits or {}).items():
        check_queue(name)
        if not isinstance(limit, RateLimit):
            raise InvalidInput(f"the limit of queue {name!r} must be a RateLimit, not {limit!r}")
    return limits or {}
