"""What the tests of the sink share: places to write to, and a server that is cut off at a chosen step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from millstream import connect, open_broker
from millstream.brokers.base import StreamBroker
from millstream.drivers.base import Settlement
from millstream.spark.sink import stream_writer
from millstream.spark.sink.staging import Stage, Target
from millstream.spark.sink.targets import open_target
from millstream.spark.sink.writer import Plan, stage_task

SCHEMA = StructType().add("n", LongType())


class Crash(Exception):
    """The end of a driver, in the middle of its work."""


class Place:
    """A stream, or a queue, that numbered rows are written to. ``found`` is what arrived there, in order."""

    def __init__(self, url: str, *, jobs: bool = False) -> None:
        self.url, self.jobs, self.name = url, jobs, f"sink-{uuid4().hex[:8]}"
        self._run: list[int] = []
        self.options = {"url": url}
        self.options |= {"jobType": "Count", "queue": self.name} if jobs else {"stream": self.name}

    def plan(self) -> Plan:
        return stream_writer(SCHEMA, self.options, False).plan

    def stage(self, fence: str, batch: int, rows: Sequence[int], tasks: int) -> list[Stage]:
        """Stage rows as so many tasks would."""
        found: list[Stage] = []
        size = -(-len(rows) // tasks)
        for start in range(0, len(rows), size):
            some = pa.record_batch({"n": pa.array(rows[start : start + size], pa.int64())})
            found += stage_task(self.plan(), fence, batch, iter([some]), start).stages
        return found

    @contextmanager
    def target(self) -> Iterator[Target]:
        with open_target(self.plan().options) as target:
            yield target

    def run_jobs(self) -> None:
        """Run every job that is there, as a worker that is faster than the driver."""
        with connect(self.url) as queue:
            while reserved := queue.driver.reserve([self.name], "worker", 1000):
                for one in reserved:
                    self._run.append(queue.codec.decode(one.body).payload)  # type: ignore[arg-type]
                queue.driver.settle([Settlement(one, "complete") for one in reserved])

    def found(self) -> list[int]:
        if self.jobs:
            self.run_jobs()
            return [msgspec.json.decode(payload)["n"] for payload in self._run]
        with self._broker() as broker:
            return [message.data["n"] for message in broker.xrange(self.name)]

    @contextmanager
    def _broker(self) -> Iterator[StreamBroker]:
        broker = open_broker(self.url)
        try:
            yield broker
        finally:
            broker.close()

    @contextmanager
    def kept_open(self) -> Iterator[Self]:
        """Keep the connections that others open for a moment: opening takes longer than all the rest."""
        queue = connect(self.url) if self.jobs else nullcontext()
        with self.target(), self._broker(), queue:
            yield self


def crash_at(target: Any, step: int, *, after: bool) -> Callable[[], int]:
    """Let the driver end before, or right after, its ``step``-th call to the server; how many it made."""
    made = 0

    def crashing(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made += 1
            if made == step and not after:
                raise Crash
            answer = call(*args, **kwargs)
            if made == step:
                raise Crash
            return answer

        return counted

    if hasattr(target, "_caller"):
        caller = target._caller
        plain = caller.script
        caller.call, caller.script = crashing(caller.call), crashing(plain)
        caller.scripts = lambda script, calls: (caller.script(script, keys, *args) for keys, args in calls)
    else:
        target._write = crashing(target._write)
    return lambda: made
