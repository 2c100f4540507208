"""From options to the target that a write goes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.errors import MissingExtra
from millstream.spark.sink.options import JobWriteOptions, SinkOptions
from millstream.spark.sink.staging import Target


@contextmanager
def open_target(options: SinkOptions) -> Iterator[Target]:
    """The target of a write. Raises UnknownScheme, MissingExtra, BrokerUnavailable, AccessDenied …"""
    target = _open(options)
    try:
        yield target
    finally:
        target.close()


def _open(options: SinkOptions) -> Target:
    try:
        if options.is_sql:
            from millstream.spark.sink.sql import SqlJobTarget, SqlTarget  # noqa: PLC0415 - an extra

            return SqlJobTarget(options) if isinstance(options, JobWriteOptions) else SqlTarget(options)
        from millstream.spark.sink.redis import RedisJobTarget, RedisTarget  # noqa: PLC0415 - an extra

        return RedisJobTarget(options) if isinstance(options, JobWriteOptions) else RedisTarget(options)
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "hiredis", "sqlalchemy"):
            raise
        raise MissingExtra("sql" if error.name == "sqlalchemy" else "redis", error.name) from error
