"""Small things that many tests of drivers need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from millstream.drivers.base import Driver, PushItem, Reservation, Settlement
from millstream.envelope import Envelope, JsonCodec, new_job_id
from tests.contract.streams.helpers import SOON, Background, until

__all__ = [
    "SOON",
    "Background",
    "body_of",
    "bury",
    "complete",
    "drain",
    "give_up",
    "ids",
    "item",
    "numbers",
    "until",
]

Q = "work"
_codec = JsonCodec()


def body_of(job_id: str, n: Any = 0) -> bytes:
    """The body of a job that carries a number."""
    return _codec.encode(Envelope(id=job_id, type="test.job", payload=_codec.encode_payload({"n": n})))


def item(
    n: Any = 0, *, queue: str = Q, priority: str = "default", job_id: str | None = None, **options: Any
) -> PushItem:
    job_id = job_id or new_job_id()
    return PushItem(job_id, queue, priority, body_of(job_id, n), **options)


def push(driver: Driver, *numbers: Any, **options: Any) -> list[str]:
    return driver.push([item(n, **options) for n in numbers])


def take(
    driver: Driver, count: int = 100, owner: str = "a", queues: Sequence[str] = (Q,), **options: Any
) -> list[Reservation]:
    return driver.reserve(queues, owner, count, **options)


def one(driver: Driver, owner: str = "a", **options: Any) -> Reservation:
    (found,) = take(driver, 1, owner, **options)
    return found


def numbers(found: Iterable[Any]) -> list[Any]:
    """The numbers that jobs, reservations or letters carry."""
    return [msgspec.json.decode(_codec.decode(job.body).payload)["n"] for job in found]


def ids(found: Iterable[Any]) -> list[str]:
    return [job.id for job in found]


def complete(driver: Driver, *reservations: Reservation) -> list[bool]:
    return driver.settle([Settlement(reservation, "complete") for reservation in reservations])


def retry(driver: Driver, reservation: Reservation, n: Any = 0, delay: float = 0.0) -> bool:
    (answer,) = driver.settle(
        [Settlement(reservation, "retry", body=body_of(reservation.id, n), delay=delay)]
    )
    return answer


def bury(driver: Driver, reservation: Reservation, n: Any = 0, reason: str = "it failed") -> bool:
    (answer,) = driver.settle(
        [
            Settlement(
                *(reservation, "bury", body_of(reservation.id, n), 0.0),
                *(reason, "ValueError: no", "Traceback …", 3),
            )
        ]
    )
    return answer


def release(driver: Driver, *reservations: Reservation) -> list[bool]:
    return driver.settle([Settlement(reservation, "release") for reservation in reservations])


def give_up(
    driver: Driver, owner: str = "thief", lease: float = 0.02, count: int = 100, queue: str = Q
) -> list[Reservation]:
    """What ``owner`` takes over once leases of ``lease`` seconds have ended."""
    found: list[Reservation] = until(lambda: driver.recover([queue], owner, lease, count), "a lease to end")
    return found


def drain(
    driver: Driver, queues: Sequence[str] = (Q,), owner: str = "a", count: int = 100
) -> list[Reservation]:
    """Reserve and complete everything that waits."""
    found: list[Reservation] = []
    while got := driver.reserve(queues, owner, count):
        assert all(complete(driver, *got))
        found += got
    return found


def state(driver: Driver, job_id: str, queue: str = Q) -> str | None:
    found = driver.find(job_id, queue)
    return found.state if found else None


def counts(driver: Driver, queue: str = Q) -> tuple[int, int, int, int]:
    """waiting, reserved, delayed, dead."""
    size = driver.size(queue)
    return (size.waiting, size.reserved, size.delayed, size.dead)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.monotonic()
    return call(), time.monotonic() - began
