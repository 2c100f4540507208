"""Queue: where a program pushes jobs, takes them, and runs workers."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet

from millstream.brokers.payload import DEFAULT_MAX_PAYLOAD, check_name
from millstream.config import open_driver
from millstream.connecting import QUEUE
from millstream.drivers.base import Driver, PushItem
from millstream.envelope import CODECS, Codec, find_codec
from millstream.errors import ConfigurationError, InvalidInput, UnsupportedByDriver
from millstream.job import Job, JobFunction, upcast_from
from millstream.keeping import JobView
from millstream.manager import QueueManager
from millstream.options import (
    DEFAULTS,
    OPTION_NAMES,
    TYPE_OPTIONS,
    Seconds,
    delay_or_time,
    merge,
    seconds,
    unknown_option,
)
from millstream.packing import ENVELOPE_ROOM, BoundedCodec, Packer
from millstream.producer import Producer
from millstream.pushing import Arrived, Bulk, push_iterator
from millstream.recording.driver import Recorder, RecordingDriver
from millstream.registry import Registry, Upcaster, default_registry
from millstream.schedule import CatchUp, Schedule, Schedules, make_schedule
from millstream.settings import load_settings
from millstream.taking import QueueTaker
from millstream.tasks import register_handler
from millstream.unpacking import Unpacker

if TYPE_CHECKING:
    from millstream.archive import SqlArchive
    from millstream.history import HistoryOptions
    from millstream.worker import Worker

F = TypeVar("F", bound=Callable[..., Any])
Router = Callable[[str], "Queue"]
OWN_OPTIONS = ("codec", "max_payload", "archive", "history")  # of `connect`; the others are the driver's

__all__ = ["JobView", "Queue", "QueueManager", "connect"]


class Queue(QueueTaker):
    """Jobs on one driver. Usually made by `connect`; may be used from any number of threads.

    ``name`` is that of the connection. ``codec`` is "json" (the default), "msgpack" or an object.
    ``max_payload`` bounds the bytes of a job's fields, when they are sent and before they are read.
    ``router`` finds the queue object of another connection, for jobs that say `on_connection`.
    ``archive`` (a SqlArchive, or its URL) and ``history`` (True, or the stream's name) record what happens to
    the jobs, in the background; see `docs/archive.md`.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        name: str = "default",
        codec: str | Codec = "json",
        registry: Registry | None = None,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        url: str = "",
        router: Router | None = None,
        close_driver: bool = True,
        archive: SqlArchive | str | Mapping[str, Any] | None = None,
        history: bool | str | Mapping[str, Any] | HistoryOptions = False,
    ) -> None:
        QUEUE["max_payload"].check("max_payload", max_payload)
        chosen, limit = find_codec(codec), max_payload + ENVELOPE_ROOM
        bounded = BoundedCodec(chosen, limit)
        known = Registry(default_registry) if registry is None else registry
        self.recorder: Recorder | None = None
        if archive is not None or history:  # else nothing stands between a push and its driver
            from millstream.recording.opening import open_recorder  # noqa: PLC0415 - few need it

            self.recorder = open_recorder(driver, bounded, archive, history)
        if self.recorder is not None:
            driver = RecordingDriver(driver, self.recorder)
        super().__init__(driver, bounded, known, max_payload)
        # One of the user's own stands alone: what it did not write, or sign, is not to be taken for a job.
        if type(chosen) in CODECS.values():
            others = [BoundedCodec(make(), limit) for name, make in CODECS.items() if name != chosen.name]
            self._unpacker = Unpacker(bounded, others)
        self.name, self.url = check_name("connection", name), url
        self._packer = Packer(self.codec, max_payload)
        self._producer = Producer(self.driver.push)
        self._router, self._close_driver = router, close_driver
        self._schedules = Schedules(self)
        self._workers: WeakSet[Worker] = WeakSet()  # those that run are kept by their threads
        self._workers_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} on {self.driver.name}>"

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, job: Job, *, session: Any = None) -> str:
        """Push a job; the id of the job that now stands for it: its own, or an earlier one if it is unique.

        If this raises BrokerUnavailable, pushing the same object again adds nothing twice.

        With ``session`` the job is pushed in that transaction: a SQLAlchemy Session or Connection, or a
        connection of psycopg, sqlite3 or PyMySQL, to the queue's own database. It is there when the caller
        commits, and was never there if the caller rolls back. Only queues on SQL databases can do that.
        """
        target = self._target(job)
        if type(job._ticket) is Arrived:
            job._id, job._ticket = job._ticket, None
            return job._id
        item = target._packer.pack(job, time.time())
        try:
            (job_id,) = _push_items(target.driver, [item], session)
        except BaseException:
            job._ticket = item.id
            raise
        job._id, job._ticket = job_id, None
        return job_id

    def push_many(self, jobs: Iterable[Job], *, session: Any = None) -> list[str]:
        """Push jobs in their order, a thousand at a time; their ids.

        A list is checked as a whole before its first job is sent. An iterator is pushed as it goes, and never
        held whole. If this raises BrokerUnavailable, some thousands may have been pushed; pushing the
        same objects again adds nothing twice. ``session`` is that of `push`.
        """
        if session is None and not isinstance(jobs, Sequence):
            return push_iterator(self, jobs)
        listed = list(jobs)
        targets = [self._target(job) for job in listed]
        if any(type(job._ticket) is Arrived for job in listed):
            return self._push_rest(listed, session)
        if session is None and targets.count(self) == len(targets):
            bulk = Bulk(self)
            bulk.push_list(listed)
            return bulk.ids
        now = time.time()
        items = [target._packer.pack(job, now) for target, job in zip(targets, listed, strict=True)]
        try:
            ids = _push_each(targets, items, session)
        except BaseException:
            for job, item in zip(listed, items, strict=True):
                job._ticket = item.id
            raise
        for job, job_id in zip(listed, ids, strict=True):
            job._id, job._ticket = job_id, None
        return ids

    def _push_rest(self, listed: list[Job], session: Any) -> list[str]:
        """What an earlier call could not push; the ids of all of ``listed``."""
        self.push_many([job for job in listed if type(job._ticket) is not Arrived], session=session)
        for job in listed:
            if type(job._ticket) is Arrived:
                job._id, job._ticket = job._ticket, None
        return [job._id or "" for job in listed]

    async def push_async(self, job: Job) -> str:
        """As `push`, for asyncio programs: the loop is never blocked.

        A producer thread sends what has gathered in one round trip, so many coroutines may push at once.
        """
        target = self._target(job)
        item = target._packer.pack(job, time.time())
        try:
            job_id = await target._producer.push(item)
        except BaseException:
            job._ticket = item.id
            raise
        job._id, job._ticket = job_id, None
        return job_id

    def enqueue(
        self,
        type_name: str,
        data: Mapping[str, Any] | None = None,
        *,
        delay: Seconds | datetime | None = None,
        **options: Any,
    ) -> str:
        """Push a task by the name of its type; its id.

        ``options`` are those of a job: ``queue, priority, max_attempts, timeout …``. Where the type is
        known in this process (a handler or a Job class), its own options are the defaults and the data are
        checked against its fields.
        """
        check_name("job type", type_name)
        known = self.registry.get(type_name)
        base = DEFAULTS if known is None else known.options
        for fixed in TYPE_OPTIONS:
            if fixed in options:
                raise InvalidInput(f"enqueue({type_name!r}): {fixed} is said where the type is defined")
        for name in options:
            if name not in OPTION_NAMES:
                allowed = {*OPTION_NAMES, "delay"}.difference(TYPE_OPTIONS)
                raise InvalidInput(f"enqueue({type_name!r}): {unknown_option('option', name, allowed)}")
        merged = merge(f"enqueue({type_name!r})", base, options)
        when = None if delay is None else delay_or_time(delay)
        target = self._connection(merged.connection)
        item = target._packer.pack_task(type_name, data, merged, when, self.registry, time.time())
        return target.driver.push([item])[0]

    def handler(self, type_name: str, **options: Any) -> Callable[[F], F]:
        """Decorates the function that handles the tasks of that name: ``def send(data)`` or ``(data, job)``.

        It may be ``async def``, and stays callable as it is. ``options`` are those of a job.
        """
        check_name("job type", type_name)

        def keep(function: F) -> F:
            scope = sys._getframe(1).f_locals  # where the function is written: it may name local types
            register_handler(type_name, function, options, self.registry, scope)
            return function

        return keep

    def upcast(self, type_name: str, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """As Job.upcast, for the tasks of that name, whose handler has a ``version``."""
        return upcast_from(self.registry.resolve(type_name), from_version)

    def register_job_classes(self, classes: Iterable[type[Job]]) -> None:
        """Make job classes known to this queue. Subclassing Job does that by itself, for every queue."""
        for cls in classes:
            if isinstance(cls, JobFunction):
                cls = cls.job_class  # noqa: PLW2901 - a function form stands for its class
            if not (isinstance(cls, type) and issubclass(cls, Job) and cls is not Job):
                raise InvalidInput(f"register_job_classes takes subclasses of Job, not {cls!r}")
            self.registry.register(cls._type)

    # -- schedules ---------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        when: str | Seconds,
        job: Job | JobFunction[..., Any] | type[Job],
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "last",
    ) -> None:
        """Let every worker of this queue object push ``job`` at the times of ``when``, each time once.

        ``when`` is a cron expression (in the time zone ``tz``), or seconds between two pushes. ``catch_up``
        says what becomes of ticks that were missed while no worker ran: "none", only the "last", or "all".
        Schedules live in the program, not on the server: declare them where the workers import them. How
        many workers do so does not matter. The same name again replaces it. See `docs/cron.md`.
        """
        self._schedules.add(make_schedule(name, when, job, tz=tz, catch_up=catch_up))

    def unschedule(self, name: str) -> bool:
        """Forget a schedule, also one that a job type declares (by the type's name); whether there was one.

        Only this queue object forgets it: workers of programs that still declare it go on.
        """
        return self._schedules.remove(name)

    def schedules(self) -> list[Schedule]:
        """The schedules that workers of this queue object push: given to it, or declared by job types."""
        return self._schedules.all()

    # -- working -----------------------------------------------------------------------------------

    def work(self, queues: str | Sequence[str] = ("default",), concurrency: int = 16, **options: Any) -> None:
        """Run a worker in this process until `stop` is called or a signal ends it.

        ``options`` are those of `millstream.worker.WorkerOptions`.
        """
        self.worker(queues, concurrency=concurrency, **options).run()

    def stop(self) -> None:
        """End every worker of this queue object: no new jobs, those that run are finished."""
        for worker in self._running():
            worker.stop()

    def _running(self) -> list[Worker]:
        with self._workers_lock:
            return [worker for worker in self._workers if worker.running]

    def worker(self, queues: str | Sequence[str] = ("default",), **options: Any) -> Worker:
        """A worker to be run in the background: ``with queue.worker(["emails"]) as worker: …``."""
        from millstream.worker import Worker, WorkerOptions  # noqa: PLC0415 - producers do not need it

        allowed = inspect.signature(WorkerOptions).parameters
        for name in options:
            if name not in allowed:
                raise ConfigurationError(unknown_option("worker option", name, allowed))
        made = WorkerOptions(queues=queues, **options)  # type: ignore[arg-type]  # a list will do
        worker = Worker(self, made)
        with self._workers_lock:
            self._workers.add(worker)
        return worker

    # -- life --------------------------------------------------------------------------------------

    def flush(self, timeout: float = 30.0) -> bool:
        """Write every record of what happened before this call; whether that was done in time.

        For a program that may be killed and must not lose one. Without ``archive`` and ``history`` there is
        nothing to do.
        """
        return self.recorder is None or self.recorder.flush(seconds("timeout", timeout))

    def close(self) -> None:
        """Send what push_async still holds, end workers that run here, and give back the connections."""
        if any(worker.is_inside() for worker in self._running()):
            raise InvalidInput(
                "a handler cannot close the queue of its own worker, which has yet to tell what became of "
                "the job; call stop(), and close the queue when the worker has ended"
            )
        try:
            self.stop()
        finally:  # a worker may have crashed, and says so
            self._producer.close()
            if self.recorder is not None:
                self.recorder.close()
            if self._close_driver:
                self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- names -------------------------------------------------------------------------------------

    def _target(self, job: Job) -> Queue:
        """The queue object that ``job`` wants to be pushed with: this one, or that of another connection."""
        if not isinstance(job, Job):
            hint = "; call it first: the call makes the job" if isinstance(job, JobFunction) else ""
            hint = hint or (
                "; make one first" if isinstance(job, type) else "; use enqueue() for a task by name"
            )
            raise InvalidInput(f"push takes a job, not {job!r}{hint}")
        connection = (job._options or job._type.options).connection
        return self if connection is None else self._connection(connection)

    def _connection(self, name: str | None) -> Queue:
        if name is None or name == self.name:
            return self
        if self._router is None:
            raise ConfigurationError(
                f"the job wants the connection {name!r}, and this queue only has its own, {self.name!r}; "
                "name both in millstream.toml, or in QueueManager(connections={...})"
            )
        return self._router(name)


