"""URLs, and what they lead to: TLS, Unix sockets, both protocols, users with few rights, refusals."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme

from millstream.brokers.redis import RedisStreamBroker
from millstream.brokers.redis.connect import parse_url
from millstream.errors import (
    AccessDenied,
    BrokerClosed,
    BrokerUnavailable,
    ConfigurationError,
    UnknownScheme,
)
from tests.integration.redis.conftest import Open
from tests.servers import RedisServer, free_port

# The commands a worker needs, and nothing else.
WORKER_RIGHTS = [
    *("-@all", "+ping", "+hello", "+auth", "+time", "+evalsha", "+script|load", "+get", "+set", "+del"),
    *("+xadd", "+xlen", "+xrange", "+xdel", "+xinfo|stream", "+xinfo|groups", "+xinfo|consumers"),
    *("+xreadgroup", "+xack", "+xpending", "+xclaim", "+xautoclaim"),
    *("+xgroup|create", "+xgroup|createconsumer", "+xgroup|delconsumer"),
]


def round_trip(broker: RedisStreamBroker, stream: str) -> None:
    """Use most of what a worker uses."""
    broker.create_group(stream, "g", "0")
    first = broker.xadd(stream, {"n": 1}, type="t", headers={"h": "1"})
    assert broker.xadd(stream, {"n": 2}, key="k") == broker.xadd(stream, {"n": 2}, key="k")
    broker.xadd_many(stream, [{"n": 3}, {"n": 4}])
    got = broker.xreadgroup("g", "c", stream, 10)
    assert [m.data["n"] for m in got] == [1, 2, 3, 4]
    assert (got[0].type, got[0].headers) == ("t", {"h": "1"})
    assert broker.xack(stream, "g", first) == 1
    assert [m.delivery_count for m in broker.xclaim(stream, "g", "d", 0, [got[1].id])] == [2]
    assert len(broker.xautoclaim(stream, "g", "e", 0, count=10)) == 3
    assert [m.delivery_count for m in broker.xreadgroup("g", "e", stream, 10, start="0")] == [4, 3, 3]
    assert len(broker.xpending(stream, "g")) == 3
    (info,) = broker.group_info(stream)
    assert (info.pending, info.lag, [c.name for c in info.consumers]) == (3, 0, ["c", "d", "e"])
    assert broker.xackdel(stream, "g", [m.id for m in got]) == 3
    assert broker.xdel(stream, first) == 1
    assert broker.delete_consumer(stream, "g", "e", only_idle=True) == 0


# -- what a URL says -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "scheme", "hosts", "path"),
    [
        ("redis://h", "redis", [("h", 6379)], ""),
        ("valkeys://u:p%40@h:7000/2", "valkeys", [("h", 7000)], "2"),
        ("rediss://[::1]:7000", "rediss", [("::1", 7000)], ""),
        ("redis+sentinel://a:1,b/mymaster/3", "redis+sentinel", [("a", 1), ("b", 26379)], "mymaster"),
        ("redis+cluster://a:1,b:2", "redis+cluster", [("a", 1), ("b", 2)], ""),
        ("unix:///run/redis.sock?db=1", "unix", [], "/run/redis.sock"),
    ],
)
def test_url(url: str, scheme: str, hosts: list[tuple[str, int]], path: str) -> None:
    target = parse_url(url)
    assert (target.scheme, target.hosts, target.path) == (scheme, hosts, path)


def test_url_carries_credentials_database_and_options() -> None:
    target = parse_url("redis://me:p%40ss@h/2?socket_timeout=1.5&max_payload=10&max_stream_length=none")
    assert target.connection["username"] == "me"
    assert target.connection["password"] == "p@ss"
    assert target.connection["db"] == 2
    assert target.connection["socket_timeout"] == 1.5
    assert target.broker == {"max_payload": 10, "max_stream_length": None}
    assert "p@ss" not in repr(target)
    assert parse_url("redis+sentinel://h/mymaster/3").connection["db"] == 3


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://h?colour=red", r"'colour'.*socket_timeout"),
        ("redis://h?socket_timeout=soon", r"'socket_timeout'.*'soon'"),
        ("redis://h/zero", r"'db'.*'zero'"),
        ("redis://h:port", r"'port' is not a port"),
        ("redis://a,b", r"redis\+cluster://"),
        ("redis+sentinel://a,b", r"names the service"),
        ("redis+cluster://a,b/3", r"no numbered databases"),
        ("unix://", r"path of a socket"),
    ],
)
def test_url_that_cannot_be_used_says_why(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        parse_url(url)


def test_unknown_scheme_and_unknown_argument() -> None:
    with pytest.raises(UnknownScheme, match="redis\\+sentinel"):
        RedisStreamBroker("http://localhost")
    with pytest.raises(ConfigurationError, match="'colour'"):
        RedisStreamBroker("redis://localhost", colour="red")


@pytest.mark.parametrize(
    "options", [{"max_payload": 0}, {"max_stream_length": 0}, {"key_ttl": 0}, {"retry_for": -1}]
)
def test_impossible_options(redis7: RedisServer, options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RedisStreamBroker(redis7.url, **options)  # type: ignore[arg-type]


# -- what it leads to ------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocols(redis_flavour: RedisServer, opened: Open, stream: str, protocol: int) -> None:
    broker = opened(f"{redis_flavour.url}?protocol={protocol}")
    round_trip(broker, stream)
    broker.xadd(stream, {"n": 9})
    assert [m.data for m in broker.xread({stream: "0"})] == [{"n": 9}]
    assert [m.data for m in broker.xreadgroup("g", "c", stream)] == [{"n": 9}]
    assert broker.xreadgroup("g", "c", stream) == []


def test_existing_client(redis7: RedisServer, stream: str) -> None:
    with redis7.client(decode_responses=True) as client:
        broker = RedisStreamBroker.from_client(client)
        round_trip(broker, stream)
        broker.close()
        with pytest.raises(BrokerClosed):
            broker.xlen(stream)
        assert client.ping()  # still the caller's


def test_unix_socket(opened: Open, stream: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RedisServer("valkey", args=("--unixsocket", str(path))):
        round_trip(opened(f"unix://{path}?db=1"), stream)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """A server that speaks TLS, and the certificate of its authority."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    port = free_port()
    args = ("--tls-port", str(port), "--tls-auth-clients", "no")
    args += ("--tls-cert-file", str(folder / "server.pem"), "--tls-key-file", str(folder / "server.pem"))
    with RedisServer("redis7", args=(*args, "--tls-ca-cert-file", str(folder / "ca.pem"))):
        yield port, folder / "ca.pem"


