"""The history stream, on every broker that jobs can be on."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream import Queue, open_broker
from millstream.config import check_connection_options
from millstream.drivers.base import Settlement
from millstream.errors import ConfigurationError, InvalidName
from millstream.history import STATES, HistoryOptions, Record, history_options
from millstream.recording import stream as stream_module
from tests.archive.conftest import OpenArchive, OpenQueue
from tests.archive.jobs import Note, until
from tests.servers import RedisServer, TcpProxy


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Note.ran.clear()


@pytest.fixture(params=("memory", "redis7", "valkey", "sqlite", "postgres", "mariadb"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(request.param).url
    return found


def opened(open_queue: OpenQueue, url: str, prefix: str, **options: Any) -> Queue:
    if url.startswith(("postgresql", "mysql", "mariadb")):
        options["create"] = True
    return open_queue(url, **{"prefix": prefix, "history": True, **options})


def records(queue: Queue) -> list[Record]:
    """The history as its entries say it."""
    assert queue.recorder is not None
    sink: Any = queue.recorder.outlets["history"].sink
    return [msgspec.convert(message.data, Record) for message in sink.broker.xrange(sink.stream)]


def test_each_change_is_an_entry(open_queue: OpenQueue, url: str, prefix: str) -> None:
    queue = opened(open_queue, url, prefix)
    good = queue.push(Note(number=1, how="fail once"))
    bad, gone = queue.push_many([Note(number=2, how="bury"), Note(number=3, how="cancel")])
    with queue.worker(["notes"], poll=0.05):
        assert queue.drain(["notes"], timeout=30)
    assert queue.flush()
    found = records(queue)
    story = {
        job_id: [record.state for record in found if record.job_id == job_id] for job_id in (good, bad, gone)
    }
    assert story == {
        good: ["enqueued", "retried", "completed"],
        bad: ["enqueued", "failed"],
        gone: ["enqueued", "cancelled"],
    }
    completed = next(record for record in found if record.state == "completed")
    assert completed.attempt == 2
    assert completed.seconds is not None
    assert completed.worker
    assert all(record.state in STATES for record in found)


def test_other_programs_find_it_beside_the_queues(
    open_queue: OpenQueue, redis7: RedisServer, prefix: str
) -> None:
    queue = opened(open_queue, redis7.url, prefix)
    job_id = queue.push(Note())
    assert queue.flush()
    with open_broker(redis7.url) as broker:
        (message,) = broker.xrange(f"{prefix}:history")
    assert message.data["job_id"] == job_id
    with redis7.client() as client:
        ((_, fields),) = client.xrange(f"{prefix}:history")
    assert set(fields) == {b"data"}


def test_it_is_off_by_default(open_queue: OpenQueue, redis7: RedisServer, prefix: str) -> None:
    queue = open_queue(redis7.url, prefix=prefix)
    queue.push(Note())
    assert queue.recorder is None
    assert queue.flush()
    with redis7.client() as client:
        assert client.exists(f"{prefix}:history") == 0
    assert not hasattr(queue.driver, "inner")  # nothing stands between a push and its driver


def test_a_refused_settlement_is_not_recorded(open_queue: OpenQueue, url: str, prefix: str) -> None:
    queue = opened(open_queue, url, prefix)
    job_id = queue.push(Note())
    assert queue.driver.reserve(["notes"], "zombie", 1)
    time.sleep(0.06)
    (stale,) = queue.driver.recover(["notes"], "heir", 0.05) or queue.driver.recover(["notes"], "heir", 0.05)
    zombie = msgspec.structs.replace(stale, owner="zombie", delivery_count=1)
    assert queue.driver.settle([Settlement(zombie, "complete"), Settlement(stale, "release")]) == [
        False,
        True,
    ]
    assert queue.flush()
    assert [(record.job_id, record.state) for record in records(queue)] == [
        (job_id, "enqueued"),
        (job_id, "released"),
    ]


def test_its_length_is_bounded(
    open_queue: OpenQueue, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "TRIM_EVERY", 0.0)
    queue = opened(open_queue, url, prefix, history={"name": "story", "length": 10})
    ids = queue.push_many([Note(number=number) for number in range(40)])
    assert queue.flush()
    assert [record.job_id for record in records(queue)] == ids[-10:]
    sink: Any = queue.recorder.outlets["history"].sink  # type: ignore[union-attr]
    assert sink.stream == f"{prefix}:story"


def test_its_age_is_bounded(
    open_queue: OpenQueue, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "TRIM_EVERY", 0.0)
    queue = opened(open_queue, url, prefix, history=HistoryOptions(length=None, age=0.5))
    queue.push(Note())
    assert queue.flush()
    assert len(records(queue)) == 1
    time.sleep(0.7)
    newer = queue.push(Note())
    assert queue.flush()
    assert [record.job_id for record in records(queue)] == [newer]


def test_a_record_that_is_too_large_loses_its_payload_only(open_queue: OpenQueue, prefix: str) -> None:
    queue = opened(open_queue, "memory://", prefix, max_payload=600_000)
    job_id = queue.push(Note(how='"' * 290_000))  # as JSON within JSON each of these takes four bytes
    small = queue.push(Note())
    assert queue.flush()
    large, other = records(queue)
    assert (large.job_id, large.payload) == (job_id, "")
    assert other.job_id == small
    assert other.payload
    assert queue.recorder.stats()["history"].dropped == 0  # type: ignore[union-attr]


def test_both_at_once(open_queue: OpenQueue, open_archive: OpenArchive, file_url: str) -> None:
    archive = open_archive(file_url)
    queue = open_queue(archive=archive, history="story")
    job_id = queue.push(Note())
    assert queue.flush()
    assert [record.job_id for record in records(queue)] == [job_id]
    assert archive.history(job_id) == records(queue)


def test_jobs_go_on_while_the_stream_is_away(
    open_queue: OpenQueue, redis7: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream has its own way to the server here, which is cut; the way of the jobs is not."""
    caplog.set_level(logging.WARNING)
    with TcpProxy(redis7.port) as proxy:
        queue = opened(open_queue, redis7.url, prefix)
        sink: Any = queue.recorder.outlets["history"].sink  # type: ignore[union-attr]
        away = open_broker(f"redis://127.0.0.1:{proxy.port}", retry_for=0.0, socket_connect_timeout=1.0)
        sink.broker = away
        proxy.refuse()
        proxy.reset_all()
        queue.push_many([Note(number=number) for number in range(50)])
        with queue.worker(["notes"], poll=0.05, grace=5.0):
            assert queue.drain(["notes"], timeout=30)
            until(lambda: queue.recorder.stats()["history"].failing_since)  # type: ignore[union-attr]
            assert sorted(Note.ran) == list(range(50))
            proxy.heal()
            assert queue.flush(30)
        assert sorted(record.state for record in records(queue)) == ["completed"] * 50 + ["enqueued"] * 50
        assert queue.recorder.stats()["history"].dropped == 0  # type: ignore[union-attr]
        queue.close()
        away.close()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (7, "history must be True"),
        ({"len": 7}, "unknown history option 'len'"),
        ({"length": 0}, "length must be a whole number above 0"),
        ({"length": True}, "length must be a whole number above 0"),
        ({"age": -1}, "age must be a number of seconds above 0"),
    ],
)
def test_bad_options_are_named(value: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        history_options(value)
    with pytest.raises(ConfigurationError, match=f"'history'.*{says}"):
        check_connection_options("memory://", {"history": value})


def test_a_bad_name_is_refused() -> None:
    with pytest.raises(InvalidName, match="control character"):
        history_options("a\nb")
    assert history_options(False) is None
    assert history_options("story") == HistoryOptions(name="story")
