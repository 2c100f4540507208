"""The local broker and each database, given the same random operations, answer the same.

The longer runs, against Redis, are in `tests/differential`; the operations are the same.
"""

from __future__ import annotations

import os

import pytest
from sqlalchemy import Connection

from millstream import LocalStreamBroker
from tests.differential.pair import Difference, Pair, Tally
from tests.differential.test_differential import sequence
from tests.integration.sql.conftest import Open

TOTAL = int(os.environ.get("MILLSTREAM_SQL_DIFFERENTIAL_OPS", "2000"))
SEED = int(os.environ.get("MILLSTREAM_DIFFERENTIAL_SEED", "20260101"))
PREFIX = "random_"


@pytest.mark.timeout(0)
def test_random_operations_get_the_same_answers(url: str, opened: Open) -> None:
    options = {"synchronous": "normal"} if url.startswith("sqlite") else {}
    broker = opened(url, prefix=PREFIX, **options)

    def clear(connection: Connection) -> None:
        for table in broker._database.tables.metadata.tables:
            connection.exec_driver_sql(f"DELETE FROM {table}")

    tally = Tally.empty()
    seed = SEED
    while tally.operations.total() < TOTAL:
        broker._database.write(clear, repeat=True)
        # A new one each time: what a broker remembers (its place in a sweep) must not outlive the tables.
        fresh = opened(url, prefix=PREFIX, **options)
        with LocalStreamBroker(max_stream_length=None) as memory:
            pair = Pair(memory, fresh, tally)
            try:
                for operation in sequence(seed):
                    pair.step(operation)
                pair.compare_everything()
            except Difference as difference:
                pytest.fail(f"seed {seed}: {difference}", pytrace=False)
        seed += 1
