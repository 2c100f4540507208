"""Two small memories of a queue in memory: who holds a unique key, and which jobs started lately."""

from __future__ import annotations

from collections import deque
from itertools import islice

from millstream.drivers.base import PushItem, RateLimit

NEVER = float("inf")


class UniqueKeys:
    """Unique keys and their holders. Times are on the monotonic clock."""

    def __init__(self) -> None:
        self._holders: dict[str, tuple[str, float]] = {}  # the job and when its time ends
        self._until_gone: dict[str, str] = {}  # by job, the key that it holds until it is gone

    def holder(self, key: str | None, now: float) -> str | None:
        """The job that holds the key."""
        if key is None:
            return None
        job, until = self._holders.get(key, ("", -1.0))
        return job if until > now else None

    def hold(self, item: PushItem, now: float) -> None:
        """Let the item's job hold its key, if it has one."""
        if item.unique_key is None:
            return
        if item.unique_for:
            self._holders[item.unique_key] = (item.id, now + item.unique_for)
            self._forget_expired(now)
        else:
            self._holders[item.unique_key] = (item.id, NEVER)
            self._until_gone[item.id] = item.unique_key

    def let_go(self, job: str) -> None:
        """Free the key of a job that is gone, unless it is held for a time or by another."""
        key = self._until_gone.pop(job, None)
        if key is not None and self._holders.get(key) == (job, NEVER):
            del self._holders[key]

    def _forget_expired(self, now: float) -> None:
        """Look at two keys, so that those whose time has passed never pile up."""
        for key in list(islice(self._holders, 2)):
            holder = self._holders.pop(key)
            if holder[1] > now:
                self._holders[key] = holder  # at the end: the others come first the next time


class Starts:
    """The starts of jobs within the span of a rate limit."""

    def __init__(self) -> None:
        self._starts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def free(self, limit: RateLimit, now: float) -> tuple[int, float]:
        """How many jobs may start now, and the seconds until one may where it is none."""
        while self._starts and self._starts[0][0] <= now - limit.per:
            self._sum -= self._starts.popleft()[1]
        if self._sum < limit.limit:
            return limit.limit - self._sum, 0.0
        return 0, self._starts[0][0] + limit.per - now

    def note(self, number: int, now: float) -> None:
        self._starts.append((now, number))
        self._sum += number
