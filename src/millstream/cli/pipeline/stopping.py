"""A pipeline that goes on until it is told to stop: by Ctrl-C, or by SIGTERM from whoever started it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first signal sets; what is under way is finished. A second signal ends it at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's
        return

    def ask(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("stopping after what is under way; once more to stop at once", err=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
