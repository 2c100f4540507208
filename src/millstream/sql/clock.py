"""The server's clock, as an expression of SQL.

Clients' clocks drift, so whoever compares two moments compares moments of one clock: that of the database.
For SQLite it is this machine's, which all of its users share.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

SQLITE_FUNCTION = "millstream_now"  # registered on each SQLite connection: its own clocks are coarser


class now_ms(FunctionElement[int]):
    """Milliseconds since the epoch, at the moment of evaluation, not at the transaction's beginning."""

    type = BigInteger()
    inherit_cache = True
    name = "now_ms"


def sqlite_now() -> int:
    """What SQLITE_FUNCTION returns."""
    return time.time_ns() // 1_000_000


@compiles(now_ms)
def _default(element: Any, compiler: Any, **_: Any) -> str:
    return POSTGRES_NOW


@compiles(now_ms, "sqlite")
def _sqlite(element: Any, compiler: Any, **_: Any) -> str:
    return f"{SQLITE_FUNCTION}()"


@compiles(now_ms, "mysql")
@compiles(now_ms, "mariadb")
def _mysql(element: Any, compiler: Any, **_: Any) -> str:
    # Every connection is set to UTC: where clocks are turned back, an hour of local time comes twice.
    return "CAST(FLOOR(UNIX_TIMESTAMP(SYSDATE(3)) * 1000) AS SIGNED)"


POSTGRES_NOW = "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)"
