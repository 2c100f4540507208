"""Staging and publishing, on every backend: whoever crashes when, a row arrives once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from millstream import open_broker
from millstream.errors import BrokerFull, StagedDataLost, WrongType
from millstream.spark.sink import batch_writer, blocks, redis, staging
from millstream.spark.sink.staging import give_up, publish_once
from tests.servers import RedisCluster, RedisServer, TcpProxy
from tests.spark.sinks import Crash, Place, crash_at

ROWS = list(range(35))
BACKENDS = ("redis7", "valkey", "sqlite", "postgres", "mariadb")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows a block, so that a few rows take several steps."""
    monkeypatch.setattr(blocks, "ROWS", 10)
    monkeypatch.setattr("millstream.spark.sink.task.ROWS", 10)


@pytest.fixture(params=[*BACKENDS, "redis7 jobs", "sqlite jobs", "postgres jobs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    backend, _, kind = request.param.partition(" ")
    if backend == "sqlite":
        url = f"sqlite:///{tmp_path}/sink.db"
    else:
        url = request.getfixturevalue(backend).url
        if backend in ("postgres", "mariadb"):
            open_broker(url, create=True).close()
    with Place(url, jobs=bool(kind)).kept_open() as made:
        yield made


def write(place: Place, fence: str, batch: int, rows: list[int], tasks: int = 2) -> None:
    stages = place.stage(fence, batch, rows, tasks)
    with place.target() as target:
        publish_once(target, fence, batch, stages)


def test_rows_arrive_once_and_in_their_order(place: Place) -> None:
    write(place, place.name, 0, ROWS)
    assert place.found() == ROWS


def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing(place: Place) -> None:
    crashes, step = 0, 1
    while True:
        for after in (False, True):
            fence = f"{place.name}-{step}-{after}"
            before = len(place.found())
            stages = place.stage(fence, 0, ROWS, 2)
            with place.target() as target:
                crash_at(target, step, after=after)
                try:
                    publish_once(target, fence, 0, stages)
                except Crash:
                    crashes += 1
                else:
                    assert crashes >= 2 * 9, "steps must have been interrupted"
                    return
            if place.jobs:
                place.run_jobs()  # what was pushed by then is run, and gone, before the driver comes back
            # The driver comes back; Spark has made the batch anew, and cut it otherwise.
            write(place, fence, 0, ROWS, tasks=3)
            assert place.found()[before:] == ROWS, f"after a crash at step {step} ({after=})"
        step += 1


def test_two_drivers_at_once_publish_every_row_once(place: Place) -> None:
    rows = list(range(300))
    stages = place.stage(place.name, 0, rows, 2)
    begin = threading.Barrier(2)
    failed: list[BaseException] = []

    def drive(own: list[Any]) -> None:
        try:
            with place.target() as target:
                begin.wait()
                publish_once(target, place.name, 0, own)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    threads = [
        threading.Thread(target=drive, args=(own,)) for own in (stages, place.stage(place.name, 0, rows, 3))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(place.found()) == rows


def test_a_driver_that_comes_back_late_does_nothing(place: Place) -> None:
    stages = place.stage(place.name, 0, ROWS, 2)
    with place.target() as late:
        late.hold(stages)
        begun = late.begin(place.name, 0, staging.Manifest(0, tuple(stages)))
        assert begun is not None
        assert begun.manifest is not None
        write(place, place.name, 0, ROWS)  # another driver finishes it
        staging._publish(late, place.name, begun.manifest)  # and the first one goes on where it was
        late.discard(stages)
    assert place.found() == ROWS


def test_a_batch_that_is_repeated_adds_nothing_and_the_next_one_does(place: Place) -> None:
    write(place, place.name, 4, ROWS)
    write(place, place.name, 4, ROWS, tasks=3)
    write(place, place.name, 3, [1000])  # an older one: done as well
    assert place.found() == ROWS
    write(place, place.name, 5, [100, 101])
    assert place.found() == [*ROWS, 100, 101]


def test_an_empty_batch_is_done(place: Place) -> None:
    with place.target() as target:
        publish_once(target, place.name, 0, [])
        assert target.begin(place.name, 0, None) == staging.Begun(None)
    assert place.found() == []


def test_what_is_gone_before_the_commit_fails_the_write(place: Place) -> None:
    stages = place.stage(place.name, 0, ROWS, 2)
    with place.target() as target:
        target.discard(stages[1:])
        with pytest.raises(StagedDataLost, match="nothing of this write was"):
            publish_once(target, place.name, 0, stages)
    assert place.found() == []
    write(place, place.name, 0, ROWS)  # Spark repeats the batch
    assert place.found() == ROWS


def test_what_is_gone_while_it_is_published_is_not_taken_for_done(place: Place) -> None:
    stages = place.stage(place.name, 0, ROWS, 2)
    with place.target() as target:
        target.hold(stages)
        target.begin(place.name, 0, staging.Manifest(0, tuple(stages)))
        target.discard(stages[1:])
        with pytest.raises(StagedDataLost, match="while it was published"):
            publish_once(target, place.name, 0, stages)


def test_giving_up_removes_what_was_staged_but_not_what_is_being_published(place: Place) -> None:
    stages, others = place.stage(place.name, 0, ROWS, 2), place.stage(place.name, 0, ROWS, 2)
    with place.target() as target:
        give_up(target, place.name, 0, others)
        with pytest.raises(StagedDataLost):
            target.hold(others)
        target.hold(stages)
        target.begin(place.name, 0, staging.Manifest(0, tuple(stages)))
        give_up(target, place.name, 0, stages)  # abort() after a commit() that failed
        publish_once(target, place.name, 0, stages)
    assert place.found() == ROWS


def test_nothing_stays_behind(redis7: RedisServer) -> None:
    place = Place(redis7.url)
    with redis7.client() as client:
        before = set(client.keys())
        write(place, place.name, 0, ROWS)
        place.stage(place.name, 1, ROWS, 1)  # a task whose driver never came
        left = {key.decode() for key in set(client.keys()) - before}
        stages = {key for key in left if ":stage:" in key}
        assert left - stages == {place.name, f"millstream:sink:{place.name}"}
        assert len(stages) == 1
        assert all(client.ttl(key) > 80_000 for key in stages)
        assert client.ttl(f"millstream:sink:{place.name}") > 2_000_000


def test_expired_stages_are_swept_from_a_database(tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path}/sink.db")
    place.options["stageTtl"] = "1"
    place.stage("lost", 0, ROWS, 1)
    with place.target() as target:
        later = target._now
        target._now = lambda connection: later(connection) + 2000  # type: ignore[method-assign]
        count = "SELECT count(*) FROM millstream_sink_blocks"
        blocks_left = target._database.read(lambda connection: connection.exec_driver_sql(count).scalar())
        assert blocks_left == 4
        target._purge()
        assert target._database.read(lambda connection: connection.exec_driver_sql(count).scalar()) == 0


@pytest.mark.parametrize("script", ["STAGE", "HOLD", "BEGIN", "PUBLISH", "FINISH"])
@pytest.mark.parametrize("jobs", [False, True], ids=["entries", "jobs"])
def test_a_lost_reply_is_survived(redis7: RedisServer, script: str, jobs: bool) -> None:
    name = "PUBLISH_JOBS" if jobs and script == "PUBLISH" else script
    with TcpProxy(redis7.port) as proxy:
        place = Place(f"redis://127.0.0.1:{proxy.port}/0", jobs=jobs)
        write(place, f"{place.name}-warm", 0, [-1])  # the server knows the scripts
        proxy.drop_next_reply(getattr(redis, name).digest.encode())
        write(place, place.name, 0, ROWS)
        assert proxy.faults["dropped_replies"] == 1
        assert place.found() == [-1, *ROWS]


def test_a_full_server_refuses_and_the_write_goes_on_later() -> None:
    with RedisServer("redis7") as server, server.client() as client:
        place = Place(server.url)
        stages = place.stage(place.name, 0, ROWS, 1)
        with place.target() as target:
            client.config_set("maxmemory", "1mb")
            with pytest.raises(BrokerFull):
                publish_once(target, place.name, 0, stages)
            client.config_set("maxmemory", "0")
            target.hold(stages)
            target.begin(place.name, 0, staging.Manifest(0, tuple(stages)))
            client.config_set("maxmemory", "1mb")
            with pytest.raises(BrokerFull):
                target.publish(stages[0])
            client.config_set("maxmemory", "0")
            publish_once(target, place.name, 0, stages)
        assert place.found() == ROWS


def test_a_stream_is_trimmed_where_the_url_says_so(redis7: RedisServer) -> None:
    place = Place(f"{redis7.url}?max_stream_length=20")
    write(place, place.name, 0, ROWS)
    assert place.found() == ROWS[-20:]


def test_a_key_that_is_no_stream_is_told_and_nothing_is_lost(redis7: RedisServer) -> None:
    place = Place(redis7.url)
    with redis7.client() as client, place.target() as target:
        client.set(place.name, "mine")
        stages = place.stage(place.name, 0, ROWS, 1)
        with pytest.raises(WrongType):
            publish_once(target, place.name, 0, stages)
        client.delete(place.name)
        publish_once(target, place.name, 0, stages)
    assert place.found() == ROWS


def test_jobs_on_a_key_that_is_no_stream_stay_staged(redis7: RedisServer) -> None:
    place = Place(redis7.url, jobs=True)
    with redis7.client() as client, place.target() as target:
        wrong = f"{{millstream:{place.name}}}:default"
        client.set(wrong, "mine")
        stages = place.stage(place.name, 0, ROWS, 1)
        with pytest.raises(WrongType):
            publish_once(target, place.name, 0, stages)
        client.delete(wrong)
        publish_once(target, place.name, 0, stages)
    assert place.found() == ROWS


def test_a_cluster_takes_rows_for_streams_in_all_its_slots() -> None:
    with RedisCluster(3) as cluster:
        url = f"redis+cluster://{cluster.addresses}"
        schema = StructType().add("n", LongType()).add("to", StringType())
        writer = batch_writer(schema, {"url": url, "streamColumn": "to"}, False)
        names = [f"events:{n % 12}" for n in range(240)]
        rows = pa.record_batch({"n": pa.array(range(240)), "to": pa.array(names)})
        message = writer.write(iter([rows]))
        assert len(message.stages) > 3
        writer.commit([message, None])
        writer.commit([writer.write(iter([rows]))])  # the same write once more: nothing
        broker = open_broker(url)
        try:
            found = {name: [entry.data["n"] for entry in broker.xrange(name)] for name in set(names)}
        finally:
            broker.close()
        assert found == {f"events:{k}": list(range(k, 240, 12)) for k in range(12)}

        place = Place(url, jobs=True)
        write(place, place.name, 0, ROWS)
        assert place.found() == ROWS


def test_a_block_is_unpacked_as_it_was_packed() -> None:
    items = [b"", b"a", b"\xff" * 300, "é".encode()]
    assert blocks.unpack(blocks.pack(items)) == items


def test_large_rows_are_cut_into_small_blocks(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BYTES", 1000)
    texts = pa.array(["x" * 300] * 7 + ["y" * 5000] + ["z"] * 3)
    found = list(blocks.plain_blocks(texts))
    assert [rows for _, rows in found] == [3, 3, 1, 1, 3]
    assert [item.decode() for block, _ in found for item in blocks.unpack(block)[1:]] == texts.to_pylist()
