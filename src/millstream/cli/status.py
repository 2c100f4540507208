"""millstream status: how many jobs are where, and which workers are alive."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from millstream.cli.common import age, console, open_queue, show_json, table, where
from millstream.queue import Queue


@click.command("status")
@click.argument("queues", nargs=-1)
@click.option("--watch", is_flag=True, help="Show it anew until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds, with --watch.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs; with --watch one document per line.")
@where
def command(
    queues: tuple[str, ...],
    watch: bool,
    interval: float,
    as_json: bool,
    url: str | None,
    connection: str | None,
    app: str | None,
) -> None:
    """Per queue (all, or QUEUES): undelivered, in flight, delayed, dead, oldest age; and the workers."""
    with open_queue(url, connection, app) as queue:
        if not watch:
            found = snapshot(queue, queues)
            if as_json:
                show_json(found)
            else:
                console().print(render(found))
            return
        try:
            _watch(queue, queues, interval, as_json)
        except KeyboardInterrupt:
            return


def snapshot(queue: Queue, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """What there is now, as plain data."""
    rows = []
    for name in names or queue.queues():
        size = queue.sizes(name)
        rows.append(
            {
                "queue": name,
                "undelivered": size.waiting,
                "in_flight": size.reserved,
                "delayed": size.delayed,
                "dead": size.dead,
                "oldest_age": size.oldest,
                "paused": size.paused,
                "by_priority": size.by_priority,
            }
        )
    workers = [msgspec.to_builtins(worker) for worker in queue.workers()]
    return {"connection": queue.name, "queues": rows, "workers": workers}


def render(found: dict[str, Any]) -> RenderableType:
    """The same as two tables."""
    columns = ("queue", "undelivered", "in flight", "delayed", "dead", "oldest", "")
    rows = [
        (
            row["queue"],
            row["undelivered"],
            row["in_flight"],
            row["delayed"],
            Text(str(row["dead"]), style="red" if row["dead"] else ""),
            age(row["oldest_age"]),
            Text("paused", style="yellow") if row["paused"] else "",
        )
        for row in found["queues"]
    ]
    queues = table(columns, rows, right=columns[1:6]) if rows else Text("no queue was ever pushed to")
    if not found["workers"]:
        return Group(queues, Text(), Text("no worker is alive"))
    facts = ("worker", "queues", "running", "slots", "completed", "failed", "up", "heard of")
    workers = [
        (
            worker["id"],
            ",".join(worker["queues"]),
            worker["running"],
            worker["concurrency"],
            worker["completed"],
            worker["failed"],
            age(time.time() - worker["started_at"]),
            f"{age(worker['age'])} ago",
        )
        for worker in found["workers"]
    ]
    return Group(queues, Text(), table(facts, workers, right=facts[2:7]))


def _watch(queue: Queue, names: tuple[str, ...], interval: float, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        while True:
            found = snapshot(queue, names)
            if as_json:
                click.echo(msgspec.json.encode(found))
            else:
                console().print(render(found))
            time.sleep(interval)
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            live.update(render(snapshot(queue, names)), refresh=True)
            time.sleep(interval)
