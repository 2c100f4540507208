"""What only a Redis does to a driver: forget scripts and groups, be full, be a cluster, hold foreign data."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from millstream.drivers.base import RateLimit, Settlement
from millstream.drivers.keys import QueueKeys
from millstream.drivers.stream import StreamDriver
from millstream.envelope import PRIORITIES
from millstream.errors import BrokerFull, ConfigurationError, WrongType
from tests.contract.drivers.helpers import (
    Background,
    Q,
    body_of,
    bury,
    complete,
    counts,
    drain,
    give_up,
    ids,
    item,
    numbers,
    one,
    push,
    release,
    retry,
    state,
    take,
    until,
)
from tests.integration.drivers.conftest import Open
from tests.integration.redis.conftest import blocked
from tests.servers import RedisCluster, RedisServer


def test_scripts_are_loaded_again(server: RedisServer, opened: Open) -> None:
    driver = opened(server.url)
    with server.client() as client:
        for n in range(3):
            client.script_flush()
            push(driver, n)
            client.script_flush()
            found = one(driver)
            client.script_flush()
            assert complete(driver, found) == [True]


def test_a_flush_while_waiting_is_survived_and_reported(
    server: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    driver, other = opened(server.url), opened(server.url)
    push(driver, 0)
    drain(driver)
    with server.client() as client, caplog.at_level(logging.WARNING, "millstream.drivers.stream"):
        call = Background(take, driver, wait=30)
        blocked(server)
        client.flushall()
        push(other, 1)
        assert numbers(call.result()) == [1]
    assert "made them anew" in caplog.text


def test_what_was_pushed_before_the_groups_were_made_anew_is_delivered(
    server: RedisServer, opened: Open
) -> None:
    driver = opened(server.url)
    push(driver, 0)
    drain(driver)
    push(driver, 1, 2)
    with server.client() as client:
        for stream in driver.stream_keys(Q):
            client.xgroup_destroy(stream, "workers")
    assert numbers(take(driver)) == [1, 2]


def test_a_group_made_anew_in_a_paused_queue_gives_nothing(server: RedisServer, opened: Open) -> None:
    driver = opened(server.url)
    push(driver, 1)
    driver.pause(Q)
    with server.client() as client:
        for stream in driver.stream_keys(Q):
            client.xgroup_destroy(stream, "workers")
    assert take(driver, wait=0.05) == []
    driver.resume(Q)
    assert numbers(take(driver)) == [1]


def test_a_restart_while_waiting_is_survived(server: RedisServer, opened: Open) -> None:
    driver, other = opened(server.url), opened(server.url)
    push(driver, 0)
    drain(driver)
    call = Background(take, driver, wait=30)
    blocked(server)
    server.restart()
    push(other, 1)
    assert numbers(call.result(30)) == [1]


class TestOutOfMemory:
    @pytest.fixture
    def driver(self, server: RedisServer, opened: Open) -> Iterator[StreamDriver]:
        driver = opened(server.url)
        push(driver, *range(5))
        push(driver, "later", delay=0.01)
        dead, *_ = found = take(driver, 3)
        bury(driver, dead, "dead")
        self.found = found[1:]
        self.dead = dead
        with server.client() as client:
            client.config_set("maxmemory", 1)
            yield driver
            client.config_set("maxmemory", 0)

    @pytest.mark.parametrize("options", [{}, {"delay": 1}, {"unique_key": "k"}])
    def test_a_push_is_refused_and_adds_nothing(
        self, driver: StreamDriver, options: dict[str, object]
    ) -> None:
        before = counts(driver)
        refused = [item(n, **options) for n in range(3)]  # type: ignore[arg-type]
        with pytest.raises(BrokerFull):
            driver.push(refused)
        assert counts(driver) == before
        assert driver.find(refused[0].id, Q) is None

    def test_a_worker_that_starts_now_drains(
        self, driver: StreamDriver, server: RedisServer, opened: Open
    ) -> None:
        assert numbers(drain(opened(server.url))) == [3, 4]

    def test_workers_drain(self, driver: StreamDriver) -> None:
        assert complete(driver, *self.found) == [True, True]
        assert numbers(drain(driver)) == [3, 4]
        assert release(driver) == []

    def test_what_would_add_is_refused_and_loses_nothing(self, driver: StreamDriver) -> None:
        with pytest.raises(BrokerFull):
            retry(driver, self.found[0], delay=1)
        with pytest.raises(BrokerFull):
            bury(driver, self.found[0])
        with pytest.raises(BrokerFull):
            driver.retry_dead(Q, [item(job_id=self.dead.id)])
        with pytest.raises(BrokerFull):
            until(lambda: driver.promote_due([Q]), "the promotion to be tried")
        assert counts(driver) == (2, 2, 1, 1)

    def test_beside_a_completion_a_retry_finds_room(self, driver: StreamDriver) -> None:
        first, other = self.found
        body = body_of(other.id, "again")
        assert driver.settle([Settlement(other, "retry", body=body), Settlement(first, "complete")]) == [
            True,
            True,
        ]
        assert counts(driver) == (3, 0, 1, 1)

    def test_a_release_works(self, driver: StreamDriver) -> None:
        assert release(driver, *self.found) == [True, True]
        assert counts(driver) == (4, 0, 1, 1)


def test_a_key_of_another_kind_is_named_and_nothing_is_added(server: RedisServer, opened: Open) -> None:
    driver = opened(server.url)
    with server.client() as client:
        client.set(driver.stream_keys(Q)[2], "a text")
    for options in ({}, {"unique_key": "k"}):
        with pytest.raises(WrongType):
            push(driver, 1, **options)
    assert push(driver, 2, priority="high")
    assert len(driver.queues()) == 1


def test_entries_of_other_programs_can_be_worked_on(server: RedisServer, opened: Open) -> None:
    driver = opened(server.url)
    stream = driver.stream_keys(Q)[2]
    with server.client() as client:
        client.xadd(stream, {"name": "somebody", "n": 1})
        client.xadd(stream, {"job": b"\xff\xfe no job"})
        client.xadd(stream, {"job": b'{"id":"cut'})
    found = take(driver)
    assert len({one.id for one in found}) == 3
    assert all(one.id == f"unreadable-{one.entry_id}" for one in found)
    assert found[0].body == b'{"name":"somebody","n":"1"}' or found[0].body == b'{"n":"1","name":"somebody"}'
    assert driver.settle([Settlement(found[1], "bury", body=found[1].body, reason="unreadable")]) == [True]
    (letter,) = driver.dead(Q)
    assert (letter.id, letter.body) == (found[1].id, b"\xff\xfe no job")
    assert driver.clear_dead(Q, [letter.id]) == 1
    release(driver, found[0])
    assert driver.clear(Q) == 1
    assert complete(driver, found[2]) == [True]
    assert counts(driver) == (0, 0, 0, 0)


def test_the_streams_can_be_read_like_any_stream(server: RedisServer, opened: Open) -> None:
    driver = opened(server.url)
    push(driver, 1)
    (message,) = driver.broker.xrange(driver.stream_keys(Q)[2])
    assert message.data == {"job": body_of(one(driver).id, 1).decode()}


def test_a_drained_queue_leaves_nothing_that_grows(server: RedisServer, opened: Open) -> None:
    driver = opened(server.url)
    for n in range(50):
        push(driver, n, unique_key=f"k{n}")
        push(driver, n, delay=0.001)
    until(lambda: driver.promote_due([Q]) >= 0 and counts(driver)[2] == 0, "the promotion")
    drain(driver)
    with server.client() as client:
        left = {key.decode().rpartition(":")[2] for key in client.keys("{millstream:*")}
        assert left <= {*PRIORITIES, "state", "bell", "due"} | {key for key in left if "-" in key}
        assert all(client.xlen(stream) == 0 for stream in driver.stream_keys(Q))


def test_expired_unique_keys_are_forgotten(server: RedisServer, opened: Open) -> None:
    driver = opened(server.url)
    driver.push([item(n, unique_key=f"k{n}", unique_for=0.01) for n in range(500)])
    with server.client() as client:
        until(
            lambda: driver.promote_due([Q]) == 0 and client.hlen("{millstream:work}:unique") == 0, "the sweep"
        )
        assert client.zcard("{millstream:work}:expiring") == 0


def test_a_limit_on_the_length_of_streams_is_refused(server: RedisServer, opened: Open) -> None:
    with pytest.raises(ConfigurationError, match="never trimmed"):
        opened(server.url, max_stream_length=10)


def test_retiring_removes_consumers_that_hold_nothing(server: RedisServer, opened: Open) -> None:
    driver = opened(server.url)
    push(driver, 1, 2)
    complete(driver, one(driver, "w1"))
    one(driver, "w1:1")
    driver.retire("w1", [Q])
    with server.client() as client:
        names = [row["name"] for row in client.xinfo_consumers(driver.stream_keys(Q)[2], "workers")]
    assert names == [b"w1:1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(3) as cluster:
        yield cluster


class TestCluster:
    QUEUES = ("red", "green", "blue", "grey")  # over all nodes

    @pytest.fixture
    def driver(self, cluster: RedisCluster, opened: Open, request: pytest.FixtureRequest) -> StreamDriver:
        prefixes = (f"{request.node.name}-{number}" for number in itertools.count())
        return opened(f"redis+cluster://{cluster.addresses}", prefix=next(filter(self._spreads, prefixes)))

    def _spreads(self, prefix: str) -> bool:
        keys = (QueueKeys(prefix, queue).streams[0] for queue in self.QUEUES)
        return len({key_slot(key.encode()) * 3 // 16384 for key in keys}) == 3

    def test_the_queues_are_on_all_nodes(self, cluster: RedisCluster, driver: StreamDriver) -> None:
        keys = {key for queue in self.QUEUES for key in driver.stream_keys(queue)}
        for queue in self.QUEUES:
            push(driver, 1, queue=queue)
        for node in cluster.nodes:
            with node.client(decode_responses=True) as client:
                assert keys & set(client.keys())

    def test_a_job_goes_through_every_state(self, driver: StreamDriver) -> None:
        for queue in self.QUEUES:
            (job_id,) = push(driver, 1, queue=queue, unique_key="k")
            push(driver, 2, queue=queue, delay=0.01)
        assert driver.queues() == sorted(self.QUEUES)
        found = take(driver, 10, queues=self.QUEUES)
        assert len(found) == 4
        assert driver.extend(found) == [True] * 4
        assert release(driver, *found) == [True] * 4
        found = take(driver, 10, queues=self.QUEUES)
        assert complete(driver, *found[:2]) == [True, True]
        assert retry(driver, found[2], 3)
        assert bury(driver, found[3])
        assert state(driver, found[3].id, found[3].queue) == "dead"
        assert driver.find(found[3].id) is not None
        until(lambda: driver.next_due(self.QUEUES) == 0, "the delayed ones to be due")
        until(
            lambda: driver.promote_due(self.QUEUES) >= 0 and driver.next_due(self.QUEUES) is None,
            "the promotion",
        )
        assert sorted(numbers(drain(driver, self.QUEUES))) == [2, 2, 2, 2, 3]
        assert job_id

    def test_priority_is_strict_over_all_queues_and_they_take_turns(self, driver: StreamDriver) -> None:
        for queue in self.QUEUES:
            for priority in reversed(PRIORITIES):
                push(driver, *(priority,) * 3, queue=queue, priority=priority)
        found: list[str] = []
        served: Counter[str] = Counter()
        while got := take(driver, 4, queues=self.QUEUES):
            found += numbers(got)
            served.update(one.queue for one in got)
            assert len(got) == 4
        assert found == sorted(found, key=PRIORITIES.index)
        assert set(served.values()) == {12}

    def test_an_old_job_goes_first(self, driver: StreamDriver) -> None:
        push(driver, "old", queue="red", priority="low")
        until(lambda: (driver.size("red").oldest or 0) > 0.1, "the job to be old")
        push(driver, "new", queue="green", priority="critical")
        assert numbers(take(driver, 5, queues=self.QUEUES, max_wait=0.1)) == ["old", "new"]

    def test_waiting_over_several_nodes_and_on_one(self, driver: StreamDriver) -> None:
        for queues in (self.QUEUES, ("blue",)):
            call = Background(take, driver, 5, queues=queues, wait=30)
            push(driver, 1, queue="blue")
            found = call.result()
            assert numbers(found) == [1]
            complete(driver, *found)

    def test_limits_pauses_and_recovery(self, driver: StreamDriver) -> None:
        for queue in self.QUEUES:
            push(driver, *range(3), queue=queue)
        driver.pause("red")
        limits = {"green": RateLimit(1, per=60)}
        served = Counter(one.queue for one in take(driver, 20, queues=self.QUEUES, limits=limits))
        assert served == {"green": 1, "blue": 3, "grey": 3}
        driver.resume("red")
        assert len(take(driver, 20, queues=["red"])) == 3
        assert len(give_up(driver, queue="red")) == 3

    def test_two_schedulers_wait_over_several_nodes(self, driver: StreamDriver) -> None:
        import threading

        call = Background(driver.wait_for_due, self.QUEUES, 30, threading.Event())
        push(driver, 1, queue="grey", delay=0.05)
        call.result()
        until(lambda: driver.promote_due(self.QUEUES), "the promotion")
        assert ids(drain(driver, ["grey"]))
