"""QueueManager: several named connections behind one object."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from millstream.deadletters import DeadLetters
from millstream.drivers.base import QueueSize, WorkerInfo
from millstream.errors import BrokerClosed, ConfigurationError
from millstream.job import Job, JobFunction
from millstream.keeping import JobView
from millstream.options import Seconds, seconds
from millstream.registry import Registry, Upcaster, default_registry
from millstream.schedule import CatchUp, Schedule
from millstream.settings import Settings, load_settings, settings_of
from millstream.taking import reservation_of

if TYPE_CHECKING:
    from millstream.queue import Queue
    from millstream.worker import Worker

F = TypeVar("F", bound=Callable[..., Any])


class QueueManager:
    """Several named connections, opened when they are first used, with one registry of handlers.

        manager = QueueManager({"main": "redis://localhost:6379/0", "local": "memory://"}, default="main")

    Without ``connections`` they are those of millstream.toml and the environment. A job goes over the
    connection that it names (`Job.on_connection`), else over the default one. The other methods are those of
    Queue, for the connection that ``connection`` names (the default one if left out); a job that was taken is
    settled where it came from.
    """

    def __init__(
        self,
        connections: Mapping[str, str | Mapping[str, Any]] | None = None,
        *,
        default: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        if settings is None:
            settings = load_settings() if connections is None else settings_of(connections, default)
        self.settings = settings
        self.registry = Registry(default_registry)
        self._open: dict[str, Queue] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<QueueManager {', '.join(self.names())}; default {self.settings.default!r}>"

    def names(self) -> list[str]:
        """The connections that are known."""
        return sorted(self.settings.connections)

    def connection(self, name: str | None = None) -> Queue:
        """The queue object of a connection, the default one without ``name``. Raises ConfigurationError.

        After `close` it raises BrokerClosed, and so does every call that goes over a connection.
        """
        wanted = self.settings.default if name is None else name
        with self._lock:
            if self._closed:
                raise BrokerClosed
            found = self._open.get(wanted)
            if found is None:
                found = self._open[wanted] = self._connect(wanted)
            return found

    def _connect(self, name: str) -> Queue:
        from millstream.queue import open_queue  # noqa: PLC0415 - it imports this module

        known = self.settings.connections.get(name)
        if known is None:
            where = f" ({self.settings.source})" if self.settings.source else ""
            raise ConfigurationError(
                f"there is no connection {name!r}; known are: {', '.join(self.names())}{where}"
            )
        return open_queue(known.url, dict(known.options), name, self.registry, self.connection)

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, job: Job, *, session: Any = None) -> str:
        """Push a job over its connection; its id."""
        return self.connection().push(job, session=session)

    def push_many(self, jobs: Iterable[Job], *, session: Any = None) -> list[str]:
        """Push jobs, each over its connection, a round trip per thousand, queue and connection; their ids."""
        return self.connection().push_many(jobs, session=session)

    async def push_async(self, job: Job) -> str:
        """As `push`, for asyncio programs."""
        return await self.connection().push_async(job)

    def enqueue(self, type_name: str, data: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Push a task by name; its id. ``connection=`` chooses where."""
        return self.connection().enqueue(type_name, data, **options)

    def handler(self, type_name: str, **options: Any) -> Callable[[F], F]:
        """As Queue.handler, for every connection."""
        return self.connection().handler(type_name, **options)

    def upcast(self, type_name: str, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """As Queue.upcast, for every connection."""
        return self.connection().upcast(type_name, from_version)

    def register_job_classes(self, classes: Iterable[type[Job]]) -> None:
        """As Queue.register_job_classes, for every connection."""
        self.connection().register_job_classes(classes)

    def schedule(
        self,
        name: str,
        when: str | Seconds,
        job: Job | JobFunction[..., Any] | type[Job],
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "last",
    ) -> None:
        """As Queue.schedule, for the workers of the default connection."""
        self.connection().schedule(name, when, job, tz=tz, catch_up=catch_up)

    def unschedule(self, name: str) -> bool:
        """As Queue.unschedule."""
        return self.connection().unschedule(name)

    def schedules(self) -> list[Schedule]:
        """As Queue.schedules."""
        return self.connection().schedules()

    # -- taking ------------------------------------------------------------------------------------

    def pop(self, queue: str | None = None, connection: str | None = None, **options: Any) -> Job | None:
        """Take one job; see Queue.pop."""
        return self.connection(connection).pop(queue, **options)

    def recover(
        self, queues: str | Sequence[str] | None = None, connection: str | None = None, **options: Any
    ) -> list[Job]:
        """Take over jobs whose owner let the lease pass; see Queue.recover."""
        return self.connection(connection).recover(queues, **options)

    def complete(self, job: Job) -> None:
        """A job that `pop` gave is done."""
        self._home(job).complete(job)

    def fail(self, job: Job, error: BaseException) -> None:
        """A job that `pop` gave has failed."""
        self._home(job).fail(job, error)

    def extend(self, job: Job) -> None:
        """Begin the lease of a job that `pop` gave anew."""
        self._home(job).extend(job)

    # -- looking and keeping house, as Queue does, each on one connection --------------------------

    def size(self, queue: str | None = None, connection: str | None = None) -> int:
        """How many jobs are still to be done."""
        return self.connection(connection).size(queue)

    def sizes(self, queue: str | None = None, connection: str | None = None) -> QueueSize:
        """How many jobs there are in each state."""
        return self.connection(connection).sizes(queue)

    def queues(self, connection: str | None = None) -> list[str]:
        """The queues that were ever pushed to."""
        return self.connection(connection).queues()

    def workers(self, connection: str | None = None) -> list[WorkerInfo]:
        """The worker processes that are alive."""
        return self.connection(connection).workers()

    def stream_keys(self, queue: str | None = None, connection: str | None = None) -> list[str]:
        """The names of what holds the waiting jobs, in priority order."""
        return self.connection(connection).stream_keys(queue)

    def find(self, job_id: str, queue: str | None = None, connection: str | None = None) -> JobView | None:
        """Where a job is and what it carries."""
        return self.connection(connection).find(job_id, queue)

    def delayed(
        self, queue: str | None = None, connection: str | None = None, count: int = 100
    ) -> list[JobView]:
        """The delayed jobs that are due first."""
        return self.connection(connection).delayed(queue, count)

    def dead(self, queue: str | None = None, connection: str | None = None) -> DeadLetters:
        """The dead letters of a queue."""
        return self.connection(connection).dead(queue)

    def initialize(self, queues: str | Sequence[str] | None = None, connection: str | None = None) -> None:
        """Ask the server once, so that a wrong address shows now."""
        self.connection(connection).initialize(queues)

    def promote_due(self, queues: str | Sequence[str] | None = None, connection: str | None = None) -> int:
        """Make delayed jobs available whose time has come; how many."""
        return self.connection(connection).promote_due(queues)

    def drain(
        self,
        queues: str | Sequence[str] | None = None,
        connection: str | None = None,
        *,
        timeout: float | None = None,
    ) -> bool:
        """Wait until nothing is left to do; whether that came in time."""
        return self.connection(connection).drain(queues, timeout=timeout)

    def clear(self, queue: str | None = None, connection: str | None = None) -> int:
        """Forget every waiting and delayed job of a queue; how many."""
        return self.connection(connection).clear(queue)

    def pause(self, queue: str | None = None, connection: str | None = None) -> None:
        """Let nobody take jobs from the queue until `resume`."""
        self.connection(connection).pause(queue)

    def resume(self, queue: str | None = None, connection: str | None = None) -> None:
        """End a pause."""
        self.connection(connection).resume(queue)

    def cancel(self, job_id: str, queue: str | None = None, connection: str | None = None) -> bool:
        """Forget a job that waits or is delayed; whether there was one."""
        return self.connection(connection).cancel(job_id, queue)

    # -- working -----------------------------------------------------------------------------------

    def worker(
        self, queues: str | Sequence[str] = ("default",), connection: str | None = None, **options: Any
    ) -> Worker:
        """A worker for one connection, to be run in the background."""
        return self.connection(connection).worker(queues, **options)

    def work(
        self, queues: str | Sequence[str] = ("default",), connection: str | None = None, **options: Any
    ) -> None:
        """Run a worker for one connection in this process."""
        self.connection(connection).work(queues, **options)

    def stop(self) -> None:
        """End every `work` of this manager, on all its connections."""
        for queue in self._opened():
            queue.stop()

    # -- life --------------------------------------------------------------------------------------

    def flush(self, timeout: float = 30.0) -> bool:
        """Write every record of what happened before this call, on all connections; whether that was done."""
        deadline = time.monotonic() + seconds("timeout", timeout)
        done = [queue.flush(max(0.0, deadline - time.monotonic())) for queue in self._opened()]
        return all(done)

    def close(self) -> None:
        """Close every connection that was opened; none is opened after that."""
        with self._lock:
            opened, self._open = list(self._open.values()), {}
            self._closed = True
        for queue in opened:
            queue.close()

    def _opened(self) -> list[Queue]:
        with self._lock:
            return list(self._open.values())

    def _home(self, job: Job) -> Queue:
        reservation_of(job)
        home: Queue | None = job._home
        return self.connection() if home is None else home

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
