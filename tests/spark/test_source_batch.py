"""Batch reads from Redis, without a JVM: what is read, where a read starts and ends, and what is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import trustme

from millstream import open_broker
from millstream.errors import AccessDenied, EntriesLost, MalformedEntry, WrongType
from millstream.history import Record
from millstream.spark.source import batch_reader, default_schema
from millstream.spark.source import redis as source_redis
from tests.servers import RedisCluster, RedisServer, TcpProxy, free_port
from tests.spark.sources import HEADERS, columns, read, read_parts


@pytest.fixture
def name() -> str:
    return f"src:{uuid4().hex[:8]}"


@pytest.fixture
def client(redis7: RedisServer) -> Iterator[Any]:
    with redis7.client() as found:
        yield found


def add(client: Any, stream: str, *ids: str, **fields: str) -> None:
    for entry_id in ids:
        client.xadd(stream, fields or {"data": '{"n":1}'}, id=entry_id)


def ids(rows: list[Any]) -> list[str]:
    return [row["id"] for row in rows]


def test_the_columns_of_an_entry(redis7: RedisServer, name: str) -> None:
    with open_broker(redis7.url) as broker:
        plain = broker.xadd(name, {"n": 1, "text": "é"})
        full = broker.xadd(name, {}, type="ordered", headers={"trace": "7"})
    first, second = read(redis7.url, name)
    assert (first["stream"], first["id"], first["data"]) == (name, plain, '{"n":1,"text":"é"}')
    assert (first["type"], first["headers"]) == (None, [])
    assert first["timestamp"].timestamp() == int(plain.split("-")[0]) / 1000
    assert (second["id"], second["type"], second["headers"]) == (full, "ordered", [("trace", "7")])


def test_entries_of_other_programs_and_binary_data(redis7: RedisServer, client: Any, name: str) -> None:
    client.xadd(name, {"temp": "21", "where": b"caf\xe9"}, id="1-1")
    client.xadd(name, {"data": b"\xff\x00"}, id="1-2")
    client.xadd(name, {"data": "no json"}, id="1-3")
    client.xadd(name, {"data": "{}", "headers": "no json"}, id="1-4")
    client.xadd(name, {"data": "{}", "type": "t"}, id="1-5")
    assert [(row["data"], row["type"]) for row in read(redis7.url, name)] == [
        ('{"temp":"21","where":"caf\\\\xe9"}', None),
        ("\\xff\x00", None),
        ("no json", None),
        ('{"data":"{}","headers":"no json"}', None),
        ("{}", "t"),
    ]


def test_a_schema_chooses_fields_and_parts(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, "5-1", data='{"n":7,"id":9,"type":"inner"}', type="outer", headers='{"a":"b"}')
    schema = columns(n="long", id="long", type="string", _id="string", _stream="string", headers=HEADERS)
    expected = {"n": 7, "id": 9, "type": "outer", "_id": "5-1", "_stream": name, "headers": [("a", "b")]}
    assert read(redis7.url, name, schema) == [expected]
    assert read(redis7.url, name, columns(type="string"), jsonFields="type") == [{"type": "inner"}]


def test_where_a_read_starts_and_ends(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, "5-1", "5-2", "6-0", "7-0", "7-1")

    def found(**options: Any) -> list[str]:
        return ids(read(redis7.url, name, **options))

    assert found(startingOffsets="5-2") == ["5-2", "6-0", "7-0", "7-1"]
    assert found(startingOffsets="(5-2", endingOffsets="7") == ["6-0", "7-0", "7-1"]
    assert found(startingOffsets="6", endingOffsets="(7-1") == ["6-0", "7-0"]
    assert found(startingTimestamp=6, endingTimestamp=7) == ["6-0"], "an end in time is exclusive"
    assert found(startingOffsets={name: "7"}) == ["7-0", "7-1"]
    assert found(startingTimestamp={name: "7"}) == ["7-0", "7-1"]
    assert found(startingOffsets={name: {"after": "6-0", "added": 3}}) == ["7-0", "7-1"]
    assert found(startingOffsets="9") == []
    assert found(startingOffsets="7", endingOffsets="5") == []


def test_several_streams_and_patterns(redis7: RedisServer, client: Any, name: str) -> None:
    for part in ("a", "b", "x[1]"):
        add(client, f"{name}:{part}", "5-1")
    client.set(f"{name}:c", "no stream")
    both = {(row["stream"], row["id"]) for row in read(redis7.url, f"{name}:a,{name}:b")}
    assert both == {(f"{name}:a", "5-1"), (f"{name}:b", "5-1")}
    every = {row["stream"] for row in read(redis7.url, f"{name}:*")}
    assert every == {f"{name}:{part}" for part in ("a", "b", "x[1]")}
    assert {row["stream"] for row in read(redis7.url, f"{name}:[ab]")} == {f"{name}:a", f"{name}:b"}
    assert len(read(redis7.url, f'["{name}:x[1]"]')) == 1, "a JSON list has names, not patterns"
    with pytest.raises(WrongType):
        read(redis7.url, f"{name}:c")


def test_a_stream_that_is_missing_or_empty_has_no_rows(redis7: RedisServer, client: Any, name: str) -> None:
    assert read(redis7.url, f"{name}:never") == []
    assert read(redis7.url, f"{name}:*") == []
    add(client, name, "5-1")
    client.xdel(name, "5-1")
    assert read(redis7.url, name) == []


def test_what_is_added_after_the_planning_is_not_read(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, "5-1", "5-2")
    options = {"url": redis7.url, "stream": name}
    reader = batch_reader(default_schema(options), options)
    parts = reader.partitions()
    add(client, name, "5-3")
    batches: list[Any] = [batch for part in parts for batch in reader.read(part)]
    assert [batch.num_rows for batch in batches] == [2]


def test_reading_disturbs_no_group(redis7: RedisServer, name: str) -> None:
    with open_broker(redis7.url) as broker:
        broker.xadd_many(name, [{"n": n} for n in range(20)])
        broker.create_group(name, "g", "0")
        broker.xreadgroup("g", "c", name, count=5)
        before = broker.group_info(name)
        with redis7.client() as client:
            commands = client.info("commandstats")
            assert len(read(redis7.url, name, minPartitions=3)) == 20
            after = client.info("commandstats")
        changed = {key for key in after if after[key] != commands.get(key)}
        quiet = {"xrange", "xrevrange", "xinfo|stream", "ping", "info", "hello", "client|setname", "select"}
        assert changed <= {f"cmdstat_{word}" for word in quiet}, changed
        (group,) = broker.group_info(name)
        assert (group.pending, group.lag, group.last_delivered_id) == (5, 15, before[0].last_delivered_id)


def test_pages_of_every_size_lose_nothing(
    redis7: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_redis, "FIRST_ROWS", 3)
    monkeypatch.setattr(source_redis, "MOST_ROWS", 7)
    with open_broker(redis7.url) as broker:
        added = broker.xadd_many(name, [{"n": n} for n in range(100)])
        large = broker.xadd(name, {"text": "x" * 900_000})
    assert ids(read(redis7.url, name)) == [*added, large]
    monkeypatch.setattr(source_redis, "MOST_BYTES", 1)
    assert ids(read(redis7.url, name)) == [*added, large]


# -- records that do not fit -----------------------------------------------------------------------


def test_malformed_records_are_kept_counted_or_refused(
    redis7: RedisServer, client: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for place, data in enumerate(('{"n":1}', "no json", '{"n":"x"}', '{"n":4}')):
        client.xadd(name, {"data": data}, id=f"5-{place}")
    kept = read(redis7.url, name, columns(n="long", _corrupt="string"))
    assert [(row["n"], row["_corrupt"]) for row in kept] == [
        (1, None),
        (None, "no json"),
        (None, '{"n":"x"}'),
        (4, None),
    ]
    with pytest.raises(MalformedEntry, match=f"the entry 5-1 of '{name}' .* add a column '_corrupt string'"):
        read(redis7.url, name, columns(n="long"))
    with pytest.raises(MalformedEntry):
        read(redis7.url, name, columns(n="long", _corrupt="string"), mode="failfast")
    with caplog.at_level("WARNING", logger="millstream.spark"):
        rows = read(redis7.url, name, columns(n="long"), mode="PERMISSIVE")
    assert [row["n"] for row in rows] == [1, None, None, 4]
    assert "2 records did not fit the schema" in caplog.text


# -- what was trimmed ------------------------------------------------------------------------------


def test_a_start_in_what_was_trimmed_is_refused(
    redis7: RedisServer, client: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, name, "5-0", "6-0", "7-0", "8-0")
    client.xtrim(name, minid="7-0", approximate=False)
    assert ids(read(redis7.url, name)) == ["7-0", "8-0"], "earliest is what there is"
    assert ids(read(redis7.url, name, startingOffsets="7")) == ["7-0", "8-0"]
    for option in ({"startingOffsets": "5-0"}, {"startingTimestamp": 6}):
        with pytest.raises(EntriesLost, match=r"is now 7-0\); trim later, or set failOnDataLoss"):
            read(redis7.url, name, **option)
        with caplog.at_level("WARNING", logger="millstream.spark"):
            assert ids(read(redis7.url, name, failOnDataLoss=False, **option)) == ["7-0", "8-0"]
        assert "entries from there on were trimmed" in caplog.text
    with pytest.raises(EntriesLost, match="1 entries after it were trimmed") as failed:
        read(redis7.url, name, startingOffsets={name: {"after": "5-0", "added": 1}})
    assert failed.value.lost == 1
    untouched = read(redis7.url, name, startingOffsets={name: {"after": "6-0", "added": 2}})
    assert ids(untouched) == ["7-0", "8-0"], "trimmed up to what was read: nothing is lost"


def test_what_is_trimmed_while_it_is_read_is_noticed(
    redis7: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_redis, "FIRST_ROWS", 10)
    monkeypatch.setattr(source_redis, "MOST_ROWS", 10)
    with open_broker(redis7.url) as broker, redis7.client() as client:
        broker.xadd_many(name, [{"n": n} for n in range(100)])
        for fail in (True, False):
            options = {"url": redis7.url, "stream": name, "failOnDataLoss": str(fail).lower()}
            reader = batch_reader(default_schema(options), options)
            (part,) = reader.partitions()
            batches: Any = reader.read(part)
            seen = next(batches).num_rows
            client.xtrim(name, maxlen=50 if fail else 20, approximate=False)
            if fail:
                with pytest.raises(EntriesLost, match="trimmed while they were read"):
                    list(batches)
            else:
                assert seen + sum(batch.num_rows for batch in batches) < 100


# -- ways to the server ----------------------------------------------------------------------------


def test_a_wrong_password_is_said_without_the_password(name: str) -> None:
    with RedisServer("redis7", password="right") as server:
        with open_broker(server.url) as broker:
            broker.xadd(name, {})
        assert len(read(server.url, name)) == 1
        with pytest.raises(AccessDenied) as failed:
            read(server.url.replace("right", "wr0ng"), name)
        assert "wr0ng" not in str(failed.value)


def test_a_lost_connection_costs_no_entry(
    redis7: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_redis, "MOST_ROWS", 1000)
    with open_broker(redis7.url) as broker:
        added = [i for n in range(5) for i in broker.xadd_many(name, [{"n": n}] * 1000)]
    with TcpProxy(redis7.port) as proxy:
        options = {"url": f"redis://127.0.0.1:{proxy.port}/0", "stream": name}
        reader = batch_reader(default_schema(options), options)
        (part,) = reader.partitions()
        found: list[str] = []
        batches: Any = reader.read(part)
        for number, batch in enumerate(batches):
            found += batch.column("id").to_pylist()
            if number == 1:
                proxy.reset_all()
        assert found == added
        assert proxy.faults


def test_a_cluster(name: str) -> None:
    with RedisCluster(3) as cluster:
        url = f"redis+cluster://{cluster.addresses}"
        with open_broker(url) as broker:
            for part in range(12):
                broker.xadd_many(f"{name}:{part}", [{"n": n} for n in range(50)])
        found = read(url, f"{name}:*", minPartitions=4)
        assert len(found) == 600
        assert len({row["stream"] for row in found}) == 12


def test_tls(name: str, tmp_path: Path) -> None:
    authority, port = trustme.CA(), free_port()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    pem, ca = str(tmp_path / "server.pem"), str(tmp_path / "ca.pem")
    args = ("--tls-port", str(port), "--tls-auth-clients", "no", "--tls-cert-file", pem)
    with RedisServer("redis7", args=(*args, "--tls-key-file", pem, "--tls-ca-cert-file", ca)):
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={ca}"
        with open_broker(url) as broker:
            added = broker.xadd_many(name, [{"n": n, "pad": "x" * 200} for n in range(12_000)])
        assert ids(read(url, name)) == added


@pytest.mark.parametrize("flavour", ["redis8", "valkey"])
def test_other_servers(flavour: str, name: str, request: pytest.FixtureRequest) -> None:
    server: RedisServer = request.getfixturevalue(flavour)
    with open_broker(server.url) as broker:
        added = broker.xadd_many(name, [{"n": n} for n in range(2500)])
    assert sorted(ids(read(server.url, name, minPartitions=4))) == sorted(added)
    assert sorted(ids(read(server.url + "?protocol=2", name))) == sorted(added)


# -- history ---------------------------------------------------------------------------------------


def test_the_history_of_jobs_is_typed_and_complete(redis7: RedisServer, name: str) -> None:
    records = [
        Record(job_id="a", type="mail", state="completed", at=5.5, seconds=0.25),
        Record(
            job_id="b", type="mail", state="failed", at=6.5, queue="q", attempt=3, error="E: \n", tags=["x"],
            headers={"tenant": "t"}, payload='{"user": 7}', replay_of="a",
        ),
    ]  # fmt: skip
    with open_broker(redis7.url) as broker:
        for record in records:
            broker.xadd(f"{name}:history", msgspec.to_builtins(record))
    found = read(redis7.url, history=True, prefix=name)
    assert [row["headers"] for row in found] == [[], [("tenant", "t")]]
    rows = [row | {"headers": dict(row["headers"])} for row in found]
    plain = [{key: value for key, value in row.items() if value is not None} for row in rows]
    assert [msgspec.convert(row, Record) for row in plain] == records
    schema = columns(type="string", at="double", _id="string")
    some = read(redis7.url, None, schema, history=True, prefix=name)
    assert [(row["type"], row["at"]) for row in some] == [("mail", 5.5), ("mail", 6.5)]


def test_two_readers_at_once(redis7: RedisServer, name: str) -> None:
    with open_broker(redis7.url) as broker:
        broker.xadd_many(name, [{"n": n} for n in range(3000)])
    found: list[int] = []

    def count() -> None:
        found.append(sum(map(len, read_parts(redis7.url, name, minPartitions=2))))

    readers = [threading.Thread(target=count) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [3000] * 3
