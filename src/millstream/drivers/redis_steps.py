"""The steps of StreamDriver on Redis and Valkey: one script each, in `lua/`."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from millstream.brokers.redis import RedisStreamBroker
from millstream.brokers.redis.calls import Call
from millstream.brokers.redis.link import Argument
from millstream.drivers.base import (
    Capabilities,
    DeadLetter,
    FoundJob,
    Outcome,
    PlainBatch,
    PushItem,
    QueueSize,
    RateLimit,
    Reservation,
    Settlement,
    WorkerInfo,
)
from millstream.drivers.keys import LEVELS, NAMES
from millstream.drivers.redis_calls import ANSWER_TTL_MS, Connection, Slot, script
from millstream.drivers.redis_reserving import Reserver, job_id, tells_id
from millstream.drivers.redis_schedule import Schedule
from millstream.drivers.steps import Steps
from millstream.envelope import PRIORITIES

ADD, PUSH, SETTLE, RETRY_DEAD = (script(name) for name in ("add_3", "push_15", "settle_15", "retry_dead_15"))
PUSH_NUMBERED = script("push_numbered_15")
EXTEND, PROMOTE, LEASE = (script(name) for name in ("extend_14", "promote_14", "lease_1"))
SIZE, FIND, DELAYED = (script(name) for name in ("size_14", "find_14", "delayed_14"))
WAITING, DROP, PAUSE, RESUME = (script(name) for name in ("waiting_14", "drop_14", "pause_14", "resume_14"))
DEAD, DEAD_LETTER = script("dead_14"), script("dead_letter_14")
UPDATE_DEAD, CLEAR_DEAD = script("update_dead_14"), script("clear_dead_14")
BEAT, WORKERS, RETIRE = (script(name) for name in ("beat_2", "workers_2", "retire_14"))

MAX_BYTES = 32 * 1024 * 1024  # of bodies in one command, far below what makes a server drop its client
LINE_TTL_MS = 10 * 365 * 86_400_000  # of a line's last number: for as long as anybody may come back to it
NOTE_QUEUE_EVERY = 60.0  # seconds; after a flush the list of queues is complete again that soon
_CODES = {"complete": "c", "retry": "r", "bury": "b", "release": "f"}
_Section = tuple[Outcome, str, int, str]  # outcome, priority, delivery count, owner
_ORDER = {"complete": 0, "release": 1, "retry": 2, "bury": 3}


class RedisSteps(Steps):
    """See `steps.py` for what each method is."""

    def __init__(self, broker: RedisStreamBroker, prefix: str, retry_for: float) -> None:
        self._connection = connection = Connection(broker, prefix, retry_for)
        self._writes, self._reads = connection.writes, connection.reads
        self._keys, self._numbers = connection.keys, connection.numbers
        self._reserver = Reserver(connection, self.settle)
        self._schedule = Schedule(connection)
        self.capabilities = Capabilities()
        self.max_payload = connection.max_payload
        self._noted: dict[str, float] = {}  # when each queue was put on the list
        self._dead_places: dict[tuple[str, str], str] = {}  # entry ids of letters that a listing ended with
        self._queues = f"{{{prefix}}}:queues"
        self._worker_keys = (f"{{{prefix}}}:workers", f"{{{prefix}}}:workers:until")

    def close(self) -> None:
        self._connection.stop()

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, queue: str, items: Sequence[PushItem]) -> list[str]:
        if len(items) > 1 and _size(items) > MAX_BYTES:
            half = len(items) // 2
            return self.push(queue, items[:half]) + self.push(queue, items[half:])
        self._note_queue(queue)
        ids = [item.id for item in items]
        slot = self._numbers.take((queue, *ids))
        try:
            if _is_plain(items):
                step, (keys, args) = ADD, self._addition(queue, slot, ids, items)
            else:
                step, (keys, args) = PUSH, self._mixture(queue, slot, items)
            answer = self._writes.script(step, keys, *args)
        except BaseException:
            self._numbers.keep(slot, (queue, *ids))
            raise
        self._numbers.give_back(slot)
        return _with_stand_ins(ids, answer)

    def push_ahead(self, queue: str, batches: Iterable[Sequence[PushItem]]) -> Iterator[list[str]]:
        for plain, those in groupby(batches, _is_one_addition):
            if plain:
                yield from self._add_ahead(queue, those)
            else:
                yield from (self.push(queue, list(items)) for items in those)

    def _add_ahead(self, queue: str, batches: Iterable[Sequence[PushItem]]) -> Iterator[list[str]]:
        self._note_queue(queue)
        unanswered: deque[tuple[Slot, list[str]]] = deque()

        def calls() -> Iterator[Call]:
            for items in batches:
                ids = items.ids if isinstance(items, PlainBatch) else [item.id for item in items]
                slot = self._numbers.take((queue, *ids))
                unanswered.append((slot, ids))
                yield self._addition(queue, slot, ids, items)

        try:
            for answer in self._writes.scripts(ADD, calls()):
                slot, ids = unanswered.popleft()
                self._numbers.give_back(slot)
                yield _with_stand_ins(ids, answer)
        finally:
            for slot, ids in unanswered:
                self._numbers.keep(slot, (queue, *ids))

    def _addition(self, queue: str, slot: Slot, ids: list[str], items: Sequence[PushItem]) -> Call:
        """The keys and arguments of add_3.lua."""
        keys = self._keys(queue)
        if isinstance(items, PlainBatch):
            priority, fresh, bodies = items.priority, "1", items.bodies
        else:
            priority, bodies = items[0].priority, [item.body for item in items]
            fresh = "1" if all(item.fresh for item in items) else "0"
        return (
            (keys.streams[PRIORITIES.index(priority)], keys.index, keys.answers(slot.id)),
            (slot.number, ANSWER_TTL_MS, LEVELS[priority], fresh, *ids, *bodies),
        )

    def _mixture(self, queue: str, slot: Slot, items: Sequence[PushItem]) -> Call:
        """The keys and arguments of push_15.lua."""
        marks: list[str] = []
        pairs: list[Argument] = []
        delays: list[Argument] = []
        uniques: list[Argument] = []
        later: list[str] = []
        for position, item in enumerate(items, 1):
            later.append("1" if item.delay else "0")
            if item.delay:
                delays.append(_ms(item.delay))
            marks.append(_mark(item.priority, item.id, item.body))
            pairs += (item.id, item.body)
            if item.unique_key is not None:
                uniques += (position, item.unique_key, _ms(item.unique_for))
        keys = self._keys(queue)
        return (
            (*keys.all, keys.answers(slot.id)),
            (slot.number, ANSWER_TTL_MS, "".join(marks), "".join(later), *pairs, *delays, *uniques),
        )

    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool:
        if items:
            self._note_queue(queue)
        call = Slot(f"line:{line}")
        call.number = number
        keys, args = self._mixture(queue, call, items)
        answer = self._writes.script(PUSH_NUMBERED, keys, number, LINE_TTL_MS, *args[2:])
        return bool(answer != b"old")

    def last_number(self, queue: str, line: str) -> int:
        key = self._keys(queue).answers(f"line:{line}")
        found = self._reads.call(key, "GET", key)
        return int(found.split()[0]) if found else 0

    def _note_queue(self, queue: str) -> None:
        """Put a queue on the list, which has a slot of its own. Before the push: no job is ever unlisted."""
        now = time.monotonic()
        if now - self._noted.get(queue, -1e9) > NOTE_QUEUE_EVERY:
            self._writes.call(self._queues, "SADD", self._queues, queue)
            self._noted[queue] = now

    # -- working -----------------------------------------------------------------------------------

    def reserve(
        self,
        queues: Sequence[str],
        owner: str,
        count: int,
        wait: float,
        max_wait: float | None,
        limits: Mapping[str, RateLimit],
    ) -> list[Reservation]:
        return self._reserver.reserve(queues, owner, count, wait, max_wait, limits)

    def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[bool]:
        sections: dict[_Section, list[int]] = {}
        for position, settlement in enumerate(settlements):
            one = settlement.reservation
            section = (settlement.outcome, one.priority, one.delivery_count, one.owner)
            if section in sections:
                sections[section].append(position)
            else:
                sections[section] = [position]
        args: list[Argument] = []
        order: list[int] = []
        settled: list[tuple[str, str, list[str]]] = []
        keys = self._keys(queue)
        # What removes comes first: then a server that is out of memory does not refuse what adds.
        for section in sorted(sections, key=_first_what_removes):
            outcome, priority, times, owner = section
            positions = sections[section]
            reservations = [settlements[position].reservation for position in positions]
            entries = [one.entry_id for one in reservations]
            args += (LEVELS[priority], owner, times, _CODES[outcome], len(positions))
            args += entries
            args += [one.id for one in reservations]
            if outcome in ("retry", "bury"):
                for position in positions:
                    args += _kept(settlements[position])
            order += positions
            settled.append((owner, keys.streams[PRIORITIES.index(priority)], entries))
        with self._numbers.one() as slot:
            answer = self._writes.script(
                SETTLE, (*keys.all, keys.answers(slot.id)), slot.number, ANSWER_TTL_MS, *args
            )
        for owner, stream, entries in settled:
            self._reserver.handed_back(owner, stream, entries)
        if not answer:
            return [True] * len(settlements)
        answers = [False] * len(settlements)
        for position, letter in zip(order, answer, strict=True):
            answers[position] = letter == 49  # "1"
        return answers

    def extend(self, queue: str, reservations: Sequence[Reservation]) -> list[bool]:
        sections: dict[tuple[str, int, str], list[int]] = {}
        for position, one in enumerate(reservations):
            sections.setdefault((one.priority, one.delivery_count, one.owner), []).append(position)
        args: list[Argument] = []
        order: list[int] = []
        for (priority, times, owner), positions in sections.items():
            args += (LEVELS[priority], owner, times, len(positions))
            args += [reservations[position].entry_id for position in positions]
            order += positions
        answer = self._writes.script(EXTEND, self._keys(queue).all, *args)
        answers = [False] * len(reservations)
        for position, letter in zip(order, answer, strict=True):
            answers[position] = letter == 49
        return answers

    def recover(self, queue: str, owner: str, lease: float, count: int) -> list[Reservation]:
        return self._reserver.recover(queue, owner, _ms(lease), count)

    def lease_lost(self, reservation: Reservation) -> bool:
        stream = self._keys(reservation.queue).streams[PRIORITIES.index(reservation.priority)]
        found = self._reads.script(LEASE, (stream,), reservation.entry_id)
        return not found or (found[0].decode(), found[1]) != (reservation.owner, reservation.delivery_count)

    # -- time --------------------------------------------------------------------------------------

    def promote(self, queue: str, limit: int) -> int:
        promoted: int = self._writes.script(PROMOTE, self._keys(queue).all, limit)
        return promoted

    def next_due(self, queues: Sequence[str]) -> float | None:
        return self._schedule.next_due(queues)

    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None:
        self._schedule.wait_for_due(queues, timeout, stop)

    # -- looking -----------------------------------------------------------------------------------

    def size(self, queue: str) -> QueueSize:
        *waiting, reserved, delayed, dead, oldest, paused = self._reads.script(SIZE, self._keys(queue).all)
        by_priority = dict(zip(PRIORITIES, waiting, strict=True))
        age = None if oldest < 0 else oldest / 1000
        return QueueSize(sum(waiting), reserved, delayed, dead, by_priority, age, bool(paused))

    def queues(self) -> list[str]:
        return sorted(name.decode() for name in self._reads.call(self._queues, "SMEMBERS", self._queues))

    def find(self, queue: str, job_id: str) -> FoundJob | None:
        reply = self._reads.script(FIND, self._keys(queue).all, job_id)
        if not reply:
            return None
        state, level, body, due, owner, times = reply
        state = state.decode()
        return FoundJob(
            *(job_id, queue, state, NAMES[level.decode()], body),
            due_in=due / 1000 if state == "delayed" else None,
            owner=owner.decode() or None,
            delivery_count=times,
        )

    def delayed(self, queue: str, count: int) -> list[FoundJob]:
        rows = self._reads.script(DELAYED, self._keys(queue).all, count)
        return [
            FoundJob(
                name.decode(), queue, "delayed", NAMES[chr(body[0]).lower()], body[1:], due_in=due / 1000
            )
            for name, body, due in rows
        ]

    # -- keeping house -----------------------------------------------------------------------------

    def clear(self, queue: str) -> int:
        keys = self._keys(queue).all
        size = self.size(queue)
        left = size.waiting + size.delayed  # what comes later may stay: or clearing could go on for ever
        forgotten = 0
        while left > 0:
            args: list[Argument] = []
            for place, body, name in self._reads.script(WAITING, keys, min(500, left)):
                args += (name or job_id(body, place[1:].decode()), place)
            if not args:
                for name, _, _ in self._reads.script(DELAYED, keys, min(500, left)):
                    args += (name, "z")
            if not args:
                break
            left -= len(args) // 2
            forgotten += self._writes.script(DROP, keys, *args)
        return forgotten

    def pause(self, queue: str) -> None:
        self._writes.script(PAUSE, self._keys(queue).all)

    def resume(self, queue: str) -> None:
        self._writes.script(RESUME, self._keys(queue).all)

    def cancel(self, queue: str, job_id: str) -> bool:
        return bool(self._writes.script(DROP, self._keys(queue).all, job_id, ""))

    # -- dead letters ------------------------------------------------------------------------------

    def dead(self, queue: str, start: str, count: int) -> list[DeadLetter]:
        # A letter that is gone by now still tells where to go on, as long as this object listed it.
        after = self._dead_places.get((queue, start), "") if start else ""
        rows = self._reads.script(DEAD, self._keys(queue).all, after, start, count)
        letters = [_letter(queue, row) for row in rows]
        if letters:
            if len(self._dead_places) > 1000:
                self._dead_places.clear()
            self._dead_places[queue, letters[-1].id] = rows[-1][0].decode()
        return letters

    def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        row = self._reads.script(DEAD_LETTER, self._keys(queue).all, job_id)
        return _letter(queue, row) if row else None

    def retry_dead(self, queue: str, items: Sequence[PushItem]) -> list[bool]:
        keys = self._keys(queue)
        args: list[Argument] = []
        for item in items:
            args += (item.id, _mark(item.priority, item.id, item.body), _ms(item.delay), item.body)
            args += (item.unique_key or "", _ms(item.unique_for))
        with self._numbers.one() as slot:
            answer = self._writes.script(
                RETRY_DEAD, (*keys.all, keys.answers(slot.id)), slot.number, ANSWER_TTL_MS, *args
            )
        return [letter == 49 for letter in answer]

    def update_dead(self, queue: str, job_id: str, body: bytes) -> bool:
        return bool(self._writes.script(UPDATE_DEAD, self._keys(queue).all, job_id, body))

    def clear_dead(self, queue: str, job_ids: Sequence[str] | None) -> int:
        keys = self._keys(queue).all
        if job_ids is not None:
            named: int = self._writes.script(CLEAR_DEAD, keys, *job_ids) if job_ids else 0
            return named
        cleared, left = 0, self.size(queue).dead
        while left > 0:
            step: int = self._writes.script(CLEAR_DEAD, keys)
            if not step:
                break
            cleared += step
            left -= step
        return cleared

    # -- workers -----------------------------------------------------------------------------------

    def beat(self, worker: WorkerInfo, ttl: float) -> None:
        self._writes.script(BEAT, self._worker_keys, worker.id, msgspec.json.encode(worker), _ms(ttl))

    def workers(self) -> list[WorkerInfo]:
        return [
            msgspec.structs.replace(msgspec.json.decode(text, type=WorkerInfo), age=age / 1000)
            for age, text in self._reads.script(WORKERS, self._worker_keys)
        ]

    def retire(self, worker_id: str, queues: Sequence[str]) -> None:
        for key, command in zip(self._worker_keys, ("HDEL", "ZREM"), strict=True):
            self._writes.call(key, command, key, worker_id)
        for queue in queues:
            self._writes.script(RETIRE, self._keys(queue).all, worker_id)


def _is_plain(items: Sequence[PushItem]) -> bool:
    """Whether the jobs are of one level, with nothing special about them."""
    priority = items[0].priority
    for item in items:
        if item.priority is not priority and item.priority != priority:
            return False
        if item.delay or item.unique_key is not None or not tells_id(item.body, item.id):
            return False
    return len(items) == 1 or len({item.id for item in items}) == len(items)


def _is_one_addition(items: Sequence[PushItem]) -> bool:
    if isinstance(items, PlainBatch):  # its bodies are envelopes in JSON, which tell the id
        return sum(map(len, items.bodies)) <= MAX_BYTES
    return _is_plain(items) and _size(items) <= MAX_BYTES


def _size(items: Sequence[PushItem]) -> int:
    return sum([len(item.body) for item in items])


def _mark(priority: str, job_id: str, body: bytes) -> str:
    """The letter of the level, in upper case where the body does not tell the id."""
    letter = LEVELS[priority]
    return letter if tells_id(body, job_id) else letter.upper()


def _with_stand_ins(ids: list[str], answer: bytes) -> list[str]:
    if answer:
        for position, stands in msgspec.json.decode(answer):
            ids[position - 1] = stands
    return ids


def _ms(seconds: float) -> int:
    """Milliseconds, upwards: nothing comes earlier than it was asked for."""
    return math.ceil(seconds * 1000)


def _kept(settlement: Settlement) -> tuple[Argument, ...]:
    """What is kept of a job that is tried again, or buried."""
    if settlement.outcome == "retry":
        one = settlement.reservation
        return (_ms(settlement.delay), _mark(one.priority, one.id, settlement.body), settlement.body)
    return (
        *(settlement.body, settlement.reason, settlement.error),
        *(settlement.traceback, settlement.attempts),
    )


def _first_what_removes(section: _Section) -> int:
    return _ORDER[section[0]]


def _letter(queue: str, row: Any) -> DeadLetter:
    entry_id, fields, edited = row
    named = dict(zip(fields[::2], fields[1::2], strict=True))

    def text(name: bytes) -> str:
        found: bytes = named.get(name, b"")
        return found.decode("utf-8", "backslashreplace")

    body: bytes = edited[1:] or named.get(b"job", b"")
    return DeadLetter(
        text(b"id") or job_id(body, entry_id.decode()),
        *(queue, body, text(b"original_stream"), text(b"original_id")),
        *(text(b"reason"), text(b"error"), text(b"traceback")),
        int(named.get(b"attempts", 0)),
        int(named.get(b"moved_at", 0)) / 1000,
    )
