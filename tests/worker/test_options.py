"""Options: checked when they are made, with the field and the value in the message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.drivers.base import RateLimit
from millstream.errors import ConfigurationError, InvalidInput, InvalidName
from millstream.worker import LaunchOptions, WorkerOptions
from tests.worker.conftest import Bench


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queues": ()}, "queues cannot be"),
        ({"queues": 5}, "queues cannot be 5; expected a list of names"),
        ({"queues": ("a", "a")}, "each name once"),
        ({"concurrency": 0}, "concurrency cannot be 0"),
        ({"concurrency": 1.5}, "concurrency cannot be 1.5"),
        ({"lease": 0}, "lease cannot be 0"),
        ({"lease": "30"}, "lease cannot be '30'"),
        ({"lease": float("nan")}, "lease cannot be nan"),
        ({"grace": float("inf")}, "grace cannot be inf"),
        ({"grace": -1}, "grace cannot be -1"),
        ({"max_wait": 0}, "max_wait cannot be 0"),
        ({"max_jobs": 0}, "max_jobs cannot be 0"),
        ({"max_deliveries": 0}, "max_deliveries cannot be 0"),
        ({"rate_limits": 5}, r'a mapping such as \{"emails"'),
        ({"rate_limits": {"default": 5}}, "RateLimit"),
    ],
)
def test_a_wrong_value_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WorkerOptions(**options)


@pytest.mark.parametrize("name", ["a{b", "", "a\n", 5])
def test_the_name_of_a_queue_must_be_one(name: Any) -> None:
    with pytest.raises(InvalidName, match="cannot be a queue name"):
        WorkerOptions(queues=("default", name))


def test_the_queue_of_a_rate_limit_must_be_a_name() -> None:
    with pytest.raises(InvalidName, match="brace"):
        WorkerOptions(rate_limits={"a{b": RateLimit(1)})


@pytest.mark.parametrize(
    ("limit", "per"), [(0, 1), (1.5, 1), (True, 1), ("1", 1), (1, 0), (1, "60"), (1, float("nan"))]
)
def test_a_rate_limit_is_a_whole_number_in_a_time(limit: Any, per: Any) -> None:
    with pytest.raises(InvalidInput, match="needs a whole number of at least 1 and a time above 0"):
        RateLimit(limit, per=per)


def test_one_queue_may_be_given_as_text() -> None:
    assert WorkerOptions(queues="emails").queues == ("emails",)  # type: ignore[arg-type]


def test_options_travel_to_a_process_as_json() -> None:
    options = WorkerOptions(queues=("a", "b"), rate_limits={"a": RateLimit(10, per=60.0)}, max_jobs=5)
    assert msgspec.json.decode(msgspec.json.encode(options), type=WorkerOptions) == options


def test_launch_options_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="workers cannot be 0"):
        LaunchOptions(workers=0)


def test_an_unknown_option_is_refused(memory: Bench) -> None:
    with pytest.raises(ConfigurationError, match="concurency"):
        memory.queue.worker(["a"], concurency=4)
