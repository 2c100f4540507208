"""millstream pipeline: jobs and events through Spark. Each command is imported when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from millstream.cli.pipeline.failures import plain_failure

# The order is that of the help: keep it, look at it, use it again.
PIPELINES = {
    "archive": "Streams and the history of jobs into a Delta table.",
    "metrics": "Throughput, waiting and run times, failures and a forecast; a table and a report.",
    "replay": "Choose jobs of the archive by SQL, and push them again.",
    "project": "Fold an event stream into a table of current state per key.",
    "enqueue": "A table or a query into jobs.",
    "prepare": "Find Java, and make later starts of Spark quicker.",
    "submit-line": "Show the spark-submit line of a pipeline, for YARN and Kubernetes.",
}


class LazyPipelines(click.Group):
    """A group that imports a pipeline when it is asked for: ``--help`` starts neither PySpark nor Java."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PIPELINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in PIPELINES:
            return None
        name = f"millstream.cli.pipeline.{cmd_name.replace('-', '_')}"
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # a library is missing, and it says which
                raise
            raise click.UsageError(f"this version of Millstream has no pipeline {cmd_name!r}") from None
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Pipelines"):
            formatter.write_dl(list(PIPELINES.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the pipeline; what Spark says becomes a message that a person can use."""
        with plain_failure():
            return super().invoke(ctx)


@click.group(
    "pipeline",
    cls=LazyPipelines,
    epilog="Where it runs: --master (local[*] by default), with Spark's own settings by --conf NAME=VALUE.",
)
def command() -> None:
    """Jobs and events through Spark: archive, analyse, replay, project and enqueue."""
