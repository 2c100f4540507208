"""The vectorised splitter against hiredis: the same entries, or none at all."""

from __future__ import annotations

import itertools
import os
import random
import socket
import threading
from typing import Any

import hiredis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.message import format_id
from millstream.spark.source.channel import Channel, parse
from millstream.spark.source.foreign import row_of
from millstream.spark.source.pages import Page, RowsPage
from millstream.spark.source.resp import MARGIN, RespPage, split

EXAMPLES = 3000 if os.environ.get("MILLSTREAM_FAULTS") == "long" else 80
Fields = list[bytes]
Entry = tuple[bytes, Fields]


def wire(entries: list[Entry]) -> bytes:
    """What a server sends."""

    def bulk(value: bytes) -> bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)

    parts = [b"*%d\r\n" % len(entries)]
    for entry_id, fields in entries:
        parts.append(b"*2\r\n" + bulk(entry_id) + b"*%d\r\n" % len(fields) + b"".join(map(bulk, fields)))
    return b"".join(parts)


def page_of(raw: bytes) -> RespPage | None:
    buffer = np.frombuffer(raw + b"\0" * MARGIN, np.uint8)
    found = split(buffer, len(raw))
    return None if found is None or not found.rows else RespPage(found)


def shown(page: Page) -> list[Any]:
    nothing = [None] * page.rows
    types, headers = page.types(), page.headers()
    return list(
        zip(
            page.ids().to_pylist(),
            page.times().to_pylist(),
            page.data().to_pylist(),
            nothing if types is None else types.to_pylist(),
            nothing if headers is None else headers.to_pylist(),
            strict=True,
        )
    )


def by_hiredis(raw: bytes) -> list[Any]:
    buffer = np.frombuffer(raw, np.uint8)
    rows = [row_of(entry) for entry in parse(buffer, len(raw))]
    return shown(RowsPage(rows)) if rows else []


ids = st.one_of(
    st.builds(lambda ms, seq: b"%d-%d" % (ms, seq), st.integers(10**12, 10**13 - 1), st.integers(0, 2000)),
    st.builds(lambda ms, seq: b"%d-%d" % (ms, seq), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
)
# Bytes that look like the protocol are the ones that could fool it.
values = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=30).map(lambda text: text.encode()),
    st.sampled_from(
        [
            b"*2\r\n$15\r\n1700000000000-0\r\n*2\r\n$4\r\ndata\r\n$2\r\n{}",
            b"\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$4\r\ndata\r\n$1\r\nx",
            b"*2",
            b"\r\n",
            b"",
            b'{"a": 1}',
            b'{"a":\n1}',
        ]
    ),
)
header_texts = st.dictionaries(st.sampled_from("abc"), st.text(max_size=5), max_size=2)


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    shape = draw(st.sampled_from(["plain", "typed", "mixed", "any"]))
    found: list[Entry] = []
    for _ in range(draw(st.integers(0, 12))):
        fields: Fields = [b"data", draw(values)]
        kind = draw(st.sampled_from("pths")) if shape == "mixed" else {"typed": "h"}.get(shape, "p")
        if kind in "th":
            fields += [b"type", draw(st.text(max_size=6)).encode()]
        if kind in "sh":
            import msgspec

            fields += [b"headers", msgspec.json.encode(draw(header_texts))]
        if shape == "any":
            names = st.sampled_from([b"data", b"type", b"headers", b"x", b""])
            fields = [part for _ in range(draw(st.integers(1, 3))) for part in (draw(names), draw(values))]
        found.append((draw(ids), fields))
    return found


@settings(max_examples=EXAMPLES, deadline=None)
@given(entries())
def test_what_is_split_is_what_hiredis_reads(sample: list[Entry]) -> None:
    raw = wire(sample)
    page = page_of(raw)
    if page is not None:
        assert shown(page) == by_hiredis(raw)
        assert format_id(page.last).encode() == sample[-1][0]
    elif sample and all(f[0] == b"data" and len(f) == 2 and b"\n" not in f[1] for _, f in sample):
        pytest.fail("entries of the plain form must take the fast way")


