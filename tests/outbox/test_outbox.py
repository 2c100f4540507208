"""The outbox: in the caller's transaction or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from millstream import Queue, connect, job
from millstream.envelope import JsonCodec
from millstream.errors import ConfigurationError, InvalidInput, InvalidPayload, PayloadTooLarge
from millstream.outbox import Outbox, OutboxKeeper, Relay
from tests.outbox.conftest import Note, Source, insert, texts


@job(name="outboxtest.tick", queue="ticks")
def tick(number: int) -> None: ...


def test_a_committed_push_is_relayed_and_a_rolled_back_one_never_was(
    source: Source, begin: Callable[[], Any], relay: Relay, queue: Queue
) -> None:
    session = begin()
    insert(session, source, 1)
    job_id = Outbox(session, tables=source.tables).push(Note(text="rolled back"))
    session.rollback()
    assert relay.run_once() == 0
    assert source.count() == 0

    insert(session, source, 2)
    job_id = Outbox(session, tables=source.tables).push(Note(text="committed"))
    assert relay.run_once() == 0, "not before the commit"
    session.commit()
    assert relay.run_once() == 1
    assert source.count() == 1
    view = queue.find(job_id, "notes")
    assert view is not None
    assert view.payload == {"text": "committed"}
    assert texts(queue) == ["committed"]
    assert relay.run_once() == 0, "its row is gone"


def test_many_keep_their_order_and_their_options(
    source: Source, begin: Callable[[], Any], relay: Relay, queue: Queue
) -> None:
    session = begin()
    outbox = Outbox(session, tables=source.tables)
    jobs = [Note(text=str(number)) for number in range(2500)]
    ids = outbox.push_many(jobs)
    assert ids == [each.id for each in jobs]
    outbox.push(Note(text="high").with_priority("high").on_queue("other"))
    outbox.push(Note(text="later").on_queue("other").delay(60))
    outbox.push(Note(text="at").on_queue("other").delay(datetime.now(UTC) + timedelta(hours=1)))
    outbox.push(tick(7))
    outbox.enqueue("mail.send", {"to": "ü€"}, queue="other", delay=90)
    outbox.push_many([])
    session.commit()
    assert relay.run_once() == 2505
    assert texts(queue) == [str(number) for number in range(2500)]
    sizes = queue.sizes("other")
    assert (sizes.waiting, sizes.delayed, sizes.by_priority["high"]) == (1, 3, 1)
    due = [round((view.due_in or 0) / 10) * 10 for view in queue.delayed("other")]
    assert due == [60, 90, 3600]
    popped = queue.pop("ticks")
    assert popped == tick(7)


def test_a_delay_counts_from_the_push_not_from_the_relay(source: Source, relay: Relay, queue: Queue) -> None:
    with Session(source.engine) as session:
        Outbox(session, tables=source.tables).push(Note(text="a").delay(3600))
        Outbox(session, tables=source.tables).push(Note(text="b").delay(60))
        session.commit()
    source.ask("UPDATE {p}outbox SET created_at = created_at - 600000")  # pushed ten minutes ago
    relay.run_once()
    assert [round(view.due_in or 0, -2) for view in queue.delayed("notes")] == [3000]
    assert texts(queue) == ["b"]


def test_unique_jobs_are_one(source: Source, relay: Relay, queue: Queue) -> None:
    with Session(source.engine) as session:
        outbox = Outbox(session, tables=source.tables)
        for number in range(3):
            outbox.push(Note(text=str(number)).unique_for(60, key="k"))
        session.commit()
    assert relay.run_once() == 3
    assert texts(queue) == ["0"]


@pytest.mark.parametrize("source", ["postgres", "mariadb"], indirect=True)  # SQLite has one writer
def test_a_late_commit_is_not_passed_over(source: Source, relay: Relay, queue: Queue) -> None:
    """Its rows have smaller ids than those that were relayed before."""
    with Session(source.engine) as early, Session(source.engine) as late:
        Outbox(late, tables=source.tables).push(Note(text="late"))
        Outbox(early, tables=source.tables).push(Note(text="early"))
        early.commit()
        assert relay.run_once() == 1
        late.commit()
    assert relay.run_once() == 1
    assert texts(queue) == ["early", "late"]


def test_jobs_that_cannot_be_sent_write_nothing(
    source: Source, begin: Callable[[], Any], relay: Relay
) -> None:
    session = begin()
    outbox = Outbox(session, tables=source.tables)
    with pytest.raises(InvalidPayload, match="text"):
        outbox.push_many([Note(text="fine"), Note(text=7)])  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge):
        outbox.push(Note(text="x" * 2_000_000))
    with pytest.raises(InvalidInput, match="call it first"):
        outbox.push(tick)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="did you mean 'queue'"):
        outbox.enqueue("mail.send", {}, qeue="x")
    session.commit()
    assert relay.run_once() == 0


def test_the_codec_is_that_of_the_queue_it_is_for(source: Source) -> None:
    with (
        connect("memory://", codec="msgpack") as packed,
        Session(source.engine) as session,
        Relay(source.url, packed, tables=source.tables) as relay,
    ):
        Outbox(session, tables=source.tables, queue=packed).push(Note(text="packed"))
        session.commit()
        relay.stop()
        relay.start()
        assert packed.pop("notes", wait=10) == Note(text="packed")


# -- what is no transaction ------------------------------------------------------------------------


def test_a_connection_that_commits_by_itself_is_refused(source: Source) -> None:
    with (
        source.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(InvalidInput, match="commits each statement by itself"),
    ):
        Outbox(connection, tables=source.tables)
    bare = source.bare()
    if source.backend == "sqlite":
        bare.isolation_level = None
    elif source.backend == "postgresql":
        bare.autocommit = True
    else:
        bare.autocommit(True)
    with pytest.raises(InvalidInput, match="commits each statement by itself"):
        Outbox(bare, tables=source.tables)
    bare.cursor().execute("BEGIN")
    Outbox(bare, tables=source.tables).push(Note(text="begun"))
    bare.cursor().execute("ROLLBACK")
    assert source.ask("SELECT COUNT(*) FROM {p}outbox") == [(0,)]
    bare.close()


@pytest.mark.parametrize("wrong", [None, "sqlite:///x.db", object(), 7])
def test_what_is_no_session_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="Session or Connection, or a connection of psycopg"):
        Outbox(wrong)


def test_an_asyncio_session_is_told_how() -> None:
    class AsyncSession:
        def get_bind(self) -> None: ...

        async def connection(self) -> None: ...

    with pytest.raises(InvalidInput, match="run_sync"):
        Outbox(AsyncSession())
    asyncio.run(asyncio.sleep(0))  # a coroutine that was left over would warn by now


def test_missing_tables_are_named(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "empty.db")
    with pytest.raises(ConfigurationError, match=r"no table millstream_outbox; .*millstream migrate schema"):
        Outbox(connection).push(Note(text="x"))
    connection.close()
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    with Session(engine) as session, pytest.raises(ConfigurationError, match="millstream migrate schema"):
        Outbox(session).push(Note(text="x"))
    engine.dispose()


def test_tables_have_names_that_can_be_names(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    with pytest.raises(ConfigurationError, match="cannot begin a table's name"):
        Outbox(connection, tables="x; DROP TABLE y")
    connection.close()


# -- looking ---------------------------------------------------------------------------------------


def test_the_status_says_what_waits_and_since_when(
    source: Source, keeper: OutboxKeeper, relay: Relay
) -> None:
    assert keeper.status().lanes == []
    with Session(source.engine) as session:
        outbox = Outbox(session, tables=source.tables)
        outbox.push_many([Note(text=str(number)) for number in range(3)])
        outbox.push(tick(1))
        session.commit()
    source.ask("UPDATE {p}outbox SET created_at = created_at - 60000")
    found = keeper.status()
    assert (found.waiting, found.aside) == (4, 0)
    assert [(lane.queue, lane.waiting, lane.relay) for lane in found.lanes] == [
        ("notes", 3, None),
        ("ticks", 1, None),
    ]
    assert found.oldest is not None
    assert 59 < found.oldest < 100
    assert relay.run_once() == 4
    found = keeper.status()
    assert (found.waiting, found.oldest, len(found.lanes)) == (0, None, 2)


def test_poison_is_set_aside_with_its_error_and_the_rest_goes_on(
    source: Source, keeper: OutboxKeeper, relay: Relay, queue: Queue
) -> None:
    with Session(source.engine) as session:
        outbox = Outbox(session, tables=source.tables)
        for name in ("good", "unreadable", "another's", "large", "badly named", "elsewhere", "last"):
            job = Note(text=name)
            outbox.push(job.on_connection("nowhere") if name == "elsewhere" else job)
        session.commit()
    found = source.ask("SELECT id, body, job_id FROM {p}outbox ORDER BY id")
    rows = {name: row[0] for name, row in zip(("g", "u", "a", "l", "b", "e", "z"), found, strict=True)}
    hexed = {"sqlite": "x'{}'", "postgresql": "decode('{}', 'hex')", "mysql": "x'{}'"}[source.backend]

    def spoil(row: int, **columns: str) -> None:
        values = ", ".join(f"{name} = {value}" for name, value in columns.items())
        assert source.ask(f"UPDATE {{p}}outbox SET {values} WHERE id = {row}") == 1

    spoil(rows["u"], body=hexed.format(b"no envelope".hex()))
    spoil(rows["a"], job_id="'other'")
    # Larger than this relay's queue accepts, as if the producer had another limit.
    big = JsonCodec().encode_payload({"text": "x" * 1_500_000})
    spoil(rows["l"], body=hexed.format((b'{"id":"x","type":"t","payload":' + bytes(big) + b"}").hex()))
    spoil(rows["b"], queue="'a{b'")
    assert relay.run_once() == 2
    assert texts(queue) == ["good", "last"]
    status = keeper.status()
    assert (status.waiting, status.aside) == (0, 5)
    errors = {row.row: row.error for row in status.set_aside}
    assert "UnreadableEnvelope" in errors[rows["u"]]
    assert "another job" in errors[rows["a"]]
    assert "PayloadTooLarge" in errors[rows["l"]]
    assert "brace" in errors[rows["b"]]
    assert "nowhere" in errors[rows["e"]]
    assert relay.run_once() == 0

    # Put right, and tried again; or dropped.
    spoil(rows["a"], job_id=f"'{_id_of(found[2][2])}'")
    assert keeper.retry([rows["a"]]) == 1
    assert relay.run_once() == 1
    assert texts(queue) == ["another's"]
    assert keeper.drop([rows["u"], rows["l"]]) == 2
    assert keeper.retry() == 2
    assert keeper.status().waiting == 2
    relay.run_once()
    assert keeper.drop() == 2
    assert keeper.drop([]) == 0


def _id_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value


def test_a_job_goes_over_the_connection_that_it_names(source: Source) -> None:
    from millstream import QueueManager

    with (
        QueueManager({"main": "memory://", "bulk": "memory://"}, default="main") as manager,
        Session(source.engine) as session,
    ):
        outbox = Outbox(session, tables=source.tables)
        outbox.push(Note(text="main"))
        outbox.push(Note(text="bulk").on_connection("bulk"))
        session.commit()
        relay = Relay(source.engine, manager, tables=source.tables)
        assert relay.run_once() == 2
        relay.close()
        assert texts(manager.connection("main")) == ["main"]
        assert texts(manager.connection("bulk")) == ["bulk"]
