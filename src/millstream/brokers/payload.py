"""What may be put into a stream: names, and data that is a mapping of JSON values.

msgspec alone would be too generous for a log that other languages read: it writes NaN as null, bytes as
base64, and a key 1 as "1". So types are checked first, and a flat mapping takes the short way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from millstream.errors import InvalidData, InvalidName, PayloadTooLarge
from millstream.message import Typed

DEFAULT_MAX_PAYLOAD = 1024 * 1024  # generous for messages, small enough that a thousand fit in memory
MAX_NAME = 512
PLAIN = frozenset((str, int, bool, type(None)))  # values that need no closer look
encode = msgspec.json.Encoder().encode


def encode_data(data: Mapping[str, Any], max_payload: int) -> bytes:
    """The JSON text of ``data``, checked. Raises InvalidData or PayloadTooLarge; nothing else."""
    if type(data) is not dict:
        if not isinstance(data, Mapping):
            raise InvalidData("data", f"must be a mapping such as {{'key': 'value'}}, not {_kind(data)}")
        data = dict(data)
    for key, value in data.items():
        if type(key) is not str or type(value) not in PLAIN:
            _check(data, "data", 0)  # something nested, a float, or a mistake: look closer
            break
    try:
        body = encode(data)
    except UnicodeEncodeError as error:
        raise InvalidData("data", f"has a text that is not Unicode (a lone surrogate): {error}") from error
    if len(body) > max_payload:
        raise PayloadTooLarge(len(body), max_payload)
    return body


def encode_body(
    data: Mapping[str, Any], max_payload: int, type_: str | None, headers: Mapping[str, str] | None
) -> bytes | Typed:
    """What is stored for an entry: the JSON text alone, or with its type and headers."""
    body = encode_data(data, max_payload)
    encoded = None if headers is None else encode_headers(headers)
    if type_ is None and not headers:
        return body
    if type_ is not None:
        check_name("type", type_)
    return Typed(body, type_, encoded)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Headers as JSON text. Raises InvalidData unless they are texts by text."""
    if not isinstance(headers, Mapping):
        raise InvalidData("headers", f"must be a mapping of texts by text, not {_kind(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidData(f"headers[{name!r}]", "headers are texts by text")
    try:
        return encode(dict(headers))
    except UnicodeEncodeError as error:
        raise InvalidData("headers", f"have a text that is not Unicode: {error}") from error


def check_name(kind: str, name: str) -> str:
    """``name`` itself, or InvalidName."""
    if not isinstance(name, str):
        raise InvalidName(kind, name, f"it must be a text, not {_kind(name)}")
    if not name:
        raise InvalidName(kind, name, "it is empty")
    if len(name) > MAX_NAME:
        raise InvalidName(kind, name[:40] + "…", f"it has {len(name)} characters, and {MAX_NAME} are allowed")
    if not name.isprintable():
        raise InvalidName(kind, name, "it has a control character or another that cannot be printed")
    return name


def _check(value: Any, path: str, depth: int) -> None:
    """Raise InvalidData for the first thing in ``value`` that JSON has no word for."""
    if depth > 100:
        raise InvalidData(path, "is nested deeper than 100 levels, or contains itself")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidData(path, f"has the key {key!r}; JSON keys are texts")
            _check(item, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            _check(item, f"{path}[{position}]", depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidData(path, f"is {value}, for which JSON has no number; use None or a text")
    elif not (value is None or isinstance(value, (str, int))):
        raise InvalidData(
            path, f"is {_kind(value)}; allowed are texts, numbers, True, False, None, lists and mappings"
        )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
