"""A bell that signal handlers and threads may ring, and one thread waits for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence


class Doorbell:
    """A pipe, because an Event is not safe here: a signal handler may interrupt the very thread that holds
    the Event's lock, and would wait for it for ever."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it rings already; closed: nobody waits
            os.write(self._in, b"!")

    def wait(self, timeout: float | None = None, also: Sequence[int] = ()) -> list[int]:
        """Until it rings, or one of the file descriptors ``also`` can be read; those that can."""
        ready, _, _ = select.select([self._out, *also], [], [], timeout)
        if self._out in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._out, 4096)
            ready.remove(self._out)
        return ready

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)


@contextlib.contextmanager
def signals(handlers: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Handle signals while inside, and put back the handlers of before. In other threads: nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        handlers[number]()

    before = {number: signal.signal(number, handle) for number in handlers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
