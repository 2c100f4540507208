"""millstream pipeline project: fold an event stream into a table of current state per key."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from millstream.cli.common import OK, Duration
from millstream.cli.pipeline.common import PipelineCommand, SparkOpener, Steps, show_summary, spark_options
from millstream.settings import load_settings


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse options that do not go together."""
    rebuilds = given["rebuild"] or given["rebuild_from"]
    if given["rebuild"] and given["rebuild_from"]:
        raise click.UsageError("--rebuild is from the stream alone, --rebuild-from from an archive: give one")
    if given["every"] is not None and rebuilds:
        raise click.UsageError("a rebuild ends by itself; run it first, then with --every")


def parse_json(_: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """The value of an option that is JSON."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"it is not JSON: {error}", param=parameter) from None


@click.command("project", cls=PipelineCommand, check=check_options)
@click.argument("stream")
@click.argument("table", metavar="TABLE")
@click.option("--url", help="Where the stream is. [default: the connection of millstream.toml]")
@click.option(
    "--key", required=True, help="A field of the data (order.customer), @stream, @type, or @header.NAME."
)
@click.option("--fold", required=True, metavar="MODULE:NAME", help="A function (state, event) -> state.")
@click.option("--initial", metavar="JSON", callback=parse_json,
              help="The state before the first event. [default: null]")  # fmt: skip
@click.option("--columns", metavar="DDL", help="Columns to take out of the state, such as 'balance double'.")
@click.option("--rebuild", is_flag=True, help="Fold the whole stream anew, and replace the table.")
@click.option(
    "--rebuild-from", metavar="ARCHIVE", help="Fold this archive and then the stream, and replace it."
)
@click.option("--checkpoint", metavar="PATH", help="Where Spark keeps its place. [default: TABLE.checkpoint]")
@click.option("--every", type=Duration(), help="Go on until stopped, with a batch in this time, such as 10s.")
@click.option(
    "--max-rows", type=click.IntRange(1), default=100_000, show_default=True, help="Events in a batch."
)
@click.option("--partitions", type=click.IntRange(1), help="Of the state. [default: one per core]")
@click.option(
    "--allow-data-loss", is_flag=True, help="Go on where the stream was trimmed before it was read."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@spark_options
def command(
    open_spark: SparkOpener,
    stream: str,
    table: str,
    url: str | None,
    initial: Any,
    every: float | None,
    allow_data_loss: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Bring TABLE (Delta) up to date with the events of STREAM: one row of state per key."""
    spark = open_spark()
    from millstream.spark.projections import project  # noqa: PLC0415 - after the session has looked for PySpark

    with Steps(spark) as steps, _stopped_by_signals(every is not None) as stop:
        result = project(
            spark,
            url or _default_url(),
            stream,
            table=table,
            initial=initial,
            every=every,
            stop=stop,
            fail_on_data_loss=not allow_data_loss,
            on_progress=steps,
            **options,
        )
    show_summary(result, title=f"{stream} by {options['key']}", as_json=as_json)
    return OK


def _default_url() -> str:
    settings = load_settings()
    return settings.connections[settings.default].url


@contextmanager
def _stopped_by_signals(wanted: bool) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that the query is ended in order and the summary is shown."""
    stop = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
