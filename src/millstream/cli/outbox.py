"""millstream outbox: relay the jobs of an outbox in a SQL database, and look into it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.text import Text

from millstream.cli.common import FAILED, OK, Duration, age, console, open_queue, show_json, table, where
from millstream.outbox import OutboxKeeper, OutboxStatus, Relay
from millstream.sql.schema import DEFAULT_PREFIX
from millstream.worker.doorbell import Doorbell, signals
from millstream.worker.process import configure_logging

F = TypeVar("F", bound=Callable[..., Any])


@click.group("outbox")
def command() -> None:
    """Relay the jobs of an outbox in a SQL database, and look into it."""


def database(function: F) -> F:
    """The database that has the outbox."""
    function = click.option(
        "--tables", default=DEFAULT_PREFIX, show_default=True, help="What the tables' names begin with."
    )(function)
    return click.argument("database", metavar="DATABASE-URL")(function)


@command.command("relay")
@database
@click.option("--once", is_flag=True, help="Move what is there now, then end.")
@click.option(
    "--poll", type=Duration(), default=1.0, help="The longest pause between two looks.  [default: 1]"
)
@click.option("--lease", type=Duration(), default=5.0, help="A killed relay is replaced after.  [default: 5]")
@where
def relay(
    database: str,
    tables: str,
    once: bool,
    poll: float,
    lease: float,
    url: str | None,
    connection: str | None,
    app: str | None,
) -> int:
    """Move jobs from the outbox in DATABASE-URL to the queue that --url, --connection or --app names.

    Any number of relays may run at once, and be killed at any moment. SIGTERM and Ctrl-C end it after the
    batch that is on its way.
    """
    configure_logging("INFO")
    with open_queue(url, connection, app) as queue:
        mover = Relay(database, queue, tables=tables, poll=poll, lease=lease)
        try:
            if once:
                click.echo(f"{mover.run_once()} jobs moved")
                return _left(database, tables)
            _run(mover)
        finally:
            mover.close()
    return OK


def _run(mover: Relay) -> None:
    """Run the relay until a signal ends it. In a thread: a signal's handler must not touch its events."""
    bell = Doorbell()
    died: list[Exception] = []

    def run() -> None:
        try:
            mover.run()
        except Exception as error:  # noqa: BLE001 - raised again below
            died.append(error)
        finally:
            bell.ring()

    thread = threading.Thread(target=run, name="millstream-relay")
    try:
        with signals({signal.SIGTERM: bell.ring, signal.SIGINT: bell.ring}):
            thread.start()
            bell.wait()
            mover.request_stop()
            thread.join()
    finally:
        bell.close()
    if died:
        raise died[0]


def _left(database: str, tables: str) -> int:
    """1 where a job was not moved, because its server does not answer or another relay has it."""
    with OutboxKeeper(database, tables=tables) as keeper:
        left = keeper.status()
    for lane in left.lanes:
        if lane.error:
            click.echo(f"queue {lane.queue}: {lane.waiting} wait: {lane.error}", err=True)
    return FAILED if left.waiting else OK


@command.command("status")
@database
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Of jobs set aside.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(database: str, tables: str, limit: int, as_json: bool) -> None:
    """How many jobs wait to be relayed, for which queue and since when; what was set aside, and why."""
    with OutboxKeeper(database, tables=tables) as keeper:
        found = keeper.status(limit)
    if as_json:
        show_json(found)
    else:
        _show(found)


def _show(found: OutboxStatus) -> None:
    out = console()
    if not found.lanes:
        out.print(Text("the outbox is empty, and was never relayed"))
        return
    columns = ("queue", "waiting", "on its way", "set aside", "oldest", "relay", "error")
    rows = [
        (
            f"{lane.connection}: {lane.queue}" if lane.connection else lane.queue,
            *(lane.waiting, lane.opened, lane.aside, age(lane.oldest), lane.relay or "-", lane.error or "-"),
        )
        for lane in found.lanes
    ]
    out.print(table(columns, rows, right=("waiting", "on its way", "set aside", "oldest")))
    if found.set_aside:
        out.print()
        names = ("row", "job", "queue", "pushed", "bytes", "why it was set aside")
        aside = [
            (row.row, row.job_id, row.queue, age(row.age), row.size, row.error) for row in found.set_aside
        ]
        out.print(table(names, aside, right=("row", "pushed", "bytes")))


@command.command("retry")
@database
@click.argument("rows", nargs=-1, type=int)
def retry(database: str, tables: str, rows: tuple[int, ...]) -> None:
    """Let jobs that were set aside be relayed again: all of them, or those in ROWS."""
    with OutboxKeeper(database, tables=tables) as keeper:
        click.echo(f"{keeper.retry(rows or None)} jobs wait again")


@command.command("drop")
@database
@click.argument("rows", nargs=-1, type=int)
@click.option("--all", "everything", is_flag=True, help="All that were set aside.")
def drop(database: str, tables: str, rows: tuple[int, ...], everything: bool) -> None:
    """Delete jobs that were set aside: those in ROWS, or all with --all."""
    if bool(rows) == everything:
        raise click.UsageError("name the rows (see millstream outbox status), or give --all")
    with OutboxKeeper(database, tables=tables) as keeper:
        click.echo(f"{keeper.drop(rows or None)} jobs deleted")
