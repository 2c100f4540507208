"""Histories of jobs for the tests: made by a small simulation, so that their true figures are known."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from millstream.history import Record


@dataclass(frozen=True)
class Kind:
    """One type of job: how often it comes, how long it runs, how often an attempt fails."""

    type: str
    queue: str
    share: float
    seconds: float
    fails: float = 0.0  # the chance of an attempt to fail
    broken: float = 0.0  # the chance of a job to fail on every attempt
    error: str = "ValueError"


KINDS = (
    Kind("shop.SendReceipt", "emails", 0.5, 0.2, fails=0.02, error="SmtpError"),
    Kind("shop.SyncStock", "sync", 0.3, 0.6, fails=0.25, error="Timeout"),
    Kind("shop.ChargeCard", "payments", 0.15, 0.4, broken=0.2, error="Declined"),
    Kind("shop.BuildReport", "reports", 0.05, 3.0),
)
START = 1_780_000_000.0


def history(
    jobs: int,
    *,
    rate: float = 20.0,
    growth: float = 0.0,
    workers: int = 30,
    seed: int = 7,
    start: float = START,
) -> list[Record]:
    """What ``workers`` did with ``jobs`` that came at ``rate`` per second, growing by ``growth`` per second.

    Retries wait two seconds. The records are in the order of their times.
    """
    return sorted(
        _simulate(jobs, rate, growth, workers, random.Random(seed), start), key=lambda record: record.at
    )


def _simulate(
    jobs: int, rate: float, growth: float, workers: int, chance: random.Random, start: float
) -> Iterator[Record]:
    free = [start] * workers  # when each worker is free again
    waiting: list[tuple[float, int, int, Kind, float, str, str, bool]] = []
    now = start
    order = itertools.count()
    for number in range(jobs):
        now += chance.expovariate(rate + growth * (now - start))
        kind = chance.choices(KINDS, [each.share for each in KINDS])[0]
        tenant, priority = (
            chance.choice(("acme", "acme", "globex")),
            chance.choice(("default", "default", "high")),
        )
        broken = chance.random() < kind.broken
        labels = f"{tenant}|{priority}"
        yield Record(
            job_id=f"job-{number}", type=kind.type, state="enqueued", at=now, queue=kind.queue,
            priority=priority, max_attempts=3, enqueued_at=now, tenant=tenant,
        )  # fmt: skip
        heapq.heappush(waiting, (now, next(order), 1, kind, now, f"job-{number}", labels, broken))
    while waiting:
        due, _, attempt, kind, enqueued_at, job_id, labels, broken = heapq.heappop(waiting)
        begun = max(due, heapq.heappop(free))
        seconds = kind.seconds * chance.lognormvariate(0, 0.4)
        ended = begun + seconds
        heapq.heappush(free, ended)
        failed = broken or chance.random() < kind.fails
        state = "completed" if not failed else ("failed" if attempt == 3 else "retried")
        tenant, priority = labels.split("|")
        yield Record(
            job_id=job_id, type=kind.type, state=state, at=ended, queue=kind.queue, priority=priority,
            attempt=attempt, max_attempts=3, enqueued_at=enqueued_at, started_at=begun, seconds=seconds,
            worker="w1", error_type=kind.error if failed else "",
            error=f"{kind.error}: not now" if failed else "", tenant=tenant,
        )  # fmt: skip
        if state == "retried":
            heapq.heappush(
                waiting, (ended + 2.0, next(order), attempt + 1, kind, enqueued_at, job_id, labels, broken)
            )


def as_rows(records: list[Record]) -> list[dict[str, object]]:
    """The records as rows of a table, with every field."""
    return [{name: getattr(record, name) for name in Record.__struct_fields__} for record in records]


def as_entries(records: list[Record]) -> list[dict[str, object]]:
    """The records as the history stream has them: without what has its default value."""
    entries: list[dict[str, object]] = [msgspec.to_builtins(record) for record in records]
    return entries
