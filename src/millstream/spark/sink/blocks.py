"""Blocks: what a task stages. Up to a thousand entries or jobs in one value that a script can take apart.

A block is a msgpack array of raw strings with 32-bit lengths, the one form that both Redis's Lua and numpy
handle at the speed of memory: neither Python nor the server looks at single rows before they are published.

    ["p", data, data, …]                                     entries of one stream that have data alone
    ["m", place, data, type, headers, place, data, …]        place: which of the block's streams, from 1;
                                                             type and headers are empty where there is none
    [item, item, …]                                          jobs, as their driver wants them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROWS = 1000  # a script stops the server while it runs
BYTES = 4 * 1024 * 1024  # below every database's limit for a statement
PLAIN, MIXED = b"p", b"m"
END = b"end"  # the last value of a stage: who finds it knows that everything before it was published
_ARRAY, _RAW = b"\xdd", b"\xdb"


def pack(items: Sequence[bytes]) -> bytes:
    """A block of any byte strings."""
    parts = [_ARRAY, len(items).to_bytes(4, "big")]
    for item in items:
        parts += (_RAW, len(item).to_bytes(4, "big"), item)
    return b"".join(parts)


def unpack(block: bytes) -> list[bytes]:
    """The reverse of `pack`."""
    view, items, at = memoryview(block), [], 5
    for _ in range(int.from_bytes(block[1:5], "big")):
        end = at + 5 + int.from_bytes(block[at + 1 : at + 5], "big")
        items.append(bytes(view[at + 5 : end]))
        at = end
    return items


def plain_blocks(data: Any) -> Iterator[tuple[bytes, int]]:
    """Entries with data alone; each block with the number of its entries."""
    rows = raw(data)
    places = offsets(rows)
    view = memoryview(rows.buffers()[2] or b"")
    for start, stop in cuts(places):
        head = _ARRAY + (stop - start + 1).to_bytes(4, "big") + pack((PLAIN,))[5:]
        yield b"".join((head, view[places[start] : places[stop]])), stop - start


def mixed_blocks(streams: Any, data: Any, types: Any, headers: Any) -> Iterator[tuple[bytes, int, list[str]]]:
    """Entries of several streams, or with a type or headers; each block with its count and its streams."""
    bodies = pc.binary_join_element_wise(
        raw(data), raw(_texts(types, len(data))), raw(_texts(headers, len(data))), b""
    )
    for start, stop in cuts(offsets(bodies)):
        count = stop - start
        coded = streams.slice(start, count).dictionary_encode()
        numbers = pc.add(coded.indices, 1).cast(pa.string())
        rows = pc.binary_join_element_wise(raw(numbers), bodies.slice(start, count), b"")
        places = offsets(rows)
        view = memoryview(rows.buffers()[2])
        head = _ARRAY + (4 * count + 1).to_bytes(4, "big") + pack((MIXED,))[5:]
        yield b"".join((head, view[places[0] : places[count]])), count, coded.dictionary.to_pylist()


def raw(column: Any) -> Any:
    """Each value with its msgpack header in front."""
    values = column.cast(pa.binary())
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(">u4")
    headers = np.empty((len(values), 5), np.uint8)
    headers[:, 0] = _RAW[0]
    headers[:, 1:] = lengths.view(np.uint8).reshape(-1, 4)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(5), len(values), [None, pa.py_buffer(headers)])
    return pc.binary_join_element_wise(fixed.cast(pa.binary()), values, b"")


def offsets(values: Any) -> Any:
    """Where each value of a binary array begins in its buffer, and the end of the last."""
    found = np.frombuffer(values.buffers()[1], np.int32)
    return found[values.offset : values.offset + len(values) + 1]


def cuts(places: Any) -> Iterator[tuple[int, int]]:
    """Pieces of at most ROWS rows and, unless a single row is larger, BYTES bytes."""
    start, rows = 0, len(places) - 1
    while start < rows:
        stop = min(start + ROWS, rows)
        if places[stop] - places[start] > BYTES:
            fits = int(np.searchsorted(places, places[start] + BYTES, "right")) - 1
            stop = max(fits, start + 1)
        yield start, stop
        start = stop


def _texts(column: Any, rows: int) -> Any:
    if column is None:
        return pa.array([""], pa.string()).take(pa.array(np.zeros(rows, np.int32)))
    return pc.fill_null(column, "")
