"""The local broker and a real Redis 7.0, given the same random operations, answer the same.

`make test` runs 25,000 operations; MILLSTREAM_DIFFERENTIAL_OPS=1000000, or `make differential OPS=1000000`,
runs as many as one likes, and MILLSTREAM_DIFFERENTIAL_SEED chooses others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millstream import LocalStreamBroker, open_broker
from tests.differential.operations import GROUPS, OPERATIONS, STREAMS, Generator, IdRef, Operation
from tests.differential.pair import Difference, Pair, Tally
from tests.differential.shrink import shrink
from tests.servers import RedisServer

TOTAL = int(os.environ.get("MILLSTREAM_DIFFERENTIAL_OPS", "25000"))
SEED = int(os.environ.get("MILLSTREAM_DIFFERENTIAL_SEED", "20260101"))
LENGTH = 250  # operations on one pair of brokers before both begin anew


class Bench:
    """An emptied Redis and two fresh brokers for each sequence."""

    def __init__(self, server: RedisServer) -> None:
        self.client = server.client()
        self.url = server.url

    @contextmanager
    def pair(
        self, tally: Tally | None = None, local: type[LocalStreamBroker] = LocalStreamBroker
    ) -> Iterator[Pair]:
        self.client.flushall()
        with open_broker(self.url) as redis, local(max_stream_length=None) as memory:
            yield Pair(memory, redis, tally)

    def replay(
        self,
        operations: list[Operation],
        tally: Tally | None = None,
        local: type[LocalStreamBroker] = LocalStreamBroker,
    ) -> Difference | None:
        """Run the operations on a new pair; the difference that they show, if any."""
        with self.pair(tally, local) as pair:
            try:
                for operation in operations:
                    pair.step(operation)
                pair.compare_everything()
            except Difference as difference:
                return difference
        return None


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with RedisServer("redis7") as server:
        bench = Bench(server)
        yield bench
        bench.client.close()


def sequence(seed: int) -> list[Operation]:
    """The operations of a seed. Most begin with groups, so that reads find something to do."""
    generator = Generator(Random(seed))
    places = [(stream, group) for stream in STREAMS[:2] for group in GROUPS] if seed % 4 else []
    start = IdRef(text="0")
    groups = [
        Operation("create_group", {"stream": stream, "group": group, "start_id": start})
        for stream, group in places
    ]
    return groups + [generator.next() for _ in range(LENGTH - len(groups))]


def explain(bench: Bench, operations: list[Operation], seed: int, first: Difference) -> str:
    """The minimal sequence that shows the difference, as a list of calls."""
    minimal = shrink(operations, lambda candidate: bench.replay(candidate) is not None)
    again = bench.replay(minimal)
    steps = "\n".join(f"  {number:3d}. {operation}" for number, operation in enumerate(minimal, start=1))
    note = (
        ""
        if again
        else "\n(it depends on timing: the last replay showed no difference; this is the first one)"
    )
    return f"seed {seed}: {len(minimal)} operations show the difference:\n{steps}\n{again or first}{note}"


@pytest.mark.timeout(0)
def test_random_operations_get_the_same_answers(bench: Bench, report: list[str]) -> None:
    tally = Tally.empty()
    began = time.monotonic()
    seed = SEED
    while tally.operations.total() < TOTAL:
        operations = sequence(seed)[: TOTAL - tally.operations.total()]
        difference = bench.replay(operations, tally)
        if difference is not None:
            pytest.fail(explain(bench, operations, seed, difference), pytrace=False)
        seed += 1
    spent = time.monotonic() - began
    report += [
        f"{seed - SEED:,} sequences from seed {SEED}, {spent:.1f} s, no difference",
        *tally.lines(),
    ]
    assert tally.operations.total() == TOTAL
    if TOTAL >= 5000:
        assert set(tally.operations) == set(OPERATIONS), "an operation was never drawn"


def test_hypothesis_finds_no_difference(bench: Bench, report: list[str]) -> None:
    tally = Tally.empty()

    class Brokers(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.open = bench.pair(tally)
            self.pair = self.open.__enter__()
            self.steps = 0

        @rule(random=st.randoms(use_true_random=False))
        def step(self, random: Random) -> None:
            generator = Generator(random)
            generator.number = self.steps
            self.steps += 10
            self.pair.step(generator.next())

        @precondition(lambda self: self.steps % 200 == 0)
        @invariant()
        def states_are_equal(self) -> None:
            self.pair.compare_everything()

        def teardown(self) -> None:
            self.open.__exit__(None, None, None)

    run_state_machine_as_test(
        Brokers,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    report.append(f"hypothesis state machine: {tally.operations.total():,} operations, no difference")
    assert tally.operations.total() > 300


class Forgetful(LocalStreamBroker):
    """Acknowledges one entry too few."""

    def xack(self, stream: str, group: str, ids: str | list[str]) -> int:
        return super().xack(stream, group, ids if isinstance(ids, str) else ids[:-1])


def test_a_broker_that_differs_is_found_and_the_sequence_is_short(bench: Bench) -> None:
    """The control: a difference is seen, and what is shown of it can be read."""

    def difference(operations: list[Operation]) -> bool:
        return bench.replay(operations, local=Forgetful) is not None

    for seed in range(50):
        operations = sequence(seed)
        if difference(operations):
            minimal = shrink(operations, difference)
            assert {"xack", "create_group", "xreadgroup"} <= {operation.name for operation in minimal}
            assert len(minimal) <= 15, minimal
            return
    pytest.fail("a broker that forgets acknowledgements was not told apart from Redis")
