"""MariaDB, from Debian's package ``mariadb-server``."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from typing import Any

from tests.servers.process import Server, requirement_missing

FAST = ("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--innodb-flush-method=nosync")
SAFE = ("--innodb-flush-log-at-trx-commit=1",)


class MariaDbServer(Server):
    """A MariaDB with the user ``root`` without a password, and the database ``test``."""

    def __init__(self, args: tuple[str, ...] = FAST) -> None:
        super().__init__()
        self._args = args

    def start(self) -> Any:
        if not shutil.which("mariadbd") or not shutil.which("mariadb-install-db"):
            requirement_missing("MariaDB (the package mariadb-server)")
        return super().start()

    def command(self) -> list[str]:
        data = self.folder / "data"
        user = f"--user={getpass.getuser()}"
        # A server that starts deletes temporary tables, those of its neighbours too if they share a folder.
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        if not data.exists():
            command = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", user]
            command += [f"--tmpdir={temporary}"]
            command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"mariadb-install-db failed:\n{done.stdout}\n{done.stderr}")
        return [
            *("mariadbd", "--no-defaults", user, f"--datadir={data}", f"--socket={self.folder}/s"),
            *(f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve"),
            f"--tmpdir={temporary}",
            *("--max-connections=300", "--performance-schema=off", *self._args),
        ]

    def answers(self) -> bool:
        import pymysql

        try:
            with self.connect(None) as connection, connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE IF NOT EXISTS test CHARACTER SET utf8mb4")
        except pymysql.err.OperationalError:
            return False
        return True

    def connect(self, database: str | None = "test", user: str = "root") -> Any:
        """A bare PyMySQL connection, for looking behind a broker."""
        import pymysql

        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=user,
            database=database,
            autocommit=True,
            connect_timeout=5,
            charset="utf8mb4",
        )

    def url_at(self, port: int) -> str:
        return f"mysql://root@127.0.0.1:{port}/test"

    @property
    def url(self) -> str:
        return self.url_at(self.port)
