"""Splits a raw reply to XRANGE with numpy: no Python object is made for an entry.

An entry of ours looks like this on the wire, with the part in brackets where it has a type or headers:

    *2 $15 1700000000000-0 *2 $4 data $128 {…}  [$4 type $7 ordered] [$7 headers $12 {…}]

each word followed by CR LF. The ends of lines give candidates for where entries begin; from there every
word, every length and every terminator is checked, up to the place where the next entry begins. A reply that
passes is what a sequential reader would have read; one that does not (another program's fields, an error, a
length that does not fit) is left to hiredis. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.message import Id, format_id, split_id
from millstream.spark.source.foreign import decode_headers
from millstream.spark.source.pages import TIMES, Page, times_of

Numbers = Any  # np.ndarray of int64
LF, CR, STAR, DASH = 10, 13, 42, 45
MARGIN = 64  # readable bytes behind the reply: no pattern looks further than that
_HEAD = np.frombuffer(b"*2\r\n$", np.uint8)
_DATA = np.frombuffer(b"\r\n*2\r\n$4\r\ndata\r\n$", np.uint8)
_TYPE = np.frombuffer(b"\r\n$4\r\ntype\r\n$", np.uint8)
_HEADERS = np.frombuffer(b"\r\n$7\r\nheaders\r\n$", np.uint8)
_FIELDS_AT = 3  # where _DATA has the number of fields and values
_WIDEST = 10  # digits of a length
_POWERS = 10 ** np.arange(18, dtype=np.int64)


class Unexpected(Exception):
    """The reply has another shape."""


@dataclass
class Split:
    """Where the parts of entries are in a buffer: begin and end of each."""

    buffer: Any  # np.uint8, with MARGIN bytes behind the reply
    ids: tuple[Numbers, Numbers]
    data: tuple[Numbers, Numbers]
    types: tuple[Numbers, Numbers] | None = None  # begin and end are the same where there is none
    headers: tuple[Numbers, Numbers] | None = None
    has_type: Any = field(default=None)  # which entries have one
    has_headers: Any = field(default=None)
    digits: Any = field(default=None)  # of the ids' times, a row each, where all have thirteen

    @property
    def rows(self) -> int:
        return len(self.ids[0])


def split(buffer: Any, size: int) -> Split | None:
    """The entries of the reply in the first ``size`` bytes; None for a reply of another shape."""
    try:
        return _split(buffer, size)
    except Unexpected:
        return None


def _split(buffer: Any, size: int) -> Split:
    ends = np.flatnonzero(buffer[:size] == LF)
    if not len(ends) or buffer[0] != STAR or buffer[size - 1] != LF:
        raise Unexpected
    rows = int(_number(buffer, np.array([1]), ends[:1] - 1)[0])
    starts = ends[:-1] + 1  # of the lines after the first
    ends = ends[1:]
    lines = np.arange(rows) * 8 if len(ends) == rows * 8 else _candidates(buffer, starts, ends)
    if len(lines) != rows:
        raise Unexpected
    if not rows:
        nothing = np.zeros(0, np.int64)
        return Split(buffer, (nothing, nothing), (nothing, nothing))
    begin = starts[lines]
    _expect(buffer, begin, _HEAD)
    id_begin = ends[lines + 1] + 1
    id_end = id_begin + _number(buffer, begin + len(_HEAD), id_begin - 2)
    _within(id_end, size)
    fields = buffer[id_end + _FIELDS_AT]
    _expect(buffer, id_end, _DATA, any_at=_FIELDS_AT)
    found = Split(buffer, (id_begin, id_end), (id_end, id_end))
    found.digits = _digits_of_ids(buffer, id_begin, id_end)
    length_at = id_end + len(_DATA)
    data_begin = ends[np.minimum(lines + 6, len(ends) - 1)] + 1
    data_end = data_begin + _number(buffer, length_at, data_begin - 2)
    _within(data_end, size)
    found.data = (data_begin, data_end)
    end = data_end.copy()
    if (fields != ord("2")).any():
        _read_extras(found, fields, end, ends, size)
    if (buffer[end] != CR).any() or (buffer[end + 1] != LF).any():
        raise Unexpected
    end += 2
    # Entry by entry without a gap, from the first byte to the last.
    if begin[0] != starts[0] or end[-1] != size or (end[:-1] != begin[1:]).any():
        raise Unexpected
    return found


def _candidates(buffer: Any, starts: Numbers, ends: Numbers) -> Numbers:
    """The lines where an entry may begin: ``*2``, and three lines further one with a ``*`` as well."""
    last = len(starts) - 7  # the shortest entry has eight lines
    if last <= 0:
        return np.zeros(0, np.int64)
    short = np.flatnonzero(ends[:last] - starts[:last] == 3)
    two = (buffer[starts[short]] == STAR) & (buffer[starts[short] + 1] == ord("2"))
    two &= buffer[starts[short + 3]] == STAR
    return short[two]


def _digits_of_ids(buffer: Any, begin: Numbers, end: Numbers) -> Any | None:
    """The digits of the times, where all have thirteen.

    Raises Unexpected unless each id is two numbers with a dash between them, as a server writes them.
    """
    widths = end - begin
    if (buffer[begin + 13] == DASH).all() and widths.min() > 14 and widths.max() <= 14 + _WIDEST:
        digits = np.lib.stride_tricks.sliding_window_view(buffer, 13)[begin] - np.uint8(48)
        if digits.max() > 9 or not digits[:, 0].all():
            raise Unexpected
        _number(buffer, begin + 14, end)
        if widths.max() > 15 and ((buffer[begin + 14] == 48) & (widths > 15)).any():
            raise Unexpected
        return digits
    for first, last in zip(begin.tolist(), end.tolist(), strict=True):  # not the thirteen digits of our time
        text = buffer[first:last].tobytes()
        try:
            if format_id(split_id(text.decode())).encode() != text:
                raise Unexpected
        except ValueError:
            raise Unexpected from None
    return None


def _read_extras(found: Split, fields: Any, end: Numbers, ends: Numbers, size: int) -> None:
    """The type and the headers of those entries that have them; moves their ``end``."""
    buffer = found.buffer
    if not np.isin(fields, (ord("2"), ord("4"), ord("6"))).all():
        raise Unexpected
    left = (fields.astype(np.int64) - ord("2")) // 2  # how many more there are
    more = np.flatnonzero(left > 0)
    # "type" comes before "headers"; the length of the name tells them apart.
    typed = more[buffer[end[more] + 3] == ord("4")]
    found.types, found.has_type = _read_extra(found, typed, _TYPE, end, ends, size)
    left[typed] -= 1
    headed = np.flatnonzero(left > 0)
    found.headers, found.has_headers = _read_extra(found, headed, _HEADERS, end, ends, size)
    left[headed] -= 1
    if left.any():
        raise Unexpected
    _check_extras(found)


def _check_extras(found: Split) -> None:
    """Raise Unexpected where merely the names are ours: a type that is no text, headers that are none."""
    view = memoryview(found.buffer)
    try:
        for begin, end in _places(found.types, found.has_type):
            str(view[begin:end], "utf-8")
        for begin, end in _places(found.headers, found.has_headers):
            decode_headers(view[begin:end])
    except (UnicodeDecodeError, msgspec.DecodeError):
        raise Unexpected from None


def _places(places: tuple[Numbers, Numbers] | None, has: Any) -> Iterator[tuple[int, int]]:
    if places is None:
        return iter(())
    return zip(places[0][has].tolist(), places[1][has].tolist(), strict=True)


def _read_extra(
    found: Split, which: Numbers, name: Any, end: Numbers, ends: Numbers, size: int
) -> tuple[tuple[Numbers, Numbers] | None, Any]:
    if not len(which):
        return None, None
    buffer = found.buffer
    _expect(buffer, end[which], name)
    length_at = end[which] + len(name)
    line = np.searchsorted(ends, length_at)
    if (line >= len(ends)).any():
        raise Unexpected
    begin = ends[line] + 1
    upto = begin + _number(buffer, length_at, begin - 2)
    _within(upto, size)
    begins, uptos = end.copy(), end.copy()
    begins[which], uptos[which] = begin, upto
    end[which] = upto
    has = np.zeros(found.rows, bool)
    has[which] = True
    return (begins, uptos), has


def _expect(buffer: Any, at: Numbers, pattern: Any, any_at: int | None = None) -> None:
    """Raise Unexpected unless ``pattern`` stands at each place; the byte at ``any_at`` may be any."""
    found = np.lib.stride_tricks.sliding_window_view(buffer, len(pattern))[at]
    same = found == pattern
    if any_at is not None:
        same[:, any_at] = True
    if not same.all():
        raise Unexpected


def _within(places: Numbers, size: int) -> None:
    if (places > size - 2).any():
        raise Unexpected


def _number(buffer: Any, begin: Numbers, end: Numbers) -> Numbers:
    """The numbers whose digits stand between ``begin`` and ``end``, where a CR must follow."""
    widths = end - begin
    narrow, wide = int(widths.min()), int(widths.max())
    if narrow < 1 or wide > _WIDEST or (buffer[end] != CR).any():
        raise Unexpected
    total = np.zeros(len(begin), np.int64)
    for place in range(wide):
        digits = buffer[np.maximum(end - 1 - place, 0)].astype(np.int64) - 48
        if place >= narrow:
            digits[widths <= place] = 0
        if (digits < 0).any() or (digits > 9).any():
            raise Unexpected
        total += digits * _POWERS[place]
    return total


class RespPage(Page):
    """A page that looks into a raw reply."""

    def __init__(self, found: Split) -> None:
        self._found = found
        self._bytes = pa.py_buffer(found.buffer)
        self.rows = found.rows
        begin, end = (int(each[-1]) for each in found.ids)
        self.last: Id = split_id(found.buffer[begin:end].tobytes().decode())

    def ids(self) -> Any:
        return self._gather(self._found.ids)

    def times(self) -> Any:
        if self._found.digits is None:
            return times_of([int(text.partition("-")[0]) for text in self.ids().to_pylist()])
        ms = self._found.digits.astype(np.int64) @ _POWERS[12::-1]
        return pa.Array.from_buffers(TIMES, self.rows, [None, pa.py_buffer(ms * 1000)])

    def data(self) -> Any:
        return _as_text(self._gather(self._found.data))

    def lines(self) -> pa.Buffer | None:
        buffer, (begin, end) = self._found.buffer, self._found.data
        if (buffer[begin] != ord("{")).any() or (buffer[end - 1] != ord("}")).any():
            return None
        # A value is followed by CR LF on the wire: just what separates lines.
        lines = self._gather((begin, end + 2))
        try:
            lines.validate(full=True)
        except pa.ArrowInvalid:  # not UTF-8
            return None
        return lines.buffers()[2]

    def types(self) -> Any | None:
        return self._sparse(self._found.types, self._found.has_type)

    def headers(self) -> Any | None:
        return self._sparse(self._found.headers, self._found.has_headers)

    def _sparse(self, places: tuple[Numbers, Numbers] | None, has: Any) -> Any | None:
        if places is None:
            return None
        texts = _as_text(self._gather(places))
        if has.all():
            return texts
        indices = pa.array(np.arange(self.rows), mask=~has)
        return texts.take(indices)

    def _gather(self, places: tuple[Numbers, Numbers]) -> Any:
        """The bytes between begins and ends as one array.

        Seen as an array whose every second element is what lies between, it is all there already: Arrow only
        has to take the other half, which copies each element once.
        """
        offsets = np.empty(2 * self.rows, np.int32)
        offsets[0::2], offsets[1::2] = places
        whole = pa.StringArray.from_buffers(2 * self.rows - 1, pa.py_buffer(offsets), self._bytes)
        return whole.take(pa.array(np.arange(0, 2 * self.rows, 2)))


def _as_text(array: Any) -> Any:
    """The array itself where it is UTF-8; otherwise with what is not made readable, as ``\\xff``."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.cast(pa.binary())
        return pa.array(
            [None if each is None else each.decode("utf-8", "backslashreplace") for each in raw.to_pylist()],
            pa.string(),
        )
    return array
