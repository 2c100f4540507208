"""millstream schedule: what is due next."""

from __future__ import annotations

import time

import click
from rich.text import Text

from millstream.cli.common import age, console, moment, open_queue, show_json, table, where


@click.group("schedule")
def command() -> None:
    """What is due next."""


@command.command("list")
@click.argument("queues", nargs=-1)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@where
def list_(
    queues: tuple[str, ...],
    limit: int,
    as_json: bool,
    url: str | None,
    connection: str | None,
    app: str | None,
) -> None:
    """The delayed jobs of all queues (or of QUEUES) that are due first, retries among them."""
    with open_queue(url, connection, app) as queue:
        found = [view for name in (queues or queue.queues()) for view in queue.delayed(name, limit)]
    found.sort(key=lambda view: view.due_in or 0.0)
    found = found[:limit]
    if as_json:
        now = time.time()
        show_json(
            [
                {
                    "id": view.id,
                    "queue": view.queue,
                    "type": view.type,
                    "priority": view.priority,
                    "due_in": view.due_in,
                    "due_at": now + (view.due_in or 0.0),
                    "attempt": view.envelope.attempt if view.envelope else None,
                }
                for view in found
            ]
        )
        return
    if not found:
        console().print(Text("nothing is delayed"))
        return
    columns = ("due in", "at", "queue", "type", "priority", "attempt", "id")
    rows = [
        (
            age(view.due_in),
            moment(time.time() + (view.due_in or 0.0)),
            view.queue,
            view.type or "(unreadable)",
            view.priority,
            view.envelope.attempt if view.envelope else "-",
            view.id,
        )
        for view in found
    ]
    console().print(table(columns, rows, right=("due in", "attempt")))
