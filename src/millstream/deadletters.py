"""Dead letters: the jobs that failed for good, kept to be looked at, corrected, tried again or forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.drivers.base import DeadLetter, Driver, PushItem
from millstream.envelope import PRIORITIES, Attempt, Envelope
from millstream.errors import InvalidInput, InvalidPayload, PayloadTooLarge
from millstream.options import seconds
from millstream.registry import Registry, decode_payload
from millstream.tasks import check_data
from millstream.unpacking import Unpacker

PAGE = 500  # dead letters per read
BATCH = 1000  # retries per round trip


class DeadJob(msgspec.Struct, frozen=True):
    """One dead letter: why it is here, and the job itself with the history of its attempts."""

    id: str
    queue: str
    reason: str  # failed, timeout, rejected, unreadable, expired, poison, or what Bury said
    error: str
    traceback: str
    attempts: int
    moved_at: float  # seconds since the epoch
    original_stream: str
    original_id: str
    envelope: Envelope | None  # None where the body cannot be read
    body: bytes
    codec: str = ""  # that it is written in; empty where the body cannot be read

    @property
    def type(self) -> str:
        """The job's type; empty where the body cannot be read."""
        return "" if self.envelope is None else self.envelope.type

    @property
    def payload(self) -> dict[str, Any]:
        """The job's fields as plain values."""
        return {} if self.envelope is None else decode_payload(self.envelope.payload)

    @property
    def history(self) -> list[Attempt]:
        """Every attempt that is remembered, oldest first."""
        return [] if self.envelope is None else self.envelope.history

    @property
    def moved(self) -> datetime:
        """When it came here."""
        return datetime.fromtimestamp(self.moved_at, UTC)


class ErrorGroup(msgspec.Struct, frozen=True):
    """Dead letters that have their type, reason and error in common."""

    count: int
    type: str
    reason: str
    error: str
    first_at: float
    last_at: float


