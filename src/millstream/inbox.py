"""Inbox: a handler's own transaction takes effect once, however often its job is run.

A job is delivered at least once: a worker may die after its work and before it could say so. A handler that
writes to a database says in the same transaction that this job is done; the next run finds that and skips:

    def handle(self) -> None:
        with Session(engine) as session, session.begin():
            if Inbox(session).once(self):
                session.execute(...)

The row of the key is committed with the effect and rolled back with it. A second run that comes while the
first has not ended waits for it at that row.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.brokers.payload import check_name
from millstream.drivers import checks
from millstream.errors import ConfigurationError, InvalidInput
from millstream.job import Job
from millstream.outbox.statements import NOW_MS
from millstream.sql.schema import DEFAULT_PREFIX, check_prefix
from millstream.transactions import CallerTransaction

T = TypeVar("T")
PURGED = 1000  # rows of one statement


class Inbox:
    """The inbox in the database of ``session``, used in its transaction.

    ``session`` is a SQLAlchemy Session or Connection, or a connection of psycopg, sqlite3 or PyMySQL, in a
    transaction: one that commits each statement by itself is refused. ``scope`` keeps the keys of two
    handlers apart that deal with the same job or event.
    """

    def __init__(self, session: Any, *, scope: str = "", tables: str = DEFAULT_PREFIX) -> None:
        self._transaction = CallerTransaction(session)
        self._scope = check_name("scope", scope) if scope else ""
        self._table = f"{check_prefix(tables)}inbox"
        now, backend = NOW_MS[self._transaction.backend], self._transaction.backend
        mark = "?" if backend == "sqlite" else "%s"
        # IGNORE, because "on duplicate key" counts a row that was there as 0 or as 1, as the client wants it.
        verb, end = (
            ("INSERT IGNORE", "") if backend == "mysql" else ("INSERT", " ON CONFLICT (hash) DO NOTHING")
        )
        self._insert = f"{verb} INTO {self._table} (hash, name, done_at) VALUES ({mark}, {mark}, {now}){end}"
        old = f"done_at < {now} - {mark}"
        self._purge = {
            "sqlite": f"DELETE FROM {self._table} WHERE hash IN"
            f" (SELECT hash FROM {self._table} WHERE {old} LIMIT {PURGED})",
            "postgresql": f"DELETE FROM {self._table} WHERE hash = ANY(ARRAY("
            f"SELECT hash FROM {self._table} WHERE {old} LIMIT {PURGED} FOR UPDATE SKIP LOCKED))",
            "mysql": f"DELETE FROM {self._table} WHERE {old} LIMIT {PURGED}",
        }[backend]

    def once(self, key: Job | str) -> bool:
        """Whether this is the first transaction for ``key``, a job or a text of the caller's.

        False means that one was committed before: skip the effect. Waits for another transaction that has the
        same key and has not ended. A job's key is its id, which all of its attempts and deliveries share.
        """
        self._transaction.check_begun("an effect that is to happen once")
        name = _key(key)
        digest = hashlib.sha256(f"{len(self._scope)}:{self._scope}{name}".encode()).digest()
        shown = f"{self._scope}:{name}" if self._scope else name
        done = self._transaction.execute(self._insert, (digest, shown), self._table)
        return bool(done.rowcount == 1)

    def run(self, key: Job | str, effect: Callable[[], T], otherwise: T | None = None) -> T | None:
        """What ``effect`` returns if this is the first transaction for ``key``; else ``otherwise``."""
        return effect() if self.once(key) else otherwise

    def purge(self, older_than: float) -> int:
        """Forget keys that are older than so many seconds, a thousand at the most; how many.

        Keep them for longer than a job can come back: its longest delay, backoff and stay among the dead.
        """
        checks.check_seconds("older_than", older_than, above=0)
        done = self._transaction.execute(self._purge, (int(older_than * 1000),), self._table)
        return int(done.rowcount)


def once(
    session_of: Callable[[Any], Any], *, scope: str = "", tables: str = DEFAULT_PREFIX
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a job's ``handle`` that takes the session as its argument: it runs once, in one transaction.

        @once(lambda job: Session(engine))
        def handle(self, session) -> None: ...

    ``session_of`` opens a SQLAlchemy Session or Connection, or a connection of a database driver, for the
    job. What the handler wrote is committed with the job's key when it returns, and rolled back when it
    raises; a second run does nothing. The session is closed in any case.
    """

    def decorate(handle: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(handle):
            raise ConfigurationError(
                f"@once is for handlers that are no coroutines, and {handle.__qualname__} is one: a session "
                "would block the loop. Write `def handle(self, session)`: it runs in a thread"
            )

        @functools.wraps(handle)
        def run(job: Job) -> Any:
            session = session_of(job)
            try:
                result = None
                if Inbox(session, scope=scope, tables=tables).once(job):
                    result = handle(job, session)
                session.commit()
                return result
            except BaseException:
                session.rollback()
                raise
            finally:
                session.close()

        del run.__wrapped__  # its signature is that of handle(self)
        return run

    return decorate


def _key(key: Job | str) -> str:
    if isinstance(key, Job):
        if key.id is None:
            raise InvalidInput("this job was neither pushed nor delivered, so it has no id; give a key")
        return key.id
    return check_name("key", key)
