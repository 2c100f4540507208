"""Staging and publishing on SQL databases: a row for each block, and a transaction for each step.

    sink_stages   one row for each stage; ``blocks`` is -1 until its task has put everything there
    sink_blocks   the blocks that are not published yet
    sink_fences   one row for each write or query: the last batch, and while it is published its manifest

A step locks the stage's row, adds the first block's entries (or jobs), and deletes that block. Two drivers
that publish the same stage therefore take turns.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy import Connection

from millstream.brokers.sql.broker import SqlStreamBroker
from millstream.drivers.base import PushItem
from millstream.drivers.sql import SqlDriver
from millstream.drivers.sql.layout import PLACES, Words
from millstream.errors import MillstreamError, StagedDataLost
from millstream.message import Typed
from millstream.spark.sink.blocks import PLAIN, pack, unpack
from millstream.spark.sink.options import CommonOptions, JobWriteOptions
from millstream.spark.sink.staging import Begun, Block, JobTarget, Manifest, Stage, Target
from millstream.sql.database import Database

RETRY_FOR = 30.0  # seconds: a restart of the server is survived within a task
LOCK_TIMEOUT = 60.0  # seconds: a SQLite file has one writer at a time, and every task is one
TAKEN = 500  # stages of one statement
PURGED = 100  # expired stages that one write removes
UNSEALED = -1
_HOLD_SLACK = 86_400_000  # milliseconds: what is held outlives the fence that names it
_encode_item = msgspec.msgpack.Encoder().encode
_decode_item = msgspec.msgpack.Decoder(PushItem).decode


class _SqlStages(Target):
    """What entries and jobs have in common. See `staging.py` for what each method is."""

    def __init__(self, database: Database, options: CommonOptions) -> None:
        self._database = database
        self._words = words = Words(database)
        self._stage_ms = round(options.stage_ttl * 1000)
        self._fence_ms = round(options.fence_ttl * 1000)
        self._open_stage = words(
            f"INSERT INTO {{p}}sink_stages (stage, blocks, expires_at) VALUES (?, {UNSEALED}, ?)"
        ) + words.if_new("stage")
        self._add_block = words(
            "INSERT INTO {p}sink_blocks (stage, number, body) VALUES (?, ?, ?)"
        ) + words.if_new("stage", "number")
        self._seal = words("UPDATE {p}sink_stages SET blocks = ? WHERE stage = ?")
        self._lock_stage = words("SELECT blocks FROM {p}sink_stages WHERE stage = ?") + words.for_update
        self._count = words("SELECT count(*) FROM {p}sink_blocks WHERE stage = ?")
        self._keep = words("UPDATE {p}sink_stages SET expires_at = ? WHERE stage = ?")
        self._first = words(
            "SELECT number, body FROM {p}sink_blocks WHERE stage = ? ORDER BY stage, number LIMIT 1"
        )
        self._pop = words("DELETE FROM {p}sink_blocks WHERE stage = ? AND number = ?")
        self._drop_blocks = words("DELETE FROM {p}sink_blocks WHERE stage = ?")
        self._drop_stage = words("DELETE FROM {p}sink_stages WHERE stage = ?")
        self._make_fence = words(
            "INSERT INTO {p}sink_fences (fence, batch, expires_at) VALUES (?, -1, ?)"
        ) + words.if_new("fence")
        self._lock_fence = (
            words("SELECT batch, manifest FROM {p}sink_fences WHERE fence = ?") + words.for_update
        )
        self._set_fence = words(
            "UPDATE {p}sink_fences SET batch = ?, manifest = ?, expires_at = ? WHERE fence = ?"
        )
        self._expired_stages = words(
            "SELECT stage FROM {p}sink_stages WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
        )
        self._drop_fences = words("DELETE FROM {p}sink_fences WHERE expires_at <= ? AND manifest IS NULL")

    # -- staging -----------------------------------------------------------------------------------

    def group_of(self, name: str) -> str:
        return ""

    def new_stage(self, name: str) -> str:
        return secrets.token_hex(16)

    def stage(self, key: str, position: int, blocks: Sequence[Block], *, named: bool, last: bool) -> None:
        rows = [(key, position + place, _with_names(block)) for place, block in enumerate(blocks)]

        def work(connection: Connection) -> None:
            if position == 0:
                connection.exec_driver_sql(self._open_stage, (key, self._now(connection) + self._stage_ms))
            if rows:
                connection.exec_driver_sql(self._add_block, rows)
            if last:
                connection.exec_driver_sql(self._seal, (position + len(rows), key))

        self._write(work)

    def hold(self, stages: Sequence[Stage]) -> None:
        def work(connection: Connection) -> None:
            until = self._now(connection) + self._fence_ms + _HOLD_SLACK
            for stage in stages:
                row = connection.exec_driver_sql(self._lock_stage, (stage.key,)).first()
                found = connection.exec_driver_sql(self._count, (stage.key,)).scalar()
                if row is None or row[0] != stage.blocks or found != stage.blocks:
                    raise _lost(stage.key, "before it was published; nothing of this write was")
                connection.exec_driver_sql(self._keep, (until, stage.key))

        self._write(work)

    # -- publishing --------------------------------------------------------------------------------

    def begin(self, fence: str, batch: int, manifest: Manifest | None) -> Begun | None:
        def work(connection: Connection) -> Begun | None:
            until = self._now(connection) + self._fence_ms
            if manifest is not None:
                connection.exec_driver_sql(self._make_fence, (fence, until))
            row = connection.exec_driver_sql(self._lock_fence, (fence,)).first()
            last, text = (-1, None) if row is None else row
            if text is not None and last <= batch:
                return Begun(msgspec.json.decode(bytes(text), type=Manifest))
            if last >= batch:
                return Begun(None)
            if manifest is None:
                return None
            connection.exec_driver_sql(self._set_fence, (batch, msgspec.json.encode(manifest), until, fence))
            return Begun(manifest)

        begun: Begun | None = self._write(work)
        return begun

    def publish(self, stage: Stage) -> int:
        rows = 0
        while True:
            published = self._write(lambda connection: self._step(connection, stage))
            if published is None:
                return rows
            added, after_commit = published
            rows += added
            after_commit()

    def _step(self, connection: Connection, stage: Stage) -> Any:
        """Publish the first block; None where there is none left."""
        row = connection.exec_driver_sql(self._lock_stage, (stage.key,)).first()
        if row is None or row[0] == UNSEALED:
            raise _lost(stage.key, "while it was published")
        block = connection.exec_driver_sql(self._first, (stage.key,)).first()
        if block is None:
            return None
        connection.exec_driver_sql(self._pop, (stage.key, block[0]))
        return self._add(connection, stage, bytes(block[1]))

    def _add(self, connection: Connection, stage: Stage, block: bytes) -> Any:
        """Add what a block holds; how many rows, and what is to be done after the commit."""
        raise NotImplementedError

    def finish(self, fence: str, manifest: Manifest) -> None:
        def work(connection: Connection) -> None:
            until = self._now(connection) + self._fence_ms
            row = connection.exec_driver_sql(self._lock_fence, (fence,)).first()
            if row is not None and row[0] == manifest.batch:
                connection.exec_driver_sql(self._set_fence, (manifest.batch, None, until, fence))

        self._write(work)
        self.discard(manifest.stages)
        with suppress(MillstreamError):  # housekeeping; the write is done
            self._purge()

    def discard(self, stages: Sequence[Stage]) -> None:
        self._drop([stage.key for stage in stages])

    # -- parts -------------------------------------------------------------------------------------

    def _drop(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), TAKEN):
            rows = [(key,) for key in keys[start : start + TAKEN]]

            def work(connection: Connection, rows: list[tuple[str]] = rows) -> None:
                connection.exec_driver_sql(self._drop_blocks, rows)
                connection.exec_driver_sql(self._drop_stage, rows)

            self._write(work)

    def _purge(self) -> None:
        """Remove what killed tasks left behind, and fences that nobody asked for any more."""

        def work(connection: Connection) -> list[str]:
            now = self._now(connection)
            connection.exec_driver_sql(self._drop_fences, (now,))
            rows = connection.exec_driver_sql(self._expired_stages, (now, PURGED)).all()
            return [row[0].decode() if isinstance(row[0], bytes) else row[0] for row in rows]

        self._drop(self._write(work))

    def _now(self, connection: Connection) -> int:
        """The server's clock, in milliseconds."""
        return self._words.now(connection) // (1000 * PLACES)

    def _write(self, work: Any) -> Any:
        return self._database.write(work, repeat=True, retry_for=RETRY_FOR)


