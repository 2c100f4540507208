"""What is the local broker's own: the clock, the automatic length, what it keeps."""

from __future__ import annotations

import threading

import pytest

from millstream import LocalStreamBroker
from millstream.errors import BrokerClosed, InvalidInput


def test_ids_grow_though_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000_000
    monkeypatch.setattr("millstream.brokers.local.broker.time_ns", lambda: now * 1_000_000)
    broker = LocalStreamBroker()
    assert broker.xadd("s", {}) == "1700000000000-0"
    assert broker.xadd("s", {}) == "1700000000000-1"
    now -= 5000
    assert broker.xadd("s", {}) == "1700000000000-2"
    assert broker.xadd_many("s", [{}, {}]) == ["1700000000000-3", "1700000000000-4"]
    now += 5001
    assert broker.xadd("s", {}) == "1700000000001-0"


def test_a_stream_keeps_ten_thousand_entries_by_default() -> None:
    broker = LocalStreamBroker()
    broker.xadd_many("s", [{"n": number} for number in range(10_500)])
    assert broker.xlen("s") == 10_000
    assert broker.xrange("s", count=1)[0].data == {"n": 500}


def test_the_automatic_length_spares_unread_and_unacknowledged_work() -> None:
    broker = LocalStreamBroker(max_stream_length=10)
    broker.create_group("s", "g", "0")
    for number in range(30):
        broker.xadd("s", {"n": number})
    assert broker.xlen("s") == 30
    messages = broker.xreadgroup("g", "a", "s", 25)
    broker.xack("s", "g", [message.id for message in messages[:20]])
    broker.xadd("s", {"n": 30})
    assert [message.data["n"] for message in broker.xrange("s")] == list(range(20, 31))
    broker.xack("s", "g", [message.id for message in messages[20:]])
    broker.xadd("s", {"n": 31})
    assert broker.xlen("s") == 10


def test_none_keeps_everything() -> None:
    broker = LocalStreamBroker(max_stream_length=None)
    broker.xadd_many("s", [{}] * 10_500)
    assert broker.xlen("s") == 10_500


@pytest.mark.parametrize("bad", [-1, 1.5, "10", True])
def test_an_impossible_length_is_refused(bad: int) -> None:
    with pytest.raises(InvalidInput):
        LocalStreamBroker(max_stream_length=bad)


def test_brokers_share_nothing() -> None:
    one, two = LocalStreamBroker(), LocalStreamBroker()
    one.xadd("s", {})
    assert two.xlen("s") == 0


def test_closing_wakes_who_waits() -> None:
    broker = LocalStreamBroker()
    broker.create_group("s", "g")
    outcomes: list[BaseException] = []

    def read() -> None:
        try:
            broker.xreadgroup("g", "a", "s", 1, None)
        except BrokerClosed as error:
            outcomes.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    broker.close()  # before or after it began to wait: the answer is the same
    reader.join(10)
    assert not reader.is_alive()
    assert len(outcomes) == 1
