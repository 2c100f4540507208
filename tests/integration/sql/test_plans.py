"""No query reads more of a table than it needs: every plan goes by an index, in the index's own order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from millstream.brokers.sql import SqlStreamBroker
from millstream.message import parse_id
from millstream.sql.schema import pack_id
from tests.integration.sql.conftest import Open

# What runs at each addition, delivery, acknowledgement and claim; not what an operator asks now and then.
HOT = (
    "stream", "lock_stream", "range", "reversed", "after", "nth_entry", "drop_entries", "some_entries",
    "look", "lock_group", "group", "groups", "needs", "delivered", "acknowledge", "settle", "some_pending",
    "page_of_pending", "pending_in", "list_pending", "list_pending_of", "own_pending", "redeliver",
    "known_key", "old_keys", "count_after", "count_pending_of",
)  # fmt: skip
PREFIX = "plans_"


@pytest.fixture
def filled(url: str, opened: Open) -> SqlStreamBroker:
    broker = (
        opened(url, prefix=PREFIX, synchronous="normal") if "sqlite" in url else opened(url, prefix=PREFIX)
    )
    if not broker.xlen("a"):
        for stream in ("a", "b"):
            broker.xadd_many(stream, [{"n": n} for n in range(3000)])
            for number in range(30):
                broker.xadd(stream, {}, key=f"k{number}")
            for group in ("g", "h"):
                broker.create_group(stream, group, "0")
                for consumer in "xyz":
                    broker.xreadgroup(group, consumer, stream, 300)
    return broker


def parameters(broker: SqlStreamBroker) -> dict[str, Any]:
    messages = broker.xrange("a", count=1000)
    low = pack_id(parse_id(messages[-1].id))
    few = [pack_id(parse_id(message.id)) for message in messages[:20]]
    return {
        "stream": "a", "group": "g", "consumer": "x", "sid": 1, "gid": 1, "cid": 1, "low": low,
        "high": b"\xff" * 16, "limit": 10, "ids": broker._sql.ids(few), "now": 1, "before": 1 << 62,
        "position": 100, "groups": [2], "hash": b"x" * 32,
    }  # fmt: skip


def plan(connection: Connection, statement: Any, given: dict[str, Any], backend: str) -> str:
    """What the database says it would do."""
    words = "EXPLAIN QUERY PLAN " if backend == "sqlite" else "EXPLAIN "

    def explain(*event_args: Any) -> tuple[str, Any]:
        return words + event_args[2], event_args[3]

    event.listen(connection, "before_cursor_execute", explain, retval=True)
    try:
        names = statement.compile(connection).binds
        result = connection.execute(statement, {name: given[name] for name in names if name in given})
        return "\n".join(" ".join(map(str, row)) for row in result.cursor.fetchall())
    finally:
        event.remove(connection, "before_cursor_execute", explain)


def reads_everything(said: str, backend: str) -> bool:
    if backend == "sqlite":
        return bool(re.search(r"SCAN|TEMP B-TREE", said))
    if backend == "postgresql":
        return bool(re.search(r"Seq Scan|Sort", said))
    return bool(re.search(rf" ALL |filesort|{PREFIX}\w+ index ", said))


def explained(broker: SqlStreamBroker, statement: Any) -> str:
    backend, given = broker._database.backend, parameters(broker)

    def work(connection: Connection) -> str:
        if backend == "postgresql":
            # The tables are small, and a scan would be right; the question is whether there is another way.
            connection.exec_driver_sql("SET enable_seqscan = off")
            connection.exec_driver_sql("SET enable_sort = off")
            connection.exec_driver_sql("SET enable_bitmapscan = off")
        return plan(connection, statement, given, backend)

    found = broker._database.read(work)
    broker._database.engine.dispose()  # the settings go with the connection
    return found


@pytest.mark.parametrize("name", HOT)
def test_the_plan_goes_by_an_index(filled: SqlStreamBroker, name: str) -> None:
    if filled._database.backend == "mysql" and name == "acknowledge":
        name = "settle"  # there it is two statements: "group" and this one
    said = explained(filled, getattr(filled._sql, name))
    assert said
    assert not reads_everything(said, filled._database.backend), said


def test_the_check_notices_a_scan(filled: SqlStreamBroker) -> None:
    said = explained(filled, text(f"SELECT * FROM {PREFIX}entries ORDER BY data"))
    assert reads_everything(said, filled._database.backend), said


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_postgres_delivers_by_the_index(filled: SqlStreamBroker) -> None:
    assert filled._reader._postgres is not None
    said = explained(filled, filled._reader._postgres.deliver)
    assert re.search(rf"Index Scan using {PREFIX}entries_pkey", said), said
    assert not re.search(rf"Seq Scan on {PREFIX}entries|Seq Scan on {PREFIX}pending", said), said
