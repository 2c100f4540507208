"""millstream push: one task by name."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.common import Duration, open_queue, read_json, where


@click.command("push")
@click.argument("type_name", metavar="TYPE")
@click.argument("data", default="{}", metavar="[DATA]")
@click.option("--queue", "-q", help="The queue; that of the type if left out, else default.")
@click.option("--priority", "-p", help="critical, high, default or low.")
@click.option("--delay", type=Duration(), help="Start no earlier than this from now, such as 90 or 5m.")
@click.option("--max-attempts", type=int, help="How often it may be tried.")
@click.option("--timeout", type=Duration(), help="Time for one attempt.")
@click.option("--expires-in", type=Duration(), help="Bury it if it was not started within this time.")
@click.option(
    "--unique-for", type=Duration(), help="Add nothing if the same task was pushed within this time."
)
@click.option("--unique-key", help="What makes it the same task; its data if left out.")
@click.option("--tag", "tags", multiple=True, help="Mark it; may be repeated.")
@where
def command(
    type_name: str, data: str, url: str | None, connection: str | None, app: str | None, **options: Any
) -> None:
    """Push a task of TYPE with DATA, a JSON object (- reads it from standard input), and print its id."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    fields = read_json(data, "DATA")
    with open_queue(url, connection, app) as queue:
        click.echo(queue.enqueue(type_name, fields, **given))
