"""millstream pipeline replay: jobs of the archive, chosen by SQL, pushed again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from millstream.cli.common import console, show_json
from millstream.cli.common import table as rich_table
from millstream.cli.pipeline.common import PipelineCommand, SparkOpener, Steps, show_summary, spark_options
from millstream.cli.pipeline.stopping import stop_on_signals
from millstream.envelope import PRIORITIES

if TYPE_CHECKING:
    from millstream.spark.replaying import ReplaySummary


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse options that do not go together."""
    if given["url"] is None and not given["dry_run"]:
        raise click.UsageError("--run needs --url: say where the jobs are to be pushed")


@click.command("replay", cls=PipelineCommand, check=check_options)
@click.option("--table", required=True, metavar="PATH", help="The archive: a Delta table of job history.")
@click.option(
    "--where", required=True, metavar="SQL", help="Which jobs: \"state = 'failed' AND type = 'x'\"."
)
@click.option(
    "--name", required=True, metavar="TEXT", help="Of this replay: a second run of it goes on with it."
)
@click.option("--url", metavar="URL", help="Where the jobs are pushed. Needed with --run.")
@click.option(
    "--dry-run/--run", default=True, show_default=True, help="Only say what would be pushed, or push."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Jobs per second.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the oldest so many.")
@click.option("--queue", metavar="NAME", help="Push to this queue instead of the job's own.")
@click.option("--priority", type=click.Choice(PRIORITIES), help="Instead of the job's own.")
@click.option("--max-attempts", type=click.IntRange(min=1), metavar="N", help="Instead of the job's own.")
@click.option("--prefix", metavar="TEXT", help="Of the names on the server.")
@click.option(
    "--in-doubt",
    type=click.Choice(["refuse", "push", "skip"]),
    default="refuse",
    show_default=True,
    help="Jobs that were on their way when an earlier run died more than a day ago.",
)
@click.option(
    "--history", is_flag=True, help="Record the pushes in the history of jobs, as their producers do."
)
@click.option("--json", "as_json", is_flag=True, help="The summary for programs.")
@spark_options
def command(
    open_spark: SparkOpener,
    table: str,
    where: str,
    name: str,
    url: str | None,
    dry_run: bool,
    rate: float | None,
    limit: int | None,
    queue: str | None,
    priority: str | None,
    max_attempts: int | None,
    prefix: str | None,
    in_doubt: str,
    history: bool,
    as_json: bool,
) -> None:
    """Choose jobs of the archive by SQL over their records, and push them again with new ids.

    Without --run nothing is pushed: it counts what would be, and shows a sample. A replay that was killed
    goes on when it is run again; one that is done pushes nothing.
    """
    spark = open_spark()
    from millstream.spark.replaying import replay  # noqa: PLC0415 - needs the extra, which open_spark looked for

    with stop_on_signals() as stop, Steps(spark) as steps:
        summary = replay(
            spark,
            table,
            url,
            where,
            name=name,
            dry_run=dry_run,
            rate=rate,
            limit=limit,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            in_doubt=in_doubt,
            connection=({} if prefix is None else {"prefix": prefix})
            | ({"history": True} if history else {}),
            stop=stop,
            on_progress=steps,
        )
    if as_json:
        show_json(summary)
    else:
        _show(summary)


def _show(summary: ReplaySummary) -> None:
    sample, summary.sample = summary.sample, []
    title = "dry run: nothing was pushed" if summary.dry_run else "replayed"
    shown = {name: value for name, value in _fields(summary).items() if value not in ({}, [])}
    show_summary(shown, title=title)
    if sample and summary.dry_run:
        rows = [
            (
                job["job_id"],
                job["type"],
                job["queue"],
                job["state"],
                job["error_type"],
                _short(job["payload"]),
            )
            for job in sample
        ]
        out = console()
        out.print(Text(f"\nthe oldest {len(rows)}", style="bold"))
        out.print(rich_table(("job", "type", "queue", "state", "error", "payload"), rows))


def _fields(summary: ReplaySummary) -> dict[str, object]:
    return {name: getattr(summary, name) for name in summary.__struct_fields__}


def _short(payload: str) -> str:
    text = json.dumps(json.loads(payload), ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"
