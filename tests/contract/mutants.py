"""Brokers that are wrong on purpose, each in one way that a real one could be; the suite notices each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millstream import LocalStreamBroker, Message
from millstream.message import ClaimPage


class Correct(LocalStreamBroker):
    """The control: nothing is wrong with it."""


class LosesAnAddition(LocalStreamBroker):
    """Every fiftieth addition is answered with an id and not stored."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._calls = itertools.count(1)

    def xadd(self, stream: str, data: Mapping[str, Any], **options: Any) -> str:
        entry_id = super().xadd(stream, data, **options)
        if next(self._calls) % 50 == 0:
            super().xdel(stream, entry_id)
        return entry_id


class DeliversTwice(LocalStreamBroker):
    """What one consumer was given, the next one is given as well."""

    _last: Sequence[Message] = ()

    def xreadgroup(self, group: str, consumer: str, stream: str, *args: Any, **options: Any) -> list[Message]:
        messages = super().xreadgroup(group, consumer, stream, *args, **options)
        if not messages and self._last and self._last[0].stream == stream:
            messages, self._last = list(self._last), ()
        else:
            self._last = messages
        return messages


class AckKeepsThePendingEntry(LocalStreamBroker):
    def xack(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        wanted = {ids} if isinstance(ids, str) else set(ids)
        return sum(entry.id in wanted for entry in super().xpending(stream, group))


class ClaimIgnoresTheIdleTime(LocalStreamBroker):
    def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: str | Sequence[str]
    ) -> list[Message]:
        return super().xclaim(stream, group, consumer, 0, ids)


class ClaimDoesNotCount(LocalStreamBroker):
    """A claimed entry says that it was delivered once."""

    def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: str | Sequence[str]
    ) -> list[Message]:
        claimed = super().xclaim(stream, group, consumer, min_idle_ms, ids)
        return [Message(message.id, message.stream, message.body, 1) for message in claimed]


class TrimRemovesUnreadWork(LocalStreamBroker):
    def xtrim(
        self, stream: str, max_len: int | None = None, min_id: str | None = None, *, plain: bool = False
    ) -> int:
        return super().xtrim(stream, max_len, min_id, plain=True)


class IdsGoBack(LocalStreamBroker):
    """Two additions in a row have their ids exchanged."""

    _held: str | None = None

    def xadd(self, stream: str, data: Mapping[str, Any], **options: Any) -> str:
        entry_id = super().xadd(stream, data, **options)
        entry_id, self._held = self._held or entry_id, entry_id
        return entry_id


class BlockingReadNeverWakes(LocalStreamBroker):
    """A reader that finds nothing sleeps its time out, whatever is added meanwhile."""

    def xreadgroup(
        self,
        group: str,
        consumer: str,
        stream: str,
        count: int = 1,
        block_ms: int | None = 0,
        *,
        start: str = ">",
    ) -> list[Message]:
        messages = super().xreadgroup(group, consumer, stream, count, start=start)
        if not messages and block_ms != 0 and start == ">":
            threading.Event().wait(None if block_ms is None else block_ms / 1000)
        return messages


class LastWaiterFirst(LocalStreamBroker):
    """Of the readers that wait, the one that came last is served first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._stack: list[tuple[threading.Event, threading.Event]] = []

    def xreadgroup(
        self,
        group: str,
        consumer: str,
        stream: str,
        count: int = 1,
        block_ms: int | None = 0,
        *,
        start: str = ">",
    ) -> list[Message]:
        messages = super().xreadgroup(group, consumer, stream, count, start=start)
        if not messages and block_ms is None and start == ">":
            turn, served = threading.Event(), threading.Event()
            self._stack.append((turn, served))
            turn.wait()
            messages = super().xreadgroup(group, consumer, stream, count)
            served.set()
        return messages

    def xadd(self, stream: str, data: Mapping[str, Any], **options: Any) -> str:
        entry_id = super().xadd(stream, data, **options)
        if self._stack:
            turn, served = self._stack.pop()
            turn.set()
            served.wait(1)
        return entry_id


class SweepsFromTheBeginning(LocalStreamBroker):
    """xautoclaim without the cursor: a dead entry behind live ones is never reached."""

    def xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int = 1
    ) -> list[Message]:
        return super().xautoclaim_page(stream, group, consumer, min_idle_ms, "0-0", count).messages


class HidesLostWork(LocalStreamBroker):
    """A claim says nothing of entries that are gone."""

    def xautoclaim_page(self, *args: Any, **options: Any) -> ClaimPage:
        page = super().xautoclaim_page(*args, **options)
        return ClaimPage(page.cursor, page.messages, [])


class ManyOutOfOrder(LocalStreamBroker):
    def xadd_many(self, stream: str, items: Iterable[Mapping[str, Any]]) -> list[str]:
        return super().xadd_many(stream, list(items)[::-1])


class AckdelForgetsOtherGroups(LocalStreamBroker):
    def xackdel(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        wanted = [ids] if isinstance(ids, str) else list(ids)
        pending = {entry.id for entry in super().xpending(stream, group)}
        mine = [entry_id for entry_id in wanted if entry_id in pending]
        super().xack(stream, group, mine)
        return super().xdel(stream, mine)


class RecreatesTheGroup(LocalStreamBroker):
    """create_group moves a group that exists."""

    def create_group(self, stream: str, group: str, start_id: str = "$") -> None:
        super().create_group(stream, group, start_id)
        super().delete_group(stream, group)
        super().create_group(stream, group, start_id)


class KeyIsIgnored(LocalStreamBroker):
    def xadd(self, stream: str, data: Mapping[str, Any], *, key: str | None = None, **options: Any) -> str:
        return super().xadd(stream, data, **options)


class LagIsTheLength(LocalStreamBroker):
    """The mistake that dashboards make: XLEN shown as what is still to do."""

    def group_info(self, stream: str) -> list[Any]:
        import msgspec

        length = self.xlen(stream)
        return [msgspec.structs.replace(group, lag=length) for group in super().group_info(stream)]


# Which file of the suite is expected to notice, so that a run on the mutant stays short.
MUTANTS: dict[type[LocalStreamBroker], str] = {
    LosesAnAddition: "test_threads.py",
    DeliversTwice: "test_reading.py",
    AckKeepsThePendingEntry: "test_pending.py",
    ClaimIgnoresTheIdleTime: "test_claiming.py",
    ClaimDoesNotCount: "test_claiming.py",
    TrimRemovesUnreadWork: "test_trimming.py",
    IdsGoBack: "test_ids.py",
    BlockingReadNeverWakes: "test_blocking.py",
    LastWaiterFirst: "test_blocking.py",
    SweepsFromTheBeginning: "test_claiming.py",
    HidesLostWork: "test_claiming.py",
    ManyOutOfOrder: "test_adding.py",
    AckdelForgetsOtherGroups: "test_pending.py",
    RecreatesTheGroup: "test_groups.py",
    KeyIsIgnored: "test_keys.py",
    LagIsTheLength: "test_info.py",
}
