"""millstream pipeline prepare: find Java, and make later starts of Spark quicker."""

from __future__ import annotations

import time

import click

from millstream.cli.pipeline.common import Steps, show_summary
from millstream.errors import MissingExtra


@click.command("prepare")
@click.option("--again", is_flag=True, help="Make the class archive anew where there is one already.")
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON.")
def command(again: bool, as_json: bool) -> None:
    """Find the Java that Spark will run on, and keep the classes of a start in an archive for it.

    Later starts on this machine then take about half of the CPU time. The archive is made once for each
    version of Java and Spark, and is not used where it does not fit.
    """
    try:
        import pyspark  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("spark", (error.name or "pyspark").partition(".")[0]) from error
    from millstream.spark import cds  # noqa: PLC0415
    from millstream.spark.java import find_java  # noqa: PLC0415

    java = find_java()
    path = cds.archive_path(java)
    started = time.monotonic()
    made = again or not cds.use_options(java)
    if made:
        with Steps() as steps:
            steps("a training run of Spark")
            path = cds.create(java)
    summary = {
        "spark": pyspark.__version__,
        "java": java.version,
        "found_by": java.origin,
        "program": str(java.real),
        "archive": str(path),
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "made_now": made,
        "seconds": round(time.monotonic() - started, 1),
    }
    show_summary(summary, title="Spark is ready", as_json=as_json)
