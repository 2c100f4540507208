"""What is measured, one contender and one round at a time."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.jobs.contenders import Contender
from benchmarks.jobs.measures import Values, run_workers
from benchmarks.sql_jobs.homes import Home, SqliteHome


@dataclass(frozen=True)
class Amount:
    """How much of each."""

    pushes: int  # one by one
    bulk: int  # in bulk, and to be drained, by ours and by the limits: they are many times faster
    peer_bulk: int
    peer_drain: int
    seconds: float  # a drain that takes longer is cut here; its rate is that of the jobs until then
    window: int
    backlogs: tuple[int, ...]


def push(home: Home, contender: Contender, amount: Amount) -> Values:
    """One by one in one thread and in eight, from a hundred tasks of asyncio, and in bulk."""
    kind = contender.kinds[0]
    values: Values = {}
    if contender.is_limit and isinstance(home, SqliteHome):
        values["disk"] = home.synced_writes(amount.pushes)
    for action in ("one", "threads", "tasks") if contender.tasks else ("one", "threads"):
        home.flush()
        rate, processor = contender.produce(action, amount.pushes, kind, home.url)
        values |= {f"push_{action}": rate, f"push_{action}_cpu": processor}
    if contender.bulk:
        home.flush()
        count = amount.peer_bulk if contender.is_peer else amount.bulk
        before = home.counters()
        rate, processor = contender.produce("bulk", count, kind, home.url)
        values |= {"push_bulk": rate, "push_bulk_cpu": processor}
        costs = home.costs(before, home.counters(), count)
        values |= {f"push_bulk_{what}": value for what, value in costs.items()}
    return values


def drain(home: Home, contender: Contender, amount: Amount, kind: str) -> Values:
    """Jobs per second of one worker process from the first start to the last, and what that cost."""
    count = amount.peer_drain if contender.is_peer else amount.bulk
    home.flush()
    contender.produce("bulk", count, kind, home.url)
    home.tidy()
    rate, costs, _ = run_workers(home, contender, kind, 1, amount.seconds, queued=count, window=count)
    return {f"drain_{kind}": rate, **{f"drain_{kind}_{what}": value for what, value in costs.items()}}


def fill(home: Home, contender: Contender, amount: Amount) -> None:
    """Queue as many jobs as a backlog wants, and remember that, once for all rounds."""
    for size in amount.backlogs:
        home.flush()
        contender.produce("bulk", size + amount.window, contender.kinds[0], home.url)
        home.tidy()
        home.keep(f"{contender.name}_{size}")


def backlog(home: Home, contender: Contender, amount: Amount, size: int) -> Values:
    """The rate of ``window`` jobs taken while ``size`` more wait behind them."""
    kind, queued = contender.kinds[0], size + amount.window
    home.bring_back(f"{contender.name}_{size}")
    rate, costs, _ = run_workers(
        home, contender, kind, 1, amount.seconds, queued=queued, window=amount.window
    )
    return {f"backlog_{size}": rate, **{f"backlog_{size}_{what}": value for what, value in costs.items()}}
