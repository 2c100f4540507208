"""Jobs: classes with typed fields, functions as jobs, and handlers of tasks that only have a name."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar, dataclass_transform, overload

import msgspec

from millstream.drivers.base import Reservation
from millstream.envelope import Envelope
from millstream.errors import ConfigurationError, InvalidInput
from millstream.fields import Schema, class_fields, function_fields
from millstream.options import (
    DEFAULTS,
    OPTION_NAMES,
    TYPE_OPTIONS,
    JobOptions,
    Seconds,
    UniqueKey,
    delay_or_time,
    merge,
)
from millstream.registry import JobType, Registry, Upcaster, default_registry

P = ParamSpec("P")
R = TypeVar("R")
_asdict = msgspec.structs.asdict


@dataclass_transform(field_specifiers=(msgspec.field,))
class Job:
    """Work to be done later: subclass it, annotate its fields, and write ``handle``.

        class SendWelcomeEmail(Job, queue="emails", max_attempts=5, timeout=30):
            user_id: int

            async def handle(self) -> None: ...

    Fields are checked when the job is pushed and again when a worker receives it. A subclass with a
    ``handle`` is registered under its name: ``module.Class``, or what ``name=`` says. In a program's main
    module, where Python knows no module name, it is the file's name without its ending, so that
    ``python app.py`` and a worker that imports ``app`` mean the same type. Options (`JobOptions`) are
    inherited, except ``name``, ``version`` and ``cron``.
    """

    __hash__ = None  # type: ignore[assignment]  # compared by value, and its fields may change

    _type: ClassVar[JobType]
    _type_class: ClassVar[type[JobType]] = JobType
    # What most jobs never have is kept on the class, so that making one costs little.
    _options: JobOptions | None = None  # None: those of the type
    _delay: float | datetime | None = None
    _id: str | None = None
    _ticket: str | None = None  # the id of a push that has not succeeded yet: repeating it adds no second job
    _envelope: Envelope | None = None
    _reservation: Reservation | None = None
    _home: Any = None  # the Queue that handed it out

    def __init_subclass__(
        cls, _schema: Schema | None = None, _registry: Registry = default_registry, **options: Any
    ) -> None:
        super().__init_subclass__()
        if "__init__" in cls.__dict__:
            raise ConfigurationError(
                f"{cls.__qualname__}: a job has no __init__ of its own, because a worker builds it from its "
                "fields alone; annotate the fields in the class, and prepare the rest in handle()"
            )
        if _schema is None:
            scope = sys._getframe(1).f_locals  # where the class is written: its fields may name local types
            fields, namespaces = class_fields(cls, Job, _reserved(), scope)
            _schema = Schema(cls.__qualname__, fields, namespaces)
        cls._type = _job_type(cls, _schema, options)
        # A class without a handle is a common base, or what a producer knows of another program's job.
        if cls.handle is not Job.handle:
            _registry.register(cls._type)

    def __init__(self, *args: Any, **fields: Any) -> None:
        try:
            schema = self._type.schema
            # All by name and in their order, as most jobs are made: they need no putting in order.
            given = not args and tuple(fields) == schema.names
            self.__dict__ = fields if given else _asdict(schema.struct(*args, **fields))
        except AttributeError:
            if type(self) is Job:
                raise TypeError("Job is a base class: subclass it and write handle()") from None
            raise
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None

    # -- what a job does ---------------------------------------------------------------------------

    def handle(self) -> Any:
        """Do the work. May be ``async def``. Returning is success; an exception is a failed attempt."""
        raise NotImplementedError(f"{type(self).__qualname__} has no handle()")

    def failed(self, error: Exception) -> Any:
        """Called once the job has failed for good, with the last error. May be ``async def``."""

    # -- what a delivered job knows ----------------------------------------------------------------

    def attach(self, envelope: Envelope, reservation: Reservation) -> None:
        """Tell the job which delivery it is."""
        self._envelope, self._reservation = envelope, reservation

    @property
    def id(self) -> str | None:
        """The job's id: of the delivery it came with, or of its last push; None before that."""
        return self._id if self._envelope is None else self._envelope.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return 1 if self._envelope is None else self._envelope.attempt

    @property
    def stream_id(self) -> str | None:
        """Where the driver keeps it: the id of its entry in the stream; None for one not delivered."""
        return None if self._reservation is None else self._reservation.entry_id

    @property
    def delivery_count(self) -> int:
        """How often this attempt was handed out: more than 1 where an earlier worker was lost."""
        return 0 if self._reservation is None else self._reservation.delivery_count

    @property
    def envelope(self) -> Envelope | None:
        """What the job travelled in; None for one not delivered."""
        return self._envelope

    @property
    def reservation(self) -> Reservation | None:
        """The lease under which the job runs; None for one not delivered."""
        return self._reservation

    @property
    def options(self) -> JobOptions:
        """The options of the class, with the changes made to this job."""
        return self._options or self._type.options

    # -- what can be said about one job ------------------------------------------------------------

    def on_queue(self, queue: str) -> Self:
        """Push it to this queue."""
        return self._with(queue=queue)

    def on_connection(self, connection: str) -> Self:
        """Push it over this connection of the QueueManager."""
        return self._with(connection=connection)

    def with_priority(self, priority: str) -> Self:
        """critical, high, default or low (urgent and normal are accepted for the first and the third)."""
        return self._with(priority=priority)

    def delay(self, when: Seconds | datetime) -> Self:
        """Do not start it before so many seconds after the push (or a timedelta), or before a moment."""
        self._delay = delay_or_time(when)
        return self

    def backoff(self, seconds: Seconds, multiplier: float = 2.0) -> Self:
        """Wait so long before the second attempt, and ``multiplier`` times longer before each further one."""
        return self._with(backoff=seconds, multiplier=multiplier)

    def unique_for(self, seconds: Seconds, key: UniqueKey | list[str] | None = None) -> Self:
        """Let a push add nothing while another job of this type and key was pushed in the last ``seconds``.

        0 means until that job is gone. ``key`` is a text, a list of fields or a function of the job; without
        it, it is what the class says, or all fields together.
        """
        return (
            self._with(unique_for=seconds) if key is None else self._with(unique_for=seconds, unique_key=key)
        )

    def timeout(self, seconds: Seconds | None) -> Self:
        """Give one attempt so much time; None for no limit."""
        return self._with(timeout=seconds)

    def expires_in(self, seconds: Seconds | None) -> Self:
        """Bury it instead of starting it, so long after it became due."""
        return self._with(expires_in=seconds)

    def tags(self, *names: str) -> Self:
        """Mark it, for those who look at queues and history."""
        return self._with(tags=names)

    def _with(self, **changes: Any) -> Self:
        self._options = merge(type(self).__name__, self.options, changes)
        return self

    # -- the type ----------------------------------------------------------------------------------

    @classmethod
    def upcast(cls, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Decorates a function that takes the fields of an older version and returns those of the next."""
        return upcast_from(cls._type, from_version)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={self.__dict__.get(name)!r}" for name in self._type.schema.names)
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = self._type.schema.names
        return all(self.__dict__.get(name) == other.__dict__.get(name) for name in names)


@functools.cache
def _reserved() -> frozenset[str]:
    """The names that a field cannot have: options, and whatever a job has already.

    What is said of a class alone, never of one job, such as ``name``: a field of that name does no harm.
    """
    options = frozenset(OPTION_NAMES) - frozenset(TYPE_OPTIONS)
    return options | {name for name in dir(Job) if not name.startswith("__")}


def _job_type(cls: type[Job], schema: Schema, options: dict[str, Any]) -> JobType:
    """What is known of ``cls``: the fields, the options and the name."""
    inherited: JobType | None = getattr(cls, "_type", None)
    base = DEFAULTS if inherited is None else _inherited(inherited.options)
    merged = merge(cls.__qualname__, base, options)
    origin = _origin(cls)
    if isinstance(merged.unique_key, tuple) and cls._type_class.has_fields:
        for name in merged.unique_key:
            if name not in schema.names:
                raise ConfigurationError(f"{cls.__qualname__}: unique_key names {name!r}, which is no field")
    return cls._type_class(merged.name or origin, cls, merged, schema, origin)


def _inherited(options: JobOptions) -> JobOptions:
    return msgspec.structs.replace(options, **{name: getattr(DEFAULTS, name) for name in TYPE_OPTIONS})


def _origin(cls: type) -> str:
    """The class's module and name, the same whether its file was run or imported."""
    name = cls.__qualname__.replace("<locals>.", "")
    module = cls.__module__
    if module not in ("__main__", "__mp_main__"):
        return f"{module}.{name}"
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return f"{spec.name.removesuffix('.__main__')}.{name}"
    file = getattr(main, "__file__", None)
    return f"{Path(file).stem}.{name}" if file else name  # an interactive session has no file


def upcast_from(job_type: JobType, from_version: int) -> Callable[[Upcaster], Upcaster]:
    """Decorates a function that takes the fields of ``from_version`` and returns those of the next."""
    newest = job_type.options.version
    if not 1 <= from_version < newest:
        raise InvalidInput(
            f"{job_type.name} has version {newest}, so an upcaster from version {from_version} would never "
            f"be used; raise version= to {from_version + 1} first"
        )

    def keep(upcaster: Upcaster) -> Upcaster:
        job_type.upcasters[from_version] = upcaster
        return upcaster

    return keep


class JobFunction(Generic[P, R]):
    """A function as a job: calling it makes a job to push, ``run`` calls the function itself."""

    __wrapped__: Callable[P, R]

    def __init__(
        self, function: Callable[P, R], options: dict[str, Any], scope: Mapping[str, Any] | None = None
    ) -> None:
        """``scope`` is where the function is written: its annotations may name local types."""
        if not inspect.isfunction(function):
            raise ConfigurationError(f"@job needs a function, not {function!r}")
        namespaces = (function.__globals__, scope or {})
        schema = Schema(function.__qualname__, function_fields(function), namespaces)
        self.job_class = class_for(Job, function, _calling(function), schema, options)
        functools.update_wrapper(self, function)  # sets __wrapped__ too

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        return self.job_class(*args, **kwargs)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        result: R = self.__wrapped__(*args, **kwargs)
        return result

    def upcast(self, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """As Job.upcast."""
        return upcast_from(self.job_class._type, from_version)

    def __repr__(self) -> str:
        return f"<job {self.job_class._type.name}>"


@overload
def job(function: Callable[P, R], /) -> JobFunction[P, R]: ...
@overload
def job(**options: Any) -> Callable[[Callable[P, R]], JobFunction[P, R]]: ...
def job(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Make a function a job: its parameters are the fields, ``options`` those of a class (``queue`` …)."""
    if function is not None:
        return JobFunction(function, options, sys._getframe(1).f_locals)
    return lambda decorated: JobFunction(decorated, options, sys._getframe(1).f_locals)


class _Kept:
    """A method of a job that has a field of the same name, as a function's parameter may have."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, job: Job | None, owner: type[Job]) -> Any:
        return self._method if job is None else types.MethodType(self._method, job)

    def __set__(self, job: Job, value: object) -> None:
        """That there is one is what lets the method come before the field."""
        raise AttributeError("a job's methods cannot be replaced")


def class_for(
    base: type[Job],
    function: Callable[..., Any],
    handle: Callable[[Any], Any],
    schema: Schema,
    options: dict[str, Any],
    registry: Registry = default_registry,
) -> type[Job]:
    """A subclass of ``base`` that stands for ``function``: its name and text, and ``handle`` to call it."""
    names: dict[str, Any] = {
        "handle": handle,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    for name in schema.names:
        if inspect.isfunction(method := names.get(name) or getattr(base, name, None)):
            names[name] = _Kept(method)
    keywords = {"_schema": schema, "_registry": registry, **options}
    return types.new_class(function.__name__, (base,), keywords, lambda namespace: namespace.update(names))


def _calling(function: Callable[..., Any]) -> Callable[[Job], Any]:
    """A handle() that calls ``function`` with the job's fields.

    They are taken from where they are kept, not as attributes: a parameter may be called ``id`` or ``delay``.
    """
    if inspect.iscoroutinefunction(function):

        async def handle_async(self: Job) -> Any:
            return await function(**self._type.fields_of(self))

        return handle_async

    def handle(self: Job) -> Any:
        return function(**self._type.fields_of(self))

    return handle
