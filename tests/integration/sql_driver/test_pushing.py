"""Pushes in the form that a server is given them."""

from __future__ import annotations

import msgspec

from tests.contract.drivers.helpers import Q, counts, drain, item
from tests.integration.sql_driver.conftest import Open


def test_an_id_that_is_called_new_and_is_not_adds_nothing(url: str, opened: Open) -> None:
    """Whoever says that an id is new is believed, and a mistake costs a round trip, not a second job."""
    driver = opened(url)
    first, second, third = (msgspec.structs.replace(item(n), fresh=True) for n in range(3))
    assert driver.push([first, second]) == [first.id, second.id]
    assert driver.push([second]) == [second.id]
    assert driver.push([first, third, second]) == [first.id, third.id, second.id]
    assert counts(driver) == (3, 0, 0, 0)
    assert [one.id for one in drain(driver)] == [first.id, second.id, third.id]


def test_texts_and_bytes_of_every_kind_arrive_as_they_were(url: str, opened: Open) -> None:
    driver = opened(url)
    names = ["plain", "with space", '{a,"b"}\\\'', "grün-日本", "NULL", "x" * 500]
    bodies = [bytes(range(256)), b"{}", b"\\x00", b"\x00", b"NULL", b"y" * 100_000]
    items = [
        msgspec.structs.replace(item(), id=name, body=body, fresh=True)
        for name, body in zip(names, bodies, strict=True)
    ]
    assert driver.push(items) == names
    held = driver.reserve([Q], 'an owner, "with" {signs}', 100)
    assert {one.id: one.body for one in held} == dict(zip(names, bodies, strict=True))
    assert driver.extend(held) == [True] * len(held)
