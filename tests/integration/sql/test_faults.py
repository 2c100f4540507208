"""Connections that break, servers that are away, users who may not: what is said, and what is stored."""

from __future__ import annotations

import pytest

from millstream import open_broker
from millstream.errors import (
    AccessDenied,
    BrokerUnavailable,
    ConfigurationError,
    MissingExtra,
    OutcomeUnknown,
)
from tests.contract.streams.helpers import GROUP, Background, ids, numbers, until
from tests.integration.sql.conftest import Open, apart
from tests.servers import MariaDbServer, PostgresServer, TcpProxy, free_port

AnyServer = PostgresServer | MariaDbServer
# What is in the request whose reply decides: PostgreSQL adds in one statement, MariaDB commits a transaction.
DECIDES = {PostgresServer: b"string_to_array", MariaDbServer: b"COMMIT"}


def test_a_lost_answer_to_an_addition_is_an_unknown_outcome(
    server: AnyServer, opened: Open, stream: str
) -> None:
    control = opened(server.url)
    control.xadd(stream, {"n": 0})
    with TcpProxy(server.port) as proxy:
        broker = opened(server.url_at(proxy.port))
        proxy.drop_next_reply(DECIDES[type(server)])
        with pytest.raises(OutcomeUnknown, match="may have taken effect"):
            broker.xadd(stream, {"n": 1})
        assert proxy.faults["dropped_replies"] == 1
        assert numbers(control.xrange(stream)) == [0, 1]
        broker.xadd(stream, {"n": 2})  # the broker goes on by itself
    assert numbers(control.xrange(stream)) == [0, 1, 2]


def test_a_lost_answer_to_an_addition_with_a_key_adds_once(
    server: AnyServer, opened: Open, stream: str
) -> None:
    control = opened(server.url)
    control.xadd(stream, {"n": 0})
    with TcpProxy(server.port) as proxy:
        broker = opened(server.url_at(proxy.port))
        proxy.drop_next_reply(b"COMMIT")
        added = broker.xadd(stream, {"n": 1}, key="k")
        assert proxy.faults["dropped_replies"] == 1
    assert numbers(control.xrange(stream)) == [0, 1]
    assert control.xrange(stream)[-1].id == added


def test_a_lost_answer_between_two_thousands_says_what_is_added(
    server: AnyServer, opened: Open, stream: str
) -> None:
    control = opened(server.url)
    control.xadd(stream, {"n": -1})
    with TcpProxy(server.port) as proxy:
        broker = opened(server.url_at(proxy.port))
        broker.xadd(stream, {"n": -1})
        sent = []

        def items():  # type: ignore[no-untyped-def]
            for number in range(2500):
                sent.append(number)
                yield {"n": number}

        add = broker._adder.add
        calls = []

        def add_and_break(*args: object) -> object:
            calls.append(args)
            if len(calls) == 2:
                proxy.drop_next_reply(DECIDES[type(server)])
            return add(*args)  # type: ignore[arg-type]

        broker._adder.add = add_and_break  # type: ignore[method-assign, assignment]
        with pytest.raises(OutcomeUnknown) as caught:
            broker.xadd_many(stream, items())
    assert len(calls) == 2
    assert len(caught.value.ids) == 1000
    assert numbers(control.xrange(stream)) == [-1, -1, *range(2000)]


def test_a_lost_answer_to_a_delivery_loses_no_entry(server: AnyServer, opened: Open, stream: str) -> None:
    control = opened(server.url)
    added = control.xadd_many(stream, [{"n": n} for n in range(5)])
    control.create_group(stream, GROUP, "0")
    with TcpProxy(server.port) as proxy:
        broker = opened(server.url_at(proxy.port))
        broker.xreadgroup(GROUP, "c", stream, start="0")
        proxy.drop_next_reply(b"COMMIT")
        got = broker.xreadgroup(GROUP, "c", stream, 3)
        assert proxy.faults["dropped_replies"] == 1
    assert ids(got) == added[:3]
    assert [message.delivery_count for message in got] == [1, 1, 1]
    assert ids(control.xpending(stream, GROUP, "c")) == added[:3]
    assert ids(control.xreadgroup(GROUP, "d", stream, 9)) == added[3:]


