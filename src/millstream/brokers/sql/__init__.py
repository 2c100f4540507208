"""The broker on SQLite, PostgreSQL, MySQL and MariaDB: see `docs/sql.md`."""

from millstream.brokers.sql.broker import SqlStreamBroker

__all__ = ["SqlStreamBroker"]
