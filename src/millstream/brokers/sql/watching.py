"""The thread that notices what other processes add, while somebody in this one waits.

On PostgreSQL it listens: an addition sends a notification, but only while somebody waits for the stream
(``watched_until``), because notifying transactions are committed one after the other by the server. On the
other databases it asks for the newest ids of all awaited streams in one query, often at first and then less
and less. SQLite tells for next to nothing whether anybody has written at all (``data_version``).

PostgreSQL's readers are safe without the notifications, too: the same query runs every two seconds.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, select, update

from millstream.errors import MillstreamError
from millstream.sql.clock import now_ms
from millstream.sql.database import Database

if TYPE_CHECKING:
    from millstream.brokers.sql.waiting import Hub

FIRST_POLL = 0.002
LAST_POLL = 0.05  # what an addition of another process may wait for, on a database that cannot notify
SLOWER = 1.25
SAFETY_POLL = 2.0  # where notifications do the work
ARMED_FOR = 60.0  # how long writers go on notifying after the last sign of a reader


def channel(prefix: str) -> str:
    """The name of the notifications."""
    return f"{prefix}streams"


class Watch:
    """Starts the thread when somebody waits, and lets it end when nobody does."""

    def __init__(self, database: Database, hub: Hub) -> None:
        self._database, self._hub = database, hub
        streams = database.tables.streams
        self._states = select(streams.c.name, streams.c.last_ms, streams.c.last_seq, streams.c.epoch).where(
            streams.c.name.in_(bindparam("names", expanding=True))
        )
        self._arm = (
            update(streams)
            .where(streams.c.name.in_(bindparam("names", expanding=True)))
            .values(watched_until=now_ms() + int(ARMED_FOR * 1000))
        )
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._thread: threading.Thread | None = None
        self._closed = False
        self._listening = threading.Event()
        self._eager = True  # somebody new waits: ask often
        self._kick_end: socket.socket | None = None

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._reset()

    def arm(self, streams: Sequence[str]) -> bool:
        """Let the thread run, and writers notify; whether the caller must look once more before it sleeps."""
        with self._lock:
            if self._closed:
                return False
            if self._thread is None:
                self._listening.clear()
                self._kick_end, other = socket.socketpair()
                self._kick_end.setblocking(False)
                self._thread = threading.Thread(
                    target=self._run, args=(other,), name="millstream-watch", daemon=True
                )
                self._thread.start()
            if not self._eager:
                self._eager = True
                self._kick()
        if self._database.backend != "postgresql":
            return False  # the first poll rings for every stream that it has not seen yet
        self._listening.wait(5.0)
        now = monotonic()
        watched = self._hub.watched
        late = [
            name for name in streams if name in watched and watched[name].armed_until < now + ARMED_FOR / 2
        ]
        if not late:
            return False
        with suppress(MillstreamError):  # the safety poll serves until it works again
            self._database.run(lambda connection: self.arm_in(connection, late), repeat=True)
            for name in late:
                if (place := watched.get(name)) is not None:
                    place.armed_until = now + ARMED_FOR
        return True

    def _kick(self) -> None:
        if self._kick_end is not None:
            with suppress(OSError):
                self._kick_end.send(b"!")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._kick()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self, kicks: socket.socket) -> None:
        kicks.setblocking(False)
        pause = FIRST_POLL
        try:
            while not self._over():
                try:
                    self._watch(kicks)
                    pause = FIRST_POLL
                except Exception:  # noqa: BLE001 - of SQLAlchemy, of the driver, or of the socket
                    # The readers look for themselves now, and report what they meet.
                    self._hub.ring_all()
                    pause = min(pause * 2, 1.0)
                    self._sleep(kicks, None, pause)
        finally:
            kicks.close()

    def _over(self) -> bool:
        with self._lock:
            if self._closed or not self._hub.awaited():
                self._thread = None
                if self._kick_end is not None:
                    self._kick_end.close()
                    self._kick_end = None
                return True
            return False

    def _watch(self, kicks: socket.socket) -> None:
        notifying = self._database.backend == "postgresql"
        with self._database.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            connection.detach()  # it is this thread's own, and not given back
            if notifying:
                connection.exec_driver_sql(f'LISTEN "{self.channel()}"')
            self._listening.set()
            interval, version, safety_poll = FIRST_POLL, None, 0.0
            while streams := self._hub.awaited():
                if self._closed:
                    return
                news = False
                if notifying:
                    news = self._take_notifications(driver)
                    due = monotonic() >= safety_poll
                else:
                    latest = self._data_version(connection)
                    due, version = latest is None or latest != version, latest
                if due or self._eager:
                    safety_poll = monotonic() + SAFETY_POLL
                    news = self.poll(connection, streams) or news
                if self._eager or news:
                    self._eager, interval = False, FIRST_POLL
                else:
                    interval = min(interval * SLOWER, LAST_POLL)
                self._sleep(kicks, driver if notifying else None, SAFETY_POLL if notifying else interval)

    def _data_version(self, connection: Connection) -> int | None:
        if self._database.backend != "sqlite":
            return None
        return connection.exec_driver_sql("PRAGMA data_version").scalar()

    # -- what is watched: another one for jobs ---------------------------------------------------

    def channel(self) -> str:
        """The name of the notifications."""
        return channel(self._database.prefix)

    def arm_in(self, connection: Connection, names: list[str]) -> None:
        """Let writers notify for a while."""
        connection.execute(self._arm, {"names": names})

    def heard(self, said: str) -> None:
        """A notification of another process came."""
        self._hub.ring(said)

    def poll(self, connection: Connection, streams: list[str]) -> bool:
        """Look, and ring for what is new; whether anything was."""
        found = {
            name: (ms, seq, epoch)
            for name, ms, seq, epoch in connection.execute(self._states, {"names": streams})
        }
        news = [name for name in streams if self._hub.saw(name, found.get(name, "none"))]
        return bool(news)

    def _take_notifications(self, driver: Any) -> bool:
        news = False
        for notification in driver.notifies(timeout=0):
            token, _, stream = notification.payload.partition(" ")
            if token != self._hub.token:
                self.heard(stream)
                news = True
        return news

    @staticmethod
    def _sleep(kicks: socket.socket, driver: Any, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(kicks, selectors.EVENT_READ)
            if driver is not None:
                selector.register(driver.fileno(), selectors.EVENT_READ)
            selector.select(seconds)
        with suppress(OSError):
            kicks.recv(4096)
