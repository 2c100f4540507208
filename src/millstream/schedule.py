"""Schedules: jobs that are pushed at the times of a cron expression, or every so many seconds.

A *tick* is a moment at which a schedule is due. Which moments those are follows from the schedule alone, so
every worker that knows the schedule pushes every tick, under its time as the number of a numbered push
(`Driver.push_numbered`). The queue keeps the number of the last tick, takes the first push of each, and
refuses all others, at once or years later. So it does not matter how many workers there are and which of them
die, and nobody has to be elected; and the number says what was missed while there was no worker.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from millstream.brokers.payload import check_name
from millstream.drivers.base import PushItem
from millstream.errors import (
    BrokerError,
    ConfigurationError,
    InvalidInput,
    MillstreamError,
    UnsupportedByDriver,
)
from millstream.job import Job, JobFunction
from millstream.options import Seconds, seconds

if TYPE_CHECKING:
    from millstream.queue import Queue

log = logging.getLogger("millstream.schedule")
CatchUp: TypeAlias = Literal["none", "last", "all"]
MOST = 1000  # ticks that are caught up after a long silence, the newest
ON_TIME = 60.0  # seconds: a tick that is not older was not missed, its worker was only busy or restarted
LEAST_EVERY = 0.1  # seconds: more often than that is a loop, not a schedule


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When to push which job. ``cron`` or ``every`` (seconds) says when."""

    name: str
    make: Callable[[], Job]
    cron: str | None = None
    every: float | None = None
    tz: str = "UTC"
    catch_up: CatchUp = "last"

    @property
    def when(self) -> str:
        """When it ticks, as people read it."""
        return f"{self.cron} ({self.tz})" if self.cron is not None else f"every {self.every:g} s"

    @property
    def line(self) -> str:
        """Under what the queue knows its ticks. Another time table is another line, which begins anew."""
        digest = hashlib.sha256(f"{self.name}\0{self.when}".encode()).hexdigest()[:32]
        return f"cron-{digest}"

    def next(self, after: float) -> float:
        """The first tick after a moment; both in seconds since the epoch."""
        if self.every is not None:
            return (_number(after, self.every) + 1) * self.every
        return next(self._from(after)).timestamp()

    def missed(self, last: float, now: float, most: int = MOST) -> list[float]:
        """The ticks after ``last`` up to ``now``, oldest first; the newest ``most`` of them."""
        if self.next(last) > now:
            return []
        if self.every is not None:
            newest, step = _number(now, self.every), self.every
            found = list(
                takewhile(lambda tick: tick > last, (n * step for n in range(newest, newest - most, -1)))
            )
            return found[::-1]
        # Backwards from the next minute on, so that `now` itself is looked at.
        moments = (
            moment.timestamp()
            for moment in CronSim(self._expression, self._local(now + 60), reverse=True)
            if moment.timestamp() <= now
        )
        newest_first: list[float] = []
        for tick in moments:
            if tick <= last or len(newest_first) == most:
                break
            newest_first.append(tick)
        # Where clocks are set forward, what falls into the hour that is left out is only found forwards.
        return newest_first[::-1] or [self.next(last)]

    def job(self, tick: float) -> Job:
        """The job of a tick, with an id that says which it is."""
        job = self.make()
        job._ticket = f"{self.line[:21]}-{round(tick * 1000)}"
        return job

    @property
    def _expression(self) -> str:
        assert self.cron is not None
        return self.cron

    def _local(self, moment: float) -> datetime:
        return datetime.fromtimestamp(moment, ZoneInfo(self.tz))

    def _from(self, moment: float) -> Iterator[datetime]:
        return iter(CronSim(self._expression, self._local(moment)))


def _number(moment: float, every: float) -> int:
    """How many spans of ``every`` seconds had passed at ``moment``, which may be a tick that was rounded."""
    return math.floor(moment / every + 1e-6)


def check_cron(expression: object, tz: str = "UTC") -> str:
    """``expression`` itself. Raises ConfigurationError, also for one that never ticks."""
    try:
        if not isinstance(expression, str):
            raise CronSimError("it is no text")
        next(CronSim(expression, datetime.now(zone(tz))))
    except (CronSimError, StopIteration) as error:
        raise ConfigurationError(
            f"{expression!r} is no cron expression: {error or 'it never comes'}; expected minute, hour, day, "
            "month and weekday, such as '0 9 * * 1-5'"
        ) from None
    return expression


def zone(name: object) -> ZoneInfo:
    """The time zone of that name. Raises ConfigurationError."""
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise ConfigurationError(
            f"{name!r} is no time zone that this machine knows; expected one such as 'Europe/Berlin' or 'UTC'"
        ) from None


def check_catch_up(value: object) -> CatchUp:
    """``value`` itself, or ConfigurationError."""
    if value not in get_args(CatchUp):
        raise ConfigurationError(f"catch_up must be 'none', 'last' or 'all', not {value!r}")
    return value  # type: ignore[return-value]


def make_schedule(
    name: str,
    when: str | Seconds,
    job: Job | JobFunction[..., object] | type[Job],
    *,
    tz: str = "UTC",
    catch_up: CatchUp = "last",
) -> Schedule:
    """A schedule, checked. Raises ConfigurationError or InvalidInput."""
    check_name("schedule", name)
    check_catch_up(catch_up)
    zone(tz)
    maker = _maker(name, job)
    if isinstance(when, str):
        return Schedule(name=name, make=maker, cron=check_cron(when, tz), tz=tz, catch_up=catch_up)
    if isinstance(when, (int, float, timedelta)):
        every = seconds("every", when, least=LEAST_EVERY)
        return Schedule(name=name, make=maker, every=every, catch_up=catch_up)
    raise InvalidInput(
        f"schedule {name!r}: expected a cron expression such as '0 9 * * *' or seconds, not {when!r}"
    )


