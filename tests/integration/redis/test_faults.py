"""Connections that break, servers that restart, groups that vanish. Each test proves that its fault fired."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from millstream.errors import (
    BrokerClosed,
    BrokerFull,
    BrokerUnavailable,
    GroupNotFound,
    OutcomeUnknown,
    StreamNotFound,
    WrongType,
)
from tests.integration.redis.conftest import Open, blocked, in_thread
from tests.servers import RedisServer, TcpProxy, free_port


@pytest.fixture
def proxy(redis7: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(redis7.port) as proxy:
        yield proxy


def url_of(proxy: TcpProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


# -- additions whose reply is lost -----------------------------------------------------------------


def test_lost_reply_to_xadd_is_reported_and_not_repeated(proxy: TcpProxy, opened: Open, stream: str) -> None:
    broker = opened(url_of(proxy))
    proxy.drop_next_reply(b"XADD")
    with pytest.raises(OutcomeUnknown, match=f"127.0.0.1:{proxy.port}.*key="):
        broker.xadd(stream, {"n": 1})
    assert proxy.faults["dropped_replies"] == 1
    assert broker.xlen(stream) == 1  # it had arrived; repeating it would have made two


@pytest.mark.parametrize("options", [{}, {"maxlen": 10}, {"id": "7-7"}, {"maxlen": 10, "plain": True}])
def test_lost_reply_to_xadd_with_a_key_adds_once(
    proxy: TcpProxy, opened: Open, stream: str, options: dict[str, object]
) -> None:
    broker = opened(url_of(proxy))
    broker.xadd("warm:" + stream, {}, key="k")  # the script is loaded, so that the fault hits its execution
    proxy.drop_next_reply(b"EVALSHA")
    entry_id = broker.xadd(stream, {"n": 1}, key="k", **options)  # type: ignore[arg-type]
    assert proxy.faults["dropped_replies"] == 1
    assert [m.id for m in broker.xrange(stream)] == [entry_id]
    assert broker.xadd(stream, {"n": 1}, key="k") == entry_id


def test_lost_reply_within_xadd_many_tells_what_is_known(proxy: TcpProxy, opened: Open, stream: str) -> None:
    broker = opened(url_of(proxy))
    broker.xadd_many("warm:" + stream, [{}])
    items = [{"n": n} for n in range(1000)] + [{"mark": "second batch"}]
    proxy.drop_next_reply(b"second batch")
    with pytest.raises(OutcomeUnknown) as caught:
        broker.xadd_many(stream, items)
    assert proxy.faults["dropped_replies"] == 1
    assert len(caught.value.ids) == 1000
    assert [m.id for m in broker.xrange(stream, count=1000)] == caught.value.ids
    assert broker.xlen(stream) == 1001


def test_refused_connection_does_not_lose_an_addition(proxy: TcpProxy, opened: Open, stream: str) -> None:
    """Nothing was sent, so even an addition without a key may be repeated."""
    broker = opened(url_of(proxy))
    broker._caller.link.close()  # no open connection: the addition has to connect first
    proxy.refuse()
    adding = in_thread(broker.xadd, stream, {"n": 1})
    with pytest.raises(TimeoutError):
        adding.result(0.1)
    proxy.heal()
    adding.result(5)
    assert proxy.faults["refusing"] == 1
    assert broker.xlen(stream) == 1


def test_server_away_for_longer_than_the_patience(proxy: TcpProxy, opened: Open, stream: str) -> None:
    broker = opened(url_of(proxy), retry_for=0.1)
    proxy.refuse()
    began = time.monotonic()
    for call in (
        # The harmless ones first: the open connection may be found broken only after something was sent.
        lambda: broker.xlen(stream),
        lambda: broker.xtrim(stream, 1),
        lambda: broker.xadd(stream, {}),
    ):
        with pytest.raises(BrokerUnavailable, match="cannot reach Redis"):
            call()
    assert time.monotonic() - began < 2
    proxy.heal()
    broker.xadd(stream, {})


# -- reads whose reply is lost ---------------------------------------------------------------------


@pytest.mark.parametrize("block_ms", [0, 500, None])
@pytest.mark.parametrize("known", [False, True])
def test_lost_reply_to_a_read_loses_no_entry(
    proxy: TcpProxy, opened: Open, stream: str, block_ms: int | None, known: bool
) -> None:
    broker = opened(url_of(proxy))
    broker.create_group(stream, "g", "0")
    if known:  # with and without an entry that this consumer got before, and did not acknowledge
        broker.xadd(stream, {"n": 0})
        assert len(broker.xreadgroup("g", "c", stream)) == 1
    else:
        assert broker.xreadgroup("g", "c", stream) == []
    ids = broker.xadd_many(stream, [{"n": 1}, {"n": 2}])
    proxy.drop_next_reply(b"XREADGROUP")
    got = broker.xreadgroup("g", "c", stream, 10, block_ms)
    assert proxy.faults["dropped_replies"] == 1
    assert [m.id for m in got] == ids
    assert [m.delivery_count for m in got] == [1, 1]
    assert broker.xreadgroup("g", "c", stream, 10) == []


def test_reply_cut_in_the_middle_of_a_read(proxy: TcpProxy, opened: Open, stream: str) -> None:
    broker = opened(url_of(proxy))
    broker.create_group(stream, "g", "0")
    broker.xreadgroup("g", "c", stream)
    ids = broker.xadd_many(stream, [{"n": n, "pad": "x" * 1000} for n in range(20)])
    proxy.cut_replies_after(5000, b"XREADGROUP")
    got = broker.xreadgroup("g", "c", stream, 12)
    assert proxy.faults["cut_replies"] == 1
    got += broker.xreadgroup("g", "c", stream, 12)
    assert [m.id for m in got] == ids
    assert [m.data["n"] for m in got] == list(range(20))


def test_lost_read_is_found_by_the_next_call(proxy: TcpProxy, opened: Open, stream: str) -> None:
    """The server stays away after the cut, so that the first call cannot look for what it lost."""
    broker = opened(url_of(proxy), retry_for=0.05)
    broker.create_group(stream, "g", "0")
    broker.xreadgroup("g", "c", stream)
    reading = in_thread(broker.xreadgroup, "g", "c", stream, 10, 5000)
    with TcpProxy(proxy.target[1]) as other_way:
        writer = opened(url_of(other_way))
        blocked_through(proxy)
        proxy.drop_next_reply()
        proxy._close_listener()
        entry_id = writer.xadd(stream, {"n": 1})
        with pytest.raises(BrokerUnavailable):
            reading.result(5)
        assert proxy.faults["dropped_replies"] == 1
        assert [p.id for p in writer.xpending(stream, "g", "c")] == [entry_id]
    proxy.heal()
    assert [m.id for m in broker.xreadgroup("g", "c", stream, 10)] == [entry_id]


def blocked_through(proxy: TcpProxy) -> None:
    server = RedisServer("redis7")
    server.port = proxy.target[1]
    blocked(server)


def test_what_a_consumer_claimed_is_not_taken_for_lost(proxy: TcpProxy, opened: Open, stream: str) -> None:
    broker = opened(url_of(proxy))
    broker.create_group(stream, "g", "0")
    first, second, third = broker.xadd_many(stream, [{"n": n} for n in range(3)])
    assert [m.id for m in broker.xreadgroup("g", "c", stream)] == [first]
    assert [m.id for m in broker.xreadgroup("g", "other", stream)] == [second]
    assert [m.id for m in broker.xclaim(stream, "g", "c", 0, second)] == [second]
    proxy.drop_next_reply(b"XREADGROUP")
    assert [m.id for m in broker.xreadgroup("g", "c", stream, 10)] == [third]
    assert proxy.faults["dropped_replies"] == 1


def test_connection_reset_while_waiting(proxy: TcpProxy, opened: Open, stream: str) -> None:
    broker = opened(url_of(proxy))
    broker.create_group(stream, "g", "0")
    reading = in_thread(broker.xreadgroup, "g", "c", stream, 1, None)
    blocked_through(proxy)
    assert proxy.reset_all() >= 1
    entry_id = opened(url_of(proxy)).xadd(stream, {"n": 1})
    assert [m.id for m in reading.result(5)] == [entry_id]


@pytest.mark.parametrize(
    "command", [b"XACK", b"XLEN", b"XDEL", b"XRANGE", b"XPENDING", b"EVALSHA", b"XGROUP"]
)
def test_harmless_calls_are_repeated(proxy: TcpProxy, opened: Open, stream: str, command: bytes) -> None:
    broker = opened(url_of(proxy))
    broker.create_group(stream, "g", "0")
    entry_id = broker.xadd(stream, {"n": 1})
    broker.xreadgroup("g", "c", stream)
    broker.group_info(stream)  # loads the script
    proxy.drop_next_reply(command)
    calls = {
        b"XACK": lambda: broker.xack(stream, "g", entry_id),
        b"XLEN": lambda: broker.xlen(stream),
        b"XDEL": lambda: broker.xdel(stream, entry_id),
        b"XRANGE": lambda: broker.xrange(stream),
        b"XPENDING": lambda: broker.xpending(stream, "g"),
        b"EVALSHA": lambda: broker.group_info(stream),
        b"XGROUP": lambda: broker.create_group(stream, "h"),
    }
    calls[command]()
    assert proxy.faults["dropped_replies"] == 1


def test_hanging_server_is_noticed(own: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(f"{own.url}?socket_timeout=0.1&retry_for=0.2")
    own.pause()
    try:
        with pytest.raises(OutcomeUnknown, match=r"no answer within 0\.1 s"):
            broker.xadd(stream, {})
        with pytest.raises(BrokerUnavailable, match="Timeout"):  # of a new connection's greeting
            broker.xlen(stream)
    finally:
        own.resume()
    assert broker.xlen(stream) in (0, 1)


def test_hanging_server_is_noticed_after_a_read_that_was_allowed_to_wait(
    own: RedisServer, opened: Open, stream: str
) -> None:
    broker = opened(f"{own.url}?socket_timeout=0.2&retry_for=0")
    broker.create_group(stream, "g", "0")
    began = time.monotonic()
    assert broker.xreadgroup("g", "c", stream, 10, block_ms=700) == []
    assert time.monotonic() - began > 0.65
    own.pause()
    try:
        with pytest.raises(OutcomeUnknown, match=r"no answer within 0\.2 s"):
            broker.xadd(stream, {})
    finally:
        own.resume()


def test_hanging_server_takes_no_more(own: RedisServer, opened: Open, stream: str) -> None:
    """What was not sent as a whole cannot have been executed."""
    broker = opened(f"{own.url}?socket_timeout=0.2&retry_for=0", max_payload=64 << 20)
    own.pause()
    try:
        with pytest.raises(BrokerUnavailable, match="while writing to socket"):
            broker.xadd(stream, {"text": "x" * (32 << 20)})
    finally:
        own.resume()
    assert broker.xlen(stream) == 0


def test_connections_that_the_server_closed_a_moment_ago(own: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(own.url)
    for call in (lambda: broker.xlen(stream), lambda: broker.xadd(stream, {}), lambda: broker.xlen(stream)):
        with own.client() as other:
            other.client_kill_filter(_type="normal", skipme=True)
        call()  # the first and the last are repeated; the second is never sent where nobody listens
    assert broker.xlen(stream) == 1


# -- servers that restart --------------------------------------------------------------------------


def test_restart_between_calls(own: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(own.url)
    broker.create_group(stream, "g", "0")
    broker.xadd_many(stream, [{"n": 1}])  # the script is loaded
    pid = own.pid
    own.restart()
    assert own.pid != pid
    broker.xadd(stream, {"n": 2})  # the pooled connection is stale: no OutcomeUnknown
    own.restart()
    broker.xadd_many(stream, [{"n": 3}])  # and the script cache is empty
    own.restart()
    assert [m.data["n"] for m in broker.xreadgroup("g", "c", stream, 10)] == [1, 2, 3]


def test_restart_while_waiting(own: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(own.url)
    broker.create_group(stream, "g", "0")
    reading = in_thread(broker.xreadgroup, "g", "c", stream, 1, None)
    blocked(own)
    own.kill()
    own.start()
    blocked(own)
    broker.xadd(stream, {"n": 1})
    assert [m.data for m in reading.result(5)] == [{"n": 1}]


def test_demoted_master_refuses_and_is_asked_again(own: RedisServer, opened: Open, stream: str) -> None:
    """READONLY says that nothing was executed, so even an addition without a key is repeated."""
    broker = opened(own.url)
    with own.client() as admin:
        admin.replicaof("127.0.0.1", free_port())
        adding = in_thread(broker.xadd, stream, {"n": 1})
        with pytest.raises(TimeoutError):
            adding.result(0.1)
        admin.replicaof("NO", "ONE")
        adding.result(5)
        assert admin.info("errorstats")["errorstat_READONLY"]["count"] >= 1
    assert broker.xlen(stream) == 1


def test_script_flush_between_calls(own: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(own.url)
    with own.client() as admin:
        for n in range(3):
            broker.xadd_many(stream, [{"n": n}])
            assert admin.script_exists(*loaded(broker)) == [True]
            admin.script_flush()
            assert admin.script_exists(*loaded(broker)) == [False]
    assert broker.xlen(stream) == 3


def loaded(broker: object) -> list[str]:
    from millstream.brokers.redis.scripts import ADD_MANY

    return [ADD_MANY.digest]


# -- groups that vanish ----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["FLUSHALL", "DEL"])
def test_group_lost_while_waiting_is_made_anew(
    own: RedisServer, opened: Open, stream: str, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = opened(own.url)
    broker.create_group(stream, "g")
    reading = in_thread(broker.xreadgroup, "g", "c", stream, 1, None)
    blocked(own)
    with own.client() as admin, caplog.at_level(logging.WARNING, "millstream.brokers.redis"):
        admin.execute_command(loss, *([stream] if loss == "DEL" else []))
        # An entry of another program comes before the group is back: it must not be passed over.
        admin.xadd(stream, {"n": "1"})
        assert [m.data for m in reading.result(5)] == [{"n": "1"}]
    assert "made it anew" in caplog.text


def test_group_lost_between_calls_is_made_anew(own: RedisServer, opened: Open, stream: str) -> None:
    creator, reader = opened(own.url), opened(own.url)
    creator.create_group(stream, "g")
    assert reader.xreadgroup("g", "c", stream) == []  # it read from the group, so it knows it
    with own.client() as admin:
        admin.flushall()
    entry_id = creator.xadd(stream, {"n": 1})
    assert [m.id for m in reader.xreadgroup("g", "c", stream)] == [entry_id]
    with own.client() as admin:
        admin.flushall()
    assert creator.xautoclaim(stream, "g", "c", 0) == []
    with own.client() as admin:
        admin.flushall()
    assert creator.xclaim(stream, "g", "c", 0, "1-1") == []
    with own.client() as admin:
        admin.flushall()
    with pytest.raises(StreamNotFound):
        opened(own.url).xreadgroup("g", "c", stream)  # never knew it


def test_group_deleted_by_the_same_broker_is_not_made_anew(
    own: RedisServer, opened: Open, stream: str
) -> None:
    broker = opened(own.url)
    broker.create_group(stream, "g")
    reading = in_thread(broker.xreadgroup, "g", "c", stream, 1, None)
    blocked(own)
    assert broker.delete_group(stream, "g")
    with pytest.raises(GroupNotFound):
        reading.result(5)
    broker.create_group(stream, "g")
    reading = in_thread(broker.xreadgroup, "g", "c", stream, 1, None)
    blocked(own)
    assert broker.delete_stream(stream)
    with pytest.raises(StreamNotFound):
        reading.result(5)
    assert broker.xlen(stream) == 0


def test_close_wakes_who_waits(own: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(own.url)
    broker.create_group(stream, "g")
    reading = in_thread(broker.xreadgroup, "g", "c", stream, 1, None)
    following = in_thread(broker.xread, {stream: "$"}, 1, None)
    blocked(own, 2)
    broker.close()
    for waiting in (reading, following):
        with pytest.raises(BrokerClosed):
            waiting.result(5)


# -- servers that refuse ---------------------------------------------------------------------------


def test_out_of_memory(opened: Open, stream: str) -> None:
    with RedisServer("redis7") as server, server.client() as admin:
        broker = opened(server.url)
        broker.create_group(stream, "g", "0")
        entry_id = broker.xadd(stream, {"n": 1})
        admin.config_set("maxmemory", "1")
        for call in (
            lambda: broker.xadd(stream, {"n": 2}),
            lambda: broker.xadd_many(stream, [{"n": 2}]),
            lambda: broker.xadd(stream, {"n": 2}, key="k"),
            lambda: broker.xadd(stream, {"n": 2}, maxlen=100),
        ):
            with pytest.raises(BrokerFull, match=r"maxmemory.*nothing was written"):
                call()
        # Readers still drain it.
        assert [m.id for m in broker.xreadgroup("g", "c", stream, 10)] == [entry_id]
        assert [m.id for m in broker.xautoclaim(stream, "g", "d", 0)] == [entry_id]
        assert broker.xack(stream, "g", entry_id) == 1
        assert broker.xlen(stream) == 1
        admin.config_set("maxmemory", "0")
        broker.xadd(stream, {"n": 2}, key="k")
        assert broker.xlen(stream) == 2


def test_key_that_is_not_a_stream(redis_flavour: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(redis_flavour.url)
    with redis_flavour.client() as admin:
        admin.set(stream, "text")
    for call in (
        lambda: broker.xadd(stream, {}),
        lambda: broker.xadd(stream, {}, key="k"),
        lambda: broker.xadd(stream, {}, maxlen=1),
        lambda: broker.xadd_many(stream, [{}]),
        lambda: broker.create_group(stream, "g"),
        lambda: broker.xreadgroup("g", "c", stream),
        lambda: broker.xread({"nothing": "0", stream: "0"}),
        lambda: broker.xtrim(stream, 1),
        lambda: broker.xackdel(stream, "g", "1-1"),
        lambda: broker.group_info(stream),
    ):
        with pytest.raises(WrongType) as caught:
            call()
        assert caught.value.stream == stream
    with redis_flavour.client() as admin:
        assert admin.get(stream) == b"text"
        assert not admin.exists(f"{{{stream}}}:once:k"), "a refused addition must not use up its key"
