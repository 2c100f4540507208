"""Entries of any shape, as `hiredis` gives them.

An entry of ours has the field ``data``, and perhaps ``type`` and ``headers``. Its text is taken as it is:
whether it is JSON is for the reader of the column to find out, so that a malformed record keeps its text.
Every other entry was written by another program, and its data is a JSON mapping of texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.message import split_id
from millstream.spark.source.pages import Row

_OURS = frozenset((b"data", b"type", b"headers"))
_encode = msgspec.json.Encoder().encode
decode_headers = msgspec.json.Decoder(dict[str, str]).decode


def row_of(entry: Sequence[object]) -> Row:
    """A row from an entry of XRANGE."""
    entry_id, fields = entry
    assert isinstance(entry_id, bytes)
    assert isinstance(fields, list)
    key = split_id(entry_id.decode())
    if len(fields) == 2 and fields[0] == b"data":
        return Row(key, _text(fields[1]))
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    if b"data" in named and _OURS.issuperset(named) and len(named) * 2 == len(fields):
        try:
            headers = named.get(b"headers")
            if headers is not None:
                decode_headers(headers)
            kind = named[b"type"].decode() if b"type" in named else None
            return Row(key, _text(named[b"data"]), kind, None if headers is None else headers.decode())
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # merely the names are ours
    texts = [_text(field) for field in fields]
    return Row(key, _encode(dict(zip(texts[::2], texts[1::2], strict=True))).decode())


def _text(value: bytes) -> str:
    """Text; bytes that are not UTF-8 stay readable as ``\\xff``."""
    return value.decode("utf-8", "backslashreplace")
