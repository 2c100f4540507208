"""The processes of the campaign in test_campaign.py.

    python -m tests.outbox.campaign relay|careless|work SOURCE TABLES TARGET PREFIX

The job's effect is a row in a table of the user's own database, written in one transaction with the inbox's
key. A careless relay deletes the rows before it pushes them, over a network that is not the quickest.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from millstream import Job, connect
from millstream.inbox import Inbox
from millstream.outbox import Relay
from millstream.outbox import relay as relay_module
from millstream.outbox.lanes import LaneStore
from millstream.sql import parse_url
from tests.outbox.conftest import DRIVERS

LEASE = 1.0


@cache
def engine() -> Engine:
    target = parse_url(os.environ["MILLSTREAM_TEST_SOURCE"])
    patience: dict[str, Any] = {"timeout": 60} if target.backend == "sqlite" else {}
    return create_engine(target.url.set(drivername=DRIVERS[target.backend]), connect_args=patience)


class Effect(Job, queue="effects", name="outboxtest.Effect", max_attempts=50, backoff=0.05, max_backoff=0.5):
    n: int

    def handle(self) -> None:
        tables = os.environ["MILLSTREAM_TEST_TABLES"]
        with Session(engine()) as session, session.begin():
            if Inbox(session, tables=tables).once(self):
                session.execute(text(f"INSERT INTO {tables}effects (n) VALUES ({self.n})"))


def careless() -> None:
    """Let a relay delete first and push then."""
    close, push = LaneStore.close_batch, relay_module._push
    stores: list[LaneStore] = []
    made = LaneStore.__post_init__

    def remember(self: LaneStore) -> None:
        made(self)
        stores.append(self)

    def delete_and_push(queue: Any, lane: Any, batch: Any) -> None:
        close(stores[0], lane, batch)
        time.sleep(0.1)
        push(queue, lane, batch)

    LaneStore.__post_init__ = remember  # type: ignore[method-assign]
    relay_module._push = delete_and_push


def main(role: str, source: str, tables: str, target: str, prefix: str) -> None:
    os.environ["MILLSTREAM_TEST_SOURCE"], os.environ["MILLSTREAM_TEST_TABLES"] = source, tables
    with connect(target, prefix=prefix) as queue:
        if role == "work":
            print("ready", flush=True)  # noqa: T201 - the campaign waits for it
            queue.work(["effects"], concurrency=4, lease=LEASE, max_deliveries=1000, recover_every=0.2)
            return
        if role == "careless":
            careless()
        relay = Relay(source, queue, tables=tables, poll=0.05, lease=0.3)
        print("ready", flush=True)  # noqa: T201
        relay.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
