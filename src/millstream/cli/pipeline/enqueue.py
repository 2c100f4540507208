"""millstream pipeline enqueue: a table or a query into jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from millstream.cli.common import Duration, console, show_json, table
from millstream.cli.pipeline.common import (
    PipelineCommand,
    SparkOpener,
    Steps,
    parse_pairs,
    show_summary,
    spark_options,
)
from millstream.envelope import PRIORITIES
from millstream.errors import MissingExtra
from millstream.settings import load_settings
from millstream.spark.tables import split_source

# The options of the sink that name a column: --queue-column and so on.
COLUMNS = {
    "job_type": "The type of the job, where rows differ in it.",
    "id": "The id of the job.",
    "queue": "The queue.",
    "priority": "The priority: critical, high, default or low.",
    "delay": "Seconds to wait, or the moment when it is due.",
    "unique_key": "A key: while a job has it, another with it is not added.",
    "tenant": "The tenant.",
    "tags": "Tags: an array of texts.",
    "headers": "Headers: a map of texts.",
    "payload": "All fields, as one JSON text.",
}


def column_options(function: Any) -> Any:
    """Add an option for each thing that a column can say."""
    for name, text in reversed(COLUMNS.items()):
        flag = f"--{name.replace('_', '-')}-column"
        function = click.option(flag, f"{name}_column", metavar="COLUMN", help=text)(function)
    return function


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse options that do not go together: a slip in them should not cost the start of a JVM."""
    if given["url"] is not None and given["connection"] is not None:
        raise click.UsageError("give --url or --connection, not both")
    if (given["job_type"] is None) == (given["job_type_column"] is None):
        raise click.UsageError("say which jobs they are, by one of: --job-type, --job-type-column")
    if given["again"] and given["name"] is not None:
        raise click.UsageError("--again makes a name of its own for this run; leave out --name")
    split_source(given["source"])


@click.command("enqueue", cls=PipelineCommand, check=check_options)
@click.option(
    "--source",
    required=True,
    metavar="KIND:WHERE",
    help="parquet:/path, csv:/path, json:/path, delta:/path, jdbc:URL, table:NAME or sql:TEXT.",
)
@click.option("--option", "reader_options", multiple=True, metavar="NAME=VALUE", callback=parse_pairs,
              help="Of Spark's reader, such as header=false or dbtable=orders; repeatable.")  # fmt: skip
@click.option("--view", "views", multiple=True, metavar="NAME=KIND:WHERE", callback=parse_pairs,
              help="A name for another source that a sql: text uses; repeatable.")  # fmt: skip
@click.option("--url", metavar="URL", help="Where the jobs go, such as redis://localhost:6379/0.")
@click.option("--connection", metavar="NAME", help="A connection of millstream.toml instead of --url.")
@click.option("--job-type", metavar="NAME", help="The type of the jobs, such as app.SendWelcomeEmail.")
@click.option("--job-module", metavar="MODULE", help="Import this and check every row against the type.")
@click.option("--fields", metavar="A,B,…", help="Only these columns are fields.  [default: all the others]")
@click.option("--queue", metavar="NAME", help="The queue of every job.")
@click.option("--priority", type=click.Choice(PRIORITIES), help="Of every job.")
@click.option("--delay", type=Duration(), help="Before every job is due, such as 10m.")
@click.option("--unique-for", type=Duration(), help="How long a unique key is taken, such as 1d.")
@click.option("--max-attempts", type=click.IntRange(min=1), metavar="N")
@click.option("--tags", metavar="A,B,…", help="Of every job.")
@click.option("--prefix", metavar="TEXT", help="Of the names on the server.")
@column_options
@click.option("--name", metavar="TEXT", help="A second run of that name adds nothing.  [default: by content]")
@click.option("--again", is_flag=True, help="Push once more what was pushed before.")
@click.option(
    "--dry-run", is_flag=True, help="Check it all, and show how many rows there are, and the first."
)
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON.")
@spark_options
def command(
    open_spark: SparkOpener,
    source: str,
    url: str | None,
    connection: str | None,
    fields: str | None,
    reader_options: dict[str, str],
    views: dict[str, str],
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Push one job for each row of a table or a query.

    Every column becomes a field of the job, unless an option such as --queue-column names it. Each row is
    pushed once: a run that was interrupted may be repeated, and a second run with the same --name, or
    without one over the same rows, adds nothing.
    """
    if url is None:
        url, options["prefix"] = _place(connection, options["prefix"])
    try:
        from millstream.spark.enqueue import enqueue, preview  # noqa: PLC0415 - imports PySpark, an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("spark", (error.name or "pyspark").partition(".")[0]) from error
    picked = [name.strip() for name in fields.split(",")] if fields else None
    spark = open_spark()
    options |= {"fields": picked, "reader_options": reader_options, "views": views}
    with Steps(spark) as steps:
        if dry_run:
            steps("reading")
            count, rows = preview(spark, source, url, **options)
        else:
            done = enqueue(spark, source, url, on_progress=steps, **options)
    if not dry_run:
        show_summary(done, title="Enqueued", as_json=as_json)
    elif as_json:
        show_json({"rows": count, "sample": [{k: str(v) for k, v in row.items()} for row in rows]})
    else:
        _show_sample(count, rows)


def _place(connection: str | None, prefix: str | None) -> tuple[str, str | None]:
    """The URL and the prefix of a connection of millstream.toml."""
    settings = load_settings()
    name = connection or settings.default
    if name not in settings.connections:
        known = ", ".join(sorted(settings.connections))
        raise click.UsageError(f"there is no connection {name!r}; known are: {known}")
    found = settings.connections[name]
    return found.url, prefix or found.options.get("prefix")


def _show_sample(count: int, rows: list[dict[str, object]]) -> None:
    out = console()
    out.print(Text(f"{count:,} rows would be pushed" + (", such as" if rows else ""), style="bold"))
    if rows:
        out.print(table(list(rows[0]), [tuple(row.values()) for row in rows]))
