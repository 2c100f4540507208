"""beat, workers, retire."""

from __future__ import annotations

import msgspec

from millstream.drivers.base import Driver, WorkerInfo
from tests.contract.drivers.helpers import Q, complete, counts, one, push, take, until

INFO = WorkerInfo("w1", "host", 17, [Q, "other"], 8, 1700000000.0, running=3, completed=5, failed=1)


def test_a_worker_is_listed_until_its_time_ends(driver: Driver, second: Driver) -> None:
    assert driver.workers() == []
    driver.beat(INFO, 60)
    driver.beat(msgspec.structs.replace(INFO, id="w2"), 0.1)
    found = {worker.id: worker for worker in second.workers()}
    assert set(found) == {"w1", "w2"}
    assert msgspec.structs.replace(found["w1"], age=0.0) == INFO
    assert 0 <= found["w1"].age < 5
    until(lambda: [worker.id for worker in second.workers()] == ["w1"], "the silent one to be forgotten")


def test_a_beat_tells_news_and_begins_the_time_anew(driver: Driver) -> None:
    driver.beat(INFO, 0.1)
    driver.beat(msgspec.structs.replace(INFO, running=4), 60)
    (found,) = driver.workers()
    assert found.running == 4
    until(lambda: driver.workers()[0].age > 0.15, "time to pass")
    driver.beat(INFO, 60)
    assert driver.workers()[0].age < 0.15


def test_a_retired_worker_is_forgotten(driver: Driver) -> None:
    push(driver, 1)
    complete(driver, one(driver, "w1"))
    driver.beat(INFO, 60)
    driver.retire("w1", [Q, "other"])
    assert driver.workers() == []
    driver.retire("w1", [Q])


def test_retiring_does_not_lose_what_is_still_reserved(driver: Driver) -> None:
    push(driver, 1, 2)
    found = take(driver, 2, "w1")
    complete(driver, found[0])
    driver.retire("w1", [Q])
    assert counts(driver) == (0, 1, 0, 0)
    assert complete(driver, found[1]) == [True]