def test_a_lost_answer_to_a_claim_counts_one_delivery(server: AnyServer, opened: Open, stream: str) -> None:
    control = opened(server.url)
    added = control.xadd_many(stream, [{}, {}])
    control.create_group(stream, GROUP, "0")
    control.xreadgroup(GROUP, "dead", stream, 2)
    with TcpProxy(server.port) as proxy:
        broker = opened(server.url_at(proxy.port))
        proxy.drop_next_reply(b"COMMIT")
        claimed = broker.xclaim(stream, GROUP, "c", 0, added)
        assert proxy.faults["dropped_replies"] == 1
    assert [message.delivery_count for message in claimed] == [2, 2]
    assert [(entry.consumer, entry.delivery_count) for entry in control.xpending(stream, GROUP)] == [
        ("c", 2), ("c", 2),
    ]  # fmt: skip


def test_reads_survive_broken_connections(server: AnyServer, opened: Open, stream: str) -> None:
    with TcpProxy(server.port) as proxy:
        broker = opened(server.url_at(proxy.port))
        broker.xadd_many(stream, [{"n": n} for n in range(3)])
        broker.create_group(stream, GROUP, "0")
        for call in (
            lambda: numbers(broker.xrange(stream)) == [0, 1, 2],
            lambda: broker.xlen(stream) == 3,
            lambda: broker.group_info(stream)[0].lag == 3,
            lambda: broker.xpending(stream, GROUP) == [],
            lambda: numbers(broker.xread({stream: "0"})) == [0, 1, 2],
        ):
            assert proxy.reset_all() >= 1
            assert call()


def test_a_restarted_server_is_found_again() -> None:
    for kind in (PostgresServer, MariaDbServer):
        with kind() as server:
            broker = open_broker(server.url, create=True, retry_for=20)
            broker.create_group("s", GROUP, "0")
            first = broker.xadd("s", {"n": 1})
            reader = Background(broker.xreadgroup, GROUP, "c", "s", 5, None)
            assert ids(reader.result()) == [first]
            reader = Background(broker.xreadgroup, GROUP, "c", "s", 5, None)
            server.restart()
            second = broker.xadd("s", {"n": 2})  # what the pool held is noticed to be dead, and not used
            assert ids(reader.result(30)) == [second]
            broker.close()


def test_a_server_that_is_away_is_unavailable(server: AnyServer, opened: Open) -> None:
    port = free_port()
    with pytest.raises(BrokerUnavailable, match=f"cannot reach 127.0.0.1:{port}/test") as caught:
        opened(server.url_at(port))
    assert not isinstance(caught.value, OutcomeUnknown)


def test_a_server_that_goes_away_is_unavailable_for_additions_that_never_left(
    server: AnyServer, opened: Open, stream: str
) -> None:
    with TcpProxy(server.port) as proxy:
        broker = opened(server.url_at(proxy.port), retry_for=0.2)
        broker.xadd(stream, {})
        proxy.refuse()
        with pytest.raises(BrokerUnavailable, match="cannot reach") as caught:
            broker.xadd(stream, {})
        assert not isinstance(caught.value, OutcomeUnknown)
        proxy.heal()
        broker.xadd(stream, {})
    assert opened(server.url).xlen(stream) == 2


def everything_said(error: BaseException | None) -> str:
    text = ""
    while error is not None:
        text += f"{error} {error!r} "
        error = error.__cause__ or error.__context__
    return text