class DeadLetters:
    """The dead letters of one queue. Made by ``queue.dead("emails")``.

    Wherever a method has filters, they are: ``type`` (the job's type), ``error`` (a part of the error's text,
    upper and lower case alike), ``reason``, ``since`` and ``until`` (a datetime, or seconds since the epoch).
    """

    def __init__(
        self, driver: Driver, unpacker: Unpacker, registry: Registry, queue: str, max_payload: int
    ) -> None:
        self.queue = queue
        self._driver, self._unpacker, self._registry = driver, unpacker, registry
        self._max_payload = max_payload

    def __len__(self) -> int:
        return self._driver.size(self.queue).dead

    def __iter__(self) -> Iterator[DeadJob]:
        return self._walk()

    def list(self, *, count: int | None = None, start: str = "", **filters: Any) -> list[DeadJob]:
        """Dead letters, oldest first, after the job id ``start``; all that fit, or ``count`` of them."""
        found: list[DeadJob] = []
        for letter in self._walk(start, **filters):
            found.append(letter)
            if count is not None and len(found) >= count:
                break
        return found

    def show(self, job_id: str) -> DeadJob | None:
        """One dead letter with the history of its attempts; None where it is not here."""
        found = self._driver.dead_letter(self.queue, job_id)
        return None if found is None else self._read(found)

    def groups(self, **filters: Any) -> Sequence[ErrorGroup]:
        """How many failed of what: by type, reason and error, the most frequent first."""
        gathered: dict[tuple[str, str, str], tuple[int, float, float]] = {}
        for letter in self._walk(**filters):
            key = (letter.type, letter.reason, letter.error)
            count, first, last = gathered.get(key, (0, letter.moved_at, letter.moved_at))
            gathered[key] = (count + 1, min(first, letter.moved_at), max(last, letter.moved_at))
        groups = [ErrorGroup(count, *key, first, last) for key, (count, first, last) in gathered.items()]
        return sorted(groups, key=lambda group: (-group.count, group.type, group.error))

    def edit(self, job_id: str, payload: Mapping[str, Any]) -> DeadJob:
        """Replace a dead letter's fields; it stays dead until it is retried.

        They are checked where the job's type is known here. Raises InvalidPayload, or InvalidInput for an
        id that is not here.
        """
        letter = self.show(job_id)
        if letter is None:
            raise InvalidInput(f"there is no dead letter {job_id!r} in the queue {self.queue!r}")
        if letter.envelope is None:
            raise InvalidInput(f"dead letter {job_id!r} cannot be read as a job, so it cannot be edited")
        envelope, codec = letter.envelope, self._unpacker.codec(letter.codec)
        fields = check_data(envelope.type, payload)
        known = self._registry.get(envelope.type)
        if known is None:
            try:
                raw = codec.encode_payload(fields)
            except (TypeError, ValueError) as error:
                raise InvalidPayload(envelope.type, str(error)) from error
            version = envelope.version
        else:
            raw, version = known.encode_data(fields, codec), known.options.version
        size = len(memoryview(raw))
        if size > self._max_payload:
            raise PayloadTooLarge(size, self._max_payload)
        edited = msgspec.structs.replace(envelope, payload=raw, version=version)
        if not self._driver.update_dead(self.queue, job_id, codec.encode(edited)):
            raise InvalidInput(f"dead letter {job_id!r} is not there any more")
        found = self.show(job_id)
        assert found is not None
        return found

    def retry(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        rate: float | None = None,
        on_progress: Callable[[int], None] | None = None,
        **filters: Any,
    ) -> int:
        """Make dead letters waiting again, those named, those that fit, or all; how many.

        A job keeps its id, its priority and its history and begins again at its first attempt; one that
        cannot be read here goes back as it is. ``rate`` is how many per second become available: all are
        handed over now, each due a little later than the one before.
        """
        if rate is not None and (
            isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0
        ):
            raise InvalidInput(f"rate must be a number of jobs per second above 0, not {rate!r}")
        retried = 0
        batch: list[PushItem] = []
        for position, letter in enumerate(self._chosen(ids, filters)):
            batch.append(self._item(letter, 0.0 if rate is None else position / rate))
            if len(batch) == BATCH:
                retried += sum(self._driver.retry_dead(self.queue, batch))
                batch = []
                if on_progress is not None:
                    on_progress(retried)
        if batch:
            retried += sum(self._driver.retry_dead(self.queue, batch))
        return retried

    def clear(self, ids: str | Sequence[str] | None = None, **filters: Any) -> int:
        """Forget dead letters: those named, those that fit, or all; how many."""
        if ids is None and not filters:
            return self._driver.clear_dead(self.queue)
        chosen = [letter.id for letter in self._chosen(ids, filters)]
        cleared = 0
        for start in range(0, len(chosen), BATCH):
            cleared += self._driver.clear_dead(self.queue, chosen[start : start + BATCH])
        return cleared

    def _item(self, letter: DeadJob, delay: float) -> PushItem:
        envelope = letter.envelope
        if envelope is None:  # as it was: a worker that can read it may exist by now
            return PushItem(letter.id, self.queue, self._former_priority(letter), letter.body, delay)
        fresh = msgspec.structs.replace(
            envelope,
            attempt=1,
            rejections=0,
            due_at=time.time() + delay if delay else None,
            expires_at=None,  # who retries it by hand wants it run
        )
        priority = envelope.priority if envelope.priority in PRIORITIES else "default"
        body = self._unpacker.codec(letter.codec).encode(fresh)
        return PushItem(letter.id, self.queue, priority, body, delay, envelope.unique_key)

    def _former_priority(self, letter: DeadJob) -> str:
        """That of the stream that it was taken from."""
        levels = dict(zip(self._driver.stream_keys(self.queue), PRIORITIES, strict=False))
        return levels.get(letter.original_stream, "default")

    def _chosen(self, ids: str | Sequence[str] | None, filters: dict[str, Any]) -> Iterator[DeadJob]:
        if ids is None:
            yield from list(self._walk(**filters))  # gathered first: working on them changes what there is
            return
        fits = _filter(**filters)
        for job_id in [ids] if isinstance(ids, str) else ids:
            letter = self.show(job_id)
            if letter is not None and fits(letter):
                yield letter

    def _walk(self, start: str = "", **filters: Any) -> Iterator[DeadJob]:
        fits = _filter(**filters)
        while True:
            page = self._driver.dead(self.queue, start=start, count=PAGE)
            for found in page:
                letter = self._read(found)
                if fits(letter):
                    yield letter
            if len(page) < PAGE:
                return
            start = page[-1].id

    def _read(self, found: DeadLetter) -> DeadJob:
        envelope, codec = self._unpacker.unpack(found.body)
        return DeadJob(
            id=found.id,
            queue=found.queue,
            reason=found.reason,
            error=found.error,
            traceback=found.traceback,
            attempts=found.attempts,
            moved_at=found.moved_at,
            original_stream=found.original_stream,
            original_id=found.original_id,
            envelope=envelope,
            body=found.body,
            codec=codec,
        )


def _filter(
    *,
    type: str | None = None,  # noqa: A002 - the word that users have for it
    error: str | None = None,
    reason: str | None = None,
    since: float | datetime | None = None,
    until: float | datetime | None = None,
) -> Callable[[DeadJob], bool]:
    """Whether a dead letter fits."""
    wanted = None if error is None else error.casefold()
    begin, end = _moment("since", since), _moment("until", until)

    def fits(letter: DeadJob) -> bool:
        return (
            (type is None or letter.type == type)
            and (wanted is None or wanted in letter.error.casefold())
            and (reason is None or letter.reason == reason)
            and (begin is None or letter.moved_at >= begin)
            and (end is None or letter.moved_at < end)
        )

    return fits


def _moment(name: str, value: float | datetime | None) -> float | None:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(f"{name}: {value!r} has no time zone")
        return value.timestamp()
    return None if value is None else seconds(name, value)