def test_tls(tls: tuple[int, Path], opened: Open, stream: str) -> None:
    port, authority = tls
    broker = opened(f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority}")
    round_trip(broker, stream)
    assert broker.xreadgroup("g", "c", stream, block_ms=20) == []


def test_tls_with_a_certificate_nobody_vouches_for(tls: tuple[int, Path]) -> None:
    with pytest.raises(BrokerUnavailable, match=r"(?i)certificate verify failed.*TLS") as caught:
        RedisStreamBroker(f"rediss://127.0.0.1:{tls[0]}")
    chain = caught.value.__cause__
    assert isinstance(chain, redis.ConnectionError)
    assert isinstance(chain.__context__, ssl.SSLError)


def test_worker_with_the_least_rights(redis_flavour: RedisServer, opened: Open) -> None:
    with redis_flavour.client() as admin:
        admin.execute_command(
            *("ACL", "SETUSER", "worker", "reset", "on", ">secret", "~q:*", "~{q:*"), *WORKER_RIGHTS
        )
    broker = opened(f"redis://worker:secret@127.0.0.1:{redis_flavour.port}/0")
    with redis_flavour.client() as admin:
        admin.delete("q:emails", "{q:emails}:once:k")
    round_trip(broker, "q:emails")
    # What it may not do is said in the server's own words.
    with pytest.raises(AccessDenied, match=r"(?i)no permissions.*xtrim.*ACL LIST"):
        broker.xtrim("q:emails", 1, plain=True)
    with pytest.raises(AccessDenied, match=r"(?i)ACL LIST"):
        broker.xadd("q:emails", {"n": 1}, maxlen=1)
    assert broker.xlen("q:emails") == 0, "a refused trim must not leave its entry behind"
    with pytest.raises(AccessDenied, match=r"(?i)no permissions"):
        broker.xlen("other")


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("login", ["", ":wrong@", "nobody:wrong@"])
def test_wrong_password(login: str) -> None:
    with (
        RedisServer("redis7", password="right") as server,
        pytest.raises(AccessDenied, match=rf"127\.0\.0\.1:{server.port}.*password") as caught,
    ):
        RedisStreamBroker(f"redis://{login}127.0.0.1:{server.port}/0")
    assert "wrong" not in str(caught.value).replace("wrong password", "")


def test_wrong_password_of_a_cluster() -> None:
    args = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with RedisServer("redis7", args=args, password="right") as server, pytest.raises(AccessDenied) as caught:
        RedisStreamBroker(f"redis+cluster://:hidden@127.0.0.1:{server.port}")
    assert "hidden" not in str(caught.value)


def test_unreachable_server_is_named_without_the_password() -> None:
    port = free_port()
    with pytest.raises(
        BrokerUnavailable, match=rf"127\.0\.0\.1:{port}.*check that the server runs"
    ) as caught:
        RedisStreamBroker(f"redis://me:hidden@127.0.0.1:{port}/0")
    assert "hidden" not in str(caught.value)
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    for scheme in ("redis+cluster", "redis+sentinel"):
        with pytest.raises(BrokerUnavailable, match=str(port)) as caught:
            RedisStreamBroker(f"{scheme}://me:hidden@127.0.0.1:{port}/{'m' if 'sentinel' in scheme else ''}")
        assert "hidden" not in str(caught.value)


def test_all_connections_in_use(redis7: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(f"{redis7.url}?max_connections=1")
    broker._caller.link._source.get_connection()  # type: ignore[attr-defined]
    with pytest.raises(BrokerUnavailable, match="larger max_connections"):
        broker.xlen(stream)


def test_nothing_works_after_close(redis7: RedisServer, opened: Open, stream: str) -> None:
    broker = opened(redis7.url)
    broker.close()
    broker.close()
    for call in (
        lambda: broker.xadd(stream, {}),
        lambda: broker.xadd_many(stream, [{}]),
        lambda: broker.xreadgroup("g", "c", stream),
    ):
        with pytest.raises(BrokerClosed):
            call()