def test_a_wrong_password_is_refused_and_not_repeated_in_the_message(mariadb: MariaDbServer) -> None:
    with PostgresServer(password="right-secret") as postgres:
        open_broker(postgres.url, create=True).close()
        for url in (
            postgres.url.replace("right-secret", "wrong-secret"),
            mariadb.url.replace("root@", "root:wrong-secret@"),
        ):
            with pytest.raises(AccessDenied) as caught:
                open_broker(url, create=True)
            assert "secret" not in everything_said(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:notaport/x",
        "postgresql://u:hunter2@127.0.0.1:1/x?nonsense=1",
        "postgresql://u:hunter2@127.0.0.1:1/x",
        "mysql://u:hunter2@127.0.0.1:1/x?nonsense=1",
        "mysql://u:hunter2@127.0.0.1:1/x",
        "postgresql+asyncpg://u:hunter2@h/x",
    ],
)
def test_no_error_of_opening_says_the_password(url: str) -> None:
    with pytest.raises((ConfigurationError, BrokerUnavailable)) as caught:
        open_broker(url)
    assert "hunter2" not in everything_said(caught.value)


def test_a_database_that_does_not_exist(server: AnyServer) -> None:
    with pytest.raises(ConfigurationError, match="no such database; create it"):
        open_broker(server.url.replace("/test", "/nowhere"))


def test_a_user_who_may_not_write(postgres: PostgresServer, opened: Open, stream: str) -> None:
    opened(postgres.url).xadd(stream, {})
    with postgres.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    url = postgres.url.replace("postgres@", "guest@")
    with pytest.raises(AccessDenied, match="permission denied"):
        open_broker(url)
    with postgres.connect() as connection:
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")
    with open_broker(url) as broker:
        assert broker.xlen(stream) == 1
        with pytest.raises(AccessDenied, match="permission denied"):
            broker.xadd(stream, {})
    with postgres.connect() as connection:
        connection.execute("DROP OWNED BY guest")


def test_a_lock_that_stays_gives_a_clear_error(server: AnyServer, opened: Open, stream: str) -> None:
    broker = opened(server.url, lock_timeout=1)
    broker.xadd(stream, {"n": 1})
    with server.connect() as other:
        cursor = other.cursor()
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM millstream_streams WHERE name = %s FOR UPDATE", (stream,))
        with pytest.raises(BrokerUnavailable, match="transaction that was left open"):
            broker.xadd(stream, {"n": 2})
        cursor.execute("ROLLBACK")
    broker.xadd(stream, {"n": 3})
    assert numbers(broker.xrange(stream)) == [1, 3]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'millstream\[sql\]'"):
        open_broker("postgresql://localhost/x")


def test_readers_wake_on_additions_of_other_processes(url: str, opened: Open, stream: str) -> None:
    here, there = opened(url, **apart(1)), opened(url, **apart(2))
    here.create_group(stream, GROUP)
    for number in range(3):
        reader = Background(here.xreadgroup, GROUP, "a", stream, 1, None)
        outsider = Background(here.xread, {stream: "$"}, None, None)
        until(lambda: len(here._hub.watched[stream].readers) == 1, "the reader to wait")
        until(lambda: here._hub.watched[stream].state is not None, "the thread to watch")
        there.xadd(stream, {"n": number})
        assert numbers(reader.result()) == [number]
        assert numbers(outsider.result()) == [number]


def test_readers_notice_that_another_process_deleted_their_group(url: str, opened: Open, stream: str) -> None:
    from millstream.errors import GroupNotFound, StreamNotFound

    here, there = opened(url, **apart(1)), opened(url, **apart(2))
    for delete, expected in (
        (lambda: there.delete_group(stream, GROUP), GroupNotFound),
        (lambda: there.delete_stream(stream), StreamNotFound),
    ):
        here.create_group(stream, GROUP)
        readers = [Background(here.xreadgroup, GROUP, name, stream, 1, None) for name in "abc"]
        until(lambda: len(here._hub.watched[stream].queues.get(GROUP, ())) == 3, "the readers to wait")
        delete()
        for reader in readers:
            with pytest.raises(expected):
                reader.result()
