"""Small things that many contract tests need."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from millstream import Message, StreamBroker

GROUP = "workers"
# How long a test waits for what must come at once; only a failing test waits that long.
SOON = float(os.environ.get("MILLSTREAM_TEST_PATIENCE", "60"))


class Background:
    """A call in a thread of its own; `result()` waits for what it returned or raises what it raised."""

    def __init__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.finished_at = 0.0
        self._thread = threading.Thread(target=self._run, args=(call, args, kwargs), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        try:
            self._outcome = call(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the test's own thread
            self._error = error
        self.finished_at = time.monotonic()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout: float = SOON) -> Any:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"the call did not return within {timeout} s"
        if self._error is not None:
            raise self._error
        return self._outcome


def until(condition: Callable[[], Any], what: str, timeout: float = SOON) -> Any:
    """Poll until ``condition`` is true and return it."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.002)
    return value


def ids(messages: Iterable[Any]) -> list[str]:
    return [message.id for message in messages]


def numbers(messages: Iterable[Message]) -> list[Any]:
    """The value of ``n`` of each message, for tests that add {"n": 0}, {"n": 1} and so on."""
    return [message.data["n"] for message in messages]


def fill(broker: StreamBroker, stream: str, count: int, first: int = 0) -> list[str]:
    """Add ``count`` entries {"n": first} and so on; their ids."""
    return broker.xadd_many(stream, [{"n": number} for number in range(first, first + count)])


def deliver(
    broker: StreamBroker, stream: str, count: int, consumer: str = "a", group: str = GROUP
) -> list[str]:
    """A group at the start of a stream with ``count`` entries, all delivered to ``consumer``; their ids."""
    added = fill(broker, stream, count)
    broker.create_group(stream, group, "0")
    got = broker.xreadgroup(group, consumer, stream, count)
    assert ids(got) == added
    return added


def wait_idle(broker: StreamBroker, stream: str, idle_ms: int, group: str = GROUP) -> None:
    """Until every pending entry of the group has been idle for ``idle_ms``."""
    until(
        lambda: all(entry.idle_ms >= idle_ms for entry in broker.xpending(stream, group)),
        f"entries to be idle for {idle_ms} ms",
    )


def key_of(entry_id: str) -> tuple[int, int]:
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq)
