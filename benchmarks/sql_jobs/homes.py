"""Where the jobs of a measurement live: a database that is empty at its beginning, or a copy of a full one.

A home is also the monitor of `benchmarks.jobs.measures`: it has the url, and counts what the database did.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.jobs import environments
from benchmarks.jobs.measures import Values

PEERS = Path(__file__).parent / "peers"
TICK = os.sysconf("SC_CLK_TCK")


class Home(Protocol):
    """One database system."""

    name: str
    url: str

    def about(self) -> dict[str, Any]:
        """What a reader of the figures has to know."""

    def flush(self) -> None:
        """Begin with an empty database."""

    def keep(self, label: str) -> None:
        """Remember what is in the database."""

    def bring_back(self, label: str) -> None:
        """Begin with what was remembered."""

    def tidy(self) -> None:
        """Do what the database does by itself in a minute, so that nobody is measured without it."""

    def counters(self) -> Values:
        """What the database has used so far."""

    def costs(self, before: Values, after: Values, jobs: int) -> Values:
        """What each of ``jobs`` cost between two looks at the counters."""


class _Costs:
    def costs(self, before: Values, after: Values, jobs: int) -> Values:
        return {name: (after[name] - before[name]) / jobs for name in after}


class SqliteHome(_Costs):
    """A file on the disk of the results' folder: in a file system in memory, syncing would cost nothing."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "bench.db"
        self.url = f"sqlite:///{self._file}"

    def about(self) -> dict[str, Any]:
        import sqlite3

        return {"sqlite": sqlite3.sqlite_version}

    def synced_writes(self, times: int) -> float:
        """Pages per second, each written into a file that has room for it and synced by itself."""
        path = self._folder / "sync"
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.write(handle, bytes(4096 * times))
            os.fsync(handle)
            began = time.perf_counter()
            for place in range(times):
                os.pwrite(handle, b"x" * 4096, 4096 * place)
                os.fdatasync(handle)
            return times / (time.perf_counter() - began)
        finally:
            os.close(handle)
            path.unlink()

    def flush(self) -> None:
        for path in self._folder.glob("bench.db*"):
            path.unlink()

    def keep(self, label: str) -> None:
        self._copy(self._file, self._folder / f"{label}.kept")

    def bring_back(self, label: str) -> None:
        self.flush()
        self._copy(self._folder / f"{label}.kept", self._file)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        """With SQLite's own copying, which takes what is in the log as well."""
        import sqlite3

        with sqlite3.connect(source) as here, sqlite3.connect(target) as there:
            here.backup(there, pages=-1)
        here.close()
        there.close()

    def tidy(self) -> None:
        """Nothing: SQLite plans without figures too."""

    def counters(self) -> Values:
        return {}


class PostgresHome(_Costs):
    """A database of a server that syncs its log at each commit, as it does by default."""

    name = "postgresql"

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url = f"postgresql://postgres@127.0.0.1:{server.port}/bench"

    def connect(self, database: str = "bench") -> Any:
        return self._server.connect(database)

    def about(self) -> dict[str, Any]:
        asked = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "wal_sync_method")
        with self.connect("postgres") as connection:
            return {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in asked}

    def flush(self) -> None:
        self._create("template1")

    def keep(self, label: str) -> None:
        with self.connect("postgres") as connection:
            connection.execute(f'CREATE DATABASE "kept_{label}" TEMPLATE bench STRATEGY = FILE_COPY')

    def bring_back(self, label: str) -> None:
        self._create(f"kept_{label}")

    def _create(self, template: str) -> None:
        with self.connect("postgres") as connection:
            connection.execute("DROP DATABASE IF EXISTS bench WITH (FORCE)")
            strategy = "WAL_LOG" if template == "template1" else "FILE_COPY"
            connection.execute(f'CREATE DATABASE bench TEMPLATE "{template}" STRATEGY = {strategy}')

    def tidy(self) -> None:
        with self.connect() as connection:
            connection.execute("VACUUM (ANALYZE)")

    def counters(self) -> Values:
        """Bytes of the log, and µs of processor time of all the server's processes."""
        with self.connect("postgres") as connection:
            written = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0]
        return {"wal": float(written), "server_cpu": self._processor_time() * 1e6}

    def _processor_time(self) -> float:
        """Of the children that are there, and by way of their parent of those that have gone."""
        total, parent = 0, str(self._server.pid)
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if path.parent.name == parent:
                total += sum(map(int, fields[11:15]))
            elif fields[1] == parent:
                total += int(fields[11]) + int(fields[12])
        return total / TICK


# As much memory and log as anybody would give it; the same for all contenders.
SERVER = ("-c", "fsync=on", "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB")


@contextmanager
def opened(name: str) -> Iterator[Home]:
    """A home of this kind, with everything that it needs; it is gone afterwards."""
    if name == "postgresql":
        from tests.servers import PostgresServer

        with PostgresServer(SERVER) as server:
            yield PostgresHome(server)
        return
    out = environments.ROOT / "out"
    out.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-sqlite-", dir=out))
    try:
        yield SqliteHome(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
