"""How a worker works: frozen, checked when made, with the reason beside each default."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millstream.drivers.base import RateLimit
from millstream.drivers.checks import check_owner
from millstream.errors import ConfigurationError
from millstream.options import check_queue_name

# How a worker process ends, as far as its supervisor must tell the cases apart.
EXIT_OK = 0
EXIT_CRASHED = 1  # a part of the worker died of an error that nobody expected
EXIT_RECYCLED = 64  # it ran its max_jobs, or grew past max_memory_mb: start a fresh one
EXIT_HUNG = 65  # a handler outlived its hard timeout: the thread cannot be ended, the process can
EXIT_CONFIG = 78  # the target does not import or is no queue: starting it again cannot help


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """One worker. Times are seconds; wrong values raise ConfigurationError, naming the field.

    The name of a queue that cannot be one raises InvalidName.
    """

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 16  # handlers at a time; most wait for a network, and 16 threads cost 1 MB or so
    lease: float = 30.0  # a dead worker's jobs wait this long; renewed at a third, so two renewals may fail
    grace: float = 30.0  # what process managers usually allow between SIGTERM and SIGKILL
    max_wait: float | None = 60.0  # a low job waits no longer than this behind a flood of higher ones
    # Those of queues that this worker does not serve are not used: workers may share a table of limits.
    rate_limits: Mapping[str, RateLimit] = field(default_factory=dict)
    prefetch_seconds: float = 0.25  # work to hold in advance: short, so that a new critical job waits little
    max_prefetch: int = 500  # enough to make a round trip cheap; more only holds jobs back from others
    max_deliveries: int = 3  # so often may a job's worker die before the job is taken for the cause
    hard_timeout_grace: float = (
        5.0  # from a handler's soft timeout, for its clean-up, until it counts as hung
    )
    max_jobs: int | None = (
        None  # end after so many (the supervisor starts a fresh process): leaks in handlers
    )
    max_memory_mb: int | None = None  # the same by resident memory
    poll: float = 0.5  # how long one read waits at the broker; a push ends the wait, a stop has to sit it out
    recover_every: float = 1.0  # a dead worker's job starts again within its lease and two of these
    name: str = ""  # the worker's id in status; host, process and a random part if empty

    def __post_init__(self) -> None:
        object.__setattr__(self, "queues", _names(self.queues))
        if self.name != "":
            check_owner(self.name)
        _check_limits(self.rate_limits)
        for name, least in (("concurrency", 1), ("max_prefetch", 1), ("max_deliveries", 1)):
            _at_least(name, getattr(self, name), least)
        for name in ("max_jobs", "max_memory_mb"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for name in ("lease", "poll", "recover_every"):
            _seconds(name, getattr(self, name), zero=False)
        for name in ("grace", "prefetch_seconds", "hard_timeout_grace"):
            _seconds(name, getattr(self, name), zero=True)
        if self.max_wait is not None:
            _seconds("max_wait", self.max_wait, zero=False)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Several worker processes under one supervisor."""

    worker: WorkerOptions = field(default_factory=WorkerOptions)
    workers: int = 1  # processes; one per core where handlers compute
    connection: str | None = None  # which one, where the target is a QueueManager
    log_level: str = "INFO"  # of the worker processes
    start_timeout: float = 60.0  # importing an application can be slow; longer than this is a hang
    max_backoff: float = 30.0  # between starts of a process that keeps dying at once

    def __post_init__(self) -> None:
        _at_least("workers", self.workers, 1)
        _seconds("start_timeout", self.start_timeout, zero=False)
        _seconds("max_backoff", self.max_backoff, zero=False)


def _names(queues: str | Iterable[str]) -> tuple[str, ...]:
    try:
        names = (queues,) if isinstance(queues, str) else tuple(queues)
    except TypeError:
        raise _wrong("queues", queues, "a list of names") from None
    if not names:
        raise _wrong("queues", queues, "at least one name")
    for name in names:
        check_queue_name(name)
    if len(set(names)) != len(names):
        raise _wrong("queues", queues, "each name once")
    return names


def _check_limits(limits: Mapping[str, RateLimit]) -> None:
    if not isinstance(limits, Mapping):
        raise _wrong("rate_limits", limits, 'a mapping such as {"emails": RateLimit(10, per=60)}')
    for queue, limit in limits.items():
        check_queue_name(queue)
        if not isinstance(limit, RateLimit):
            raise _wrong("rate_limits", limit, "RateLimit(limit, per=seconds)")


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _wrong(name, value, f"a whole number of at least {least}")


def _seconds(name: str, value: object, *, zero: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(name, value, "a number of seconds")
    if value < 0 or (value == 0 and not zero):
        raise _wrong(name, value, "a number of seconds " + ("of at least 0" if zero else "above 0"))


def _wrong(name: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(f"the worker's option {name} cannot be {value!r}; expected {expected}")
