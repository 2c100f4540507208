"""millstream archive: what happened to jobs, and pushing again what was pending."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from rich.text import Text

from millstream.cli.common import (
    FAILED,
    Duration,
    Since,
    age,
    console,
    moment,
    open_queue,
    show_json,
    table,
    where,
)
from millstream.errors import ConfigurationError
from millstream.history import STATES
from millstream.settings import load_settings

if TYPE_CHECKING:
    from millstream.archive import ArchivedJob, SqlArchive

F = TypeVar("F", bound=Callable[..., Any])


@click.group("archive")
def command() -> None:
    """What happened to every job, in the database that archive= names; and restoring what was pending."""


def which(function: F) -> F:
    """Options that say where the archive is."""
    for option in (
        click.option("--tables", metavar="PREFIX", help="What the names of its tables begin with."),
        click.option(
            "--archive",
            "archive_url",
            metavar="URL",
            help="Such as sqlite:///archive.db; else that of the connection in millstream.toml.",
        ),
    ):
        function = option(function)
    return function


def _open(archive_url: str | None, tables: str | None, connection: str | None = None) -> SqlArchive:
    from millstream.archive import SqlArchive, open_archive  # noqa: PLC0415 - slow to import

    if archive_url is not None:
        return _checked(SqlArchive(archive_url, tables=tables))
    settings = load_settings()
    name = connection or settings.default
    known = settings.connections.get(name)
    if known is None:
        raise ConfigurationError(
            f"there is no connection {name!r}; known are: {', '.join(sorted(settings.connections))}"
        )
    found = open_archive(known.options.get("archive"))
    if found is None:
        raise ConfigurationError(
            f"the connection {name!r} has no archive; give --archive URL, or set archive in millstream.toml"
        )
    return _checked(found)


def _checked(archive: SqlArchive) -> SqlArchive:
    """An archive to read. A file that is not there is a mistake in its name, not an archive to be made."""
    target = archive.target
    if target.backend == "sqlite" and not Path(target.address).is_file():
        raise ConfigurationError(f"there is no archive {target.address}")
    return archive


def filters(function: F) -> F:
    """Options that choose jobs."""
    for option in (
        click.option("--until", type=Since(), help="Only what changed before this: 2h, or a date."),
        click.option("--since", type=Since(), help="Only what changed after this: 2h, or a date."),
        click.option("--error", help="Only those whose error contains this text."),
        click.option("--state", type=click.Choice(STATES), help="Only those in this state."),
        click.option("--tag", help="Only those with this tag."),
        click.option("--queue", "-q", help="Only those of this queue."),
        click.option("--type", "type_", metavar="TYPE", help="Only those of this job type."),
    ):
        function = option(function)
    return function


def _plain(job: ArchivedJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__ if name not in ("body", "codec")}


def _list(jobs: list[ArchivedJob], limit: int, as_json: bool) -> None:
    if as_json:
        show_json([{**_plain(job), "cursor": job.cursor} for job in jobs])
        return
    if not jobs:
        console().print(Text("no jobs"))
        return
    columns = ("id", "queue", "type", "state", "attempt", "changed", "error")
    rows = [
        (
            job.job_id,
            job.queue,
            job.type or "(unreadable)",
            job.state,
            job.attempt,
            moment(job.at),
            _line(job.error),
        )
        for job in jobs
    ]
    console().print(table(columns, rows, right=("attempt",)))
    if len(jobs) == limit:
        click.echo(f"there may be more: --after {jobs[-1].cursor}", err=True)


def _line(text: str) -> str:
    return text.partition("\n")[0]


@command.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", metavar="CURSOR", help="Go on behind the last job of the page before.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--connection", metavar="NAME", help="A connection of millstream.toml, for its archive.")
@which
def list_(
    limit: int,
    after: str | None,
    as_json: bool,
    connection: str | None,
    archive_url: str | None,
    tables: str | None,
) -> None:
    """The jobs that changed last."""
    with _open(archive_url, tables, connection) as archive:
        jobs = archive.search(limit=limit, after=after)
    _list(jobs, limit, as_json)


@command.command("search")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", metavar="CURSOR", help="Go on behind the last job of the page before.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--connection", metavar="NAME", help="A connection of millstream.toml, for its archive.")
@filters
@which
def search(
    limit: int,
    after: str | None,
    as_json: bool,
    connection: str | None,
    type_: str | None,
    queue: str | None,
    tag: str | None,
    state: str | None,
    error: str | None,
    since: datetime | None,
    until: datetime | None,
    archive_url: str | None,
    tables: str | None,
) -> None:
    """Jobs that fit every option that is given, the newest first."""
    with _open(archive_url, tables, connection) as archive:
        jobs = archive.search(
            type=type_,
            queue=queue,
            tag=tag,
            state=state,
            error=error,
            since=since,
            until=until,
            limit=limit,
            after=after,
        )
    _list(jobs, limit, as_json)


@command.command("show")
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--connection", metavar="NAME", help="A connection of millstream.toml, for its archive.")
@which
def show(
    job_id: str, as_json: bool, connection: str | None, archive_url: str | None, tables: str | None
) -> None:
    """One job, and everything that happened to it."""
    with _open(archive_url, tables, connection) as archive:
        job, records = archive.find(job_id), archive.history(job_id)
    if job is None and not records:
        raise click.ClickException(f"the archive does not know a job {job_id}")
    if as_json:
        story = [msgspec.to_builtins(record) for record in records]
        show_json({**(_plain(job) if job else {"job_id": job_id}), "history": story})
        return
    out, newest = console(), job or records[-1]
    for name in (
        "job_id",
        "type",
        "queue",
        "priority",
        "state",
        "attempt",
        "max_attempts",
        "tags",
        "payload",
    ):
        out.print(Text(f"{name:13}{getattr(newest, name)}"))
    rows = [
        (
            moment(record.at),
            record.state,
            record.attempt,
            age(record.seconds),
            record.worker or "-",
            _line(record.error),
        )
        for record in records
    ]
    columns = ("at", "state", "attempt", "took", "worker", "error")
    out.print()
    out.print(table(columns, rows, right=("attempt", "took")))
    trace = next((record.traceback for record in reversed(records) if record.traceback), "")
    if trace:
        out.print(Text("\n" + trace.rstrip()))


@command.command("pending")
@click.option("--queue", "-q", help="Only those of this queue.")
@click.option("--type", "type_", metavar="TYPE", help="Only those of this job type.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Of those shown.")
@click.option("--json", "as_json", is_flag=True, help="For programs: all of them, one object per line.")
@click.option("--connection", metavar="NAME", help="A connection of millstream.toml, for its archive.")
@which
def pending(
    queue: str | None,
    type_: str | None,
    limit: int,
    as_json: bool,
    connection: str | None,
    archive_url: str | None,
    tables: str | None,
) -> None:
    """Jobs whose end was not recorded, the oldest first."""
    with _open(archive_url, tables, connection) as archive:
        found = archive.pending(queue, type=type_)
        if as_json:
            for job in found:
                click.echo(msgspec.json.encode(_plain(job)).decode())
            return
        shown: list[ArchivedJob] = []
        count = 0
        for job in found:
            count += 1
            if len(shown) < limit:
                shown.append(job)
    now = time.time()
    columns = ("id", "queue", "type", "state", "attempt", "pushed", "due in")
    rows = [
        (
            job.job_id,
            job.queue,
            job.type,
            job.state,
            job.attempt,
            moment(job.enqueued_at),
            age(job.due_at - now) if job.due_at is not None and job.due_at > now else "-",
        )
        for job in shown
    ]
    if rows:
        console().print(table(columns, rows, right=("attempt", "due in")))
    click.echo(f"{count} pending")


@command.command("restore")
@click.option("--queue", "-q", "queues", multiple=True, help="Only those of this queue; may be repeated.")
@click.option("--type", "type_", metavar="TYPE", help="Only those of this job type.")
@click.option("--dry-run", is_flag=True, help="Only say what would be pushed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@which
@where
def restore(
    queues: tuple[str, ...],
    type_: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    archive_url: str | None,
    tables: str | None,
    url: str | None,
    connection: str | None,
    app: str | None,
) -> int:
    """Push again what was pending, for a server that lost its jobs.

    They keep their ids, so those that the server still has are left alone, and a second run adds nothing.
    Let the workers that still run write their records first: a job whose end is not recorded runs once more.
    """
    chosen = list(queues) or None
    with _open(archive_url, tables, connection) as archive, open_queue(url, connection, app) as queue:
        if not dry_run and not yes:
            planned = archive.restore(queue, queues=chosen, type=type_, dry_run=True)
            click.confirm(f"Push {planned.pushed} jobs to {queue.driver.name}?", abort=True, err=True)
        done = archive.restore(queue, queues=chosen, type=type_, dry_run=dry_run)
    if as_json:
        show_json(done)
    else:
        for name, count in sorted(done.by_queue.items()):
            click.echo(f"{name}: {count}")
        click.echo(f"{done.pushed} {'would be pushed' if dry_run else 'pushed'}")
        if done.unreadable:
            click.echo(
                f"{len(done.unreadable)} cannot be pushed: {', '.join(done.unreadable[:5])} …", err=True
            )
    return FAILED if done.unreadable else 0


@command.command("purge")
@click.option("--older-than", type=Duration(), required=True, help="An age: 30d, 12h.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--connection", metavar="NAME", help="A connection of millstream.toml, for its archive.")
@which
def purge(
    older_than: float, yes: bool, connection: str | None, archive_url: str | None, tables: str | None
) -> None:
    """Delete what happened longer ago than that. Jobs that are pending stay."""
    with _open(archive_url, tables, connection) as archive:
        if not yes:
            click.confirm(
                f"Delete what is older than {age(older_than)}? It cannot be brought back.",
                abort=True,
                err=True,
            )
        done = archive.purge(older_than)
    click.echo(f"{done.records} records and {done.jobs} jobs deleted")
