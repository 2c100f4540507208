"""The outlet: notes are never waited for, kept while the sink is away, and counted when they are lost."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from millstream.drivers.base import Driver, PushItem
from millstream.errors import BrokerFull, BrokerUnavailable, SchemaNotReady
from millstream.recording import Outlet, RecordingDriver
from millstream.recording.notes import OVERHEAD, Note
from tests.archive.jobs import until


class Box:
    """A sink in memory that can be told to fail."""

    name = "box"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.error: Exception | None = None
        self.poison: str | None = None
        self.attempts = 0
        self.closed = False
        self.open = threading.Event()
        self.open.set()

    def write(self, notes: Sequence[Note]) -> None:
        self.attempts += 1
        self.open.wait(30)
        if self.error is not None:
            raise self.error
        ids = [note.id for note in notes if isinstance(note, PushItem)]
        if self.poison in ids:
            raise ValueError("this one cannot be written")
        self.batches.append(ids)

    @property
    def ids(self) -> list[str]:
        return [each for batch in self.batches for each in batch]

    def close(self) -> None:
        self.closed = True


def items(*names: str) -> list[PushItem]:
    return [PushItem(name, "q", "default", b"{}") for name in names]


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def outlet(box: Box) -> Iterator[Outlet]:
    made = Outlet(box, delay=0.1)
    yield made
    box.error = None
    box.open.set()
    made.close()


def test_notes_are_written_by_themselves_and_in_order(box: Box, outlet: Outlet) -> None:
    outlet.pushed(items("a"))
    outlet.pushed(items("b", "c"))
    until(lambda: box.ids == ["a", "b", "c"])
    assert outlet.stats().written == 3


def test_flush_waits_for_what_was_noted_before(box: Box, outlet: Outlet) -> None:
    for number in range(2500):
        outlet.pushed(items(str(number)))
    assert outlet.flush(30)
    assert box.ids == [str(number) for number in range(2500)]
    assert max(map(len, box.batches)) == 1000
    assert outlet.flush(0.1)  # nothing to do


def test_noting_does_not_wait_for_the_sink(box: Box, outlet: Outlet) -> None:
    box.open.clear()
    outlet.pushed(items("a"))
    until(lambda: box.attempts)
    outlet.pushed(items("b"))  # would hang if it waited
    assert not outlet.flush(0.05)
    box.open.set()
    assert outlet.flush(30)
    assert box.ids == ["a", "b"]


@pytest.mark.parametrize(
    "error", [BrokerUnavailable("away"), BrokerFull("full"), SchemaNotReady("sqlite:///a.db", 0, 3)], ids=repr
)
def test_an_outage_is_said_once_and_sat_out(
    box: Box, outlet: Outlet, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    box.error = error
    outlet.pushed(items("a"))
    until(lambda: box.attempts >= 3)
    outlet.pushed(items("b"))
    stats = outlet.stats()
    assert stats.failing_since is not None
    assert stats.last_error == str(error)
    assert stats.buffered_bytes == 2 * (OVERHEAD + 2)
    box.error = None
    assert outlet.flush(30)
    assert box.ids == ["a", "b"]
    assert outlet.stats().failing_since is None
    assert outlet.stats().dropped == 0
    said = [record.message for record in caplog.records]
    assert sum("jobs are not affected" in message for message in said) == 1
    assert sum("written again" in message for message in said) == 1


def test_what_does_not_fit_is_dropped_counted_and_said(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    outlet = Outlet(box, buffer=10 * (OVERHEAD + 2), delay=0.05)
    box.error = BrokerUnavailable("away")
    for number in range(25):
        outlet.pushed(items(str(number)))
    assert outlet.stats().dropped == 15
    assert outlet.stats().buffered_bytes <= outlet.limit
    box.error = None
    assert outlet.flush(30)
    assert box.ids == [str(number) for number in range(10)]
    outlet.pushed(items("later"))  # there is room again
    assert outlet.flush(30)
    assert box.ids[-1] == "later"
    outlet.close()
    said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert sum("records are dropped from now on" in message for message in said) == 1
    assert any("15 records were dropped" in message for message in said)


def test_one_that_cannot_be_written_does_not_hold_back_the_others(box: Box, outlet: Outlet) -> None:
    box.poison = "c"
    outlet.pushed(items("a", "b", "c", "d", "e"))
    assert outlet.flush(30)
    assert box.ids == ["a", "b", "d", "e"]
    assert outlet.stats().dropped == 1
    assert outlet.stats().buffered_bytes == 0


def test_close_writes_what_is_left(box: Box) -> None:
    outlet = Outlet(box, delay=60)
    for number in range(100):
        outlet.pushed(items(str(number)))
    outlet.close()
    assert len(box.ids) == 100
    assert box.closed
    outlet.close()  # again: nothing


def test_close_gives_up_in_time_and_says_what_is_lost(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    outlet = Outlet(box, delay=0.05)
    box.error = BrokerUnavailable("away")
    outlet.pushed(items("a", "b", "c"))
    began = time.monotonic()
    outlet.close(timeout=0.3)
    assert time.monotonic() - began < 20
    assert outlet.stats().dropped == 3
    assert any("3 records were dropped" in record.message for record in caplog.records)


def test_many_threads_lose_nothing(box: Box, outlet: Outlet) -> None:
    def add(thread: int) -> None:
        for number in range(500):
            outlet.pushed(items(f"{thread}-{number}"))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outlet.flush(30)
    assert sorted(box.ids) == sorted(f"{thread}-{number}" for thread in range(8) for number in range(500))
    until(lambda: outlet.stats().buffered_bytes == 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_parents_notes_alone(box: Box, outlet: Outlet) -> None:
    box.open.clear()
    outlet.pushed(items("parent"))
    until(lambda: box.attempts)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # only the child's own note is written there
        try:
            box.open = threading.Event()
            box.open.set()
            outlet.pushed(items("child"))
            outlet.flush(10)
            os.write(writer, ",".join(box.ids).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"child"
    os.close(reader)
    os.close(writer)
    box.open.set()
    assert outlet.flush(30)
    assert box.ids == ["parent"]


def test_the_recording_driver_passes_on_everything() -> None:
    """A method that the contract gains and that is forgotten here would change what a queue does."""
    public = {name for name in vars(Driver) if not name.startswith("_") and callable(getattr(Driver, name))}
    assert {name for name in public if name not in vars(RecordingDriver)} == set()
