"""What is measured, one contender and one round at a time."""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.jobs.contenders import Contender, Failed, Measurement, Producer

POLL = 0.01  # seconds between two looks at the sheet
ARRIVAL = 60.0  # seconds for the worker to start
WARM = 10  # jobs at the beginning of a latency measurement that do not count

Values = dict[str, float]


class Monitor:
    """The benchmark's own connection to the Redis that everybody uses."""

    def __init__(self, client: Any, url: str) -> None:
        self.client, self.url = client, url

    def flush(self) -> None:
        self.client.flushall()

    def memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def counters(self) -> Values:
        """So far: commands (those inside scripts too), reads from sockets, µs of processor time."""
        stats, cpu = self.client.info("stats"), self.client.info("cpu")
        return {
            "commands": float(stats["total_commands_processed"]),
            "reads": float(stats["total_reads_processed"]),
            "redis_cpu": (float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])) * 1e6,
        }

    OWN = 2  # commands, and reads, that one look at the counters costs

    def costs(self, before: Values, after: Values, jobs: int) -> Values:
        """What each of ``jobs`` cost between two looks at the counters."""
        costs = {name: (after[name] - before[name]) / jobs for name in after}
        costs["commands"] -= self.OWN / jobs
        # One read per request; those beyond 16 KB come in pieces, each of which counts.
        costs["reads"] -= self.OWN / jobs
        return costs


@dataclass(frozen=True)
class Amount:
    """How much of each."""

    jobs: int  # for a peer
    our_jobs: int  # for us and the limits, which are many times faster: a measurement must take a while
    latencies: int
    seconds: float  # a drain that takes longer is cut here; its rate is that of the jobs until then
    window: int
    backlogs: tuple[int, ...]
    turns: int  # of pushing, in a round
    turn: int  # jobs that are pushed one by one in a turn
    bulk_turn: int  # and in bulk, by ours and the limit

    def bulk_turn_of(self, contender: Contender) -> int:
        return self.turn if contender.is_peer else self.bulk_turn

    def for_(self, contender: Contender) -> int:
        return self.jobs if contender.is_peer else self.our_jobs


def push_in_turns(
    monitor: Monitor, contenders: list[Contender], amount: Amount
) -> dict[str, Values | Failed]:
    """One by one, and in bulk: everybody pushes a little, turn after turn in an order of chance, by its name.

    A machine is half as fast in one second as in the next, and where the scheduler puts two processes that
    talk to each other decides about as much again. So all producers are there at the same time, each in a
    process of its own that is new in every round, and the median of many short turns counts. How a library's
    workers are run makes no difference here, so a library with several settings has one producer.
    """
    found: dict[str, Values | Failed] = {}
    several = {each.name: each for each in contenders}
    with ExitStack() as stack:
        producers: dict[str, Producer] = {}
        for name, each in several.items():
            try:
                producers[name] = stack.enter_context(each.producer(each.kinds[0], monitor.url))
            except Failed as error:
                found[name] = error
        took: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in producers}
        for action in ("one", "bulk") * amount.turns:
            monitor.flush()
            for name in random.sample(sorted(producers), len(producers)):
                each = several[name]
                if name not in found and (action == "one" or each.bulk):
                    count = amount.turn if action == "one" else amount.bulk_turn_of(each)
                    try:
                        took[name].setdefault(action, []).append(producers[name].push(action, count))
                    except Failed as error:
                        found[name] = error
    for name, actions in took.items():
        if name not in found:
            values = found[name] = Values()
            for action, turns in actions.items():
                seconds, processor = map(statistics.median, zip(*turns, strict=True))
                values |= {f"push_{action}": 1 / seconds, f"push_{action}_cpu": processor * 1e6}
    return found


def memory(monitor: Monitor, contender: Contender, amount: Amount) -> Values:
    """What a queued job takes of Redis: bytes, and the processor time of its push in bulk."""
    monitor.flush()
    before, busy = monitor.memory(), monitor.counters()["redis_cpu"]
    count = amount.for_(contender)
    contender.produce("bulk", count, contender.kinds[0], monitor.url)
    values = {"memory": (monitor.memory() - before) / count}
    if contender.bulk:
        values["push_bulk_redis_cpu"] = (monitor.counters()["redis_cpu"] - busy) / count
    return values


