"""Two brokers that are given the same operations and must answer alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream import GroupInfo, Message, PendingMessage, StreamBroker
from millstream.errors import IdNotGreater, MillstreamError
from millstream.message import ClaimPage
from tests.differential.operations import FUTURE, GROUPS, STREAMS, IdRef, Operation, apply


class Difference(AssertionError):
    """The two brokers do not agree."""


class Side:
    """One broker, and the ordinals of the ids it gave."""

    def __init__(self, name: str, broker: StreamBroker) -> None:
        self.name, self.broker = name, broker
        self.ordinals: dict[tuple[str, str], int] = {}
        self.refs: dict[str, list[str]] = {stream: [] for stream in STREAMS}

    def resolve(self, stream: str, ref: IdRef) -> str:
        if ref.back is None:
            return ref.prefix + ref.text
        known = self.refs[stream]
        return ref.prefix + (known[-1 - ref.back % len(known)] if known else "7-7")

    def run(self, operation: Operation) -> Any:
        try:
            return apply(self.broker, operation, self.resolve)
        except MillstreamError as error:
            return error

    def ordinal(self, stream: str, entry_id: str) -> str | int:
        return self.ordinals.get((stream, entry_id), entry_id)

    def normal(self, stream: str, value: Any) -> Any:
        """``value`` with every id replaced by its ordinal, and without times."""
        if isinstance(value, Message):
            entry = (self.ordinal(value.stream, value.id), value.stream, value.data)
            return (*entry, value.delivery_count, value.type, value.headers)
        if isinstance(value, PendingMessage):
            return (self.ordinal(stream, value.id), value.consumer, value.delivery_count)
        if isinstance(value, GroupInfo):
            members = [(member.name, member.pending) for member in value.consumers]
            position = self.ordinal(stream, value.last_delivered_id)
            return (value.name, position, value.pending, value.lag, members)
        if isinstance(value, ClaimPage):
            deleted = [self.ordinal(stream, entry_id) for entry_id in value.deleted]
            return (self.ordinal(stream, value.cursor), self.normal(stream, value.messages), deleted)
        if isinstance(value, IdNotGreater):
            return (type(value).__name__, self.ordinal(stream, value.last_id or ""))
        if isinstance(value, MillstreamError):
            return type(value).__name__
        if isinstance(value, str):  # the answer of xadd
            return self.ordinal(stream, value)
        if isinstance(value, list):
            return [self.normal(stream, item) for item in value]
        return value


@dataclass
class Tally:
    """What a run did: operations by name, errors by class, answers compared."""

    operations: Counter[str]
    errors: Counter[str]
    compared: int = 0
    entries: int = 0  # entries inside of the answers

    @classmethod
    def empty(cls) -> Tally:
        return cls(Counter(), Counter())

    def lines(self) -> list[str]:
        names = ", ".join(f"{name} {count:,}" for name, count in self.operations.most_common())
        errors = ", ".join(f"{name} {count:,}" for name, count in self.errors.most_common())
        return [
            f"operations: {self.operations.total():,} ({names})",
            f"answers compared: {self.compared:,}, with {self.entries:,} entries in them",
            f"of these errors on both sides: {self.errors.total():,} ({errors})",
        ]


class Pair:
    """Applies operations to both sides and compares after each."""

    def __init__(self, left: StreamBroker, right: StreamBroker, tally: Tally | None = None) -> None:
        self.sides = (Side("local", left), Side("redis", right))
        self.tally = tally or Tally.empty()
        self._ordinal = 0
        self._generation = dict.fromkeys(STREAMS, 0)

    def step(self, operation: Operation) -> None:
        """Raises Difference."""
        stream = operation.args.get("stream", "")
        if "key" in operation.args:
            # A key outlives its stream, but the ids that it names do not mean anything afterwards.
            key = f"{operation.args['key']}.{self._generation[stream]}"
            operation = Operation(operation.name, {**operation.args, "key": key})
        answers = [side.run(operation) for side in self.sides]
        self.tally.operations[operation.name] += 1
        if operation.name in ("xadd", "xadd_many"):
            self._learn(stream, answers)
        normal = self._compare(str(operation), stream, answers)
        if isinstance(answers[0], MillstreamError):
            self.tally.errors[type(answers[0]).__name__] += 1
        elif operation.name == "delete_stream" and normal:
            self._forget(stream)

    def _compare(self, what: str, stream: str, answers: Sequence[Any]) -> Any:
        left, right = (side.normal(stream, answer) for side, answer in zip(self.sides, answers, strict=True))
        self.tally.compared += 1
        self.tally.entries += len(left) if isinstance(left, list) else 0
        if left != right:
            raise Difference(
                f"{what}\n  local: {left!r}   (as answered: {answers[0]!r})"
                f"\n  redis: {right!r}   (as answered: {answers[1]!r})"
            )
        return left

    def _learn(self, stream: str, answers: Sequence[Any]) -> None:
        """Give the ids that were just made their ordinals."""
        lists = [[answer] if isinstance(answer, str) else answer for answer in answers]
        if not all(isinstance(ids, list) for ids in lists) or len(lists[0]) != len(lists[1]):
            return  # the comparison will say so
        for pair in zip(*lists, strict=True):
            if any(
                (stream, entry_id) in side.ordinals for side, entry_id in zip(self.sides, pair, strict=True)
            ):
                continue  # a key that is remembered: both sides must name the same old entry
            self._ordinal += 1
            for side, entry_id in zip(self.sides, pair, strict=True):
                side.ordinals[stream, entry_id] = self._ordinal
                side.refs[stream].append(entry_id)

    def _forget(self, stream: str) -> None:
        """The stream is gone: ids that the two clocks made could come again, and mean something else."""
        self._generation[stream] += 1
        for side in self.sides:
            side.refs[stream] = [entry_id for entry_id in side.refs[stream] if not _made_by_a_clock(entry_id)]
            side.ordinals = {key: value for key, value in side.ordinals.items() if key[0] != stream}

    def compare_everything(self) -> None:
        """The whole state, as far as the contract shows it."""
        for stream in STREAMS:
            for operation in (
                Operation("xlen", {"stream": stream}),
                Operation("xrange", {"stream": stream}),
                Operation("group_info", {"stream": stream}),
                *(Operation("xpending", {"stream": stream, "group": group}) for group in GROUPS),
            ):
                answers = [side.run(operation) for side in self.sides]
                self._compare(f"state at the end: {operation}", stream, answers)


def _made_by_a_clock(entry_id: str) -> bool:
    """Whether the millisecond is a real one: neither a small explicit one nor from the far future."""
    return 1000 < int(entry_id.partition("-")[0]) < FUTURE
