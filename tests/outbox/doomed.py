"""A relay that is killed at a chosen point.

    python -m tests.outbox.doomed POINT KIND SOURCE TABLES TARGET PREFIX

KIND is "relay" for the real one. The others are controls, relays as one might write them at first: "plain"
pushes without a number, and "careless" deletes the rows before it pushes them.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from millstream import connect
from millstream.outbox import Relay
from millstream.outbox import relay as module
from millstream.outbox.lanes import LaneStore

POINTS = ("opened", "pushed", "closed")


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doom(point: str) -> None:
    """Let this process be killed right after the step."""
    if point == "opened":
        module._push = die
    elif point == "pushed":
        LaneStore.close_batch = die  # type: ignore[method-assign]
    elif point == "closed":
        real = LaneStore.close_batch

        def close_and_die(self: LaneStore, lane: Any, batch: Any) -> None:
            real(self, lane, batch)
            die()

        LaneStore.close_batch = close_and_die  # type: ignore[method-assign]


def careless() -> None:
    """Delete first, then push: what is lost in between is lost."""
    real, push = LaneStore.close_batch, module._push

    def push_after_deleting(queue: Any, lane: Any, batch: Any) -> None:
        relay = Relay.current  # type: ignore[attr-defined]
        real(relay._store, lane, batch)
        if os.environ.get("MILLSTREAM_TEST_DIE"):
            die()
        push(queue, lane, batch)

    module._push = push_after_deleting


def main(point: str, kind: str, source: str, tables: str, target: str, prefix: str) -> None:
    if kind == "plain":
        module._push = lambda queue, lane, batch: queue.driver.push(batch.items)
    if kind == "careless":
        os.environ["MILLSTREAM_TEST_DIE"] = "1"
        careless()
    else:
        doom(point)
    relay = Relay(source, connect(target, prefix=prefix), tables=tables, lease=0.2)
    Relay.current = relay  # type: ignore[attr-defined]
    relay.run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
