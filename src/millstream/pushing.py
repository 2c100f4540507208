"""Pushing many jobs: checked, packed by the thousand, and sent ahead of the answers.

A thousand jobs of one type differ in their ids and payloads only. The rest of their envelopes, the frame, is
made once, so that a job costs little more than its payload's encoding.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING

import msgspec

from millstream.drivers.base import PlainBatch, PushItem
from millstream.envelope import Codec, new_job_ids
from millstream.errors import PayloadTooLarge
from millstream.job import Job
from millstream.packing import Packer, envelope_of, is_special
from millstream.registry import JobType

if TYPE_CHECKING:
    from millstream.queue import Queue

BATCH = 1000  # jobs that are packed and sent at a time
_ID, _PAYLOAD = "id-of-the-job", b'"payload-of-the-job"'  # where these go in a frame
Packed = tuple[list[Job], Sequence[PushItem]]


class Arrived(str):
    """The ticket of a job that was pushed by a call that failed later: it need not be sent again."""


class Bulk:
    """One call of `push_many`, with jobs for one queue object."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._driver, self._packer = queue, queue.driver, queue._packer
        self._framer = Framer(self._packer, time.time())
        self.ids: list[str] = []  # of what is known to have arrived

    def push_list(self, jobs: list[Job]) -> None:
        """Push what was given as a whole: all of it is checked before the first is sent."""
        payloads = self._framer.payloads(jobs)
        places = range(0, len(jobs), BATCH)
        packed: Iterable[Packed] = (
            self._packed(jobs[at : at + BATCH], payloads[at : at + BATCH]) for at in places
        )
        if any((job._options or job._type.options).unique_key is not None for job in jobs):
            packed = list(packed)  # the user's own code makes such keys, and may refuse
        try:
            self._push(packed)
        except BaseException:
            for job, job_id in zip(jobs, self.ids, strict=False):
                job._ticket = Arrived(job_id)
            raise

    def push_stream(self, chunks: Iterable[list[Job]]) -> None:
        """Push what comes by and by; no more than two thousand jobs are held."""
        self._push(self._packed(chunk, self._framer.payloads(chunk)) for chunk in chunks)

    def _packed(self, jobs: list[Job], payloads: list[msgspec.Raw]) -> Packed:
        return jobs, self._framer.batch(jobs, payloads)

    def _push(self, packed: Iterable[Packed]) -> None:
        sent: deque[Packed] = deque()

        def batches() -> Iterator[Sequence[PushItem]]:
            for each in packed:
                sent.append(each)
                yield each[1]

        try:
            for got in self._driver.push_batches(batches()):
                self.ids += got
                for job, job_id in zip(sent.popleft()[0], got, strict=True):
                    job._id, job._ticket = job_id, None
        except BaseException:
            for jobs, items in sent:  # they may have arrived: pushed again, they have the same ids
                for job, item in zip(jobs, items, strict=True):
                    job._ticket = item.id
            raise


class Framer:
    """Packs the jobs of one call, which are all pushed at the same time."""

    def __init__(self, packer: Packer, now: float) -> None:
        self._packer, self._codec, self._now = packer, packer.codec, now
        self._ids = new_job_ids()
        self._frames: dict[JobType, Frame] = {}

    def payloads(self, jobs: Sequence[Job]) -> list[msgspec.Raw]:
        """The fields of each, checked. Raises InvalidPayload or PayloadTooLarge."""
        encode, limit = self._codec.encode_payload, self._packer.max_payload
        found: list[msgspec.Raw] = []
        kind = None
        for job in jobs:
            if job._type is not kind:
                kind = job._type
                check, expected = kind.decoder(self._codec), len(kind.schema.names)
                slow = kind.schema.takes_null_for_nan
            if slow:  # its values are looked at one by one
                found.append(self._packer.payload(job, kind))
                continue
            fields = job.__dict__
            try:
                payload = encode(fields if len(fields) == expected else kind.fields_of(job))
                check(payload)
            except Exception:  # noqa: BLE001 - done again, the usual way says what is wrong
                payload = self._packer.payload(job, kind)
            if len(payload) > limit:
                raise PayloadTooLarge(len(payload), limit)
            found.append(payload)
        return found

    def batch(self, jobs: list[Job], payloads: list[msgspec.Raw]) -> Sequence[PushItem]:
        """The items of up to a thousand jobs."""
        kind = jobs[0]._type
        frame = self._frames.get(kind)
        if frame is None:
            frame = self._frames[kind] = Frame(kind, self._codec, self._now)
        if frame.usable and all(
            job._type is kind and job._options is None and job._delay is None and job._ticket is None
            for job in jobs
        ):
            ids = list(islice(self._ids, len(jobs)))
            return PlainBatch(frame.queue, frame.priority, ids, frame.fill(ids, payloads))
        return [
            self._packer.item(job, job._type, payload, job._ticket or next(self._ids), self._now)
            for job, payload in zip(jobs, payloads, strict=True)
        ]


class Frame:
    """The envelope of a plain job of one type, without its id and its payload."""

    def __init__(self, kind: JobType, codec: Codec, now: float) -> None:
        options = kind.options
        self.queue, self.priority = options.queue, options.priority
        self._head = self._middle = self._tail = b""
        self.usable = getattr(codec, "is_plain_json", False) and not is_special(options)
        if self.usable:
            envelope = envelope_of(kind.name, options)
            envelope.id, envelope.payload, envelope.pushed_at = _ID, msgspec.Raw(_PAYLOAD), now
            parts = re.split(b"%b|%b" % (_ID.encode(), _PAYLOAD), codec.encode(envelope))
            self.usable = len(parts) == 3  # a type or a tag may be called like one of them
            if self.usable:
                self._head, self._middle, self._tail = parts

    def fill(self, ids: list[str], payloads: list[msgspec.Raw]) -> list[bytes]:
        head, middle, tail, join = self._head, self._middle, self._tail, b"".join
        return [
            join((head, job_id.encode(), middle, payload, tail))
            for job_id, payload in zip(ids, payloads, strict=True)
        ]


def push_iterator(queue: Queue, jobs: Iterable[Job]) -> list[str]:
    """Push what an iterator gives, a thousand at a time; the ids."""
    left = iter(jobs)
    ids: list[str] = []

    def all_here(chunk: list[Job]) -> bool:
        return all([queue._target(job) is queue for job in chunk])  # noqa: C419 - all of them are checked

    for here, chunks in groupby(iter(lambda: list(islice(left, BATCH)), []), all_here):
        if here:
            bulk = Bulk(queue)
            bulk.push_stream(chunks)
            ids += bulk.ids
        else:
            for chunk in chunks:
                ids += queue.push_many(chunk)
    return ids
