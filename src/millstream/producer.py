"""The producer thread of push_async: it sends whatever has gathered in one round trip."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

from millstream.drivers.base import PushItem
from millstream.errors import BrokerClosed, BrokerError

Push = Callable[[Sequence[PushItem]], list[str]]
_Waiting = tuple[PushItem, "asyncio.Future[str]"]


class Producer:
    """Takes items from any number of event loops and pushes them from one thread.

    While one round trip is under way the next items gather, so a thousand coroutines that push at the same
    time cost a handful of round trips. The thread begins with the first item, and anew in a forked child.
    """

    def __init__(self, push: Push) -> None:
        self._push = push
        self._waiting: deque[_Waiting] = deque()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    async def push(self, item: PushItem) -> str:
        """Push ``item``; the id of the job that now stands for it. Raises what the driver raises.

        Cancelling the caller takes the item back if it has not been sent yet.
        """
        if self._closed:
            raise BrokerClosed
        if self._thread is None or self._pid != os.getpid():
            self._start()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._wake.set()
        return await future

    def close(self) -> None:
        """Send what has gathered, then end."""
        self._closed = True
        if self._thread is not None and self._pid == os.getpid():
            self._wake.set()
            self._thread.join(timeout=10.0)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None and self._pid == os.getpid():
                return
            if self._pid != os.getpid():  # the parent's items are the parent's to send
                self._waiting, self._wake = deque(), threading.Event()
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, name="millstream-producer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()  # before looking: whoever adds from here on wakes the thread again
            batch: list[_Waiting] = []
            while self._waiting:
                item, future = self._waiting.popleft()
                if not future.cancelled():
                    batch.append((item, future))
            if batch:
                self._send(batch)
            elif self._closed:
                return
            if self._closed:
                self._wake.set()

    def _send(self, batch: list[_Waiting]) -> None:
        try:
            _answer(batch, self._push([item for item, _ in batch]))
        except BrokerError as error:  # the server's: it concerns them all
            _answer(batch, [error] * len(batch))
        except Exception as error:  # noqa: BLE001 - handed to who waits
            if len(batch) == 1:
                _answer(batch, [error])
                return
            # One of them is at fault. Pushing is idempotent, so each is tried for itself.
            for one in batch:
                self._send([one])


def _answer(batch: list[_Waiting], results: Sequence[str | Exception]) -> None:
    """Wake the callers, with one call into each of their loops."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[str], str | Exception]]] = {}
    for (_, future), result in zip(batch, results, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, result))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, answers)
        except RuntimeError:
            continue  # the loop was closed while its jobs were on their way; nobody waits any more


def _resolve(answers: list[tuple[asyncio.Future[str], str | Exception]]) -> None:
    for future, result in answers:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