@settings(max_examples=EXAMPLES, deadline=None)
@given(entries(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_a_damaged_reply_is_never_read_wrongly(
    sample: list[Entry], chance: random.Random, changes: int
) -> None:
    raw = bytearray(wire(sample))
    for _ in range(changes):
        place = chance.randrange(len(raw))
        if chance.random() < 0.3:
            del raw[place]
        else:
            raw[place] = chance.choice(b"0123456789\r\n*$-x")
        if not raw:
            return
    page = page_of(bytes(raw))
    if page is None:
        return
    reader = hiredis.Reader()
    reader.feed(bytes(raw))
    whole = reader.gets()
    assert whole is not False, "the splitter took what is no complete reply"
    assert shown(page) == shown(RowsPage([row_of(entry) for entry in whole]))


def test_the_forms_of_our_own_entries_take_the_fast_way() -> None:
    plain: Entry = (b"1700000000000-0", [b"data", b'{"a":1}'])
    typed: Entry = (b"1700000000001-0", [b"data", b"{}", b"type", b"ordered"])
    headed: Entry = (b"1700000000001-1", [b"data", b"{}", b"headers", b'{"h":"1"}'])
    both: Entry = (b"1700000000002-0", [b"data", b"{}", b"type", b"t", b"headers", b"{}"])
    lines: Entry = (b"1700000000003-0", [b"data", b'{\r\n "a": 1\r\n}', b"type", b"two\r\nlines"])
    mixed = [plain, typed, headed, both, lines]
    for sample in ([plain], [plain] * 3, [typed], [headed, headed], [both], mixed):
        page = page_of(wire(sample))
        assert page is not None, sample
        assert shown(page) == by_hiredis(wire(sample))


@pytest.mark.parametrize(
    "raw",
    [
        b"-LOADING Redis is loading\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"$-1\r\n",
        b":5\r\n",
        b"*1\r\n",
        b"*99999999\r\n",
        b"*1\r\n*2\r\n$3\r\n1-0\r\n*-1\r\n",
        b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$4\r\ndata\r\n$5\r\nx\r\n",
        b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$4\r\ndata\r\n$1\r\nx\r\n+more\r\n",
        b"*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$4\r\ndata\r\n$1\r\nx\r\n",
        wire([(b"0000000000001-0", [b"data", b""])]),
        wire([(b"1000000000000-00", [b"data", b""])]),
        wire([(b"1\r00000000000-0", [b"data", b""])]),
        wire([(b"100-x", [b"data", b""])]),
        wire([(b"1000000000000-0", [b"data", b"", b"headers", b"0}"])]),
        wire([(b"1000000000000-0", [b"data", b"", b"headers", b'{"a":1}'])]),
        wire([(b"1000000000000-0", [b"data", b"", b"type", b"\xff"])]),
    ],
)
def test_everything_else_is_left_alone(raw: bytes) -> None:
    assert page_of(raw) is None


class Connection:
    """What a channel needs of a connection, over a pair of sockets."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send_packed_command(self, command: tuple[bytes, ...], check_health: bool) -> None:
        self._sock.sendall(b"".join(command))


@settings(max_examples=30, deadline=None)
@given(entries(), st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_a_reply_may_come_in_any_pieces(sample: list[Entry], steps: list[int]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel.__new__(Channel)
        channel._connection = Connection(ours)
        channel._mark = b"m" * 32
        channel._tail = b"$32\r\n" + channel._mark + b"\r\n"
        channel._buffer = np.empty(MARGIN + 7, np.uint8)  # has to grow again and again
        raw = wire(sample)
        sent = raw + channel._tail

        def send() -> None:
            place, pieces = 0, itertools.cycle(steps)
            while place < len(sent):
                step = next(pieces)
                theirs.sendall(sent[place : place + step])
                place += step

        sender = threading.Thread(target=send)
        sender.start()
        buffer, size = channel.receive()
        sender.join()
        assert buffer[:size].tobytes() == raw
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError):
            channel.receive()
