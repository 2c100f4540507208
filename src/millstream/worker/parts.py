"""What the parts of a worker share: the jobs it holds, patience with the broker, and a loud end."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from millstream.drivers.base import Reservation, Settlement
from millstream.envelope import Envelope

log = logging.getLogger("millstream.worker")


class Task(msgspec.Struct, eq=False, gc=False):
    """A reserved job whose envelope was read and whose type is known.

    ``abandoned`` is set when somebody else answers for the job (a hard timeout, a hand-back): whatever
    its handler still does, its outcome does not count. ``outcome`` is what became of the attempt, known
    while the job's ``failed`` still runs.
    """

    reservation: Reservation
    envelope: Envelope
    kind: Any  # registry.JobType
    abandoned: bool = False
    outcome: Settlement | None = None


class Holdings:
    """Every reservation that this worker answers for: buffered, running, or not yet settled.

    The methods of set and the reads of its length are atomic, so that no job pays for a lock.
    """

    def __init__(self) -> None:
        self.held: set[Reservation] = set()
        self.lost: set[Reservation] = set()  # another worker owns these now, or they are gone
        self.safe_until = 0.0  # until then (monotonic) no lease of a held job can have ended

    def drop(self, reservation: Reservation) -> None:
        self.held.discard(reservation)
        self.lost.discard(reservation)


class Patience:
    """Waits between attempts to reach a broker that does not answer; says so once, and when it is back."""

    def __init__(self, who: str, stop: threading.Event, longest: float = 1.0) -> None:
        self._who, self._stop, self._longest = who, stop, longest
        self._delay, self._since = 0.0, 0.0

    def wait(self, error: Exception) -> None:
        """Sleep a little longer than the last time, at most ``longest``; a stop ends it."""
        if not self._delay:
            self._since = time.monotonic()
            log.warning("%s: the broker does not answer, trying again: %s", self._who, error)
        self._delay = min(self._longest, max(0.02, self._delay * 2))
        self._stop.wait(self._delay * random.uniform(0.5, 1.0))  # spread: workers fail at the same moment

    def over(self) -> None:
        """The broker answered."""
        if self._delay:
            log.warning("%s: the broker is back after %.1f s", self._who, time.monotonic() - self._since)
            self._delay = 0.0


class SideThread:
    """A thread of the worker that must not die quietly: an unexpected error stops the whole worker."""

    def __init__(
        self, name: str, target: Callable[[], None], crashed: Callable[[str, Exception], None]
    ) -> None:
        self._name, self._target, self._crashed = name, target, crashed
        self._thread = threading.Thread(target=self._run, name=f"millstream-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._target()
        except Exception as error:
            log.critical("the worker's %s died; the worker stops", self._name, exc_info=error)
            self._crashed(self._name, error)
