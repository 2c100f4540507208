"""Wakes the relays of this process when one of its transactions is committed. Others look now and then."""

from __future__ import annotations

import threading
import weakref

_listening: weakref.WeakSet[threading.Event] = weakref.WeakSet()


def listen(event: threading.Event) -> None:
    """Set ``event`` whenever something may have been added to an outbox, for as long as it exists."""
    _listening.add(event)


def ring() -> None:
    """Something was committed."""
    for event in list(_listening):
        event.set()
