"""Entries as Redis holds them, and the messages they are.

An entry of ours has the field ``data`` with JSON text, and where they exist ``type`` and ``headers``. Every
other entry was written by another program, and is read as a mapping of texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.brokers.redis.link import Argument
from millstream.message import Message, Typed

Fields = Sequence[bytes]
Entry = tuple[bytes, Fields]

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
# Whatever a text that is not the JSON of a mapping can raise.
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_OURS = frozenset((b"data", b"type", b"headers"))


def fields_of(body: bytes | Typed) -> tuple[Argument, ...]:
    """The fields and values that hold an entry."""
    if isinstance(body, bytes):
        return ("data", body)
    assert isinstance(body.data, bytes)  # encode_body() made it
    fields: tuple[Argument, ...] = ("data", body.data)
    if body.type is not None:
        fields += ("type", body.type)
    if body.headers is not None:
        fields += ("headers", body.headers)
    return fields


def messages(stream: str, entries: Sequence[Entry], delivery_count: int) -> list[Message]:
    """The messages of entries that all have the same delivery count."""
    found = []
    for entry_id, fields in entries:
        # Decoded here and not when it is first looked at: only now can a text that merely looks like
        # ours still become a mapping of texts.
        body: dict[str, Any] | Typed
        if len(fields) == 2 and fields[0] == b"data":
            try:
                body = _decode(fields[1])
            except _NOT_JSON:
                body = _texts(fields)
        else:
            body = _body_of(fields)
        found.append(Message(entry_id.decode(), stream, body, delivery_count))
    return found


def counted_messages(stream: str, entries: Sequence[tuple[bytes, Fields, int]]) -> list[Message]:
    """The messages of entries that come with their delivery counts, as our scripts return them."""
    return [messages(stream, ((entry_id, fields),), count)[0] for entry_id, fields, count in entries]


def by_stream(reply: Any) -> list[tuple[bytes, Sequence[Entry]]]:
    """The answer to XREAD and XREADGROUP: a map in RESP3, a list of pairs in RESP2, or nothing."""
    if not reply:
        return []
    return list(reply.items()) if isinstance(reply, dict) else list(reply)


def _body_of(fields: Fields) -> dict[str, Any] | Typed:
    """The body of an entry that has more than its data, or none."""
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    if b"data" not in named or not _OURS.issuperset(named) or len(named) * 2 != len(fields):
        return _texts(fields)
    try:
        data = _decode(named[b"data"])
        type_ = named[b"type"].decode() if b"type" in named else None
        headers = named.get(b"headers")
        if headers is not None:
            _decode_headers(headers)
    except _NOT_JSON:
        return _texts(fields)
    return Typed(data, type_, headers)


def _texts(fields: Fields) -> dict[str, Any]:
    """Any fields at all, as texts; bytes that are not UTF-8 stay readable as ``\\xff``."""
    texts = [field.decode("utf-8", "backslashreplace") for field in fields]
    return dict(zip(texts[::2], texts[1::2], strict=True))
