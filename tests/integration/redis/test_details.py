"""What only shows on a real server: the wire, both ways of xackdel, exact lag, long waits, bounded trims."""

from __future__ import annotations

import json
import time

import pytest

from millstream.brokers.redis import RedisStreamBroker, lag, scripts
from millstream.errors import IdNotGreater
from tests.integration.redis.conftest import Open, blocked, in_thread
from tests.servers import RedisServer

# -- the wire --------------------------------------------------------------------------------------


def test_entries_of_ours_on_the_wire(redis7: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(redis7.url)
    broker.xadd(stream, {"n": 1})
    broker.xadd(stream, {"n": 2}, type="order", headers={"trace": "7"})
    broker.xadd(stream, {"n": 3}, headers={"trace": "8"}, key="k")
    broker.xadd_many(stream, [{"n": "é"}])
    with redis7.client() as client:
        entries = [fields for _, fields in client.xrange(stream)]
    assert entries == [
        {b"data": b'{"n":1}'},
        {b"data": b'{"n":2}', b"type": b"order", b"headers": b'{"trace":"7"}'},
        {b"data": b'{"n":3}', b"headers": b'{"trace":"8"}'},
        {b"data": '{"n":"é"}'.encode()},
    ]
    got = broker.xrange(stream)
    assert [(m.data["n"], m.type, m.headers) for m in got] == [
        (1, None, {}),
        (2, "order", {"trace": "7"}),
        (3, None, {"trace": "8"}),
        ("é", None, {}),
    ]


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ({"a": "1", "b": "two"}, {"a": "1", "b": "two"}),
        ({"data": "hello"}, {"data": "hello"}),
        ({"data": "[1, 2]"}, {"data": "[1, 2]"}),
        ({"data": '{"a": NaN}'}, {"data": '{"a": NaN}'}),
        ({"data": '{"a": 1'}, {"data": '{"a": 1'}),
        ({"data": "[" * 5000}, {"data": "[" * 5000}),
        ({"data": '{"a":1}', "more": "x"}, {"data": '{"a":1}', "more": "x"}),
        ({"data": '{"a":1}', "headers": "x"}, {"data": '{"a":1}', "headers": "x"}),
        ({"data": '{"a":1}', "headers": '{"b":2}'}, {"data": '{"a":1}', "headers": '{"b":2}'}),
        ({"data": b'{"a":"\xff"}'}, {"data": '{"a":"\\xff"}'}),
        ({"data": '{"a":1}', "type": b"\xff"}, {"data": '{"a":1}', "type": "\\xff"}),
        ({b"\xfe": b"\xff\x00"}, {"\\xfe": "\\xff\x00"}),
    ],
)
def test_entries_of_other_programs_are_read_as_texts(
    redis7: RedisServer, opened: Open, stream: str, fields: dict[str, str], data: dict[str, str]
) -> None:
    broker = opened(redis7.url)
    broker.create_group(stream, "g", "0")
    with redis7.client() as client:
        client.xadd(stream, fields)
    for message in (
        *broker.xrange(stream),
        *broker.xread({stream: "0"}),
        *broker.xreadgroup("g", "c", stream),
        *broker.xautoclaim(stream, "g", "d", 0),
        *broker.xreadgroup("g", "d", stream, start="0"),
    ):
        assert message.data == data
        assert (message.type, message.headers) == (None, {})
        json.dumps(message.data)


def test_a_field_that_comes_twice(redis7: RedisServer, opened: Open, stream: str) -> None:
    with redis7.client() as client:
        client.execute_command("XADD", stream, "*", "data", '{"a":1}', "data", '{"a":2}')
    assert opened(redis7.url).xrange(stream)[0].data == {"data": '{"a":2}'}


# -- adding ----------------------------------------------------------------------------------------


