"""The schema: made once, whoever comes first; named in the error when it is missing."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from millstream import open_broker
from millstream.errors import ConfigurationError, SchemaNotReady
from millstream.sql import Database, current_version, latest_version, migrate, parse_url
from tests.integration.sql.conftest import Open
from tests.servers import MariaDbServer, PostgresServer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def prefix() -> str:
    return f"m{uuid.uuid4().hex[:10]}_"


def test_a_server_without_the_tables_says_which_command_makes_them(
    server: PostgresServer | MariaDbServer, prefix: str
) -> None:
    with pytest.raises(SchemaNotReady, match=r"run: millstream migrate schema \w+://\w+@127.0.0.1:\d+/test"):
        open_broker(server.url, prefix=prefix)
    with open_broker(server.url, prefix=prefix, create=True) as broker:
        broker.xadd("s", {})
    with open_broker(server.url, prefix=prefix) as broker:
        assert broker.xlen("s") == 1


def test_a_sqlite_file_is_made_by_itself_unless_told_otherwise(file_url: str) -> None:
    path = Path(str(parse_url(file_url).url.database))
    with pytest.raises(SchemaNotReady, match=rf"there is no file {path}, .*create=True"):
        open_broker(file_url, create=False)
    assert list(path.parent.iterdir()) == []
    with open_broker(file_url) as broker:
        broker.xadd("s", {})


def test_a_sqlite_file_of_others_stays_as_it_is_without_create(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with contextlib.closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE t (a)")
    before = path.read_bytes()
    with pytest.raises(SchemaNotReady, match="has no tables of Millstream"):
        open_broker(f"sqlite:///{path}", create=False)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_prefixes_keep_programs_apart(url: str, opened: Open, prefix: str, stream: str) -> None:
    one, two = opened(url, prefix=prefix), opened(url, prefix=prefix + "b_")
    one.xadd(stream, {"n": 1})
    assert two.xlen(stream) == 0
    names = one._database.read(lambda connection: inspect(connection).get_table_names())
    assert {f"{prefix}streams", f"{prefix}b_streams"} <= set(names)


@pytest.mark.parametrize("bad", ["", "1a", "a-b", "a b", 'a"; DROP TABLE x; --', "A", "x" * 32, None, 7, "ü"])
def test_a_prefix_that_could_not_begin_a_name_is_refused(file_url: str, bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot begin a table's name"):
        open_broker(file_url, prefix=bad)


def test_many_processes_may_start_at_once(url: str, prefix: str) -> None:
    script = """
import sys
from millstream import open_broker
with open_broker(sys.argv[1], create=True, prefix=sys.argv[2]) as broker:
    broker.xadd("s", {})
"""
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", script, url, prefix],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for start in starts:
        _, said = start.communicate(timeout=60)
        assert start.returncode == 0, said.decode()
    with open_broker(url, prefix=prefix) as broker:
        assert broker.xlen("s") == 3


@pytest.fixture
def database(url: str, prefix: str, opened: Open) -> Database:
    return opened(url, prefix=prefix)._database


def test_applying_again_changes_nothing(database: Database) -> None:
    assert current_version(database) == latest_version()
    assert migrate(database) == []


def test_a_newer_schema_is_accepted(database: Database, url: str, prefix: str) -> None:
    database.write(
        lambda c: c.execute(text(f"INSERT INTO {prefix}schema (version, title) VALUES (999, 'later')")),
        repeat=False,
    )
    with open_broker(url, prefix=prefix) as broker:
        broker.xadd("s", {})


def test_a_migration_that_was_cut_short_is_finished(url: str, prefix: str, opened: Open) -> None:
    opened(url, prefix=prefix).close()
    database = Database(parse_url(url), opened(url, prefix=prefix)._database.options, prefix)
    database.write(lambda c: c.exec_driver_sql(f"DELETE FROM {prefix}schema"), repeat=False)
    database.write(lambda c: c.exec_driver_sql(f"DROP TABLE {prefix}keys"), repeat=False)
    assert [migration.version for migration in migrate(database)] == list(range(1, latest_version() + 1))
    database.engine.dispose()
    with open_broker(url, prefix=prefix) as broker:
        broker.xadd("s", {}, key="k")


def test_the_tables_are_those_that_the_queries_are_built_from(database: Database) -> None:
    def columns(connection: Any) -> dict[str, set[str]]:
        look: Callable[[str], Any] = inspect(connection).get_columns
        return {name: {column["name"] for column in look(name)} for name in database.tables.metadata.tables}

    expected = {name: set(table.c.keys()) for name, table in database.tables.metadata.tables.items()}
    assert database.read(columns) == expected
