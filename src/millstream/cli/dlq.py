"""millstream dlq: the jobs that failed for good."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click
from rich.text import Text

from millstream.cli.common import (
    FAILED,
    Since,
    age,
    console,
    moment,
    open_queue,
    read_json,
    show_json,
    table,
    where,
)
from millstream.deadletters import DeadJob
from millstream.queue import Queue

F = TypeVar("F", bound=Callable[..., Any])


@click.group("dlq")
def command() -> None:
    """Dead letters: the jobs that failed for good, kept until they are retried or cleared."""


def filters(function: F) -> F:
    """Options that choose dead letters."""
    for option in (
        click.option("--since", type=Since(), help="Only those that came after this: 2h, or a date."),
        click.option("--reason", help="failed, timeout, rejected, unreadable, expired, poison …"),
        click.option("--error", help="Only those whose error contains this text."),
        click.option("--type", "type_", metavar="TYPE", help="Only those of this job type."),
    ):
        function = option(function)
    return function


def _chosen(
    type_: str | None, error: str | None, reason: str | None, since: datetime | None
) -> dict[str, Any]:
    given = {"type": type_, "error": error, "reason": reason, "since": since}
    return {name: value for name, value in given.items() if value is not None}


def _names(queue: Queue, names: tuple[str, ...]) -> list[str]:
    return list(names) or [name for name in queue.queues() if queue.sizes(name).dead]


def _find(queue: Queue, job_id: str, name: str | None) -> DeadJob:
    """The dead letter of that id, wherever it is."""
    for candidate in [name] if name else queue.queues():
        letter = queue.dead(candidate).show(job_id)
        if letter is not None:
            return letter
    raise click.ClickException(
        f"there is no dead letter {job_id}" + (f" in the queue {name}" if name else "")
    )


def _plain(letter: DeadJob, *, full: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": letter.id,
        "queue": letter.queue,
        "type": letter.type,
        "reason": letter.reason,
        "error": letter.error,
        "attempts": letter.attempts,
        "moved_at": letter.moved_at,
        "payload": letter.payload,
    }
    if full:
        found |= {
            "traceback": letter.traceback,
            "original_stream": letter.original_stream,
            "original_id": letter.original_id,
            "history": letter.history,
        }
    return found


@command.command("list")
@click.argument("queues", nargs=-1)
@click.option("--groups", is_flag=True, help="Count them by type and error instead.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Of each queue.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@filters
@where
def list_(
    queues: tuple[str, ...],
    groups: bool,
    limit: int,
    as_json: bool,
    type_: str | None,
    error: str | None,
    reason: str | None,
    since: datetime | None,
    url: str | None,
    connection: str | None,
    app: str | None,
) -> None:
    """The dead letters of all queues (or of QUEUES), oldest first."""
    wanted = _chosen(type_, error, reason, since)
    with open_queue(url, connection, app) as queue:
        names = _names(queue, queues)
        if groups:
            found = [(name, group) for name in names for group in queue.dead(name).groups(**wanted)]
        else:
            letters = [letter for name in names for letter in queue.dead(name).list(count=limit, **wanted)]
    if groups and as_json:
        show_json([{"queue": name, **_group(group)} for name, group in found])
    elif groups:
        columns = ("count", "queue", "type", "reason", "error", "last")
        now = time.time()
        rows = [
            (
                group.count,
                name,
                group.type,
                group.reason,
                _first_line(group.error),
                age(now - group.last_at) + " ago",
            )
            for name, group in found
        ]
        console().print(table(columns, rows, right=("count",)) if rows else Text("no dead letters"))
    elif as_json:
        show_json([_plain(letter) for letter in letters])
    else:
        headings = ("id", "queue", "type", "reason", "attempts", "moved", "error")
        lines = [
            (
                letter.id,
                letter.queue,
                letter.type or "(unreadable)",
                letter.reason,
                letter.attempts,
                moment(letter.moved_at),
                _first_line(letter.error),
            )
            for letter in letters
        ]
        console().print(table(headings, lines, right=("attempts",)) if lines else Text("no dead letters"))


def _group(group: Any) -> dict[str, Any]:
    return {name: getattr(group, name) for name in group.__struct_fields__}


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


@command.command("show")
@click.argument("job_id")
@click.option("--queue", "-q", "name", help="Where it is; looked for in all queues if left out.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@where
def show(
    job_id: str, name: str | None, as_json: bool, url: str | None, connection: str | None, app: str | None
) -> None:
    """One dead letter with its payload and the full history of its attempts."""
    with open_queue(url, connection, app) as queue:
        letter = _find(queue, job_id, name)
    if as_json:
        show_json(_plain(letter, full=True))
        return
    out = console()
    facts = [
        ("id", letter.id),
        ("queue", letter.queue),
        ("type", letter.type or "(unreadable)"),
        ("reason", letter.reason),
        ("attempts", letter.attempts),
        ("moved", moment(letter.moved_at)),
        ("from", f"{letter.original_stream} {letter.original_id}"),
        ("payload", letter.payload if letter.envelope else letter.body[:200]),
        ("error", letter.error),
    ]
    for label, value in facts:
        out.print(Text.assemble((f"{label:9} ", "bold"), str(value)))
    if letter.history:
        out.print(Text())
        columns = ("attempt", "ended", "outcome", "took", "worker", "error")
        rows = [
            (
                past.number,
                moment(past.at),
                past.outcome,
                age(past.seconds),
                past.worker,
                _first_line(past.error),
            )
            for past in letter.history
        ]
        out.print(table(columns, rows, right=("attempt", "took")))
    if letter.traceback:
        out.print(Text("\n" + letter.traceback.rstrip()))


def _ask(ids: tuple[str, ...], wanted: dict[str, Any], everything: bool) -> None:
    if not ids and not wanted and not everything:
        raise click.UsageError("say which: ids, a filter such as --type or --error, or --all")


@command.command("retry")
@click.argument("ids", nargs=-1)
@click.option("--queue", "-q", "queues", multiple=True, help="Only of this queue; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="So many per second, not all at once."
)
@filters
@where
def retry(
    ids: tuple[str, ...],
    queues: tuple[str, ...],
    everything: bool,
    rate: float | None,
    type_: str | None,
    error: str | None,
    reason: str | None,
    since: datetime | None,
    url: str | None,
    connection: str | None,
    app: str | None,
) -> int:
    """Try dead letters again: those of IDS, those that fit a filter, or --all. They keep id and history."""
    wanted = _chosen(type_, error, reason, since)
    _ask(ids, wanted, everything)
    with open_queue(url, connection, app) as queue:
        named = list(ids) or None
        count = sum(queue.dead(name).retry(named, rate=rate, **wanted) for name in _names(queue, queues))
    click.echo(f"{count} retried")
    return FAILED if ids and count < len(set(ids)) else 0


@command.command("clear")
@click.argument("ids", nargs=-1)
@click.option("--queue", "-q", "queues", multiple=True, help="Only of this queue; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@filters
@where
def clear(
    ids: tuple[str, ...],
    queues: tuple[str, ...],
    everything: bool,
    yes: bool,
    type_: str | None,
    error: str | None,
    reason: str | None,
    since: datetime | None,
    url: str | None,
    connection: str | None,
    app: str | None,
) -> int:
    """Forget dead letters for good: those of IDS, those that fit a filter, or --all."""
    wanted = _chosen(type_, error, reason, since)
    _ask(ids, wanted, everything)
    if not ids and not yes:
        click.confirm("They cannot be brought back. Go on?", abort=True, err=True)
    with open_queue(url, connection, app) as queue:
        named = list(ids) or None
        count = sum(queue.dead(name).clear(named, **wanted) for name in _names(queue, queues))
    click.echo(f"{count} cleared")
    return FAILED if ids and count < len(set(ids)) else 0


@command.command("edit")
@click.argument("job_id")
@click.argument("payload")
@click.option("--queue", "-q", "name", help="Where it is; looked for in all queues if left out.")
@click.option("--retry", "then_retry", is_flag=True, help="Try it again at once.")
@where
def edit(
    job_id: str,
    payload: str,
    name: str | None,
    then_retry: bool,
    url: str | None,
    connection: str | None,
    app: str | None,
) -> None:
    """Replace the payload of a dead letter by PAYLOAD, a JSON object (- reads it from standard input).

    With --app the job's type is known, and the payload is checked against its fields.
    """
    fields = read_json(payload, "PAYLOAD")
    with open_queue(url, connection, app) as queue:
        letter = _find(queue, job_id, name)
        dead = queue.dead(letter.queue)
        dead.edit(job_id, fields)
        if then_retry:
            dead.retry(job_id)
    click.echo("edited and retried" if then_retry else "edited")
