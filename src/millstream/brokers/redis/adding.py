"""Additions that are more than one XADD: with a key, with a limit, by the thousand; and trimming."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice

from millstream.brokers.arguments import check_limits
from millstream.brokers.payload import check_name
from millstream.brokers.redis import scripts
from millstream.brokers.redis.calls import Caller
from millstream.brokers.redis.failures import BadAddId
from millstream.brokers.redis.link import Argument, ClusterLink
from millstream.brokers.redis.reading import last_generated_id
from millstream.errors import BrokerError, IdNotGreater, InvalidName
from millstream.message import canonical_id, parse_id

log = logging.getLogger("millstream.brokers.redis")

BATCH = 1000  # ids or entries per script: Lua cannot unpack eight thousand, and a script stops the server
BATCH_BYTES = 64 * 1024 * 1024  # far below the gigabyte at which a server drops a client that sends it


class Adder:
    """Adds and trims by script."""

    def __init__(self, caller: Caller, key_ttl: float, max_stream_length: int | None) -> None:
        self._caller = caller
        self._key_ttl_ms = max(1, round(key_ttl * 1000))
        self._max_stream_length = max_stream_length
        # Additions since the last automatic trim, by stream.
        self._grown: dict[str, int] = {}

    def add_specially(
        self,
        stream: str,
        entry_id: str,
        fields: tuple[Argument, ...],
        maxlen: int | None,
        minid: str | None,
        plain: bool,
        key: str | None,
    ) -> str:
        """An addition that trims, or has a key."""
        check_limits(maxlen, minid)
        mode, limit = trim_words(maxlen, minid)
        if key is None and plain:
            raw: bytes = self._caller.call(
                stream, "XADD", stream, mode, "=", limit, entry_id, *fields, repeat=False
            )
            return raw.decode()
        if key is None:
            reply = self._caller.script(
                scripts.ADD_TRIM, (stream,), mode, limit, entry_id, *fields, repeat=False
            )
        else:
            memory = self._once_key(stream, check_name("key", key))
            reply = self._caller.script(
                scripts.ADD_ONCE,
                (stream, memory),
                *(self._key_ttl_ms, mode, limit, int(plain), entry_id, *fields),
            )
        found, removed, more, excess = reply
        if more:
            self.trim(stream, mode, limit, removed, excess)
        return str(found, "ascii")

    def _once_key(self, stream: str, key: str) -> str:
        """Where a caller's key is remembered: in the stream's own slot, so that one script reaches both."""
        tag_start = stream.find("{")
        tag_end = stream.find("}", tag_start + 1)
        if tag_start >= 0 and tag_end > tag_start + 1:
            return f"{stream}:once:{key}"  # the name has a hash tag of its own
        if "}" in stream and isinstance(self._caller.link, ClusterLink):
            raise InvalidName("stream", stream, "on a cluster, key= needs a name without '}'")
        return f"{{{stream}}}:once:{key}"

    def add_many(self, stream: str, bodies: list[bytes]) -> list[str]:
        """Add entries that have nothing but data, a thousand at a time."""
        ids: list[str] = []
        try:
            for batch in _batches(bodies):
                reply = self._caller.script(scripts.ADD_MANY, (stream,), *batch, repeat=False)
                ids += [entry_id.decode() for entry_id in reply]
        except BadAddId as error:
            raise IdNotGreater(stream, "*", last_generated_id(self._caller, stream)) from error.__cause__
        except BrokerError as error:
            error.ids = ids
            raise
        return ids

    def grew(self, stream: str, added: int) -> None:
        """Trim a stream by the broker's own limit, when it has grown enough to be worth a call."""
        if self._max_stream_length is None or not added:
            return
        grown = self._grown.get(stream, 0) + added
        if grown < max(1, min(1000, self._max_stream_length // 20)):
            self._grown[stream] = grown
            return
        if len(self._grown) > 10_000:
            self._grown.clear()
        self._grown.pop(stream, None)
        try:
            self.trim(stream, "MAXLEN", self._max_stream_length)
        except BrokerError as error:
            # The addition succeeded, and that is what the caller has to hear.
            log.warning("could not trim stream %r, will try again later: %s", stream, error)

    def trim(
        self, stream: str, mode: str, limit: Argument, removed: int = 0, excess: int | None = None
    ) -> int:
        """Trim in bounded steps, until what was too much in the beginning is gone or needed."""
        while True:
            step, more, found = self._caller.script(scripts.TRIM, (stream,), mode, limit)
            removed += step
            excess = found if excess is None else excess
            if not more or removed >= excess:
                return removed


def add_id(text: str) -> str:
    """The canonical form of an explicit id, or of ``ms-*``."""
    if isinstance(text, str) and text.endswith("-*"):
        ms = text[:-2]
        if "-" not in ms:
            return f"{parse_id(ms)[0]}-*"
    return canonical_id(text)


def trim_words(maxlen: int | None, minid: str | None) -> tuple[str, Argument]:
    """The word for a limit in Redis, and its value; empty where there is none."""
    if maxlen is not None:
        return "MAXLEN", maxlen
    return ("", "") if minid is None else ("MINID", canonical_id(minid))


def _batches(bodies: list[bytes]) -> Iterable[list[bytes]]:
    """Up to a thousand each; fewer only where a thousand are more than a server takes in one command."""
    rest = iter(bodies)
    while batch := list(islice(rest, BATCH)):
        size = sum(map(len, batch))
        if size <= BATCH_BYTES:
            yield batch
            continue
        part: list[bytes] = []
        for body in batch:
            part.append(body)
            if sum(map(len, part)) > BATCH_BYTES:
                yield part
                part = []
        if part:
            yield part
