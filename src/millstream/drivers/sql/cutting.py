"""Cutting calls into steps, and checking what a driver is opened with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from millstream.drivers import checks
from millstream.drivers.sql.layout import CHUNK
from millstream.errors import ConfigurationError, InvalidName
from millstream.sql.database import Database

T = TypeVar("T")


def check_version(database: Database) -> None:
    """Raise ConfigurationError for a server that cannot skip what others hold."""
    dialect: Any = database.engine.dialect
    version = dialect.server_version_info or ()
    name = (
        "MariaDB" if getattr(dialect, "is_mariadb", False) else {"mysql": "MySQL"}.get(database.backend, "")
    )
    oldest = {"MariaDB": (10, 6), "MySQL": (8, 0)}.get(name)
    if oldest is not None and version < oldest:
        raise ConfigurationError(
            f"{name} {'.'.join(map(str, version))} has no SKIP LOCKED; "
            f"{'.'.join(map(str, oldest))} or newer is needed"
        )


def check_prefix(prefix: str) -> str:
    if len(checks.check_prefix(prefix)) > 128:
        raise InvalidName("prefix", prefix, "it has more than 128 characters")
    return prefix


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + CHUNK] for at in range(0, len(items), CHUNK))


def by_queue(
    items: Sequence[T], queue_of: Callable[[T], str], step: Callable[[str, Sequence[T]], list[Any]]
) -> list[Any]:
    """``step(queue, chunk)`` for each queue and thousand; the answers in the order of ``items``."""
    positions: dict[str, list[int]] = {}
    for position, item in enumerate(items):
        positions.setdefault(queue_of(item), []).append(position)
    answers: list[Any] = [None] * len(items)
    for queue, places in positions.items():
        for some in chunks(places):
            for place, answer in zip(some, step(queue, [items[place] for place in some]), strict=True):
                answers[place] = answer
    return answers
