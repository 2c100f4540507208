"""What everything on SQL stands on: engines, tables, migrations, errors, and the server's clock.

    database = Database.open(parse_url("postgresql://app@localhost/app"))
    database.read(lambda connection: connection.execute(…).all())    # repeated when the connection is lost
    database.write(lambda connection: …, repeat=False)               # a transaction; conflicts are repeated

Nothing outside of this package creates an engine, spells a table's name or looks into an error of a driver.
"""

from millstream.sql.clock import now_ms
from millstream.sql.database import Database
from millstream.sql.engine import SCHEMES, Target, parse_url
from millstream.sql.migrations import current_version, latest_version, migrate

__all__ = [
    "SCHEMES",
    "Database",
    "Target",
    "current_version",
    "latest_version",
    "migrate",
    "now_ms",
    "parse_url",
]