class SqlTarget(_SqlStages):
    """Entries of streams."""

    def __init__(self, options: CommonOptions) -> None:
        self._broker = SqlStreamBroker(options.url, retry_for=RETRY_FOR, lock_timeout=LOCK_TIMEOUT)
        super().__init__(self._broker._database, options)

    def close(self) -> None:
        self._broker.close()

    def _add(self, connection: Connection, stage: Stage, block: bytes) -> Any:
        names, *items = unpack(block)
        streams: list[str] = msgspec.json.decode(names)
        bodies: dict[str, list[bytes | Typed]] = {}
        if items[0] == PLAIN:
            bodies[streams[0]] = list(items[1:])
        else:
            for place in range(1, len(items), 4):
                number, data, type_, headers = items[place : place + 4]
                body = Typed(data, type_.decode() or None, headers or None) if type_ or headers else data
                bodies.setdefault(streams[int(number) - 1], []).append(body)
        adder = self._broker._adder
        lengths = {}
        for stream in sorted(bodies):  # locked in one order, so that two writes cannot block each other
            _, lengths[stream] = adder._add(connection, stream, "*", bodies[stream])

        def after_commit() -> None:
            for stream, length in lengths.items():
                adder._hub.ring(stream)
                adder._grew(stream, length)

        return sum(map(len, bodies.values())), after_commit


class SqlJobTarget(_SqlStages, JobTarget):
    """Jobs on queues."""

    def __init__(self, options: JobWriteOptions) -> None:
        self._driver = SqlDriver(
            options.url,
            prefix=options.prefix,
            max_payload=MAX_BODY,
            retry_for=RETRY_FOR,
            lock_timeout=LOCK_TIMEOUT,
        )
        super().__init__(self._driver._database, options)

    def close(self) -> None:
        self._driver.close()

    def group_of(self, name: str) -> str:
        return name

    def job_block(self, items: Sequence[PushItem]) -> bytes:
        return pack([_encode_item(item) for item in items])

    def _add(self, connection: Connection, stage: Stage, block: bytes) -> Any:
        items = [_decode_item(item) for item in unpack(block)[1:]]
        self._driver.push_in(connection, items)
        return len(items), lambda: None


MAX_BODY = 1 << 30  # the payload was checked where its row was read


def _with_names(block: Block) -> bytes:
    """A block with the names of its streams in front, in one value."""
    body, _, names = block
    count = int.from_bytes(body[1:5], "big") + 1
    return body[:1] + count.to_bytes(4, "big") + pack((msgspec.json.encode(names),))[5:] + body[5:]


def _lost(key: str, when: str) -> StagedDataLost:
    return StagedDataLost(f"what was staged as {key} is gone {when}: it expired; raise stageTtl")
