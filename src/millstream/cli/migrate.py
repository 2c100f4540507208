"""millstream migrate: bring what a database has up to date."""

from __future__ import annotations

import click
from rich.text import Text

from millstream.cli.common import console


@click.group("migrate")
def command() -> None:
    """Bring what a database has up to date."""


@command.command("schema")
@click.argument("url")
@click.option("--prefix", default="millstream_", show_default=True, help="What the tables' names begin with.")
def schema(url: str, prefix: str) -> None:
    """Create or update the tables in the database at URL. Forward only; safe while workers run."""
    from millstream.sql import Database, latest_version, parse_url  # noqa: PLC0415 - slow to import

    database = Database.open(parse_url(url), prefix=prefix, create=True)
    database.close()
    console().print(Text(f"the tables are at version {latest_version()}"))
