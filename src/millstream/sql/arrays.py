"""Lists for PostgreSQL, in its own binary form.

psycopg turns a list into the text of an array, element by element and in Python: for a thousand jobs that
took longer than everything else that the client does for them, and the server had to read the text again.
These make the same array out of a few joined bytes. A connection knows them after `register`; the statement
has to say the type, as in ``CAST(? AS TEXT[])``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

_BYTEA, _INT8, _INT2, _INT4, _TEXT = 17, 20, 21, 23, 25  # the elements' types, as every server numbers them


class Array(bytes):
    """An array of one dimension, as it is sent. Each kind has the number of its own type."""

    oid = 0


class Byteas(Array):
    oid = 1001


class Smallints(Array):
    oid = 1005


class Integers(Array):
    oid = 1007


class Texts(Array):
    oid = 1009


class Bigints(Array):
    oid = 1016


def byteas(values: Sequence[bytes]) -> Byteas:
    return Byteas(_pieces(_BYTEA, values))


def texts(values: Sequence[str]) -> Texts:
    return Texts(_pieces(_TEXT, [value.encode() for value in values]))


def smallints(values: Sequence[int]) -> Smallints:
    return Smallints(_numbers(_INT2, "h", 2, values))


def integers(values: Sequence[int]) -> Integers:
    return Integers(_numbers(_INT4, "i", 4, values))


def bigints(values: Sequence[int]) -> Bigints:
    return Bigints(_numbers(_INT8, "q", 8, values))


_HEADER = struct.Struct(
    "!5i"
)  # dimensions, whether there are nulls, the elements' type, how many, the first index
_LENGTH = struct.Struct("!i")


def _header(kind: int, count: int) -> bytes:
    return _HEADER.pack(1, 0, kind, count, 1)


def _pieces(kind: int, values: Sequence[bytes]) -> bytes:
    lengths = map(_LENGTH.pack, map(len, values))
    return b"".join((_header(kind, len(values)), *chain.from_iterable(zip(lengths, values, strict=True))))


def _numbers(kind: int, letter: str, size: int, values: Sequence[int]) -> bytes:
    flat = [size] * (2 * len(values))
    flat[1::2] = values
    return _header(kind, len(values)) + _packer(letter, len(values)).pack(*flat)


@functools.lru_cache(maxsize=64)
def _packer(letter: str, count: int) -> struct.Struct:
    return struct.Struct("!" + ("i" + letter) * count)


def register(connection: Any) -> None:
    """Let a psycopg connection send these."""
    for kind, dumper in _dumpers():
        connection.adapters.register_dumper(kind, dumper)


@functools.cache
def _dumpers() -> tuple[tuple[type[Array], Any], ...]:
    from psycopg import pq  # noqa: PLC0415 - not there where only SQLite is used
    from psycopg.adapt import Dumper  # noqa: PLC0415

    def made(kind: type[Array]) -> Any:
        def dump(self: object, value: bytes) -> bytes:
            return value

        return type(
            f"{kind.__name__}Dumper", (Dumper,), {"format": pq.Format.BINARY, "oid": kind.oid, "dump": dump}
        )

    return tuple((kind, made(kind)) for kind in (Byteas, Smallints, Integers, Texts, Bigints))
