"""What the commands share: how to reach the queues, and how to write tables, times and errors."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millstream.errors import ConfigurationError, InvalidInput, InvalidPayload, MillstreamError
from millstream.queue import Queue, QueueManager, connect

F = TypeVar("F", bound=Callable[..., Any])
OK, FAILED, USAGE = 0, 1, 2
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def exit_code_of(error: BaseException) -> int | None:
    """1 for what went wrong, 2 for what was asked wrongly, None for an error that is none of ours."""
    if isinstance(error, (ConfigurationError, InvalidInput, InvalidPayload)):
        return USAGE
    return FAILED if isinstance(error, (MillstreamError, OSError)) else None


def where(function: F) -> F:
    """Options that say where the jobs are."""
    for option in (
        click.option(
            "--app", metavar="MODULE:NAME", help="Import this queue of an application, with its job types."
        ),
        click.option("--connection", metavar="NAME", help="A connection of millstream.toml."),
        click.option("--url", metavar="URL", help="Such as redis://localhost:6379/0."),
    ):
        function = option(function)
    return function


def open_queue(url: str | None, connection: str | None, app: str | None = None) -> Queue:
    """The queue object that the options mean. Raises ConfigurationError for one that only we could see."""
    if app is not None:
        from millstream.worker.process import load_target  # noqa: PLC0415 - few commands need it

        if url is not None:
            raise click.UsageError("--app says where the jobs are already; leave out --url")
        return load_target(app, connection)
    if url is not None and connection is not None:
        raise click.UsageError("give --url or --connection, not both")
    if url is not None:
        queue = connect(url)
    elif connection is not None:
        queue = QueueManager().connection(connection)
    else:
        queue = connect()
    if not queue.driver.capabilities.shared:
        raise ConfigurationError(
            f"{queue.url or 'memory://'} lives and ends with one process, so there is nothing to see here; "
            "give --url, --connection, or set MILLSTREAM_URL"
        )
    return queue


def console() -> Console:
    """Standard output: as wide as the terminal, and never cut where it goes to a file or another program."""
    return Console() if sys.stdout.isatty() else Console(width=10_000, no_color=True, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A table; the columns named in ``right`` hold numbers."""
    made = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def show_json(value: object) -> None:
    """``value`` as JSON on standard output."""
    click.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def read_json(text: str, what: str) -> dict[str, Any]:
    """A JSON object given on the command line; ``-`` reads it from standard input."""
    if text == "-":
        text = sys.stdin.read()
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError(
            f'{what} must be a JSON object such as \'{{"to": "x"}}\', not {text.strip()[:60]}'
        )
    return value


def age(seconds: float | None) -> str:
    """A span as people read it: 250ms, 12s, 3m 20s, 2h 5m, 4d 3h."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.0f}s"
    whole = int(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit}" + (f" {rest}{smaller}" if rest else "")
    return f"{whole}s"


def moment(timestamp: float) -> str:
    """A point in time, in this machine's zone."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """Seconds, or a number with a unit: 500ms, 30s, 5m, 2h, 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        found = _DURATION.fullmatch(value.strip())
        if found is None:
            self.fail(
                f"{value!r} is not a duration; use seconds or a form such as 500ms, 30s, 5m, 2h, 1d",
                param,
                ctx,
            )
        return float(found[1]) * _UNITS[found[2] or "s"]


class Since(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """A moment: how long ago (2h), or a date with or without a time."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            if found := _DURATION.fullmatch(value.strip()):
                return datetime.now(UTC) - timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"])
            return datetime.fromisoformat(value).astimezone()
        except (ValueError, OverflowError):  # the latter: before the first year, or after the last
            self.fail(
                f"{value!r} is not a time; use how long ago (30m, 2h, 1d) or 2026-01-31T12:00", param, ctx
            )
