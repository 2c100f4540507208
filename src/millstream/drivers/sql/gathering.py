"""Pushes of several threads in one transaction of a SQLite file.

A push is done when it is on the disk, and waiting for the disk is nearly all that it costs. While one thread
waits, the pushes of others gather; the first of them then writes them all, and waits once. A push that is
alone goes at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from millstream.drivers.base import PushItem
from millstream.drivers.sql.layout import CHUNK

Push = tuple[int, Sequence[PushItem]]  # a queue's number, and what is pushed to it

GATHER = 0.00005  # seconds; a short moment beside a sync, in which threads that were let go push again


class _Ticket:
    """One thread's push, until it is done."""

    __slots__ = ("bell", "done", "gone", "leads", "push")

    def __init__(self, push: Push) -> None:
        self.push = push
        self.done = False  # it is written
        self.leads = False  # it is its thread's turn to write
        self.gone = False  # its thread was interrupted, and waits no longer
        self.bell = threading.Lock()  # released when it is done, and when it leads
        self.bell.acquire()


class Gathering:
    """The pushes that wait; ``write`` puts some of them into one transaction."""

    def __init__(self, write: Callable[[Sequence[Push]], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._writing = False
        self._together = 1  # how many were written the last time
        self._pid = os.getpid()

    def push(self, queue: int, items: Sequence[PushItem]) -> None:
        """Return when the items are written, by this thread or by another. Raises what ``write`` does."""
        if self._pid != os.getpid():  # who waited when a process forked are its parent's threads
            self._lock, self._waiting, self._writing = threading.Lock(), deque(), False
            self._pid = os.getpid()
        ticket = _Ticket((queue, items))
        with self._lock:
            if not self._writing:
                self._writing = leads = True
            else:
                self._waiting.append(ticket)
                leads = False
        if not leads:
            self._wait(ticket)
            if ticket.done:
                return
        try:
            if self._together > 1:
                # Those who were written together are about to come back, each with its next push.
                time.sleep(GATHER)
            some = self._with_those_behind(ticket)
            self._together = len(some)
            self._write_all(some)
        finally:
            self._let_next()

    def _wait(self, ticket: _Ticket) -> None:
        try:
            ticket.bell.acquire()
        except BaseException:  # a Ctrl-C: nobody must wait for this thread
            with self._lock:
                ticket.gone = True
                leads = ticket.leads
            if leads:
                self._let_next()
            raise

    def _with_those_behind(self, ticket: _Ticket) -> list[_Ticket]:
        """The ticket, and of those that wait behind it as many as one transaction takes."""
        some, room = [ticket], CHUNK - len(ticket.push[1])
        with self._lock:
            while self._waiting and len(self._waiting[0].push[1]) <= room:
                more = self._waiting.popleft()
                if not more.gone:
                    room -= len(more.push[1])
                    some.append(more)
        return some

    def _write_all(self, tickets: list[_Ticket]) -> None:
        """Write the tickets; the first one is the caller's own."""
        try:
            self._write([ticket.push for ticket in tickets])
        except BaseException as error:
            # Nothing was written, and it may be one of them that cannot be. Each learns for itself.
            with self._lock:
                self._waiting.extendleft(reversed(tickets[1:]))
            if len(tickets) == 1 or not isinstance(error, Exception):
                raise
            self._write([tickets[0].push])
            return
        for ticket in tickets[1:]:
            ticket.done = True
            ticket.bell.release()

    def _let_next(self) -> None:
        with self._lock:
            while self._waiting:
                ticket = self._waiting.popleft()
                if not ticket.gone:
                    ticket.leads = True
                    ticket.bell.release()
                    return
            self._writing = False
