"""Reading without a group, over one stream or many, on one server or over the slots of a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping

from millstream.brokers.redis import wire
from millstream.brokers.redis.calls import Caller
from millstream.brokers.redis.link import Argument
from millstream.brokers.redis.reading import LONGEST_BLOCK_MS, last_generated_id, remaining_ms
from millstream.errors import WrongType
from millstream.message import Message

SHORTEST_POLL, LONGEST_POLL = 0.005, 0.05


def follow(
    caller: Caller,
    streams: Mapping[str, str],
    count: int | None,
    block_ms: int | None,
    socket_timeout: float | None,
) -> list[Message]:
    """XREAD. ``streams`` maps each stream to a canonical id, or to ``$``."""
    began = time.monotonic()
    # "$" is looked up once, now. Left to each blocking command, it would pass over whatever was added between
    # two of them.
    after = {
        stream: (last_generated_id(caller, stream) or "0-0") if entry_id == "$" else entry_id
        for stream, entry_id in streams.items()
    }
    slots: dict[int, list[str]] = {}
    for stream in after:
        slots.setdefault(caller.link.slot(stream), []).append(stream)
    poll = SHORTEST_POLL
    while True:
        left_ms = remaining_ms(began, block_ms, LONGEST_BLOCK_MS)
        # One command cannot wait for streams on several nodes, so there the wait is a poll.
        slice_ms = left_ms if len(slots) == 1 else 0
        found: dict[str, list[Message]] = {}
        for names in slots.values():
            found |= _read(caller, {name: after[name] for name in names}, count, slice_ms, socket_timeout)
        if found or left_ms == 0:
            return [message for stream in after for message in found.get(stream, ())]
        if len(slots) > 1:
            caller.pause(min(poll, left_ms / 1000))
            poll = min(poll * 1.5, LONGEST_POLL)


def _read(
    caller: Caller, after: Mapping[str, str], count: int | None, block_ms: int, socket_timeout: float | None
) -> dict[str, list[Message]]:
    """One XREAD over streams of one slot."""
    command: list[Argument] = ["XREAD"]
    if count is not None:
        command += ["COUNT", count]
    timeout = None
    if block_ms:
        command += ["BLOCK", block_ms]
        timeout = block_ms / 1000 + (5.0 if socket_timeout is None else socket_timeout)
    first = next(iter(after))
    try:
        reply = caller.call(first, *command, "STREAMS", *after, *after.values(), timeout=timeout)
    except WrongType:
        raise WrongType(_not_a_stream(caller, after)) from None
    names = {name.encode(): name for name in after}
    return {names[raw]: wire.messages(names[raw], entries, 0) for raw, entries in wire.by_stream(reply)}


def _not_a_stream(caller: Caller, streams: Mapping[str, str]) -> str:
    """Which of several keys holds something else; the server does not say."""
    for stream in streams:
        if caller.call(stream, "TYPE", stream) not in (b"stream", b"none"):
            return stream
    return next(iter(streams))
