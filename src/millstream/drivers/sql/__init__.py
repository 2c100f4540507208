"""Job delivery on SQLite, PostgreSQL, MySQL and MariaDB."""

from millstream.drivers.sql.driver import SqlDriver

__all__ = ["SqlDriver"]
