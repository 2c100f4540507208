"""From a URL or an engine to the database that has the outbox."""

from __future__ import annotations

from sqlalchemy import Engine

from millstream.errors import InvalidInput
from millstream.sql.database import Database
from millstream.sql.engine import parse_url
from millstream.sql.schema import DEFAULT_PREFIX, MYSQL, check_prefix


def open_source(source: str | Engine, tables: str = DEFAULT_PREFIX, create: bool | None = None) -> Database:
    """The database, with its schema checked. Raises what `Database.open` raises, and InvalidInput.

    An engine only says where the database is: its pool stays the caller's.
    """
    if isinstance(source, Engine):
        url = source.url.set(drivername="mysql" if source.dialect.name in MYSQL else source.dialect.name)
        text = url.render_as_string(hide_password=False)
    elif isinstance(source, str):
        text = source
    else:
        raise InvalidInput(f"an outbox is in the database of a URL or a SQLAlchemy engine, not in {source!r}")
    return Database.open(parse_url(text), prefix=check_prefix(tables), create=create)
