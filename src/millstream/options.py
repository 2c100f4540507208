"""What can be said about a job besides its fields: the options, their defaults, and what each may be.

The same names are class options (``class Report(Job, queue="reports")``), keywords of ``@job`` and of
``queue.enqueue``, and most of them are fluent methods of a job (``report.on_queue("reports")``).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from millstream.brokers.payload import check_name
from millstream.envelope import Envelope, priority_level
from millstream.errors import ConfigurationError, InvalidInput, InvalidName

Seconds: TypeAlias = float | timedelta
UniqueKey: TypeAlias = Callable[[Any], str] | tuple[str, ...] | str


# The envelope's own defaults, the same objects: what is left at its default is then not sent at all.
_WIRE = dict(zip(reversed(Envelope.__struct_fields__), reversed(Envelope.__struct_defaults__), strict=False))


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is delivered and retried. Times are in seconds."""

    queue: str = _WIRE["queue"]
    connection: str | None = None  # None: that of the queue object it is pushed with
    priority: str = _WIRE["priority"]
    max_attempts: int = _WIRE[
        "max_attempts"
    ]  # 3: one hiccup and one bad minute are survived; a real mistake shows soon
    backoff: float = _WIRE["backoff"]  # 1 s before the second attempt
    multiplier: float = _WIRE["multiplier"]  # 2: each further wait is this much longer
    max_backoff: float = _WIRE[
        "max_backoff"
    ]  # an hour, so that a long outage does not push a retry into next week
    jitter: float = _WIRE[
        "jitter"
    ]  # a tenth: the share of a wait that is random, so that retries do not come in step
    timeout: float | None = None  # for one attempt; None: no limit
    unique_for: float | None = None  # None: not unique; 0: until the job is gone
    unique_key: UniqueKey | None = None  # None: all fields together
    expires_in: float | None = None  # from the time it is due; not started by then: buried as expired
    tags: tuple[str, ...] = ()
    version: int = 1  # of the fields' schema; see Job.upcast
    name: str | None = None  # the type's name on the wire; None: from the module and the class
    cron: str | None = None  # push it by itself at these times; see schedule.py
    tz: str = "UTC"  # of cron
    catch_up: str = "last"  # of cron: ticks that were missed while no worker ran: "none", "last" or "all"


DEFAULTS = JobOptions()
OPTION_NAMES = JobOptions.__struct_fields__
# What is said of a type and never of one job: a field may be called so, and a subclass does not inherit it.
TYPE_OPTIONS = ("name", "version", "cron", "tz", "catch_up")


def merge(owner: str, options: JobOptions, changes: Mapping[str, Any]) -> JobOptions:
    """``options`` with ``changes``, each checked. ``owner`` is whose they are, for the messages."""
    if not changes:
        return options
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        check = _CHECKS.get(name)
        if check is None:
            raise ConfigurationError(f"{owner}: {unknown_option('job option', name, OPTION_NAMES)}")
        try:
            checked[name] = check(name, value)
        except InvalidInput as error:
            if isinstance(error, InvalidName):
                raise
            raise InvalidInput(f"{owner}: {error}") from None
    return msgspec.structs.replace(options, **checked)


def unknown_option(kind: str, name: str, allowed: Iterable[str]) -> str:
    """A sentence about a name that is not allowed, with the one that was probably meant."""
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown {kind} {name!r}{hint}; allowed are {', '.join(names)}"


def check_queue_name(name: str) -> str:
    """``name`` itself, or InvalidName. No braces: in a Redis key they mark the part that is hashed."""
    check_name("queue", name)
    if "{" in name or "}" in name:
        raise InvalidName("queue", name, "it has a brace; use letters, digits and marks such as . - _ :")
    return name


def check_priority(priority: str) -> str:
    """The level that ``priority`` means, or InvalidInput."""
    try:
        return priority_level(priority)
    except (ValueError, TypeError) as error:
        raise InvalidInput(str(error)) from None


def seconds(name: str, value: Seconds, *, least: float = 0.0, above: bool = False) -> float:
    """``value`` in seconds. Raises InvalidInput unless it is finite and at least (``above``) ``least``."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name} must be seconds or a timedelta, not {value!r}")
    if not math.isfinite(value) or value < least or (above and value == least):
        raise InvalidInput(
            f"{name} must be {'above' if above else 'at least'} {least:g} seconds, not {value!r}"
        )
    return float(value)


def delay_or_time(value: Seconds | datetime) -> float | datetime:
    """What ``delay`` was given: seconds from the push, or a moment. Raises InvalidInput.

    A moment that has passed is not an error, because it may pass between its making and the push.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(
                f"delay: {value!r} has no time zone, so it is not clear when that is; "
                "use for example datetime.now(UTC) + timedelta(hours=1)"
            )
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise InvalidInput(f"delay: {value!r} is later than any moment in UTC can be") from None
    return seconds("delay", value)


def _optional_seconds(name: str, value: Any) -> float | None:
    return None if value is None else seconds(name, value, above=True)


def _number(name: str, value: Any, least: float, most: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise InvalidInput(f"{name} must be a number {bounds}, not {value!r}")
    if not math.isfinite(value):
        raise InvalidInput(f"{name} must be a finite number, not {value!r}")
    return float(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


def _tags(name: str, value: Any) -> tuple[str, ...]:
    try:
        tags = (value,) if isinstance(value, str) else tuple(value)
    except TypeError:
        raise InvalidInput(f"{name} must be a text or a list of texts, not {value!r}") from None
    for tag in tags:
        check_name("tag", tag)
    return tags


def _unique_key(name: str, value: Any) -> UniqueKey | None:
    if value is None or callable(value) or (isinstance(value, str) and value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (list, tuple)) and value and all(isinstance(field, str) for field in value):
        return tuple(value)
    raise InvalidInput(f"{name} must be a function of the job, a list of its fields or a text, not {value!r}")


def _schedule() -> Any:
    from millstream import schedule  # noqa: PLC0415 - few jobs have one, and it imports jobs

    return schedule


def _plain_name(kind: str) -> Callable[[str, Any], str | None]:
    return lambda name, value: None if value is None else check_name(kind, value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": lambda name, value: check_queue_name(value),
    "connection": _plain_name("connection"),
    "priority": lambda name, value: check_priority(value),
    "max_attempts": _whole,
    "backoff": seconds,
    "multiplier": lambda name, value: _number(name, value, 1.0),
    "max_backoff": seconds,
    "jitter": lambda name, value: _number(name, value, 0.0, 1.0),
    "timeout": _optional_seconds,
    "unique_for": lambda name, value: None if value is None else seconds(name, value),
    "unique_key": _unique_key,
    "expires_in": _optional_seconds,
    "tags": _tags,
    "version": _whole,
    "name": _plain_name("job type"),
    "cron": lambda name, value: value if value is None else _schedule().check_cron(value),
    "tz": lambda name, value: _schedule().zone(value).key,
    "catch_up": lambda name, value: _schedule().check_catch_up(value),
}
assert _CHECKS.keys() == set(OPTION_NAMES)
