"""The Redis broker while its server and its network fail. Each test proves that its fault fired.

MILLSTREAM_FAULTS=long, which `make faults` sets, runs each for longer.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from millstream import open_broker
from millstream.errors import BrokerUnavailable, OutcomeUnknown
from tests.conftest import LONG
from tests.servers import RedisServer, TcpProxy

ADDITIONS = 3000 if LONG else 150
KILLS = 12 if LONG else 2
GROUP = "workers"


@pytest.fixture
def proxy(redis_flavour: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(redis_flavour.port) as proxy:
        yield proxy


def url_of(proxy: TcpProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


def lose_some_replies(proxy: TcpProxy, number: int, chance: random.Random) -> None:
    """Every few additions, the reply to the next command is lost or cut."""
    if number % 5 == 0:
        if chance.random() < 0.7:
            proxy.drop_next_reply()
        else:
            proxy.cut_replies_after(3)


def test_keyed_additions_are_added_once_though_replies_are_lost(
    proxy: TcpProxy, redis_flavour: RedisServer, request: pytest.FixtureRequest
) -> None:
    stream, chance = request.node.name, random.Random(1)
    with open_broker(url_of(proxy)) as broker, open_broker(redis_flavour.url) as behind:
        behind.delete_stream(stream)
        for number in range(ADDITIONS):
            lose_some_replies(proxy, number, chance)
            broker.xadd(stream, {"n": number}, key=f"{stream}-{number}")
        proxy.heal()
        assert [message.data["n"] for message in behind.xrange(stream)] == list(range(ADDITIONS))
        assert proxy.faults["dropped_replies"] + proxy.faults["cut_replies"] >= ADDITIONS // 10
        behind.delete_stream(stream)


def test_additions_without_a_key_say_when_they_do_not_know(
    proxy: TcpProxy, redis_flavour: RedisServer, request: pytest.FixtureRequest
) -> None:
    """The control: the same faults do show, as OutcomeUnknown and never as a silent second entry."""
    stream, unknown = request.node.name, 0
    with open_broker(url_of(proxy)) as broker, open_broker(redis_flavour.url) as behind:
        behind.delete_stream(stream)
        for number in range(ADDITIONS // 5):
            proxy.drop_next_reply(b"XADD")
            try:
                broker.xadd(stream, {"n": number})
            except OutcomeUnknown:
                unknown += 1
        proxy.heal()
        counts = Counter(message.data["n"] for message in behind.xrange(stream))
        assert unknown == proxy.faults["dropped_replies"] == ADDITIONS // 5
        assert set(counts.values()) == {1}
        behind.delete_stream(stream)


def test_a_client_that_repeats_by_itself_adds_twice(proxy: TcpProxy, redis_flavour: RedisServer) -> None:
    """The control for the proxy: bare redis-py with its default retries leaves duplicates under it."""
    stream = "bare-control"
    with redis_flavour.client() as behind, redis.Redis(port=proxy.port) as bare:
        behind.delete(stream)
        bare.ping()
        for number in range(5):
            proxy.drop_next_reply(b"XADD")
            bare.xadd(stream, {"n": number})
        assert proxy.faults["dropped_replies"] == 5
        assert behind.xlen(stream) > 5
        behind.delete(stream)


def killed_again_and_again(*arguments: str) -> tuple[set[int], set[int]]:
    """Add while the server is killed and started again; what was answered, and what was delivered."""
    with RedisServer("redis7", args=arguments) as server, open_broker(server.url, retry_for=20.0) as broker:
        answered: set[int] = set()
        enough = threading.Event()
        steps = threading.Semaphore(0)

        def produce() -> None:
            number = 0
            while not enough.is_set():
                try:
                    broker.xadd("s", {"n": number}, key=f"k{number}")
                    answered.add(number)
                    steps.release()
                except BrokerUnavailable:
                    pass  # the same number is not tried again: it may or may not be there
                number += 1

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for crash in range(KILLS + 1):
                for _ in range(50):  # some answered additions between two crashes
                    assert steps.acquire(timeout=30)
                if crash < KILLS:
                    pid = server.pid
                    server.kill()
                    assert server.start().pid != pid
        finally:
            enough.set()
            producer.join()
        broker.create_group("s", GROUP, "0")
        delivered: set[int] = set()
        while messages := broker.xreadgroup(GROUP, "a", "s", 100):
            delivered |= {message.data["n"] for message in messages}
            broker.xack("s", GROUP, [message.id for message in messages])
    assert len(answered) >= 50 * (KILLS + 1)
    return answered, delivered


def test_every_answered_addition_is_delivered_though_the_server_is_killed() -> None:
    """With an append-only file that is written at every command, nothing that was answered is lost."""
    answered, delivered = killed_again_and_again("--appendonly", "yes", "--appendfsync", "always")
    assert answered <= delivered, f"lost: {sorted(answered - delivered)[:10]}"


def test_without_an_append_only_file_the_loss_is_seen() -> None:
    """The control: the same run on a server that keeps nothing must report what it lost."""
    answered, delivered = killed_again_and_again("--appendonly", "no")
    assert answered - delivered
