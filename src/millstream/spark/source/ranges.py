"""Cuts what is to be read into partitions: ranges of ids that neither overlap nor leave anything out.

A stream says how long it is, but not how many entries lie between two ids, and walking over all of them
would cost as much as reading them. So the density is sampled: at moments spread evenly over the range, how
many entries one millisecond holds, and how long it is to the next that holds any. Cuts are made where the
sum of that is even. A cut may fall within a millisecond, between two counters; ids before it and ids from it
on never mix. However wrong an estimate is, only the balance suffers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf

from pyspark.sql.datasource import InputPartition

from millstream.message import MAX_ID, Id, previous_id
from millstream.spark.source.log import Log, Probe

# Enough work for a task that its own costs (some 20 ms) do not count, and several for each core of a long
# read.
ROWS_PER_PARTITION = 250_000
MOST_PARTITIONS = 10_000
MOST_SAMPLES = 128
NEIGHBOURS = 4
_SEQ = MAX_ID[1]


@dataclass(frozen=True)
class Range:
    """Entries of a stream from ``low`` to ``high``, both included. ``rows`` is an estimate; 0: not known."""

    stream: str
    low: Id
    high: Id
    rows: float = 0.0
    most: float = inf  # more than that it cannot have, whatever the samples say


class Slice(InputPartition):
    """What one task reads: a range, or several small ones."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        self.ranges = ranges


@dataclass(frozen=True)
class _Segment:
    """A stretch of a stream with an even density: within one millisecond, or of whole milliseconds."""

    low: Id
    length: int  # counters, or milliseconds
    rows: float
    within_ms: bool

    def at(self, share: float) -> Id:
        step = min(int(share * self.length), self.length - 1)
        ms, seq = self.low
        return (ms, min(seq + step, _SEQ)) if self.within_ms else (ms + step, 0 if step else seq)


def plan(log: Log, wanted: Sequence[Range], min_partitions: int | None) -> list[Slice]:
    """Slices of about equal size that cover ``wanted`` exactly. Ranges without entries are left out."""
    surveyed = []
    for each in wanted:
        ends = log.probe(each.stream, [Probe(each.low, each.high), Probe(each.low, each.high, newest=True)])
        first, last = ends
        if first is not None and last is not None and first <= last:
            surveyed.append(_survey(log, each, first, last, min_partitions))
    total = sum(each.rows for each, _ in surveyed)
    if not total:
        return []
    parts = max(min_partitions or 1, min(MOST_PARTITIONS, round(total / ROWS_PER_PARTITION)))
    share = total / parts
    pieces: list[Range] = []
    for each, segments in surveyed:
        pieces += _cut(each, segments, ceil(each.rows / share - 1e-9))
    joined = _join(pieces, share)
    return joined if len(joined) >= (min_partitions or 1) else [Slice((piece,)) for piece in pieces]


def _survey(
    log: Log, each: Range, first: Id, last: Id, min_partitions: int | None
) -> tuple[Range, list[_Segment]]:
    """The range with its estimated rows, and its density."""
    if min_partitions is None and 0 < each.rows < ROWS_PER_PARTITION:  # it will not be cut
        return Range(each.stream, first, last, each.rows), [_Segment(first, 1, each.rows, within_ms=True)]
    span = last[0] - first[0]
    samples = min(MOST_SAMPLES, max(16, 8 * (min_partitions or 1)))
    moments = sorted({first[0] + span * place // samples for place in range(1, samples)} - {first[0]})
    found = log.probe(each.stream, [Probe((ms, 0), last) for ms in moments])
    empty_from: dict[Id, int] = {}  # an entry that was found, and since when nothing had come before it
    for ms, entry in zip(moments, found, strict=True):
        if entry is not None:
            empty_from.setdefault(entry, ms)
    anchors = sorted({first, *empty_from})
    # The first entry of a millisecond says when it began; the last one how many it holds; the next when it
    # went on.
    questions = [Probe(anchor, min((anchor[0], _SEQ), last), newest=True) for anchor in anchors]
    questions += [Probe((anchor[0] + 1, 0), last) for anchor in anchors if anchor[0] < last[0]]
    answers = log.probe(each.stream, questions)
    counts = [
        max(1, newest[1] - anchor[1] + 1) if newest else 1
        for anchor, newest in zip(anchors, answers, strict=False)
    ]
    nexts: list[Id | None] = answers[len(anchors) :]
    nexts += [None] * (len(anchors) - len(nexts))
    gaps = [
        max(1, following[0] - anchor[0]) if following else 1
        for anchor, following in zip(anchors, nexts, strict=True)
    ]
    stretches: dict[int, tuple[Id, Id]] = {}  # from after a sampled millisecond to the next sample
    for place, following in enumerate(nexts):
        upto = empty_from[anchors[place + 1]] if place + 1 < len(anchors) else last[0] + 1
        if following is not None and following[0] < upto:
            stretches[place] = (following, (upto - 1, _SEQ))
    ends = log.probe(each.stream, [Probe(*stretch, newest=True) for stretch in stretches.values()])
    ended = dict(zip(stretches, ends, strict=True))
    segments = []
    for place, (anchor, count) in enumerate(zip(anchors, counts, strict=True)):
        segments.append(_Segment(anchor, count, count, within_ms=True))
        end = ended.get(place)
        if end is not None:
            # Over some neighbours, because a single gap says little where entries come in bursts.
            around = slice(max(0, place - NEIGHBOURS), place + NEIGHBOURS + 1)
            density = sum(counts[around]) / sum(gaps[around])
            begin = stretches[place][0]
            length = end[0] - begin[0] + 1
            segments.append(_Segment(begin, length, density * length, within_ms=False))
    rows = each.rows or min(each.most, sum(segment.rows for segment in segments))
    return Range(each.stream, first, last, rows), segments


def _cut(each: Range, segments: Sequence[_Segment], parts: int) -> list[Range]:
    """A range in ``parts`` pieces with about the same number of entries."""
    sums = list(accumulate(segment.rows for segment in segments))
    lows = [each.low]
    for part in range(1, parts):
        goal = sums[-1] * part / parts
        place = min(bisect_left(sums, goal), len(sums) - 1)
        before = sums[place - 1] if place else 0.0
        cut = segments[place].at((goal - before) / segments[place].rows)
        if lows[-1] < cut <= each.high:
            lows.append(cut)
    highs = [previous_id(low) for low in lows[1:]] + [each.high]
    rows = each.rows / len(lows)
    return [Range(each.stream, low, high, rows) for low, high in zip(lows, highs, strict=True)]


def _join(pieces: Sequence[Range], share: float) -> list[Slice]:
    """Small ranges together, so that a thousand short streams are not a thousand tasks."""
    slices: list[Slice] = []
    gathered: list[Range] = []
    rows = 0.0
    for piece in pieces:
        if gathered and rows + piece.rows > share * 1.25:
            slices.append(Slice(tuple(gathered)))
            gathered, rows = [], 0.0
        gathered.append(piece)
        rows += piece.rows
    return [*slices, Slice(tuple(gathered))] if gathered else slices
