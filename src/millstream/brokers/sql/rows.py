"""Between rows and what a broker hands out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from millstream.message import Message, Typed
from millstream.sql.schema import id_text

T = TypeVar("T")
BATCH = 1000  # ids of one statement, entries of one transaction


def body_of(data: str, type_: str | None, headers: str | None) -> bytes | Typed:
    """What a Message keeps, from the columns of an entry."""
    if type_ is None and headers is None:
        return data.encode()
    return Typed(data.encode(), type_, None if headers is None else headers.encode())


def columns_of(body: bytes | Typed) -> tuple[str, str | None, str | None]:
    """Data, type and headers as columns, from what `encode_body` made."""
    if isinstance(body, bytes):
        return body.decode(), None, None
    assert isinstance(body.data, bytes)
    return body.data.decode(), body.type, None if body.headers is None else body.headers.decode()


def messages(stream: str, rows: Iterable[Any], count: int) -> list[Message]:
    """Messages from rows that begin with the columns of an entry."""
    return [
        Message(
            id_text(row[0]),
            stream,
            row[1].encode() if row[2] is None and row[3] is None else body_of(row[1], row[2], row[3]),
            count,
        )
        for row in rows
    ]


def chunks(items: Sequence[T], size: int = BATCH) -> Iterator[Sequence[T]]:
    """``items`` in pieces of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
