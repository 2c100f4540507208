"""From a URL to a link: which servers, how to reach them, and which options the URL carries.

    redis://[user:password@]host[:port][/db]          valkey:// means the same
    rediss://…                                        with TLS; valkeys:// means the same
    unix://[user:password@]/path/to/socket[?db=1]
    redis+sentinel://[user:password@]host:port,host:port/service[/db]
    redis+cluster://[user:password@]host:port,host:port

with ``rediss+sentinel`` and ``rediss+cluster`` for TLS. An option is ``?name=value``, see OPTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool, SSLConnection
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from millstream.brokers.redis.connections import TCP, UNIX
from millstream.brokers.redis.failures import FAILURES, translate
from millstream.brokers.redis.link import ClusterLink, Link, PoolLink
from millstream.connecting import KEY_TTL, REDIS_CONNECTION, RETRY_FOR, length_or_none, readers
from millstream.errors import ConfigurationError, UnknownScheme

# Not typed by the library.
_new_node: Any = ClusterNode
_new_sentinel: Any = Sentinel
_new_sentinel_pool: Any = SentinelConnectionPool

SCHEMES = (
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)


# The options of the broker itself, and those of the connection; each with the reader of its text.
BROKER_OPTIONS: dict[str, Callable[[str], Any]] = {
    "max_payload": int,
    "max_stream_length": length_or_none,
    **readers(KEY_TTL | RETRY_FOR),
}
CONNECTION_OPTIONS = readers(REDIS_CONNECTION)
OPTIONS = BROKER_OPTIONS | CONNECTION_OPTIONS

# RESP3 saves nothing today, but it is where servers put what is new; protocol=2 is for proxies without it.
# The socket timeout is how long an answer may take. A blocking read adds the time that it may block.
# A thread that waits holds a connection, so there must be more of them than threads.
DEFAULTS: dict[str, Any] = {
    "protocol": 3,
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "max_connections": 1000,
}


@dataclass(frozen=True)
class Target:
    """What a URL says."""

    scheme: str
    hosts: list[tuple[str, int]]
    path: str
    broker: dict[str, Any] = field(default_factory=dict)
    connection: dict[str, Any] = field(default_factory=dict, repr=False)  # a password may be in it

    @property
    def tls(self) -> bool:
        return self.scheme.partition("+")[0] in ("rediss", "valkeys")

    @property
    def address(self) -> str:
        """Where the server is, for error messages: never with the password."""
        if self.scheme == "unix":
            return self.path
        return ", ".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)


def parse_url(url: str, options: Mapping[str, Any] | None = None) -> Target:
    """What ``url`` says, over ``options`` and the defaults. Raises ConfigurationError."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise UnknownScheme(scheme if separator else "", SCHEMES)
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, at, places = authority.rpartition("@")
    asked = _read_query(query)
    broker = {name: value for name, value in asked.items() if name in BROKER_OPTIONS}
    connection = DEFAULTS | _known(options or {}) | (_login(login) if at else {})
    connection |= {name: value for name, value in asked.items() if name in CONNECTION_OPTIONS}
    if scheme == "unix":
        if not path:
            raise ConfigurationError(
                "a unix:// URL needs the path of a socket, such as unix:///run/redis.sock"
            )
        return Target(scheme, [], unquote(slash + path), broker, connection)
    default_port = 26379 if scheme.endswith("+sentinel") else 6379
    hosts = [_host(place, default_port) for place in places.split(",")]
    if len(hosts) > 1 and "+" not in scheme:
        raise ConfigurationError(
            f"{scheme}:// takes one host; for several use {scheme}+sentinel:// or {scheme}+cluster://"
        )
    path = unquote(path).strip("/")
    if scheme.endswith("+sentinel"):
        path, _, database = path.partition("/")
        if not path:
            raise ConfigurationError(
                f"a {scheme}:// URL names the service after the hosts, such as {scheme}://h1:26379,h2:26379/mymaster"
            )
    else:
        database = path
    if database and "db" not in connection:
        connection["db"] = _convert("db", database)
    if scheme.endswith("+cluster") and connection.pop("db", 0):
        raise ConfigurationError("a cluster has no numbered databases; leave the number out of the URL")
    return Target(scheme, hosts, path, broker, connection)


def open_link(target: Target) -> Link:
    """The link to what a URL names. Raises the Millstream error for a cluster that does not answer."""
    options = dict(target.connection)
    sentinel_login = {
        name.removeprefix("sentinel_"): options.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in options
    }
    tls = {name: options.pop(name) for name in list(options) if name.startswith("ssl_")}
    # Nothing of this is needed, and each would cost a round trip at every connect, or a right that a
    # careful administrator does not give.
    quiet = {"driver_info": None, "maint_notifications_config": MaintNotificationsConfig(enabled=False)}
    options |= quiet
    if target.scheme == "unix":
        pool = ConnectionPool(UNIX, path=target.path, **_without_tcp(options))
        return PoolLink(pool, target.address)
    if target.scheme.endswith("+cluster"):
        options |= {"ssl": True, **tls} if target.tls else {}
        nodes = [_new_node(host, port) for host, port in target.hosts]
        try:
            cluster = RedisCluster(startup_nodes=nodes, retry=Retry(NoBackoff(), 0), **options)
        except FAILURES as error:
            raise translate(error, target.address, None) from error
        return ClusterLink(cluster, target.address)
    if target.scheme.endswith("+sentinel"):
        extra = {"ssl": True, **tls} if target.tls else {}
        common = {name: value for name, value in options.items() if name.startswith("socket_")} | extra
        sentinel = _new_sentinel(
            target.hosts,
            sentinel_kwargs={**common, **sentinel_login, **quiet, "retry": Retry(NoBackoff(), 0)},
        )
        address = f"{target.path} (Sentinel {target.address})"
        return PoolLink(_new_sentinel_pool(target.path, sentinel, **options, **extra), address)
    host, port = target.hosts[0]
    options |= {"host": host, "port": port}
    if target.tls:
        return PoolLink(ConnectionPool(SSLConnection, **options, **tls), target.address)
    return PoolLink(ConnectionPool(TCP, **options), target.address)


def _without_tcp(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("socket_keepalive",)}


def _login(text: str) -> dict[str, Any]:
    user, colon, password = text.partition(":")
    found = {"username": unquote(user)} if user else {}
    return found | ({"password": unquote(password)} if colon else {})


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in CONNECTION_OPTIONS:
            raise ConfigurationError(f"unknown option {name!r}; allowed are: {', '.join(sorted(OPTIONS))}")
    return {name: value for name, value in options.items() if value is not None}


def _read_query(query: str) -> dict[str, Any]:
    found = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise ConfigurationError(
                f"unknown option {name!r} in the URL; allowed are: {', '.join(sorted(OPTIONS))}"
            )
        found[name] = _convert(name, text)
    return found


def _convert(name: str, text: str) -> Any:
    try:
        return OPTIONS[name](text)
    except (ValueError, KeyError) as error:
        shown = "its value" if "password" in name else repr(text)
        raise ConfigurationError(f"the option {name!r} of the URL cannot be {shown}") from error


def _host(place: str, default_port: int) -> tuple[str, int]:
    if place.startswith("["):  # an IPv6 address
        host, _, port_text = place[1:].partition("]")
        port_text = port_text.removeprefix(":")
    else:
        host, _, port_text = place.partition(":")
    if port_text and not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise ConfigurationError(f"{port_text!r} is not a port; expected a number from 1 to 65535")
    return unquote(host) or "localhost", int(port_text) if port_text else default_port
