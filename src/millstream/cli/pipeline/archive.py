"""millstream pipeline archive: streams and job history into a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from millstream.cli.common import Duration
from millstream.cli.pipeline.common import PipelineCommand, SparkOpener, Steps, show_summary, spark_options
from millstream.cli.pipeline.stopping import stop_on_signals

WEEK = 7 * 86400.0  # as long may a reader of an old version take


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse options that do not go together."""
    if sum((bool(given["streams"]), given["history"], given["archive_table"])) != 1:
        raise click.UsageError(
            "say what to archive, one of: --stream (repeatable), --history, --archive-table"
        )
    if given["trim_unread"] and not given["trim"]:
        raise click.UsageError("--trim-unread says how to trim; give --trim as well")
    if given["trim"] and given["archive_table"]:
        raise click.UsageError(
            "--trim is for streams; the rows of the SQL archive are removed by its own retention"
        )
    if given["vacuum"] and given["keep"] < WEEK and not given["force"]:
        raise click.UsageError("a --keep below a week can take files from a run that reads them; add --force")


@click.command("archive", cls=PipelineCommand, check=check_options)
@click.option("--url", required=True, metavar="URL", help="Where the streams are: redis://…, sqlite:///….")
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME", help="A name or a pattern (events:*); repeatable."
)
@click.option("--history", is_flag=True, help="The history of jobs: the stream {prefix}:history.")
@click.option(
    "--archive-table", is_flag=True, help="The history of jobs: the SQL table that archive= writes."
)
@click.option("--prefix", metavar="TEXT", help="Of the queues whose history it is.  [default: millstream]")
@click.option("--table", required=True, metavar="PATH", help="The Delta table; made where there is none.")
@click.option("--continuous", is_flag=True, help="Go on with what comes, until Ctrl-C or SIGTERM.")
@click.option(
    "--interval", type=Duration(), default="1s", show_default=True, help="Between two looks for more."
)
@click.option("--trim", is_flag=True, help="Remove from the source what is safely archived.")
@click.option("--trim-unread", is_flag=True, help="With --trim: even what a group has not acknowledged.")
@click.option("--compact", is_flag=True, help="Join the small files of each day.")
@click.option("--vacuum", is_flag=True, help="Delete files that no recent version of the table needs.")
@click.option(
    "--keep", type=Duration(), default="7d", show_default=True, help="With --vacuum: how old they must be."
)
@click.option("--force", is_flag=True, help="Allow a --keep below a week.")
@click.option(
    "--max-rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Of a batch."
)
@click.option("--allow-data-loss", is_flag=True, help="Pass over entries that were trimmed before this run.")
@click.option("--same-source", is_flag=True, help="The table's broker has a new address, and this is it.")
@click.option("--json", "as_json", is_flag=True, help="The summary for programs.")
@spark_options
def command(
    open_spark: SparkOpener,
    url: str,
    streams: tuple[str, ...],
    history: bool,
    archive_table: bool,
    prefix: str | None,
    table: str,
    continuous: bool,
    interval: float,
    trim: bool,
    trim_unread: bool,
    compact: bool,
    vacuum: bool,
    keep: float,
    force: bool,
    max_rows: int,
    allow_data_loss: bool,
    same_source: bool,
    as_json: bool,
) -> None:
    """Carry streams, or the history of jobs, into a Delta table: each entry exactly once, day by day.

    A second run goes on where the first one ended, wherever that was killed: the table itself knows.
    """
    spark = open_spark()
    from millstream.spark.archiving import archive  # noqa: PLC0415 - needs the extra, which open_spark looked for

    with stop_on_signals() as stop, Steps(spark) as steps:
        summary = archive(
            spark,
            url,
            list(streams) or None,
            table,
            history=history,
            archive_table=archive_table,
            prefix=prefix,
            continuous=continuous,
            interval=interval,
            trim=trim,
            trim_unread=trim_unread,
            compact=compact,
            vacuum=keep / 3600 if vacuum else None,
            force=force,
            max_rows_per_batch=max_rows,
            fail_on_data_loss=not allow_data_loss,
            same_source=same_source,
            stop=stop,
            on_progress=steps,
        )
    show_summary(summary, title="archived", as_json=as_json)
