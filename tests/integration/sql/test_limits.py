"""Trimming by itself, forgetting keys, large entries, forks."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import text

from millstream.brokers.sql import adding
from millstream.errors import BrokerError
from tests.contract.streams.helpers import GROUP, ids
from tests.integration.sql.conftest import Open
from tests.servers import MariaDbServer


def test_a_stream_is_trimmed_by_itself_now_and_then(url: str, opened: Open, stream: str) -> None:
    broker = opened(url, max_stream_length=100)
    for _ in range(8):
        broker.xadd_many(stream, [{}] * 30)
        assert broker.xlen(stream) <= 100 + 30 + 5
    for _ in range(10):
        broker.xadd(stream, {})
    assert 100 <= broker.xlen(stream) <= 105


def test_trimming_by_itself_spares_what_a_group_needs(url: str, opened: Open, stream: str) -> None:
    broker = opened(url, max_stream_length=20)
    broker.create_group(stream, GROUP, "0")
    broker.xadd_many(stream, [{}] * 50)
    assert broker.xlen(stream) == 50
    messages = broker.xreadgroup(GROUP, "c", stream, 40)
    broker.xack(stream, GROUP, ids(messages))
    broker.xadd_many(stream, [{}] * 2)
    assert broker.xlen(stream) == 20


def test_a_long_trim_goes_in_steps(
    url: str, opened: Open, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "TRIM_STEP", 100)
    broker = opened(url)
    added = broker.xadd_many(stream, [{}] * 1000)
    assert broker.xtrim(stream, 450) == 550
    assert broker.xtrim(stream, min_id=added[900]) == 350
    assert ids(broker.xrange(stream)) == added[900:]
    broker.xadd(stream, {}, maxlen=0)
    assert broker.xlen(stream) == 0


def test_old_keys_are_forgotten_in_the_table_too(
    url: str, opened: Open, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "PURGE_EVERY", 10)
    broker = opened(url, key_ttl=0.001, prefix="purge_")
    for number in range(40):
        broker.xadd(stream, {}, key=f"k{number}")
    left = broker._database.read(lambda c: c.execute(text("SELECT COUNT(*) FROM purge_keys")).scalar_one())
    assert left <= 20


def test_entries_of_many_megabytes(url: str, opened: Open, stream: str) -> None:
    broker = opened(url, max_payload=64 * 1024 * 1024)
    broker.xadd(stream, {"text": "x" * 6_000_000})
    broker.xadd_many(stream, [{"text": "y" * 1_500_000}] * 10)
    assert [len(message.data["text"]) for message in broker.xrange(stream)] == [6_000_000] + [1_500_000] * 10


def test_an_entry_over_the_servers_limit_is_refused_in_words(
    mariadb: MariaDbServer, opened: Open, stream: str
) -> None:
    broker = opened(mariadb.url, max_payload=64 * 1024 * 1024)
    with pytest.raises(BrokerError, match="max_allowed_packet"):
        broker.xadd(stream, {"text": "x" * 20_000_000})
    broker.xadd(stream, {})
    assert broker.xlen(stream) == 1


@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # of threads and forks, from Python 3.12 on
def test_a_forked_child_has_connections_of_its_own(url: str, opened: Open, stream: str) -> None:
    broker = opened(url)
    broker.create_group(stream, GROUP, "0")
    broker.xadd(stream, {"n": 1})
    broker.xreadgroup(GROUP, "a", stream, 1, 20)
    child = os.fork()
    if child == 0:
        try:
            broker.xadd(stream, {"n": 2})
            assert len(broker.xreadgroup(GROUP, "b", stream, 5, 5000)) >= 1
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child must not run the rest of the tests
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    broker.xadd(stream, {"n": 3})
    assert broker.xlen(stream) == 3
