"""The StreamBroker contract: an append-only log with consumer groups, in the words of Redis Streams.

Every implementation passes `tests/contract/streams`, and programs may rely on each sentence here. What
differs from Redis itself, and why, is on the page `docs/streams.md`.

The rules that hold for every method:

* A broker may be used from any number of threads.
* Arguments are checked before anything is written: an InvalidInput means that nothing happened.
* A consumer belongs to a group and comes to be when it first reads or claims. One consumer name is meant
  for one reader at a time.
* An entry is *pending* from its delivery to a consumer until it is acknowledged, and the group will not
  deliver it again by itself: recovery is xautoclaim's work.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict

from millstream.message import ClaimPage, GroupInfo, Message, PendingMessage


class AddOptions(TypedDict, total=False):
    """The options of xadd, for an implementation that hands them on as they are."""

    id: str
    maxlen: int | None
    minid: str | None
    plain: bool
    key: str | None
    type: str | None
    headers: Mapping[str, str] | None


class StreamBroker(ABC):
    """A log of named streams with consumer groups. See the module's text for what always holds."""

    def __init__(self) -> None:
        # Where xautoclaim goes on, by (stream, group). A sweep that began at 0-0 each time would never
        # get past the first live entries to a dead one behind them.
        self._claim_cursors: dict[tuple[str, str], str] = {}
        self._claim_lock = threading.Lock()

    # -- adding ------------------------------------------------------------------------------------

    @abstractmethod
    def xadd(
        self,
        stream: str,
        data: Mapping[str, Any],
        *,
        id: str = "*",  # noqa: A002 - the name of the Redis argument, and public
        maxlen: int | None = None,
        minid: str | None = None,
        plain: bool = False,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - the name of the wire field, and public
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Append ``data`` and return its id. The stream comes to be if it does not exist.

        Ids grow: ``"*"`` makes one from the clock, and one above the newest where the clock has stepped
        back; ``"ms-*"`` makes the counter only; an explicit id must be greater than every id that the
        stream ever had (IdNotGreater). When the call returns, the entry is visible to every reader.

        ``maxlen`` and ``minid`` trim in the same step, by the rule of `xtrim`; ``plain`` is meant as there.

        ``key`` makes the addition idempotent: as long as the broker remembers the key (``key_ttl``, a day
        by default) a second call with it adds nothing and returns the first one's id. Without a key a
        call whose reply was lost raises OutcomeUnknown, because repeating it could add a second entry.

        ``type`` and ``headers`` (texts by text) travel beside the data.
        """

    @abstractmethod
    def xadd_many(self, stream: str, items: Iterable[Mapping[str, Any]]) -> list[str]:
        """Append each of ``items`` in order and return their ids; a round trip per thousand.

        All are checked before the first is written. Each thousand is added in one atomic step; if the
        connection is lost between two of them, the error's ``ids`` lists what is known to be added.
        """

    # -- groups ------------------------------------------------------------------------------------

    @abstractmethod
    def create_group(self, stream: str, group: str, start_id: str = "$") -> None:
        """Let ``group`` exist, and the stream too.

        It will be given entries after ``start_id``: ``"$"`` those added from now on, ``"0"`` all, or any
        id. A group that exists already is left unchanged, and that is no error.
        """

    @abstractmethod
    def delete_group(self, stream: str, group: str) -> bool:
        """Remove the group with its consumers and its pending list; whether there was one.

        The entries stay in the stream. Readers that wait in the group get GroupNotFound.
        """

    @abstractmethod
    def delete_consumer(self, stream: str, group: str, consumer: str, *, only_idle: bool = False) -> int:
        """Remove a consumer and return how many entries it had pending.

        Those entries are dropped from the pending list: the group never delivers them again. With
        ``only_idle`` a consumer that has pending entries stays, in one atomic step: move them with
        xclaim or xautoclaim first.
        """

    # -- reading as a group ------------------------------------------------------------------------

    @abstractmethod
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
        """Deliver up to ``count`` entries that the group was not given yet, oldest first.

        Each is delivered to exactly one consumer of the group, and is pending for it from then on. With
        nothing to deliver, the call waits ``block_ms`` milliseconds (0: not at all; None: for ever)
        and returns an empty list when they have passed. Waiting readers are served in the order in
        which they began to wait.

        ``start`` other than ``">"`` reads this consumer's own pending entries after that id instead
        (``"0"``: all), without waiting; each counts as one more delivery. Entries that were deleted while
        they were pending are left out.

        Raises StreamNotFound or GroupNotFound.
        """

    @abstractmethod
    def xack(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        """Take entries off the group's pending list; how many were on it.

        Unknown ids, an unknown group and an unknown stream count nothing, as in Redis. Whether the caller
        is the consumer that the entry is pending for is not checked: see `docs/streams.md`.
        """

    @abstractmethod
    def xackdel(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        """Acknowledge, and delete each entry that no other group still needs; how many were deleted.

        Another group needs an entry that it was not given yet, or has not acknowledged. One atomic step
        per thousand ids. Ids that are not pending in ``group`` are left alone.
        """

    @abstractmethod
    def xpending(
        self,
        stream: str,
        group: str,
        consumer: str | None = None,
        *,
        min_idle_ms: int = 0,
        start: str = "-",
        end: str = "+",
        count: int | None = None,
    ) -> list[PendingMessage]:
        """The group's pending entries in the order of their ids, of one consumer or of all.

        Without ``count`` it is the whole list, gathered in bounded steps.
        Raises StreamNotFound or GroupNotFound.
        """

    @abstractmethod
    def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: str | Sequence[str]
    ) -> list[Message]:
        """Make those of ``ids`` that are pending and idle for ``min_idle_ms`` pending for ``consumer``.

        Returned in the order given, each with its delivery count raised by one and its idle time set back
        to zero; an id given twice is claimed once. Pending ids whose entry no longer exists are dropped from
        the pending list. Raises StreamNotFound or GroupNotFound, unless no id was given.
        """

    def xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int = 1
    ) -> list[Message]:
        """Claim up to ``count`` entries that have been pending for ``min_idle_ms``, for ``consumer``.

        The broker remembers where the last call ended, so repeated calls go through the whole pending
        list however long it is. One call looks at ``10 * count`` pending entries at the most, so
        an empty answer does not mean that nothing is idle: call it again, or drive `xautoclaim_page` by
        its cursor. Raises StreamNotFound or GroupNotFound.
        """
        place = (stream, group)
        with self._claim_lock:
            cursor = self._claim_cursors.get(place, "0-0")
        page = self.xautoclaim_page(stream, group, consumer, min_idle_ms, cursor, count)
        if not page.messages and cursor != "0-0" and page.cursor == "0-0":
            # The rest of the list held nothing: begin the next sweep in this call already.
            page = self.xautoclaim_page(stream, group, consumer, min_idle_ms, "0-0", count)
        with self._claim_lock:
            if page.cursor == "0-0":
                self._claim_cursors.pop(place, None)
            else:
                self._claim_cursors[place] = page.cursor
        return page.messages

    def _forget_cursor(self, stream: str, group: str) -> None:
        with self._claim_lock:
            self._claim_cursors.pop((stream, group), None)

    @abstractmethod
    def xautoclaim_page(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, start: str = "0-0", count: int = 100
    ) -> ClaimPage:
        """One step of xautoclaim from the pending id ``start``, with what else it found.

        Looks at ``10 * count`` pending entries at the most. Raises StreamNotFound or GroupNotFound.
        """

    # -- reading without a group -------------------------------------------------------------------

    @abstractmethod
    def xrange(
        self, stream: str, start: str = "-", end: str = "+", count: int | None = None
    ) -> list[Message]:
        """Entries from ``start`` to ``end``, both included, oldest first; ``"(id"`` leaves an end out.

        Reading disturbs no group. An unknown stream is an empty one.
        """

    @abstractmethod
    def xrevrange(
        self, stream: str, end: str = "+", start: str = "-", count: int | None = None
    ) -> list[Message]:
        """The same as xrange, newest first; the bounds in Redis's order, the newer one first."""

    @abstractmethod
    def xread(
        self, streams: Mapping[str, str], count: int | None = None, block_ms: int | None = 0
    ) -> list[Message]:
        """Entries after the given id of each stream, ``count`` of each at the most, stream by stream.

        ``"$"`` means what is added after the call began. Waiting is meant as in xreadgroup, except that
        every waiting reader gets the entry.
        """

    # -- keeping house -----------------------------------------------------------------------------

    @abstractmethod
    def xlen(self, stream: str) -> int:
        """How many entries the stream has; 0 where there is none. Not the depth of a queue: see lag."""

    @abstractmethod
    def xtrim(
        self, stream: str, max_len: int | None = None, min_id: str | None = None, *, plain: bool = False
    ) -> int:
        """Remove the oldest entries, down to ``max_len`` or those below ``min_id``; how many went.

        What a group was not given yet, or has not acknowledged, is never removed, nor anything newer than
        it: then the stream stays longer than asked. ``plain`` is Redis's own rule instead: the oldest
        go, needed or not. Exactly one of the two limits must be given.
        """

    @abstractmethod
    def xdel(self, stream: str, ids: str | Sequence[str]) -> int:
        """Delete entries, whatever groups think of them; how many existed.

        A pending entry stays on the pending list until it is acknowledged, or until a claim finds it gone.
        """

    @abstractmethod
    def delete_stream(self, stream: str) -> bool:
        """Remove the stream with its groups; whether there was one. Waiting readers get StreamNotFound."""

    @abstractmethod
    def group_info(self, stream: str) -> list[GroupInfo]:
        """Each group with its position, pending entries, lag and consumers, sorted by name.

        ``lag`` is exact: the entries that exist and were not delivered to the group yet, whatever was
        deleted or trimmed in between. Raises StreamNotFound.
        """

    # -- life --------------------------------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Give back what the broker holds; any later call raises BrokerClosed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
