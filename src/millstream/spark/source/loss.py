"""Whether entries were trimmed before they were read.

Ids have gaps, so a gap proves nothing. Redis counts what was ever added to a stream: an offset keeps that
number, and what was added since must either still be there or was lost. SQL brokers do not count; there, a
stream whose oldest entry lies past the last one that was read may have lost some, and that is reported
rather than guessed. Of a stream of which nothing was read yet, SQL can tell a loss only where no entry is
left: else its oldest entry is taken for the first that it ever had.

A single deleted entry (XDEL) is not a loss while an older entry is still there: it was deleted, not trimmed.
"""

from __future__ import annotations

import logging

from millstream.errors import EntriesLost
from millstream.message import MIN_ID, Id, format_id
from millstream.spark.source.log import Log, State
from millstream.spark.source.offsets import Offset

log = logging.getLogger("millstream.spark")


class LossGuard:
    """Looks for losses, and fails or counts them as the user chose."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self.counted = 0  # entries known to be lost and tolerated

    def check(self, stream: str, offset: Offset, state: State | None, first: Id | None = None) -> None:
        """Raise EntriesLost where something after ``offset`` is gone; or say so in the log.

        ``first`` is the oldest entry that the stream had when a batch was planned from there.
        """
        if state is None:
            if (offset.after > MIN_ID or first is not None) and not offset.ahead:
                self._report(stream, offset.after, None, None, "the stream does not exist any more")
        elif offset.ahead:
            return
        elif offset.is_past(state.last, state.added):
            self._report(stream, offset.after, None, state, "the stream was deleted and made anew")
        elif state.last > offset.after and (state.first is None or state.first > offset.low):
            if offset.added is None or state.added is None:
                if offset.after > MIN_ID or _shrank(offset, state, first):
                    self._report(stream, offset.after, None, state, "entries after it may have been trimmed")
            elif (lost := state.added - offset.added - state.length) > 0:
                self._report(stream, offset.after, lost, state, f"{lost:,} entries after it were trimmed")
            elif lost < 0:  # more entries than were added since: it is another stream of that name
                self._report(stream, offset.after, None, state, "the stream was deleted and made anew")

    def check_start(self, stream: str, low: Id, state: State | None) -> None:
        """The same for a start that a user named by id or time: nothing is known of what lay there."""
        if state is None or low <= MIN_ID or state.added is None or state.added == state.length:
            return
        if (state.first is not None and low < state.first) or (state.first is None and low <= state.last):
            self._report(stream, low, None, state, "entries from there on were trimmed, or may have been")

    def check_page(self, log_: Log, stream: str, low: Id) -> None:
        """After a page that began at ``low``: whether the front of the stream has moved past it meanwhile."""
        if not self._fail:
            return
        state = log_.state(stream)
        if state is None or state.first is None or state.first > low:
            self._report(stream, low, None, state, "entries were trimmed while they were read")

    def _report(self, stream: str, place: Id, lost: int | None, state: State | None, why: str) -> None:
        first = None if state is None or state.first is None else format_id(state.first)
        error = EntriesLost(stream, format_id(place), first, lost, why)
        if self._fail:
            raise error
        self.counted += lost or 0
        log.warning("%s", error)


def _shrank(offset: Offset, state: State, first: Id | None) -> bool:
    """Whether a stream of which nothing was read yet is known to have lost entries since it was looked at."""
    if state.first is None:
        return first is not None or offset.added is not None
    return first is not None and state.first > first
