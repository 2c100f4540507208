"""Gaps of a driver show as skips of the contract suite, by name."""

from __future__ import annotations

import pytest

from millstream.drivers.base import Capabilities
from tests.contract.drivers.skips import reason_to_skip


def test_a_complete_driver_skips_nothing() -> None:
    assert reason_to_skip("stream", Capabilities(), ["delays", "unique", "priorities"]) is None


def test_the_reason_names_the_driver_and_each_gap() -> None:
    lacking = Capabilities(delays=False, unique=False)
    reason = reason_to_skip("kafka", lacking, ["delays", "priorities", "unique"])
    assert reason == "the kafka driver has no delays, no unique (see its Capabilities)"


def test_a_limit_that_is_absent_is_no_gap() -> None:
    assert reason_to_skip("stream", Capabilities(), []) is None


def test_a_capability_that_does_not_exist_is_a_mistake_of_the_test() -> None:
    with pytest.raises(ValueError, match="no such capability: speed"):
        reason_to_skip("stream", Capabilities(), ["speed"])
