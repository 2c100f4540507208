"""millstream stream: look into event streams, add to them, and trim them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.text import Text

from millstream.brokers.base import StreamBroker
from millstream.cli.common import age, console, read_json, show_json, table
from millstream.config import open_broker, scheme_of
from millstream.errors import ConfigurationError
from millstream.message import Message
from millstream.settings import load_settings

F = TypeVar("F", bound=Callable[..., Any])


@click.group("stream")
def command() -> None:
    """Look into event streams, add to them, and trim them."""


def where(function: F) -> F:
    """Options that say where the streams are."""
    for option in (
        click.option("--connection", metavar="NAME", help="A connection of millstream.toml."),
        click.option("--url", metavar="URL", help="Such as redis://localhost:6379/0."),
    ):
        function = option(function)
    return function


def _open(url: str | None, connection: str | None) -> StreamBroker:
    if url is not None and connection is not None:
        raise click.UsageError("give --url or --connection, not both")
    if url is None:
        settings = load_settings()
        name = connection or settings.default
        if name not in settings.connections:
            known = ", ".join(sorted(settings.connections))
            raise ConfigurationError(f"there is no connection {name!r}; known are: {known}")
        url = settings.connections[name].url
    if scheme_of(url) == "memory":
        raise ConfigurationError(
            f"{url} lives and ends with one process, so there is nothing to see from here; "
            "give --url, --connection, or set MILLSTREAM_URL"
        )
    return open_broker(url)


def _line(message: Message) -> str:
    kind = f" {message.type}" if message.type else ""
    return f"{message.id}{kind} {json.dumps(message.data, ensure_ascii=False)}"


def _plain(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"id": message.id, "data": message.data}
    if message.type:
        found["type"] = message.type
    if message.headers:
        found["headers"] = message.headers
    return found


@command.command("add")
@click.argument("stream")
@click.argument("data")
@click.option("--type", "type_", help="The event's type.")
@click.option(
    "--maxlen", type=click.IntRange(min=0), help="Trim to this length, sparing what a group still needs."
)
@where
def add(
    stream: str, data: str, type_: str | None, maxlen: int | None, url: str | None, connection: str | None
) -> None:
    """Append DATA, a JSON object (- reads it from standard input), to STREAM and print its id."""
    fields = read_json(data, "DATA")
    with _open(url, connection) as broker:
        click.echo(broker.xadd(stream, fields, type=type_, maxlen=maxlen))


@command.command("range")
@click.argument("stream")
@click.option("--start", default="-", show_default=True, help="The first id, or - for the oldest.")
@click.option("--end", default="+", show_default=True, help="The last id, or + for the newest.")
@click.option("--count", "-n", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--reverse", is_flag=True, help="Newest first.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@where
def range_(
    stream: str,
    start: str,
    end: str,
    count: int,
    reverse: bool,
    as_json: bool,
    url: str | None,
    connection: str | None,
) -> None:
    """The entries of STREAM, one per line."""
    with _open(url, connection) as broker:
        read = (
            broker.xrevrange(stream, end, start, count)
            if reverse
            else broker.xrange(stream, start, end, count)
        )
        if as_json:
            show_json([_plain(message) for message in read])
        else:
            for message in read:
                click.echo(_line(message))


@command.command("info")
@click.argument("stream")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@where
def info(stream: str, as_json: bool, url: str | None, connection: str | None) -> None:
    """Length, first and last entry of STREAM, and its groups: lag, pending, consumers."""
    with _open(url, connection) as broker:
        groups = broker.group_info(stream)
        length = broker.xlen(stream)
        ends = [messages[0].id if messages else None for messages in _ends(broker, stream)]
    if as_json:
        show_json({"stream": stream, "length": length, "first": ends[0], "last": ends[1], "groups": groups})
        return
    out = console()
    out.print(Text(f"{stream}: {length} entries, from {ends[0] or '-'} to {ends[1] or '-'}"))
    rows: list[tuple[object, ...]] = []
    for group in groups:
        rows.append((group.name, group.lag, group.pending, group.last_delivered_id, "", ""))
        rows += [
            ("", "", consumer.pending, "", consumer.name, f"{age(consumer.idle_ms / 1000)} ago")
            for consumer in group.consumers
        ]
    if rows:
        columns = ("group", "lag", "pending", "delivered up to", "consumer", "active")
        out.print(table(columns, rows, right=("lag", "pending")))
    else:
        out.print(Text("it has no groups"))


def _ends(broker: StreamBroker, stream: str) -> tuple[list[Message], list[Message]]:
    return broker.xrange(stream, count=1), broker.xrevrange(stream, count=1)


@command.command("trim")
@click.argument("stream")
@click.option("--max-len", type=click.IntRange(min=0), help="Keep so many entries.")
@click.option("--min-id", help="Keep what is not older than this id.")
@click.option(
    "--plain", is_flag=True, help="Remove even what a group has not been given or not acknowledged."
)
@where
def trim(
    stream: str, max_len: int | None, min_id: str | None, plain: bool, url: str | None, connection: str | None
) -> None:
    """Remove the oldest entries of STREAM, by length or by id; what a group still needs stays."""
    with _open(url, connection) as broker:
        click.echo(f"{broker.xtrim(stream, max_len, min_id, plain=plain)} removed")


@command.command("tail")
@click.argument("streams", nargs=-1, required=True)
@click.option(
    "--last", "-n", type=click.IntRange(min=0), default=10, show_default=True, help="Begin with so many."
)
@click.option(
    "--follow/--no-follow", "-f/-F", default=True, show_default=True, help="Wait for more, until Ctrl-C."
)
@where
def tail(streams: tuple[str, ...], last: int, follow: bool, url: str | None, connection: str | None) -> None:
    """The newest entries of STREAMS, and those that come; no group is disturbed."""
    with _open(url, connection) as broker:
        places: dict[str, str] = {}
        for stream in streams:
            newest = broker.xrevrange(stream, count=max(last, 1))
            places[stream] = newest[0].id if newest else "0-0"
            for message in reversed(newest[:last]):
                _say(message, streams)
        try:
            while follow:
                for message in broker.xread(places, count=100, block_ms=1000):
                    places[message.stream] = message.id
                    _say(message, streams)
        except KeyboardInterrupt:
            return


def _say(message: Message, streams: tuple[str, ...]) -> None:
    prefix = f"{message.stream} " if len(streams) > 1 else ""
    click.echo(prefix + _line(message))
