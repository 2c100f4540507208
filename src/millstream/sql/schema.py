"""The tables, for building queries. What creates them is in `migrations.py`.

Two decisions that everything else follows from:

* **An entry's id is one column of 16 bytes**, the two unsigned 64-bit numbers big-endian, so that bytes sort
  as ids do. PostgreSQL and SQLite have no unsigned 64-bit numbers, NUMERIC is no exact type in SQLite, and
  neither MySQL nor MariaDB searches an index by ``(ms, seq) > (1, 2)``. One column of bytes is exact, and a
  plain index range everywhere.
* **A stream's row holds its newest id and its length**, and whoever adds locks it until the commit. So ids
  of one stream are committed in their order, and no reader can pass an entry that comes late. The two halves
  of that id are numbers here, signed, because no query compares them; above 2^63 they are negative.

Names are compared byte by byte on every database: they are TEXT with binary order in SQLite and PostgreSQL,
and VARBINARY in MySQL, whose collations would take ``a`` and ``a `` for the same name.
"""

from __future__ import annotations

import re
import struct
from typing import Any

from sqlalchemy import BigInteger, Column, Dialect, Integer, LargeBinary, MetaData, Table, Text, TypeDecorator
from sqlalchemy.dialects.mysql import VARBINARY

from millstream.errors import ConfigurationError
from millstream.message import Id

DEFAULT_PREFIX = "millstream_"
# Long enough for any project's name, short enough that every table and index fits PostgreSQL's 63 bytes.
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,30}").fullmatch

_HALVES = struct.Struct(">QQ")
MYSQL = ("mysql", "mariadb")


def check_prefix(prefix: str) -> str:
    """``prefix`` itself, or ConfigurationError: it becomes a part of every table's name."""
    if not isinstance(prefix, str) or not _PREFIX(prefix):
        raise ConfigurationError(
            f"prefix={prefix!r} cannot begin a table's name; use up to 31 lower-case letters, digits and "
            f"underscores, not a digit first, such as {DEFAULT_PREFIX!r}"
        )
    return prefix


def pack_id(key: Id) -> bytes:
    """An id as the database keeps it."""
    return _HALVES.pack(*key)


def unpack_id(raw: bytes) -> Id:
    """The id that the database keeps as ``raw``."""
    return _HALVES.unpack(raw)


def id_text(raw: bytes) -> str:
    """The text of the id that the database keeps as ``raw``."""
    ms, seq = _HALVES.unpack(raw)
    return f"{ms}-{seq}"


def signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one with the same bits."""
    return number - (1 << 64) if number >> 63 else number


def unsigned(number: int) -> int:
    """The reverse of `signed`."""
    return number + (1 << 64) if number < 0 else number


class Name(TypeDecorator[str]):
    """A text that is compared byte by byte."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        return dialect.type_descriptor(VARBINARY(2048) if dialect.name in MYSQL else Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        return value.encode() if value is not None and dialect.name in MYSQL else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return value.decode() if isinstance(value, bytes) else value


class Tables:
    """The tables under one prefix."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = check_prefix(prefix)
        self.metadata = MetaData()
        self.streams = self._table(
            "streams",
            Column("id", BigInteger, primary_key=True),
            Column("name", Name),
            Column("last_ms", BigInteger),  # the newest id ever, which outlives its entry
            Column("last_seq", BigInteger),
            Column("length", BigInteger),
            Column("epoch", BigInteger),  # grows when a group is deleted, so that its readers notice
            Column("watched_until", BigInteger),  # until when an addition is worth a notification
        )
        self.entries = self._table(
            "entries",
            Column("stream_id", BigInteger, primary_key=True),
            Column("id", LargeBinary, primary_key=True),
            Column("data", Text),  # JSON
            Column("type", Name),
            Column("headers", Text),  # JSON
        )
        self.groups = self._table(
            "groups",
            Column("id", BigInteger, primary_key=True),
            Column("stream_id", BigInteger),
            Column("name", Name),
            Column("last_id", LargeBinary),  # the last one that was delivered
        )
        self.consumers = self._table(
            "consumers",
            Column("id", BigInteger, primary_key=True),
            Column("group_id", BigInteger),
            Column("name", Name),
            Column("seen_at", BigInteger),
        )
        self.pending = self._table(
            "pending",
            Column("group_id", BigInteger, primary_key=True),
            Column("id", LargeBinary, primary_key=True),
            Column("consumer_id", BigInteger),
            Column("delivered_at", BigInteger),
            Column("deliveries", Integer),
        )
        self.keys = self._table(
            "keys",
            Column("hash", LargeBinary, primary_key=True),  # SHA-256 of the stream's name and the key
            Column("id", LargeBinary),
            Column("expires_at", BigInteger),
        )

    def _table(self, name: str, *columns: Column[Any]) -> Table:
        return Table(self.prefix + name, self.metadata, *columns)