def drain(monitor: Monitor, contender: Contender, amount: Amount, kind: str, processes: int) -> Values:
    """Jobs per second from the first start to the last, and what that cost Redis."""
    count = amount.for_(contender)
    rate, costs, note = _drain(monitor, contender, amount, kind, processes, queued=count, window=count)
    name = f"drain_{kind}_{processes}"
    values = {name: rate, **{f"{name}_{what}": value for what, value in costs.items()}}
    if note:
        values[f"{name}_{note}"] = 1.0
    return values


def backlog(monitor: Monitor, contender: Contender, amount: Amount, size: int) -> Values:
    """The rate of ``window`` jobs taken while ``size`` more wait behind them; one process, sync handlers."""
    kind = contender.kinds[0]
    rate, _, _ = _drain(
        monitor, contender, amount, kind, 1, queued=size + amount.window, window=amount.window
    )
    return {f"backlog_{size}": rate}


def _drain(
    monitor: Monitor,
    contender: Contender,
    amount: Amount,
    kind: str,
    processes: int,
    *,
    queued: int,
    window: int,
) -> tuple[float, Values, str]:
    monitor.flush()
    contender.produce("bulk", queued, kind, monitor.url)
    return run_workers(monitor, contender, kind, processes, amount.seconds, queued=queued, window=window)


def run_workers(
    monitor: Any,
    contender: Contender,
    kind: str,
    processes: int,
    seconds: float,
    *,
    queued: int,
    window: int,
) -> tuple[float, Values, str]:
    """Let workers run the first ``window`` of ``queued`` jobs: their rate, what each cost, and a remark.

    A ``monitor`` is the broker's: its url, its counters, and what they come to for each job.
    """
    with (
        Measurement(queued) as measurement,
        contender.workers(kind, processes, monitor.url, measurement) as workers,
    ):
        complete = workers.wait_at_gate(processes, ARRIVAL)
        before, busy_before = monitor.counters(), workers.processor_time()
        opened = measurement.open_gate()
        deadline = time.monotonic() + seconds
        while (done := measurement.progress(window)) < window and time.monotonic() < deadline:
            workers.check()
            time.sleep(POLL)
        after, busy = monitor.counters(), workers.processor_time() - busy_before
        starts = measurement.sheet.started
        if done == window:
            last, ran = max(starts[:window]), window
        else:
            times = [moment for moment in starts[:] if moment >= opened]
            if len(times) < 2:
                raise Failed(f"{len(times)} of {queued} jobs ran within {seconds:.0f} s")
            last, ran = max(times), len(times)
        # Beyond a window the worker went on until the counters were read: divide by what really ran.
        settled = sum(1 for moment in starts[:] if moment > 1) if queued > window else ran
        costs = monitor.costs(before, after, settled)
        costs["cpu"] = busy * 1e6 / settled
        note = "" if complete else "one_sided"
        return ran / (last - opened) * 1e9, costs, note


def latency(monitor: Monitor, contender: Contender, amount: Amount, kind: str) -> Values:
    """From just before the push to the start of the handler, in ms, on a queue that is empty in between."""
    count = amount.latencies + WARM
    monitor.flush()
    with Measurement(count) as measurement:
        measurement.open_gate()
        with contender.workers(kind, 1, monitor.url, measurement) as workers:
            contender.produce("spaced", count, kind, monitor.url, measurement)
            deadline = time.monotonic() + amount.seconds
            while measurement.progress(count) < count and time.monotonic() < deadline:
                workers.check()
                time.sleep(POLL)
        pairs = zip(measurement.sheet.started[WARM:count], measurement.sheet.pushed[WARM:count], strict=True)
        took = sorted((started - pushed) / 1e6 for started, pushed in pairs if started > 1)
        if len(took) < amount.latencies:
            raise Failed(f"{amount.latencies - len(took)} of {amount.latencies} jobs never started")
        return {
            f"latency_{kind}_p50": statistics.median(took),
            f"latency_{kind}_p99": took[min(int(len(took) * 0.99), len(took) - 1)],
        }
