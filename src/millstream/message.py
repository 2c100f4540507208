"""What a broker hands out, and the ids that order it.

An entry id is ``ms-seq``: the millisecond of the addition and a counter within it, both unsigned 64-bit
numbers. Inside the package an id is the tuple ``(ms, seq)``, which sorts as the stream does; users
only ever see the text.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from millstream.errors import InvalidId

Id: TypeAlias = tuple[int, int]

_U64 = (1 << 64) - 1
MIN_ID: Id = (0, 0)
MAX_ID: Id = (_U64, _U64)

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class Typed(msgspec.Struct, frozen=True, gc=False):
    """The body of an entry that has a type or headers beside its data."""

    data: bytes | dict[str, Any]
    type: str | None = None
    headers: bytes | None = None


class Message(msgspec.Struct, frozen=True, gc=False, eq=False, repr_omit_defaults=True):
    """One entry of a stream, as one reader got it.

    ``delivery_count`` says how often the entry was handed to its group, this time included; 0 where no
    group is involved (xrange, xread). ``data`` is decoded when it is first looked at, once, and belongs to
    this message: changing it changes nothing in the stream.
    """

    id: str
    stream: str
    # JSON text as it was stored, until somebody asks for `data`; then the mapping itself.
    body: bytes | dict[str, Any] | Typed
    delivery_count: int = 1

    @property
    def data(self) -> dict[str, Any]:
        """The entry's mapping of JSON values."""
        body = self.body
        if type(body) is dict:
            return body
        if type(body) is bytes:
            decoded = _decode(body)
            force_setattr(self, "body", decoded)
            return decoded
        assert isinstance(body, Typed)
        if isinstance(body.data, dict):
            return body.data
        decoded = _decode(body.data)
        force_setattr(self, "body", Typed(decoded, body.type, body.headers))
        return decoded

    @property
    def type(self) -> str | None:
        """The event or job type, where the producer named one."""
        return self.body.type if isinstance(self.body, Typed) else None

    @property
    def headers(self) -> dict[str, str]:
        """What travels beside the data, such as a trace id; empty where there is nothing."""
        if isinstance(self.body, Typed) and self.body.headers:
            return _decode_headers(self.body.headers)
        return {}

    @property
    def timestamp(self) -> float:
        """When the entry was added: seconds since the epoch, to the millisecond, from its id."""
        return int(self.id.partition("-")[0]) / 1000

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (
            self.id == other.id
            and self.stream == other.stream
            and self.delivery_count == other.delivery_count
            and self.type == other.type
            and self.headers == other.headers
            and self.data == other.data
        )

    def __hash__(self) -> int:
        return hash((self.stream, self.id))


class PendingMessage(msgspec.Struct, frozen=True, gc=False):
    """An entry that was delivered to a consumer and is not acknowledged yet."""

    id: str
    consumer: str
    idle_ms: int
    delivery_count: int


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A member of a group. ``last_activity`` is in seconds since the epoch."""

    name: str
    pending: int
    idle_ms: int
    last_activity: float


class GroupInfo(msgspec.Struct, frozen=True):
    """A consumer group. ``lag`` counts the entries that exist and were not delivered to it yet."""

    name: str
    last_delivered_id: str
    pending: int
    lag: int
    consumers: list[ConsumerInfo]


class ClaimPage(msgspec.Struct, frozen=True):
    """One bounded step of an automatic claim.

    ``cursor`` is where the next step goes on, ``"0-0"`` after the last. ``deleted`` lists entries that were
    pending but no longer exist: somebody deleted or trimmed them before they were acknowledged. They
    are gone from the pending list now, so whoever counts lost work has to count them here.
    """

    cursor: str
    messages: list[Message]
    deleted: list[str]


def format_id(key: Id) -> str:
    """The text of an id."""
    return f"{key[0]}-{key[1]}"


def parse_id(text: str, missing_seq: int = 0) -> Id:
    """The id that ``text`` means; ``missing_seq`` completes one that has no counter.

    Raises InvalidId for anything but decimal digits within 64 bits, so that every broker refuses
    the same texts, whatever its server would let pass.
    """
    if isinstance(text, str) and text.isascii():
        ms_text, dash, seq_text = text.partition("-")
        if ms_text.isdigit() and (seq_text.isdigit() or not dash):
            key = (int(ms_text), int(seq_text) if dash else missing_seq)
            if key <= MAX_ID and key[1] <= _U64:
                return key
    raise InvalidId(text)


def split_id(text: str) -> Id:
    """The id that ``text`` spells, known to be canonical: what a broker made itself needs no check."""
    ms_text, _, seq_text = text.partition("-")
    return (int(ms_text), int(seq_text))


def canonical_id(text: str) -> str:
    """The one spelling of an id: ``5`` and ``05-0`` are both ``5-0``."""
    return format_id(parse_id(text))


def parse_range(start: str, end: str) -> tuple[Id, Id]:
    """The inclusive bounds of a range; ``-`` and ``+`` are its ends, ``(id`` leaves the id itself out.

    An exclusive bound that has no neighbour gives an empty range (its start lies above its end).
    """
    return _lower_bound(start), _upper_bound(end)


def _lower_bound(text: str) -> Id:
    if text == "-":
        return MIN_ID
    if text == "+":
        return MAX_ID
    if isinstance(text, str) and text.startswith("("):
        return next_id(parse_id(text[1:]))
    return parse_id(text)


def _upper_bound(text: str) -> Id:
    if text == "+":
        return MAX_ID
    if text == "-":
        return MIN_ID
    if isinstance(text, str) and text.startswith("("):
        return previous_id(parse_id(text[1:], missing_seq=_U64))
    return parse_id(text, missing_seq=_U64)


def next_id(key: Id) -> Id:
    """The id right after ``key``. Raises InvalidId after the last possible one."""
    if key[1] < _U64:
        return (key[0], key[1] + 1)
    if key[0] < _U64:
        return (key[0] + 1, 0)
    raise InvalidId(format_id(key), "an id that has a next one")


def previous_id(key: Id) -> Id:
    """The id right before ``key``. Raises InvalidId for 0-0."""
    if key[1]:
        return (key[0], key[1] - 1)
    if key[0]:
        return (key[0] - 1, _U64)
    raise InvalidId("0-0", "an id that has a previous one")
