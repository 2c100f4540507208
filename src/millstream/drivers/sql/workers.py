"""The workers that are alive."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from millstream.drivers.base import WorkerInfo
from millstream.drivers.sql.layout import SECOND, Words, seconds, ticks
from millstream.sql.database import Database


class Workers:
    """The workers that are alive."""

    def __init__(self, database: Database, words: Words, space: str, retry_for: float) -> None:
        self._database, self._words, self._space, self._retry_for = database, words, space, retry_for
        self._beat = words(
            "INSERT INTO {p}workers (space, id, info, seen_at, until) VALUES (?, ?, ?, ?, ?)"
        ) + words.or_replace(("space", "id"), ("info", "seen_at", "until"))
        self._alive = words("SELECT info, seen_at FROM {p}workers WHERE space = ? AND until > ? ORDER BY id")
        self._expired = words("DELETE FROM {p}workers WHERE space = ? AND until <= ?")
        self._retire = words("DELETE FROM {p}workers WHERE space = ? AND id = ?")

    def beat(self, worker: WorkerInfo, ttl: float) -> None:
        info = msgspec.json.encode(worker)

        def work(connection: Connection) -> None:
            now = self._words.now(connection)
            connection.exec_driver_sql(self._beat, (self._space, worker.id, info, now, now + ticks(ttl)))

        self._database.write(work, repeat=True, durable=False, retry_for=self._retry_for)

    def alive(self) -> list[WorkerInfo]:
        def work(connection: Connection) -> list[WorkerInfo]:
            now = self._words.now(connection)
            return [
                msgspec.structs.replace(
                    msgspec.json.decode(bytes(info), type=WorkerInfo), age=max(seconds(now - seen_at), 0.0)
                )
                for info, seen_at in connection.exec_driver_sql(self._alive, (self._space, now)).all()
            ]

        return self._database.read(work, retry_for=self._retry_for)

    def retire(self, worker_id: str) -> None:
        """Forget a worker, and those that were last heard of long ago."""

        def work(connection: Connection) -> None:
            connection.exec_driver_sql(self._retire, (self._space, worker_id))
            hour_ago = self._words.now(connection) - 3600 * SECOND
            connection.exec_driver_sql(self._expired, (self._space, hour_ago))

        self._database.write(work, repeat=True, durable=False, retry_for=self._retry_for)
