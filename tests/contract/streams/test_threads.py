"""One broker in many threads."""

from __future__ import annotations

import threading
from collections import Counter

from millstream import StreamBroker
from tests.contract.streams.helpers import GROUP, Background, deliver, fill, ids, key_of

THREADS = 8


def test_every_entry_is_delivered_once_to_its_group(broker: StreamBroker, stream: str) -> None:
    each = 100
    broker.create_group(stream, GROUP, "0")
    broker.create_group(stream, "audit", "0")
    seen: Counter[tuple[str, str]] = Counter()
    lock = threading.Lock()
    all_added = threading.Event()
    total = THREADS * each

    def produce(number: int) -> list[str]:
        return [broker.xadd(stream, {"from": number, "n": n}) for n in range(each)]

    def consume(group: str, name: str) -> None:
        while True:
            last_round = all_added.is_set()
            messages = broker.xreadgroup(group, name, stream, 7, 20)
            with lock:
                for message in messages:
                    seen[group, message.id] += 1
            assert broker.xack(stream, group, ids(messages)) == len(messages)
            if last_round and not messages:
                return

    producers = [Background(produce, number) for number in range(THREADS)]
    consumers = [
        Background(consume, group, f"c{number}")
        for group in (GROUP, "audit")
        for number in range(THREADS // 2)
    ]
    added = [entry_id for producer in producers for entry_id in producer.result(60)]
    all_added.set()
    for consumer in consumers:
        consumer.result(60)
    assert len(set(added)) == total
    assert set(seen) == {(group, entry_id) for group in (GROUP, "audit") for entry_id in added}
    assert set(seen.values()) == {1}
    assert ids(broker.xrange(stream)) == sorted(added, key=key_of)
    for group in broker.group_info(stream):
        assert (group.pending, group.lag) == (0, 0)


def test_the_ids_of_one_thread_grow(broker: StreamBroker, stream: str) -> None:
    calls = [
        Background(lambda: [broker.xadd(stream, {}) for _ in range(50)] + fill(broker, stream, 50))
        for _ in range(6)
    ]
    for call in calls:
        added = call.result(60)
        assert added == sorted(added, key=key_of)


def test_one_entry_is_claimed_by_one_of_many(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 50, consumer="dead")
    barrier = threading.Barrier(THREADS)
    hour = 3_600_000

    def claim(name: str) -> list[str]:
        barrier.wait(10)
        # Idle entries are only known to be idle before anybody claims them: ask for what nobody took yet.
        won = []
        for entry_id in added:
            won += ids(broker.xclaim(stream, GROUP, name, 0, entry_id))
            assert broker.xclaim(stream, GROUP, name, hour, entry_id) == []
        return won

    for call in [Background(claim, f"c{number}") for number in range(THREADS)]:
        assert call.result(60) == added
    assert {entry.delivery_count for entry in broker.xpending(stream, GROUP)} == {THREADS + 1}


def test_one_acknowledgement_counts_once_among_many(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 100)
    barrier = threading.Barrier(THREADS)

    def settle() -> int:
        barrier.wait(10)
        return sum(broker.xack(stream, GROUP, entry_id) for entry_id in added)

    assert sum(call.result(60) for call in [Background(settle) for _ in range(THREADS)]) == 100


def test_deletions_count_once_among_many(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 200)

    def remove() -> int:
        return sum(broker.xdel(stream, added[at : at + 5]) for at in range(0, 200, 5))

    assert sum(call.result(60) for call in [Background(remove) for _ in range(THREADS)]) == 200
    assert broker.xlen(stream) == 0


def test_a_group_is_created_once_by_many(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 10)
    for call in [Background(broker.create_group, stream, GROUP, "0") for _ in range(THREADS)]:
        call.result()
    assert len(broker.group_info(stream)) == 1
    readers = [Background(broker.xreadgroup, GROUP, f"c{n}", stream, 2) for n in range(THREADS)]
    assert sum(len(reader.result()) for reader in readers) == 10


def test_many_readers_share_what_one_writer_adds(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    total = 200
    left = threading.Semaphore(total)

    def read(name: str) -> list[str]:
        got = []
        while left.acquire(blocking=False):
            got += ids(broker.xreadgroup(GROUP, name, stream, 1, None))
        return got

    readers = [Background(read, f"c{number}") for number in range(THREADS)]
    added = [broker.xadd(stream, {}) for _ in range(total)]
    got = [entry_id for reader in readers for entry_id in reader.result(60)]
    assert sorted(got, key=key_of) == added
