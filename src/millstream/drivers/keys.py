"""The names under which a queue is kept, the same in memory and on Redis."""

from __future__ import annotations

from millstream.envelope import PRIORITIES

LEVELS = {name: name[0] for name in PRIORITIES}  # the letter that stands for a priority in places and bodies
NAMES = {letter: name for name, letter in LEVELS.items()}


class QueueKeys:
    """The keys of one queue. They share one hash tag, so that a script may use all of them on a Cluster."""

    __slots__ = (
        "all",
        "bell",
        "dead",
        "delayed",
        "due",
        "index",
        "queue",
        "reserving",
        "starts",
        "streams",
        "tag",
    )

    def __init__(self, prefix: str, queue: str) -> None:
        self.queue = queue
        self.tag = tag = f"{{{prefix}:{queue}}}"
        self.streams = [f"{tag}:{priority}" for priority in PRIORITIES]
        self.delayed, self.dead = f"{tag}:delayed", f"dlq:{tag}"
        self.bell, self.due = f"{tag}:bell", f"{tag}:due"
        self.starts = f"{tag}:starts"
        self.index, state = f"{tag}:index", f"{tag}:state"
        # The order of _queue.lua, and that of reserve_n.lua.
        self.all = (
            *self.streams,
            *(self.index, state, self.delayed, f"{tag}:bodies", self.dead),
            *(f"{tag}:unique", f"{tag}:holds", f"{tag}:expiring", self.bell, self.due),
        )
        self.reserving = (*self.streams, state, self.starts)

    def answers(self, caller: str) -> str:
        """Where the last answer to one caller is kept."""
        return f"{self.tag}:producer:{caller}"
