"""Sentinel and Cluster: the same broker, and what happens when a server dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.brokers.redis import RedisStreamBroker
from millstream.brokers.redis.link import ClusterLink
from millstream.errors import BrokerUnavailable, InvalidName
from tests.integration.redis.conftest import Open, in_thread, until
from tests.integration.redis.test_connecting import round_trip
from tests.servers import RedisCluster, RedisSentinel

# -- Sentinel --------------------------------------------------------------------------------------


def test_sentinel_failover(opened: Open) -> None:
    with RedisSentinel(sentinels=1, password="pw") as sentinel:
        url = f"redis+sentinel://:pw@{sentinel.addresses}/{sentinel.service}/0"
        broker = opened(url, retry_for=15)
        round_trip(broker, "s")
        broker.create_group("jobs", "g", "0")
        waiting = in_thread(broker.xreadgroup, "g", "c", "jobs", 1, None)
        with sentinel.master.client() as client:
            until(lambda: client.info("clients")["blocked_clients"] == 1, "the reader to wait")
            replicated = client.wait(1, 5000)
        assert replicated == 1
        sentinel.master.kill()
        # Additions with a key go on by themselves, across the election.
        entry_id = broker.xadd("jobs", {"n": 1}, key="k")
        assert broker.xadd("jobs", {"n": 1}, key="k") == entry_id
        assert sentinel.master_port() == sentinel.replica.port
        assert [m.id for m in waiting.result(15)] == [entry_id]
        with sentinel.replica.client() as client:
            assert client.xlen("jobs") == 1


def test_sentinel_that_knows_no_such_service(opened: Open) -> None:
    with RedisSentinel(sentinels=1) as sentinel, pytest.raises(BrokerUnavailable, match="nobody"):
        opened(f"redis+sentinel://{sentinel.addresses}/nobody")


# -- Cluster ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(3) as cluster:
        yield cluster


@pytest.fixture
def broker(cluster: RedisCluster, opened: Open) -> RedisStreamBroker:
    return opened(f"redis+cluster://{cluster.addresses}")


def names(broker: RedisStreamBroker, prefix: str) -> list[str]:
    """A stream in each third of the slots."""
    found: dict[int, str] = {}
    for n in range(1000):
        found.setdefault(broker._caller.link.slot(f"{prefix}{n}") * 3 // 16384, f"{prefix}{n}")
    return [found[part] for part in range(3)]


def test_cluster(cluster: RedisCluster, broker: RedisStreamBroker) -> None:
    assert isinstance(broker._caller.link, ClusterLink)
    streams = names(broker, "a")
    for stream in streams:
        round_trip(broker, stream)
        broker.xadd(stream, {"n": 1}, maxlen=5)
        assert broker.xtrim(stream, 5) == 0
        assert broker.delete_group(stream, "g")
        assert broker.delete_stream(stream)
    # Each was on a node of its own.
    counts = []
    for node in cluster.masters:
        with node.client() as client:
            counts.append(client.info("commandstats")["cmdstat_xreadgroup"]["calls"])
    assert all(counts)


def test_cluster_reads_streams_of_several_nodes(broker: RedisStreamBroker) -> None:
    streams = names(broker, "b")
    assert broker.xread(dict.fromkeys(streams, "0")) == []
    waiting = in_thread(broker.xread, dict.fromkeys(streams, "$"), None, 10_000)
    with pytest.raises(TimeoutError):
        waiting.result(1)
    entry_id = broker.xadd(streams[1], {"n": 1})
    assert [(m.stream, m.id) for m in waiting.result(30)] == [(streams[1], entry_id)]
    for stream in streams:
        broker.xadd(stream, {"n": 2})
    got = broker.xread(dict.fromkeys(reversed(streams), "0"), count=1)
    assert [m.stream for m in got] == list(reversed(streams))
    tagged = [f"{{{streams[0]}}}:x", f"{{{streams[0]}}}:y"]
    waiting = in_thread(broker.xread, dict.fromkeys(tagged, "$"), None, 10_000)
    broker.xadd(tagged[0], {"n": 3})
    assert waiting.result(30) or broker.xlen(tagged[0])
    assert broker.xread(dict.fromkeys(streams, "$"), block_ms=30) == []


def test_cluster_moves_a_slot(cluster: RedisCluster, broker: RedisStreamBroker) -> None:
    """MOVED, ASK and TRYAGAIN are followed, and no call is lost or doubled by it."""
    stream = names(broker, "c")[0]
    slot = broker._caller.link.slot(stream)
    source, target = cluster.masters[0], cluster.masters[1]
    broker.create_group(stream, "g", "0")
    broker.xadd(stream, {"n": 1})
    with source.client(decode_responses=True) as old, target.client(decode_responses=True) as new:
        old_id, new_id = (client.execute_command("CLUSTER", "MYID") for client in (old, new))
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
        broker.xadd(stream, {"n": 2})  # still there
        old.execute_command("MIGRATE", "127.0.0.1", target.port, stream, 0, 5000)
        broker.xadd(stream, {"n": 3})  # ASK
        assert new.info("errorstats").get("errorstat_MOVED") is None
        assert old.info("errorstats")["errorstat_ASK"]["count"] >= 1
        for client in (new, old):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)
        broker.xadd_many(stream, [{"n": 4}])  # MOVED
        assert old.info("errorstats")["errorstat_MOVED"]["count"] >= 1
    assert [m.data["n"] for m in broker.xreadgroup("g", "c", stream, 10)] == [1, 2, 3, 4]


def test_cluster_key_needs_a_name_that_can_be_tagged(broker: RedisStreamBroker) -> None:
    with pytest.raises(InvalidName, match="'}'"):
        broker.xadd("odd}name", {}, key="k")
    broker.xadd("odd}name", {})


def test_cluster_through_an_existing_client(cluster: RedisCluster) -> None:
    client = cluster.client()
    try:
        round_trip(RedisStreamBroker.from_client(client), "from-client")
    finally:
        client.close()


def test_cluster_replaces_a_master_that_died(opened: Open) -> None:
    with RedisCluster(3, replicas=1) as cluster:
        broker = opened(f"redis+cluster://{cluster.addresses}", retry_for=20)
        stream = names(broker, "d")[0]
        broker.xadd(stream, {"n": 1})
        with cluster.masters[0].client() as client:
            assert client.wait(1, 5000) == 1
        cluster.masters[0].kill()
        broker.xadd(stream, {"n": 2}, key="k")
        assert [m.data["n"] for m in broker.xrange(stream)] == [1, 2]
