"""The inbox: an effect once, in the transaction of its handler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from millstream import Job, Queue
from millstream.errors import ConfigurationError, InvalidInput
from millstream.inbox import Inbox, once
from tests.contract.streams.helpers import Background
from tests.outbox.conftest import Note, Source, insert


def test_an_effect_is_committed_with_its_key_or_not_at_all(source: Source, begin: Callable[[], Any]) -> None:
    session = begin()
    assert Inbox(session, tables=source.tables).once("order-1")
    insert(session, source, 1)
    session.rollback()
    assert source.count() == 0
    for attempt in range(3):
        if Inbox(session, tables=source.tables).once("order-1"):
            insert(session, source, 1)
        session.commit()
        assert source.count() == 1, f"attempt {attempt}"
    other = begin()
    assert not Inbox(other, tables=source.tables).once("order-1")
    assert Inbox(other, tables=source.tables).once("order-2")
    assert not Inbox(other, tables=source.tables).once("order-2"), "within one transaction, too"
    other.rollback()


def test_scopes_keep_keys_apart(source: Source, begin: Callable[[], Any]) -> None:
    session = begin()
    assert Inbox(session, tables=source.tables, scope="billing").once("7")
    assert Inbox(session, tables=source.tables, scope="shipping").once("7")
    assert Inbox(session, tables=source.tables).once("7")
    assert not Inbox(session, tables=source.tables, scope="billing").once("7")
    assert Inbox(session, tables=source.tables, scope="a").once("bc")
    assert Inbox(session, tables=source.tables, scope="ab").once("c")
    session.rollback()


def test_run_gives_the_effects_result_or_another(source: Source, begin: Callable[[], Any]) -> None:
    session = begin()
    inbox = Inbox(session, tables=source.tables)
    assert inbox.run("k", lambda: 7) == 7
    assert inbox.run("k", lambda: 8, otherwise=0) == 0
    session.rollback()


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_second_run_waits_for_the_first(source: Source, first_commits: bool) -> None:
    """A lease ended while its owner still worked: both transactions are open at the same time."""
    with Session(source.engine) as first, Session(source.engine) as second:
        assert Inbox(first, tables=source.tables).once("k")
        insert(first, source, 1)
        began = threading.Event()

        def run() -> bool:
            began.set()
            mine = Inbox(second, tables=source.tables).once("k")
            if mine:
                insert(second, source, 1)
            second.commit()
            return mine

        call = Background(run)
        assert began.wait(10)
        time.sleep(0.3)
        waited = not call.done
        first.commit() if first_commits else first.rollback()
        assert call.result(30) is not first_commits
        assert waited, "it did not wait"
    assert source.count() == 1


def test_old_keys_are_purged(source: Source, begin: Callable[[], Any]) -> None:
    session = begin()
    inbox = Inbox(session, tables=source.tables)
    for key in ("old-1", "old-2", "new"):
        inbox.once(key)
    session.commit()
    source.ask("UPDATE {p}inbox SET done_at = done_at - 7200000 WHERE name IN ('old-1', 'old-2')")
    assert inbox.purge(older_than=3600) == 2
    session.commit()
    assert not inbox.once("new")
    assert inbox.once("old-1")
    session.rollback()


def test_what_cannot_be_a_key_or_a_transaction_is_refused(source: Source) -> None:
    with Session(source.engine) as session:
        inbox = Inbox(session, tables=source.tables)
        with pytest.raises(InvalidInput, match="neither pushed nor delivered"):
            inbox.once(Note(text="x"))
        for wrong in ("", 7, None, "x" * 1000):
            with pytest.raises(InvalidInput, match="key"):
                inbox.once(wrong)  # type: ignore[arg-type]
        for wrong in (0, -1, "long"):
            with pytest.raises(InvalidInput, match="older_than"):
                inbox.purge(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="scope"):
            Inbox(session, scope="x" * 1000)
    with (
        source.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(InvalidInput, match="commits each statement by itself"),
    ):
        Inbox(connection, tables=source.tables).once("k")
    with Session(source.engine) as session, pytest.raises(ConfigurationError, match="no table never_inbox"):
        Inbox(session, tables="never_").once("k")


# -- as a decorator --------------------------------------------------------------------------------

FAILURES: list[str] = []


def test_a_decorated_handler_runs_once_in_one_transaction(source: Source, queue: Queue) -> None:
    """The first attempt fails after its work; a copy of the job comes later, as after a lost worker."""

    class Pay(Job, queue="pay", name=f"outboxtest.Pay.{source.backend}", backoff=0.01, jitter=0.0):
        order: int

        @once(lambda job: Session(source.engine), scope="pay", tables=source.tables)
        def handle(self, session: Session) -> None:
            insert(session, source, self.order)
            if FAILURES:
                raise RuntimeError(FAILURES.pop())

    FAILURES[:] = ["after its work"]
    first = Pay(order=1)
    queue.push(first)
    with queue.worker(["pay"], concurrency=1) as worker:
        assert queue.drain(timeout=30)
        assert (worker.counters.completed, worker.counters.retried) == (1, 1)
        assert source.count() == 1
        first._ticket = first.id  # pushed again under its id, which the queue has forgotten
        queue.push(first)
        assert queue.drain(timeout=30)
        assert worker.counters.completed == 2
    assert source.count() == 1
    assert not FAILURES


def test_a_decorated_coroutine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no coroutines"):

        @once(lambda job: None)
        async def handle(self: Any, session: Any) -> None: ...