def _push_items(driver: Driver, items: list[PushItem], session: Any) -> list[str]:
    """Push, in the caller's transaction where there is one."""
    if session is None:
        return driver.push(items)
    push_in = getattr(driver, "push_in", None)
    if push_in is None:
        raise UnsupportedByDriver(driver.name, "a push in the caller's transaction (session=)")
    ids: list[str] = push_in(session, items)
    return ids


def _push_each(targets: list[Queue], items: list[PushItem], session: Any = None) -> list[str]:
    """Push each item with its own queue object; the ids in the order of ``items``."""
    if not items:
        return []
    if targets.count(targets[0]) == len(targets):
        return _push_items(targets[0].driver, items, session)
    ids = [""] * len(items)
    for target in dict.fromkeys(targets):
        places = [place for place, each in enumerate(targets) if each is target]
        pushed = _push_items(target.driver, [items[place] for place in places], session)
        for place, job_id in zip(places, pushed, strict=True):
            ids[place] = job_id
    return ids


def connect(url: str | None = None, **options: Any) -> Queue:
    """The queue object for ``url``, or for the default connection of millstream.toml and the environment.

    Where neither says one, the jobs are in the SQLite file millstream.db in the working folder.

    ``options``: ``codec`` ("json" or "msgpack"), ``max_payload`` (bytes), ``prefix`` (of the names on the
    server), ``name`` (of the connection), ``registry``, ``archive``, ``history``, and those of the driver.
    Raises UnknownScheme, ConfigurationError, and what connecting raises: BrokerUnavailable, AccessDenied.

    ``memory://`` is private to the object that is returned; ``memory://name`` is shared by that name within
    the process, as long as it runs.
    """
    if url is not None:
        name = options.pop("name", "default")
        return open_queue(url, options, name, options.pop("registry", None), None)
    if options:
        settings = load_settings()
        known = settings.connections[settings.default]
        merged = {**known.options, **options}
        registry = merged.pop("registry", None)
        return open_queue(known.url, merged, merged.pop("name", settings.default), registry, None)
    return QueueManager().connection()


def open_queue(
    url: str, options: dict[str, Any], name: str, registry: Registry | None, router: Router | None
) -> Queue:
    """The queue object of one connection; `connect` and QueueManager say what it is made of."""
    own = {option: options.pop(option) for option in OWN_OPTIONS if option in options}
    max_payload = own.get("max_payload", DEFAULT_MAX_PAYLOAD)
    QUEUE["max_payload"].check("max_payload", max_payload)
    driver, shared = open_driver(url, max_body=max_payload + ENVELOPE_ROOM, **options)
    try:
        return Queue(
            driver, name=name, url=url, registry=registry, router=router, close_driver=not shared, **own
        )
    except BaseException:
        if not shared:
            driver.close()
        raise
