"""Entries become visible in the order of their ids: no reader passes one whose transaction commits late."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from millstream.brokers.sql import SqlStreamBroker
from millstream.sql.schema import pack_id
from tests.contract.streams.helpers import GROUP, Background, ids, key_of, until
from tests.integration.sql.conftest import Open, apart
from tests.servers import MariaDbServer, PostgresServer

ROOT = Path(__file__).parents[3]
ADD = """
import sys, threading
from millstream import open_broker
url, stream, threads, each = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
broker = open_broker(url)
def add(number):
    for n in range(each):
        if n % 10 == 9:
            broker.xadd_many(stream, [{"n": n}] * 3)
        else:
            broker.xadd(stream, {"n": n})
workers = [threading.Thread(target=add, args=(number,)) for number in range(threads)]
for worker in workers: worker.start()
for worker in workers: worker.join()
broker.close()
"""
PROCESSES, THREADS, EACH = 2, 8, 20
TOTAL = PROCESSES * THREADS * (EACH + EACH // 10 * 2)


class Tailer:
    """Reads on from the last id that it has seen, as a program that follows a stream does."""

    def __init__(self, broker: SqlStreamBroker, stream: str) -> None:
        self._broker, self._stream, self.seen = broker, stream, list[str]()

    def look(self) -> None:
        after = "(" + self.seen[-1] if self.seen else "-"
        self.seen += ids(self._broker.xrange(self._stream, after, count=50))


def test_nobody_misses_an_entry_of_sixteen_concurrent_adders(url: str, opened: Open, stream: str) -> None:
    broker = opened(url, synchronous="normal") if url.startswith("sqlite") else opened(url)
    broker.create_group(stream, GROUP, "0")
    stop = threading.Event()

    def tail() -> list[str]:
        tailer = Tailer(broker, stream)
        while not (stop.is_set() and len(tailer.seen) >= broker.xlen(stream)):
            tailer.look()
            time.sleep(0.002)  # leaves the processor to those who add
        return tailer.seen

    def follow() -> list[str]:
        seen = ["0-0"]
        while not stop.is_set() or broker.xrange(stream, "(" + seen[-1], count=1):
            seen += ids(broker.xread({stream: seen[-1]}, 100, 50))
        return seen[1:]

    def consume() -> list[str]:
        seen: list[str] = []
        while not stop.is_set() or broker.group_info(stream)[0].lag:
            messages = broker.xreadgroup(GROUP, "c", stream, 20, 50)
            seen += ids(messages)
            broker.xack(stream, GROUP, ids(messages))
        return seen

    readers = [Background(tail), Background(follow), Background(consume)]
    adders = [
        subprocess.Popen(
            [sys.executable, "-c", ADD, url, stream, str(THREADS), str(EACH)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        for _ in range(PROCESSES)
    ]
    try:
        assert [adder.wait(90) for adder in adders] == [0] * PROCESSES
    finally:
        for adder in adders:
            adder.kill()
        stop.set()
    everything = ids(broker.xrange(stream))
    assert len(everything) == TOTAL
    assert everything == sorted(set(everything), key=key_of)
    for reader in readers:
        assert reader.result(60) == everything


def test_an_addition_that_is_held_open_holds_back_the_next(url: str, opened: Open, stream: str) -> None:
    broker, other = opened(url), opened(url, **apart(1))
    broker.create_group(stream, GROUP, "0")
    tailer = Tailer(broker, stream)
    first = broker.xadd(stream, {"n": 0})
    inserted, release = threading.Event(), threading.Event()

    def add_slowly() -> str:
        def work(connection: object) -> str:
            added, _ = other._adder._add(connection, stream, "*", [b"{}"])  # type: ignore[arg-type]
            inserted.set()
            assert release.wait(30)
            return added[0]

        return other._database.write(work, repeat=False)

    slow = Background(add_slowly)
    assert inserted.wait(10)
    fast = Background(broker.xadd, stream, {"n": 2})
    time.sleep(0.2)  # long enough for an addition that does not wait; the assertions below say what matters
    assert not fast.done
    tailer.look()
    assert tailer.seen == [first]
    if not url.startswith("sqlite"):  # there a delivery waits for the one writer that a file can have
        assert ids(broker.xreadgroup(GROUP, "c", stream, 10)) == [first]
    release.set()
    late, last = slow.result(), fast.result()
    assert key_of(late) < key_of(last)
    tailer.look()
    assert tailer.seen == [first, late, last]
    read = ids(broker.xpending(stream, GROUP)) + ids(broker.xreadgroup(GROUP, "c", stream, 10))
    assert read == [first, late, last]


def test_without_the_lock_a_reader_would_miss_the_late_entry(
    server: PostgresServer | MariaDbServer, opened: Open, stream: str
) -> None:
    """The control: the same tailer, and two additions that do not lock the stream's row."""
    broker = opened(server.url)
    broker.xadd(stream, {}, id="1-0")
    number = broker._database.read(
        lambda connection: connection.execute(broker._sql.stream, {"stream": stream}).scalar_one()
    )
    statement = "INSERT INTO millstream_entries (stream_id, id, data) VALUES (%s, %s, '{}')"
    tailer = Tailer(broker, stream)
    with server.connect() as late, server.connect() as early:
        late.cursor().execute("BEGIN")
        late.cursor().execute(statement, (number, pack_id((2, 0))))
        early.cursor().execute(statement, (number, pack_id((3, 0))))
        tailer.look()
        late.cursor().execute("COMMIT")
    tailer.look()
    assert tailer.seen == ["1-0", "3-0"]
    assert ids(broker.xrange(stream)) == ["1-0", "2-0", "3-0"]


@pytest.mark.parametrize("read_while", ["nothing", "the next one"])
def test_a_group_goes_on_after_a_rolled_back_addition(
    url: str, opened: Open, stream: str, read_while: str
) -> None:
    broker = opened(url)
    broker.create_group(stream, GROUP, "0")

    def work(connection: object) -> None:
        broker._adder._add(connection, stream, "*", [b"{}"])  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broker._database.write(work, repeat=False)
    if read_while == "nothing":
        assert broker.xreadgroup(GROUP, "c", stream) == []
    added = broker.xadd(stream, {"n": 1})
    assert ids(until(lambda: broker.xreadgroup(GROUP, "c", stream), "the entry")) == [added]
    assert broker.xlen(stream) == 1
