"""Outbox: jobs that are pushed in a transaction of the user's own database."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from millstream.brokers.payload import DEFAULT_MAX_PAYLOAD, check_name
from millstream.drivers import checks
from millstream.drivers.base import PushItem
from millstream.envelope import CODECS, Codec
from millstream.errors import InvalidInput
from millstream.job import Job, JobFunction
from millstream.options import (
    DEFAULTS,
    OPTION_NAMES,
    TYPE_OPTIONS,
    Seconds,
    delay_or_time,
    merge,
    unknown_option,
)
from millstream.outbox import waking
from millstream.outbox.statements import Statements, lane_of
from millstream.packing import ENVELOPE_ROOM, Packer
from millstream.queue import Queue
from millstream.registry import Registry, default_registry
from millstream.sql.schema import DEFAULT_PREFIX, check_prefix
from millstream.transactions import CallerTransaction


@lru_cache(maxsize=64)
def _statements(backend: str, prefix: str) -> Statements:
    return Statements(backend, check_prefix(prefix))


class Outbox:
    """Pushes jobs in the transaction of ``session``: they exist when it is committed, else they never did.

        with Session(engine) as session:
            session.add(order)
            Outbox(session).push(SendReceipt(order=order.id))
            session.commit()

    ``session`` is a SQLAlchemy Session or Connection, or a connection of psycopg, sqlite3 or PyMySQL. Nothing
    but the database is needed for that; a `Relay` moves the jobs to the queue's server. ``queue`` is the
    queue object that they are for, where it has another codec or another limit than the default.
    """

    def __init__(self, session: Any, *, queue: Queue | None = None, tables: str = DEFAULT_PREFIX) -> None:
        codec: Codec = CODECS["json"]() if queue is None else queue.codec
        self._max_payload = DEFAULT_MAX_PAYLOAD if queue is None else queue.max_payload
        self._registry: Registry = default_registry if queue is None else queue.registry
        self._packer = Packer(codec, self._max_payload)
        self._transaction = CallerTransaction(session)
        self._transaction.check_begun("a push to the outbox")
        self._statements = _statements(self._transaction.backend, tables)

    def push(self, job: Job) -> str:
        """Push a job; its id. Raises InvalidPayload or PayloadTooLarge: then nothing was written."""
        return self.push_many([job])[0]

    def push_many(self, jobs: Iterable[Job]) -> list[str]:
        """Push jobs in their order; their ids. All are checked before the first is written."""
        now = time.time()
        listed = list(jobs)
        for job in listed:
            if not isinstance(job, Job):
                hint = "; call it first: the call makes the job" if isinstance(job, JobFunction) else ""
                raise InvalidInput(f"push takes a job, not {job!r}{hint}")
        items = [self._packer.pack(job, now) for job in listed]
        self._write(items, [job.options.connection for job in listed])
        for job, item in zip(listed, items, strict=True):
            job._id, job._ticket = item.id, None
        return [item.id for item in items]

    def enqueue(
        self,
        type_name: str,
        data: Mapping[str, Any] | None = None,
        *,
        delay: Seconds | datetime | None = None,
        **options: Any,
    ) -> str:
        """Push a task by the name of its type; its id. ``options`` are those of Queue.enqueue."""
        check_name("job type", type_name)
        for name in options:
            if name not in OPTION_NAMES or name in TYPE_OPTIONS:
                raise InvalidInput(
                    f"enqueue({type_name!r}): {unknown_option('option', name, (*OPTION_NAMES, 'delay'))}"
                )
        known = self._registry.get(type_name)
        merged = merge(f"enqueue({type_name!r})", DEFAULTS if known is None else known.options, options)
        when = None if delay is None else delay_or_time(delay)
        item = self._packer.pack_task(type_name, data, merged, when, self._registry, time.time())
        self._write([item], [merged.connection])
        return item.id

    def _write(self, items: Sequence[PushItem], connections: Sequence[str | None]) -> None:
        checks.check_items(items, self._max_payload + ENVELOPE_ROOM)
        rows = [
            (
                *(lane_of(connection or "", item.queue), connection or "", item.queue),
                *(item.id, item.priority, item.body, len(item.body), round(item.delay * 1000)),
                *(None if item.unique_key is None else item.unique_key.encode(),),
                round(item.unique_for * 1000),
            )
            for item, connection in zip(items, connections, strict=True)
        ]
        if not rows:
            return
        parameters: Any = rows[0] if len(rows) == 1 else rows
        self._transaction.execute(self._statements.insert, parameters, self._statements.outbox)
        self._transaction.after_commit(waking.ring)