def _maker(name: str, job: object) -> Callable[[], Job]:
    if isinstance(job, Job):
        given = job
        return lambda: _copy(given)
    if isinstance(job, JobFunction):
        job = job.job_class
    if not (isinstance(job, type) and issubclass(job, Job) and job is not Job):
        raise InvalidInput(f"schedule {name!r}: expected a job, not {job!r}")
    kind = job
    try:
        kind()
    except TypeError as error:
        raise ConfigurationError(
            f"schedule {name!r}: a job that is made by itself needs a default for each field: {error}; "
            "or give one with its fields to queue.schedule()"
        ) from None
    return kind


def _copy(job: Job) -> Job:
    """A job like this one, as if it had just been made: its fields and what was said about it."""
    made = type(job).__new__(type(job))
    made.__dict__.update(job._type.fields_of(job) if type(job)._type.schema.names else job.__dict__)
    for name in ("_options", "_delay"):
        if name in job.__dict__:
            setattr(made, name, job.__dict__[name])
    return made


class Schedules:
    """The schedules of one queue object: those that were given to it, and those of the known job types."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._given: dict[str, Schedule] = {}
        self._without: set[str] = set()
        self._lock = threading.Lock()

    def add(self, schedule: Schedule) -> None:
        """Keep a schedule, in place of one of the same name."""
        with self._lock:
            self._given[schedule.name] = schedule
            self._without.discard(schedule.name)

    def remove(self, name: str) -> bool:
        """Forget a schedule; whether there was one."""
        known = any(schedule.name == name for schedule in self.all())
        with self._lock:
            self._given.pop(name, None)
            self._without.add(name)
        return known

    def all(self) -> list[Schedule]:
        """The schedules, by name."""
        found = {schedule.name: schedule for schedule in self._declared()}
        with self._lock:
            found.update(self._given)
            return [found[name] for name in sorted(found) if name not in self._without]

    def _declared(self) -> Iterator[Schedule]:
        registry = self._queue.registry
        for type_name in registry.names():
            kind = registry.get(type_name)
            if kind is None or kind.options.cron is None:
                continue
            if kind.options.connection in (None, self._queue.name):
                yield Schedule(
                    name=type_name,
                    make=_maker(type_name, kind.cls),
                    cron=kind.options.cron,
                    tz=kind.options.tz,
                    catch_up=kind.options.catch_up,  # type: ignore[arg-type]
                )


class Ticker:
    """Pushes what is due. Each worker has one; so may any program that only schedules."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._last: dict[str, float] = {}  # by line, the last tick that the queue is known to have
        self._said: dict[str, str] = {}  # by schedule, the error that was logged
        self.pushed = 0  # ticks that this ticker was the first to push

    def tick(self, now: float) -> float:
        """Push every tick that is due at ``now``; the moment of the next one (an hour away at the most)."""
        upcoming = now + 3600.0
        for schedule in self._queue.schedules():
            try:
                upcoming = min(upcoming, self._tick(schedule, now))
            except (BrokerError, UnsupportedByDriver):
                raise
            except MillstreamError as error:  # of this job alone; the others go on
                if self._said.get(schedule.name) != str(error):
                    self._said[schedule.name] = str(error)
                    log.error("schedule %s cannot push its job: %s", schedule.name, error)
        return upcoming

    def _tick(self, schedule: Schedule, now: float) -> float:
        last = self._last.get(schedule.line)
        if last is None:
            last = self._last[schedule.line] = self._begin(schedule, now)
        ticks = schedule.missed(last, now, MOST if schedule.catch_up == "all" else 1)
        for tick in ticks:
            late = schedule.catch_up == "none" and now - tick > ON_TIME
            self._push(schedule, tick, only_note=late)
            self._last[schedule.line] = tick
        return schedule.next(ticks[-1] if ticks else last)

    def _begin(self, schedule: Schedule, now: float) -> float:
        """The last tick that the queue has; for a new schedule the queue is told that it begins now."""
        home, name = self._home(schedule)
        last = home.driver.last_number(name, schedule.line)
        if not last:
            home.driver.push_numbered(name, schedule.line, int(now * 1000), [])
            last = home.driver.last_number(name, schedule.line)
        return last / 1000

    def _push(self, schedule: Schedule, tick: float, *, only_note: bool) -> None:
        job = schedule.job(tick)
        home, name = self._home(schedule)
        moment = datetime.fromtimestamp(tick, UTC).isoformat()
        items = [] if only_note else [_packed(home, job, {"schedule": schedule.name, "tick": moment})]
        if home.driver.push_numbered(name, schedule.line, round(tick * 1000), items) and items:
            self.pushed += 1

    def _home(self, schedule: Schedule) -> tuple[Queue, str]:
        """The queue object that the schedule's jobs are pushed with, and the name of their queue."""
        job = schedule.make()
        return self._queue._target(job), job.options.queue


def _packed(queue: Queue, job: Job, headers: dict[str, str]) -> PushItem:
    """What pushes the job, with headers that tell its handler which tick it is for."""
    item = queue._packer.pack(job, time.time())
    envelope = queue.codec.decode(item.body)
    envelope.headers = {**envelope.headers, **headers}
    return msgspec.structs.replace(item, body=queue.codec.encode(envelope))
