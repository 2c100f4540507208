"""The arrays that PostgreSQL is sent, beside those that psycopg itself would send."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int2, Int4, Int8

from millstream.sql import arrays


def theirs(values: list[Any]) -> tuple[int, bytes]:
    dumper = Transformer().get_dumper(values, PyFormat.BINARY)
    return dumper.oid, bytes(dumper.dump(values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mine", "values", "same"),
    [
        (arrays.texts, ["a", "", "grün", "x" * 1000, '{,}"\\'], lambda values: values),
        (arrays.byteas, [b"", b"\x00\xff", b"y" * 5000], lambda values: values),
        (arrays.smallints, [0, 3, -1, 32767], lambda values: list(map(Int2, values))),
        (arrays.integers, [0, 7, -(2**31), 2**31 - 1], lambda values: list(map(Int4, values))),
        (arrays.bigints, [0, 1, -1, 2**63 - 1], lambda values: list(map(Int8, values))),
        (arrays.bigints, list(range(1000)), lambda values: list(map(Int8, values))),
    ],
)
def test_they_are_those_of_psycopg(mine: Any, values: list[Any], same: Any) -> None:
    made = mine(values)
    assert (made.oid, bytes(made)) == theirs(same(values))
