"""Delays, looking, keeping house, dead letters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from millstream.drivers.base import DeadLetter, FoundJob, PushItem, QueueSize
from millstream.drivers.keys import QueueKeys
from millstream.drivers.sql.calls import Calls
from millstream.drivers.sql.layout import (
    CHUNK,
    DEAD,
    DELAYED,
    LAST,
    LEVELS,
    NOT_RESERVED,
    RESERVED,
    SECOND,
    WAITING,
    Words,
    entry_id,
    key_hash,
    seconds,
    text_of,
    ticks,
)
from millstream.drivers.sql.pushing import Pusher
from millstream.drivers.sql.waking import JobHub, due_key, waiting_key
from millstream.envelope import PRIORITIES
from millstream.sql.database import Database

REMEMBERED = 1000  # ends of pages of dead letters
_STATES = {RESERVED: "reserved", DELAYED: "delayed", DEAD: "dead"}
_COLUMNS = "queue, id, lane, pos, level, deliveries, owner, body"


class Keeper:
    """Everything about jobs that is not on the way from push to settle."""

    def __init__(
        self,
        database: Database,
        words: Words,
        hub: JobHub,
        calls: Calls,
        pusher: Pusher,
        prefix: str,
        retry_for: float,
    ) -> None:
        self._database, self._words, self._hub = database, words, hub
        self._calls, self._pusher, self._prefix, self._retry_for = calls, pusher, prefix, retry_for
        self._pages: OrderedDict[tuple[int, str], int] = OrderedDict()
        due = "queue = ? AND lane = ? AND pos >= ? AND pos <= ? ORDER BY queue, lane, pos LIMIT ?"
        new = "lane = level, seq = pos"
        self._promote = words(
            {
                "sqlite": f"UPDATE {{p}}jobs SET {new} WHERE rowid IN"
                f" (SELECT rowid FROM {{p}}jobs WHERE {due})",
                "postgresql": f"UPDATE {{p}}jobs SET {new} WHERE ctid = ANY(ARRAY("
                f"SELECT ctid FROM {{p}}jobs WHERE {due} FOR UPDATE SKIP LOCKED))",
                "mysql": f"SELECT id FROM {{p}}jobs FORCE INDEX ({words.prefix}jobs_lanes) WHERE {due}"
                " FOR UPDATE SKIP LOCKED",
            }[words.backend]
        )
        self._promote_these = words(f"UPDATE {{p}}jobs SET {new} WHERE queue = ? AND id IN (%)")
        first = "SELECT pos FROM {p}jobs WHERE queue = ? AND lane = ? ORDER BY queue, lane, pos LIMIT 1"
        self._first = words(first)
        self._counts = words("SELECT lane, COUNT(*) FROM {p}jobs WHERE queue = ? GROUP BY lane")
        self._paused = words("SELECT paused FROM {p}queues WHERE id = ?")
        self._pause = words("UPDATE {p}queues SET paused = ? WHERE id = ?")
        self._find = words(f"SELECT {_COLUMNS} FROM {{p}}jobs WHERE queue IN (%) AND id = ?")
        self._delayed = words(
            f"SELECT {_COLUMNS} FROM {{p}}jobs WHERE queue = ? AND lane = ? ORDER BY queue, lane, pos LIMIT ?"
        )
        self._some_of_lane = (
            words(
                "SELECT id, hold FROM {p}jobs WHERE queue = ? AND lane = ? AND pos <= ?"
                " ORDER BY queue, lane, pos LIMIT ?"
            )
            + words.for_update
        )
        self._these = (
            words("SELECT id, lane, hold, pos FROM {p}jobs WHERE queue = ? AND id IN (%)")
            + (" ORDER BY id" if words.for_update else "")
            + words.for_update
        )
        self._delete = words("DELETE FROM {p}jobs WHERE queue = ? AND id IN (%)")
        self._drop_letters = words("DELETE FROM {p}letters WHERE queue = ? AND id IN (%)")
        # Two statements, not a join: a planner may think of sorting all letters of the queue.
        force = f" FORCE INDEX ({words.prefix}jobs_lanes)" if words.backend == "mysql" else ""
        self._dead = words(
            f"SELECT id, body, level, seq, pos FROM {{p}}jobs{force}"
            f" WHERE queue = ? AND lane = {DEAD} AND pos >= ? AND NOT (pos = ? AND id <= ?)"
            " ORDER BY queue, lane, pos, id LIMIT ?"
        )
        self._dead_one = words(
            f"SELECT id, body, level, seq, pos FROM {{p}}jobs WHERE queue = ? AND id = ? AND lane = {DEAD}"
        )
        self._letters = words(
            "SELECT id, reason, error, traceback, attempts FROM {p}letters WHERE queue = ? AND id IN (%)"
        )
        self._dead_pos = words(f"SELECT pos FROM {{p}}jobs WHERE queue = ? AND id = ? AND lane = {DEAD}")
        self._edit = words(f"UPDATE {{p}}jobs SET body = ? WHERE queue = ? AND id = ? AND lane = {DEAD}")
        self._revive = words(
            "UPDATE {p}jobs SET lane = ?, pos = ?, seq = ?, level = ?, deliveries = 0, hold = ?, body = ?"
            " WHERE queue = ? AND id = ?"
        )

    # -- time --------------------------------------------------------------------------------------

    def promote(self, queue: int, limit: int) -> int:
        def work(connection: Connection) -> int:
            now = self._words.now(connection)
            given = (queue, DELAYED, 0, now, limit)
            if self._words.backend != "mysql":
                return connection.exec_driver_sql(self._promote, given).rowcount
            ids = [row[0] for row in connection.exec_driver_sql(self._promote, given).all()]
            self._some(connection, self._promote_these, queue, ids)
            return len(ids)

        def notifying(connection: Connection) -> int:
            promoted = work(connection)
            if promoted:
                self._hub.notify(connection, [waiting_key(queue)])
            return promoted

        # Most looks find nothing, and need no writer's lock and no transaction.
        if self.next_due([queue]) != 0:
            return 0
        promoted = self._calls.once(notifying, durable=False)
        if promoted:
            for lane in WAITING:
                self._hub.floors.forget(queue, lane)
            self._hub.ring(waiting_key(queue))
        return promoted

    def next_due(self, queues: Sequence[int]) -> float | None:
        first = self.first_due(queues)
        return None if first is None else first[1]

    def first_due(self, queues: Sequence[int]) -> tuple[int, float] | None:
        """When the first delayed job is due, on the server's clock, and in how many seconds."""

        def work(connection: Connection) -> tuple[int, float] | None:
            heads = [
                row[0]
                for queue in queues
                if (row := connection.exec_driver_sql(self._first, (queue, DELAYED)).first()) is not None
            ]
            if not heads:
                return None
            return min(heads), max(seconds(min(heads) - self._words.now(connection)), 0.0)

        return self._database.read(work, retry_for=self._retry_for)

    # -- looking -----------------------------------------------------------------------------------

    def size(self, queue: int) -> QueueSize:
        def work(connection: Connection) -> QueueSize:
            counts = {
                lane: int(count) for lane, count in connection.exec_driver_sql(self._counts, (queue,)).all()
            }
            heads = [
                row[0]
                for lane in WAITING
                if lane in counts
                and (row := connection.exec_driver_sql(self._first, (queue, lane)).first()) is not None
            ]
            now = self._words.now(connection)
            paused = bool(connection.exec_driver_sql(self._paused, (queue,)).scalar())
            return QueueSize(
                waiting=sum(counts.get(lane, 0) for lane in WAITING),
                reserved=counts.get(RESERVED, 0),
                delayed=counts.get(DELAYED, 0),
                dead=counts.get(DEAD, 0),
                by_priority={name: counts.get(level, 0) for level, name in enumerate(PRIORITIES)},
                oldest=max(seconds(now - min(heads)), 0.0) if heads else None,
                paused=paused,
            )

        return self._database.read(work, snapshot=True, retry_for=self._retry_for)

    def find(self, names: dict[int, str], job_id: str) -> FoundJob | None:
        """The job of that id in one of the queues."""
        if not names:
            return None
        text = self._find.replace("(%)", f"({self._words.marks(len(names))})")

        def work(connection: Connection) -> FoundJob | None:
            row = connection.exec_driver_sql(text, (*names, job_id)).first()
            return None if row is None else self._describe(names[row[0]], row, self._words.now(connection))

        return self._database.read(work, retry_for=self._retry_for)

    def delayed(self, queue: int, name: str, count: int) -> list[FoundJob]:
        def work(connection: Connection) -> list[FoundJob]:
            now = self._words.now(connection)
            rows = connection.exec_driver_sql(self._delayed, (queue, DELAYED, count)).all()
            return [self._describe(name, row, now) for row in rows]

        return self._database.read(work, retry_for=self._retry_for)

    @staticmethod
    def _describe(name: str, row: Any, now: int) -> FoundJob:
        _, job_id, lane, pos, level, deliveries, owner, body = row
        state: Any = _STATES.get(lane, "waiting")
        return FoundJob(
            *(text_of(job_id), name, state, PRIORITIES[level], bytes(body)),
            due_in=max(seconds(pos - now), 0.0) if lane == DELAYED else None,
            owner=text_of(owner),
            delivery_count=deliveries,
        )

    # -- keeping house -----------------------------------------------------------------------------

    def pause(self, queue: int, paused: bool) -> None:
        def work(connection: Connection) -> None:
            connection.exec_driver_sql(self._pause, (int(paused), queue))
            if not paused:
                self._hub.notify(connection, [waiting_key(queue)])

        self._database.write(work, repeat=True, retry_for=self._retry_for)
        if not paused:
            self._hub.ring(waiting_key(queue))

    def cancel(self, queue: int, job_id: str) -> bool:
        return bool(
            self._calls.once(lambda connection: self._remove(connection, queue, [job_id], NOT_RESERVED))
        )

    def clear(self, queue: int) -> int:
        """Forget what waits and what is delayed at this moment."""
        now = self._database.read(self._words.now, retry_for=self._retry_for)
        return sum(self._empty(queue, lane, LAST if lane == DELAYED else now) for lane in NOT_RESERVED)

    def _empty(self, queue: int, lane: int, until: int) -> int:
        def work(connection: Connection) -> int:
            rows = connection.exec_driver_sql(self._some_of_lane, (queue, lane, until, CHUNK)).all()
            self._forget(connection, queue, [(text_of(row[0]), row[1]) for row in rows], lane == DEAD)
            return len(rows)

        total = 0
        while True:
            removed = self._calls.once(work)
            total += removed
            if removed < CHUNK:
                return total

    def _remove(self, connection: Connection, queue: int, ids: Sequence[str], lanes: Iterable[int]) -> int:
        """Forget the jobs of ``ids`` that are in one of ``lanes``; how many."""
        rows = [row for row in self._rows(connection, queue, ids) if row[1] in lanes]
        self._forget(connection, queue, [(text_of(row[0]), row[2]) for row in rows], DEAD in lanes)
        return len(rows)

    def _rows(self, connection: Connection, queue: int, ids: Sequence[str]) -> Any:
        text = self._these.replace("(%)", f"({self._words.marks(len(ids))})")
        return connection.exec_driver_sql(text, (queue, *ids)).all()

    def _forget(self, connection: Any, queue: int, jobs: list[tuple[str, Any]], dead: bool) -> None:
        ids = [job_id for job_id, _ in jobs]
        self._some(connection, self._delete, queue, ids)
        if dead:
            self._some(connection, self._drop_letters, queue, ids)
        self._pusher.let_go(
            connection, [(queue, bytes(hold), job_id) for job_id, hold in jobs if hold is not None]
        )

    def _some(self, connection: Any, text: str, queue: int, ids: Sequence[Any]) -> None:
        if ids:
            connection.exec_driver_sql(text.replace("(%)", f"({self._words.marks(len(ids))})"), (queue, *ids))

    # -- dead letters ------------------------------------------------------------------------------

    def dead(self, queue: int, name: str, start: str, count: int) -> list[DeadLetter]:
        def work(connection: Connection) -> list[DeadLetter]:
            place = 0
            if start:
                row = connection.exec_driver_sql(self._dead_pos, (queue, start)).first()
                # A letter that is gone by now still tells where to go on, if it ended a page that this
                # driver gave.
                place = self._pages.get((queue, start), 0) if row is None else row[0]
            given = (queue, place, place, start, count)
            rows = connection.exec_driver_sql(self._dead, given).all()
            if rows:
                self._pages[queue, text_of(rows[-1][0])] = rows[-1][-1]
                while len(self._pages) > REMEMBERED:
                    self._pages.popitem(last=False)
            return self._with_stories(connection, queue, name, rows)

        return self._database.read(work, snapshot=True, retry_for=self._retry_for)

    def dead_letter(self, queue: int, name: str, job_id: str) -> DeadLetter | None:
        def work(connection: Connection) -> list[DeadLetter]:
            rows = connection.exec_driver_sql(self._dead_one, (queue, job_id)).all()
            return self._with_stories(connection, queue, name, rows)

        found = self._database.read(work, snapshot=True, retry_for=self._retry_for)
        return found[0] if found else None

    def _with_stories(self, connection: Connection, queue: int, name: str, rows: Any) -> list[DeadLetter]:
        """Dead letters, from their rows and from what is written about them."""
        stories: dict[str, Any] = {}
        ids = [row[0] for row in rows]
        for start in range(0, len(ids), CHUNK):
            some = ids[start : start + CHUNK]
            text = self._letters.replace("(%)", f"({self._words.marks(len(some))})")
            for job_id, *story in connection.exec_driver_sql(text, (queue, *some)).all():
                stories[text_of(job_id)] = story
        letters = []
        for job_id, body, level, seq, pos in rows:
            reason, error, traceback, attempts = stories[text_of(job_id)]
            letters.append(
                DeadLetter(
                    id=text_of(job_id),
                    queue=name,
                    body=bytes(body),
                    original_stream=QueueKeys(self._prefix, name).streams[level],
                    original_id=entry_id(seq),
                    reason=bytes(reason).decode(),
                    error=bytes(error).decode(),
                    traceback=bytes(traceback).decode(),
                    attempts=attempts,
                    moved_at=pos / SECOND,
                )
            )
        return letters

    def retry_dead(self, queue: int, items: Sequence[PushItem]) -> list[bool]:
        answers = self._calls.once(
            lambda connection: self._retry_dead(connection, queue, items), [True] * len(items)
        )
        self._hub.ring_keys([waiting_key(queue), due_key(queue)])
        return answers

    def _retry_dead(self, connection: Connection, queue: int, items: Sequence[PushItem]) -> list[bool]:
        if any(item.unique_key is not None for item in items):
            self._pusher.lock_queue(connection, queue)
        ids = sorted({item.id for item in items})
        dead = {text_of(row[0]) for row in self._rows(connection, queue, ids) if row[1] == DEAD}
        now = self._words.now(connection)
        held = self._pusher.holders(connection, queue, items, now)
        answers, rows, holds = [], [], []
        for place, item in enumerate(items):
            answers.append(item.id in dead)
            if item.id not in dead:
                continue
            dead.discard(item.id)
            hold = None
            if item.unique_key is not None and (digest := key_hash(item.unique_key)) not in held:
                held[digest] = item.id
                holds.append((queue, digest, item.id, now + ticks(item.unique_for) if item.unique_for else 0))
                hold = None if item.unique_for else digest
            level, pos = LEVELS[item.priority], now + place
            if item.delay:
                lane, pos, seq = DELAYED, pos + ticks(item.delay), 0
            else:
                lane, seq = level, pos
            rows.append((lane, pos, seq, level, hold, item.body, queue, item.id))
        if rows:
            connection.exec_driver_sql(self._revive, rows)
            self._some(connection, self._drop_letters, queue, [row[-1] for row in rows])
            self._pusher.hold(connection, holds)
            self._hub.notify(connection, [waiting_key(queue), due_key(queue)])
        return answers

    def update_dead(self, queue: int, job_id: str, body: bytes) -> bool:
        changed = self._database.write(
            lambda connection: connection.exec_driver_sql(self._edit, (body, queue, job_id)).rowcount,
            repeat=True,
            retry_for=self._retry_for,
        )
        return bool(changed)

    def clear_dead(self, queue: int, ids: Sequence[str] | None) -> int:
        if ids is None:
            return self._empty(queue, DEAD, LAST)
        return self._calls.once(lambda connection: self._remove(connection, queue, ids, (DEAD,)))
