"""millstream pipeline metrics: what the history of jobs says, as a table, a report and JSON."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from millstream.cli.common import FAILED, OK, Duration, Since, age, console, show_json, table
from millstream.cli.pipeline.common import PipelineCommand, SparkOpener, Steps, spark_options
from millstream.errors import InvalidInput
from millstream.settings import load_settings
from millstream.spark.spans import seconds_of

if TYPE_CHECKING:
    from millstream.spark.metrics import MetricsResult

DIMENSIONS = ("type", "queue", "priority", "tenant")  # as in millstream.spark.metrics, which needs PySpark
_NUMBERS = ("jobs", "failed", "retried", "wait p50", "wait p95", "run p50", "run p95", "wasted")


def parse_dimensions(_: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """The names in ``--by``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in DIMENSIONS:
            raise click.BadParameter(
                f"cannot group by {name!r}; choose from {', '.join(DIMENSIONS)}", param=parameter
            )
    return names


def parse_window(_: click.Context, parameter: click.Parameter, text: str) -> str:
    """The text of ``--window``, checked."""
    try:
        seconds_of(text, "window")
    except InvalidInput as error:
        raise click.BadParameter(str(error), param=parameter) from None
    return text


@click.command("metrics", cls=PipelineCommand)
@click.argument("source", required=False)
@click.option(
    "--archive", is_flag=True, help="SOURCE is a SQL database: read its archive, not its history stream."
)
@click.option("--prefix", help="Whose history stream: the prefix of the queues.")
@click.option("--window", default="1 minute", show_default=True, callback=parse_window,
              help="The width of a row of the table.")  # fmt: skip
@click.option(
    "--by",
    default=",".join(DIMENSIONS),
    show_default=True,
    callback=parse_dimensions,
    help="The groups of the table, with commas between.",
)
@click.option("--since", type=Since(), help="Records from then on: 2h, or 2026-01-31T12:00.")
@click.option("--until", type=Since(), help="Records before then.")
@click.option("--workers", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="How many jobs can run at once: for the forecast.")  # fmt: skip
@click.option(
    "--target",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.8,
    show_default=True,
    help="How busy workers should be at most.",
)
@click.option("--horizon", type=Duration(), help="How far to look ahead. [default: as far as it looks back]")
@click.option(
    "--min-sample", type=click.IntRange(1), default=20, show_default=True, help="Jobs to call a type flaky."
)
@click.option("--out", metavar="PATH", help="Write the table here: Parquet for *.parquet, else Delta.")
@click.option("--report", metavar="FILE", help="Write an HTML report here.")
@click.option("--plot", metavar="FILE", help="Write the plots as one PNG here.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@spark_options
def command(
    open_spark: SparkOpener,
    source: str | None,
    archive: bool,
    prefix: str | None,
    window: str,
    by: list[str],
    since: datetime | None,
    until: datetime | None,
    workers: float | None,
    target: float,
    horizon: float | None,
    min_sample: int,
    out: str | None,
    report: str | None,
    plot: str | None,
    as_json: bool,
) -> int:
    """Throughput, waits, run times, failures, retry cost, flaky handlers and a capacity forecast.

    SOURCE is the URL of a broker whose workers record their history, a SQL archive (--archive), or the path
    of a Delta table; by default the connection of millstream.toml.
    """
    if source is None:
        settings = load_settings()
        connection = settings.connections[settings.default]
        source, prefix = connection.url, prefix or connection.options.get("prefix")
    spark = open_spark()
    from millstream.spark.metrics import metrics  # noqa: PLC0415 - after the session has looked for PySpark

    with Steps(spark) as steps:
        result = metrics(
            spark,
            source,
            archive=archive,
            prefix=prefix,
            window=window,
            by=by,
            since=since,
            until=until,
            workers=workers,
            target=target,
            horizon=horizon,
            min_sample=min_sample,
            out=out,
            report=report,
            on_progress=steps,
        )
        if plot is not None:
            from millstream.spark.plots import png  # noqa: PLC0415 - matplotlib takes its time

            steps("drawing the plots")
            png(result, plot)
    if as_json:
        show_json(result)
    else:
        show_metrics(result, console())
        for what, place in (("table", out), ("report", report), ("plots", plot)):
            if place is not None:
                click.echo(f"{what}: {place}")
    return OK if result.records or not result.unusable else FAILED


def show_metrics(result: MetricsResult, out: Console) -> None:
    """The figures on a terminal: by type and queue, what is flaky, and the forecast in words."""
    from millstream.spark.report import capacity_text  # noqa: PLC0415 - it needs the extra

    for why, count in result.unusable.items():
        out.print(Text(f"{count:,} records could not be used: {why}", style="bold red"))
    if not result.records:
        out.print(Text("The history is empty. Workers record it with connect(url, history=True)."))
        return
    out.print(
        Text(
            f"{result.records:,} records of {result.total.finished:,} finished jobs in {age(result.span)}, "
            f"from {result.source}"
        )
    )
    for dimension, values in result.by.items():
        if list(values) in ([], [""], ["default"]):
            continue  # one row that says nothing new
        rows = []
        for value, figures in values.items():
            wait, run = figures.wait, figures.run
            rows.append(
                (
                    value or "(none)",
                    f"{figures.finished:,}",
                    _percent(figures.failure_rate),
                    _percent(figures.retry_rate),
                    age(wait.p50 if wait else None),
                    age(wait.p95 if wait else None),
                    age(run.p50 if run else None),
                    age(run.p95 if run else None),
                    _percent(figures.wasted_share),
                )
            )
        out.print()
        out.print(table((dimension, *_NUMBERS), rows, right=_NUMBERS))
    out.print()
    if result.total.wasted_share:
        seconds = age(result.total.wasted_seconds)
        out.print(
            Text(f"Attempts that failed took {seconds}: {_percent(result.total.wasted_share)} of all work.")
        )
    for each in result.flaky[:5]:
        out.print(
            Text(
                f"Flaky: {each.type} succeeded only on a later attempt for {each.share:.0%} of its "
                f"{each.finished:,} jobs (score {each.score:.2f})."
            )
        )
    if result.forecast is not None:
        out.print(Text(capacity_text(result.forecast)))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
