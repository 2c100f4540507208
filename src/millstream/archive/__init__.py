"""The archive: what happened to every job, in a SQL database that outlives the queue's server.

    archive = SqlArchive("postgresql://app@localhost/app")
    queue = connect("redis://localhost:6379/0", archive=archive)

Pushes and outcomes are written in the background, by every process that has the archive: producers and
workers alike. Writing never delays a job and never fails one; see `millstream.recording` for what that costs.
The tables are described in `millstream.archive.statements`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from millstream.archive.jobs import ArchivedJob, Finder, PendingJob, cutoff
from millstream.archive.restoring import Restored, restore_jobs
from millstream.archive.store import Purged, Store
from millstream.archive.writing import ArchiveSink, Choice
from millstream.errors import ConfigurationError, InvalidInput
from millstream.history import Record
from millstream.options import check_queue_name, unknown_option
from millstream.recording.outlet import DEFAULT_BUFFER, DEFAULT_DELAY, Outlet
from millstream.sql.engine import ENGINE_OPTIONS, Target

if TYPE_CHECKING:
    from millstream.envelope import Codec
    from millstream.queue import Queue

__all__ = ["ArchivedJob", "PendingJob", "Purged", "Restored", "SqlArchive", "open_archive"]

_OPTIONS = ("url", "completed", "failed", "enqueued", "retention", "tables", "create", "buffer", "delay")
MOST_ATTEMPTS = 10_000  # records of one job that `history` gives


class SqlArchive:
    """An archive in SQLite, PostgreSQL, MySQL or MariaDB. May be shared by queues and threads.

    ``completed`` keeps the jobs that were done (or cancelled), ``failed`` every attempt that did not succeed,
    ``enqueued`` every push: with it (audit mode) the archive knows what is pending, and can `restore` it.
    ``retention`` is for how many seconds (or a timedelta) something is kept after it happened; None: for
    ever. What is pending is kept in any case.

    ``tables`` begins the names of the tables; ``create`` makes them, by default in a SQLite file only (else:
    ``millstream migrate schema URL``). ``buffer`` bounds the bytes that wait to be written in one process,
    ``delay`` the seconds that a record waits while others keep coming. Other ``options`` are those of
    `EngineOptions`.

    The database is opened when it is first needed, so that jobs go on when it is away. Raises
    ConfigurationError or UnknownScheme for what could never work.
    """

    def __init__(
        self,
        url: str,
        *,
        completed: bool = True,
        failed: bool = True,
        enqueued: bool = True,
        retention: float | timedelta | None = None,
        tables: str | None = None,
        create: bool | None = None,
        buffer: int = DEFAULT_BUFFER,
        delay: float = DEFAULT_DELAY,
        **options: Any,
    ) -> None:
        for name, value in (("completed", completed), ("failed", failed), ("enqueued", enqueued)):
            if not isinstance(value, bool):
                raise ConfigurationError(f"archive: {name} must be true or false, not {value!r}")
        if not (completed or failed or enqueued):
            raise ConfigurationError("archive: say what is to be kept: completed, failed or enqueued")
        if not isinstance(url, str):
            raise ConfigurationError(f"archive: {url!r} is no URL; expected one such as sqlite:///archive.db")
        if isinstance(retention, timedelta):
            retention = retention.total_seconds()
        if retention is not None:
            _positive("retention", retention)
        _positive("buffer", buffer)
        _positive("delay", delay)
        self.retention, self._buffer, self._delay = retention, int(buffer), float(delay)
        self.keeps = Choice(completed, failed, enqueued)
        self._store = Store(url, tables, create, options)
        self._finder = Finder(self._store)

    def __repr__(self) -> str:
        return f"<SqlArchive {self._store.target.safe_url}>"

    @property
    def target(self) -> Target:
        """Where it is."""
        return self._store.target

    # -- writing -------------------------------------------------------------------------------------

    def outlet(self, codec: Codec) -> Outlet:
        """What writes for one queue object, whose jobs are encoded by ``codec``."""
        sink = ArchiveSink(self._store, self.keeps, codec, self.retention)
        return Outlet(sink, buffer=self._buffer, delay=self._delay)

    def initialize(self) -> None:
        """Open the database now, so that a wrong address, password or schema shows."""
        self._store.database()

    # -- looking -------------------------------------------------------------------------------------

    def find(self, job_id: str) -> ArchivedJob | None:
        """A job's newest state; None where the archive does not know it."""
        return self._finder.find(job_id)

    def history(self, job_id: str) -> list[Record]:
        """Everything that happened to a job, in order; of the newest attempts the errors with traceback."""
        return self._finder.history(job_id, MOST_ATTEMPTS)

    def search(
        self,
        *,
        type: str | None = None,  # noqa: A002 - the word that users have for it
        queue: str | None = None,
        tag: str | None = None,
        state: str | None = None,
        error: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[ArchivedJob]:
        """Jobs that fit all that is given, the newest first.

        ``error`` is a part of the error's text, upper and lower case alike; ``since`` and ``until`` are about
        the newest change. ``after`` is the `cursor` of the last job of the page before. Type, state and time
        are found by an index; tag and error are looked for in what the others leave.
        """
        filters = {"type": type, "state": state, "queue": queue, "since": since, "until": until}
        return self._finder.search(limit, after, {**filters, "tag": tag, "error": error})

    def pending(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,  # noqa: A002
    ) -> Iterator[PendingJob]:
        """Jobs that are still to be done, the oldest first; read in pages, however many there are.

        A job whose end was recorded nowhere is among them. So it takes audit mode (``enqueued``) in every
        producer, and an archive in every worker.
        """
        return self._finder.pending({"queue": queue, "type": type})

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state. Reads an index from end to end."""
        return self._finder.counts()

    # -- doing ---------------------------------------------------------------------------------------

    def restore(
        self,
        queue: Queue,
        *,
        queues: str | Sequence[str] | None = None,
        type: str | None = None,  # noqa: A002
        dry_run: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> Restored:
        """Push again what is pending, to the server of ``queue``: all, or those of ``queues`` and ``type``.

        They keep their ids, options, attempts, priorities, and what is left of their delays. A job that still
        exists is left alone, so a second run adds nothing twice. One that ended while its record was on the
        way, or lost, runs once more: as everywhere here, at least once.
        """
        if not hasattr(queue, "driver") or not hasattr(queue, "codec"):
            raise InvalidInput(f"restore takes a queue object, as connect() returns, not {queue!r}")
        names = [queues] if isinstance(queues, str) else queues
        chosen: list[str | None] = [None] if names is None else [check_queue_name(name) for name in names]
        jobs = (job for name in chosen for job in self.pending(name, type=type))
        return restore_jobs(queue, jobs, dry_run=dry_run, on_progress=on_progress)

    def purge(self, older_than: float | timedelta | datetime) -> Purged:
        """Delete what happened before: an age in seconds or as timedelta, or a moment. Pending jobs stay.

        In steps of a thousand rows, so that who writes meanwhile does not have to wait.
        """
        return self._store.purge(cutoff(older_than, time.time()))

    def close(self) -> None:
        """Give back the connections. Queues that write here are to be closed first."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_archive(value: object) -> SqlArchive | None:
    """What ``archive=`` of `connect` means: an archive, its URL, or a mapping of options with a ``url``."""
    if value is None or value is False:
        return None
    if isinstance(value, SqlArchive):
        return value
    if isinstance(value, str):
        return SqlArchive(value)
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            "archive must be a SqlArchive, a URL such as sqlite:///archive.db, or a table with one, "
            f"not {value!r}"
        )
    allowed = (*_OPTIONS, *ENGINE_OPTIONS)
    for name in value:
        if name not in allowed:
            raise ConfigurationError(unknown_option("archive option", name, allowed))
    if "url" not in value:
        raise ConfigurationError("archive needs a url, such as sqlite:///archive.db")
    return SqlArchive(**value)


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigurationError(f"archive: {name} must be a number above 0, not {value!r}")