def test_key_is_forgotten_after_its_time(redis7: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(f"{redis7.url}?key_ttl=100")
    broker.xadd(stream, {}, key="k")
    with redis7.client() as client:
        assert 90_000 < client.pttl(f"{{{stream}}}:once:k") <= 100_000


def test_key_of_a_stream_with_a_hash_tag_stays_in_its_slot(
    redis7: RedisServer, opened: Open, stream: str
) -> None:
    tagged = f"{{{stream}}}:orders"
    opened(redis7.url).xadd(tagged, {}, key="k")
    with redis7.client() as client:
        assert client.exists(f"{tagged}:once:k")


def test_refused_id_does_not_use_up_the_key(redis7: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(redis7.url)
    broker.xadd(stream, {}, id="5-5")
    with pytest.raises(IdNotGreater) as caught:
        broker.xadd(stream, {}, id="5-5", key="k")
    assert caught.value.last_id == "5-5"
    assert broker.xadd(stream, {}, id="6-1", key="k") == "6-1"


def test_automatic_trim_keeps_the_newest_and_what_is_needed(
    redis7: RedisServer, opened: Open, stream: str
) -> None:
    broker = opened(redis7.url, max_stream_length=100)
    for n in range(500):
        broker.xadd(stream, {"n": n})
        assert n < 100 or 100 <= broker.xlen(stream) <= 105
    assert broker.xrange(stream)[-1].data == {"n": 499}
    broker.create_group(stream, "g", "0")
    broker.xadd_many(stream, [{"n": n} for n in range(500)])
    assert broker.xlen(stream) >= 600  # nobody has read them


def test_failed_automatic_trim_does_not_fail_the_addition(
    redis7: RedisServer, opened: Open, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    with redis7.client() as admin:
        admin.execute_command(
            *("ACL", "SETUSER", "adder", "reset", "on", ">pw", "~*"),
            *("-@all", "+xadd", "+ping", "+hello", "+evalsha", "+script|load"),
        )
    broker = opened(f"redis://adder:pw@127.0.0.1:{redis7.port}/0", max_stream_length=1)
    broker.xadd(stream, {})
    assert "could not trim" in caplog.text


# -- trimming --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 20_000])
def test_long_streams_are_trimmed_in_bounded_steps(
    redis_flavour: RedisServer, opened: Open, stream: str, size: int
) -> None:
    """Entries of 20 kB make the pieces that a script looks at small; every step stays under its bound."""
    broker = opened(redis_flavour.url)
    total = 25_000 if size < 100 else 300
    ids = broker.xadd_many(stream, [{"n": n, "pad": "x" * size} for n in range(total)])
    broker.create_group(stream, "g", "0")
    half = total // 2
    while half:
        half -= len(broker.xreadgroup("g", "c", stream, min(1000, half)))
    half = total // 2
    broker.xack(stream, "g", ids[: half - 1])
    with redis_flavour.client() as client:
        before = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        assert broker.xtrim(stream, 100) == half - 1  # up to the one that is not acknowledged
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert calls >= half // 1000
    assert broker.xrange(stream, count=1)[0].id == ids[half - 1]
    broker.xack(stream, "g", ids[half - 1])
    assert broker.xtrim(stream, min_id=ids[-1]) == 1
    broker.delete_group(stream, "g")
    assert broker.xtrim(stream, min_id=ids[-1]) == total - half - 1
    assert [m.id for m in broker.xrange(stream)] == [ids[-1]]


def test_trim_with_ids_that_no_double_can_hold(redis_flavour: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(redis_flavour.url)
    big = 2**64 - 1
    ids = [f"{big - 1}-{big - 1}", f"{big - 1}-{big}", f"{big}-0", f"{big}-9", f"{big}-10", f"{big}-{big}"]
    for entry_id in ids:
        broker.xadd(stream, {}, id=entry_id)
    broker.create_group(stream, "g", "0")
    for n, entry_id in enumerate(ids[:-1], 1):
        assert broker.xreadgroup("g", "c", stream)[0].id == entry_id
        broker.xack(stream, "g", entry_id)
        assert broker.xtrim(stream, 0) == 1
        assert broker.group_info(stream)[0].lag == len(ids) - n
    with pytest.raises(IdNotGreater) as caught:
        broker.xadd(stream, {})
    assert caught.value.last_id == ids[-1]


# -- xackdel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
def test_both_ways_of_ackdel(redis8: RedisServer, opened: Open, stream: str, native: bool) -> None:
    broker = opened(redis8.url)
    if not native:
        broker._native_ackdel = False
    ids = broker.xadd_many(stream, [{"n": n} for n in range(8)])
    for group in ("g", "h"):
        broker.create_group(stream, group, "0")
    broker.xreadgroup("g", "c", stream, 7)
    broker.xreadgroup("h", "c", stream, 4)
    broker.xack(stream, "h", ids[1:4])
    broker.xdel(stream, ids[3])
    with redis8.client() as client:
        client.config_resetstat()
        wanted = [ids[0], ids[1], ids[2], ids[2], ids[3], ids[5], ids[7], "1-1"]
        # 0 is pending in h, 1 and 2 are free, 3 is gone already, 5 was not given to h, 7 not to g.
        assert broker.xackdel(stream, "g", wanted) == 2
        assert ("cmdstat_xackdel" in client.info("commandstats")) is native
    assert [m.id for m in broker.xrange(stream)] == [ids[0], *ids[4:]]
    assert [p.id for p in broker.xpending(stream, "g")] == [ids[4], ids[6]]
    assert [p.id for p in broker.xpending(stream, "h")] == [ids[0]]
    assert broker.xackdel(stream, "nobody", ids) == 0
    assert broker.xackdel("nothing:" + stream, "g", ids) == 0


def test_servers_without_xackdel_take_the_other_way(valkey: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(valkey.url)
    broker._native_ackdel = True  # as after a failover to an older server
    broker.create_group(stream, "g", "0")
    entry_id = broker.xadd(stream, {})
    broker.xreadgroup("g", "c", stream)
    assert broker.xackdel(stream, "g", entry_id) == 1
    assert broker._native_ackdel is False


# -- lag -------------------------------------------------------------------------------------------


def lag_of(broker: RedisStreamBroker, stream: str) -> int:
    return broker.group_info(stream)[0].lag


def test_lag_is_exact_after_deletions_and_trims(
    redis_flavour: RedisServer, opened: Open, stream: str
) -> None:
    broker = opened(redis_flavour.url)
    ids = broker.xadd_many(stream, [{"n": n} for n in range(20)])
    broker.create_group(stream, "g", "0")
    assert lag_of(broker, stream) == 20
    broker.xreadgroup("g", "c", stream, 5)
    assert lag_of(broker, stream) == 15
    broker.xdel(stream, ids[7])
    assert lag_of(broker, stream) == 14
    broker.xreadgroup("g", "c", stream, 5)  # past what was deleted: Redis 7.0 counts it for ever
    assert lag_of(broker, stream) == 9
    broker.xtrim(stream, 6, plain=True)  # past the group's position
    assert lag_of(broker, stream) == 6
    broker.xreadgroup("g", "c", stream, 1)
    assert lag_of(broker, stream) == 5
    broker.xtrim(stream, 0, plain=True)
    assert lag_of(broker, stream) == 0
    broker.xadd(stream, {})
    assert lag_of(broker, stream) == 1
    broker.delete_group(stream, "g")
    more = broker.xadd_many(stream, [{"n": n} for n in range(10)])
    broker.create_group(stream, "g", more[3])  # in the middle, where Redis has no idea
    assert lag_of(broker, stream) == 6


@pytest.mark.parametrize("read", [300, 2700])
def test_lag_is_counted_from_the_nearer_end(
    redis7: RedisServer, opened: Open, stream: str, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "STEP", 100)
    broker = opened(redis7.url)
    ids = broker.xadd_many(stream, [{"n": n} for n in range(3001)])
    broker.xdel(stream, ids[1])
    broker.create_group(stream, "g", ids[read])
    counted = []
    script = broker._caller.script

    def watch(which: scripts.Script, *args: object, **options: object) -> object:
        counted.append(which.name)
        return script(which, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(broker._caller, "script", watch)
    assert lag_of(broker, stream) == 3000 - read
    assert counted.count("count_1") <= 8


# -- waiting ---------------------------------------------------------------------------------------


def test_waiting_longer_than_the_socket_timeout(redis7: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(f"{redis7.url}?socket_timeout=0.2")
    broker.create_group(stream, "g")
    for read in (
        lambda: broker.xreadgroup("g", "c", stream, 1, 500),
        lambda: broker.xread({stream: "$"}, 1, 500),
    ):
        began = time.monotonic()
        assert read() == []
        assert 0.5 <= time.monotonic() - began < 1.5


def test_waiting_in_slices_misses_nothing(
    own: RedisServer, opened: Open, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("reading", "following"):
        monkeypatch.setattr(f"millstream.brokers.redis.{module}.LONGEST_BLOCK_MS", 20)
    broker = opened(own.url)
    broker.create_group(stream, "g")
    with own.client() as client:
        reading = in_thread(broker.xreadgroup, "g", "c", stream, 1, None)
        following = in_thread(broker.xread, {stream: "$"}, 1, None)
        blocked(own, 2)
        stats = client.info("commandstats")
        while stats["cmdstat_xread"]["calls"] < 5 or stats["cmdstat_xreadgroup"]["calls"] < 5:
            stats = client.info("commandstats")
    entry_id = broker.xadd(stream, {"n": 1})
    assert [m.id for m in reading.result(5)] == [entry_id]
    assert [m.id for m in following.result(5)] == [entry_id]


# -- the scripts themselves ------------------------------------------------------------------------


def test_every_script_is_described_and_named_after_its_keys() -> None:
    found = [value for value in vars(scripts).values() if isinstance(value, scripts.Script)]
    assert len(found) == 14
    for script in found:
        keys = int(script.name.rpartition("_")[2])
        assert f"KEYS[{keys}]" in script.source
        assert f"KEYS[{keys + 1}]" not in script.source
        for word in ("-- KEYS  1 ", "-- Returns "):
            assert word in script.source
        assert "--@include" not in script.source
