"""millstream schedule: what is due next, and the schedules of an application."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.text import Text

from millstream.cli.common import age, console, moment, open_queue, show_json, table, where
from millstream.queue import Queue
from millstream.schedule import Schedule


@click.group("schedule")
def command() -> None:
    """What is due next."""


def _schedule(queue: Queue, schedule: Schedule, now: float) -> dict[str, Any]:
    """What is told of a schedule. Its last tick is what the server has; 0 where it never ticked."""
    job = schedule.make()
    last = queue.driver.last_number(job.options.queue, schedule.line) / 1000
    return {
        "schedule": schedule.name,
        "when": schedule.when,
        "next_at": schedule.next(max(now, last)),
        "last_at": last,
        "type": job._type.name,
        "queue": job.options.queue,
        "catch_up": schedule.catch_up,
    }


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
    """The delayed jobs of all queues (or of QUEUES) that are due first, retries among them.

    With --app also the schedules (cron) that the application declares: they live in its code.
    """
    with open_queue(url, connection, app) as queue:
        schedules = [_schedule(queue, each, time.time()) for each in queue.schedules()] if app else []
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
            + schedules
        )
        return
    if schedules:
        columns = ("schedule", "when", "next", "last", "type", "queue", "catch up")
        lines = [
            (
                *(each["schedule"], each["when"], moment(each["next_at"])),
                *(moment(each["last_at"]) if each["last_at"] else "-", each["type"], each["queue"]),
                each["catch_up"],
            )
            for each in schedules
        ]
        console().print(table(columns, lines))
        console().print()
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
