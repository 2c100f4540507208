"""Tasks that only have a name: ``queue.enqueue("email.send", {…})``, ``@queue.handler("email.send")``."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from millstream.envelope import Codec
from millstream.errors import ConfigurationError, InvalidPayload
from millstream.fields import Schema
from millstream.job import Job, class_for
from millstream.registry import JobType, Registry


class TaskType(JobType):
    """The type of a task: its payload is the data itself, checked against the handler's annotation."""

    has_fields = False

    def read(self, payload: msgspec.Raw, codec: Codec) -> dict[str, Any]:
        """The data, of the type that the handler asks for. Raises InvalidPayload."""
        return {"data": self.check(payload, codec)}

    def _payload_type(self) -> Any:
        return self.cls._data_type if issubclass(self.cls, Task) else dict[str, Any]

    def fields_of(self, job: Job) -> dict[str, Any]:
        """The data."""
        data: dict[str, Any] = job.__dict__["data"]
        return data

    def encode_data(self, data: dict[str, Any], codec: Codec) -> msgspec.Raw:
        """The payload of ``data``, checked. Raises InvalidPayload."""
        return self.encode(data, codec)

    def _upcast_line(self, version: int) -> str:
        return f"@queue.upcast({self.name!r}, {version})"


class Task(Job):
    """A task as its handler sees it: the second parameter, where it has one."""

    __hash__ = None
    _type_class = TaskType
    _data_type: ClassVar[Any] = dict[str, Any]

    def __repr__(self) -> str:
        return f"<task {self._type.name} {self.__dict__.get('data')!r}>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__


def register_handler(
    name: str,
    function: Callable[..., Any],
    options: dict[str, Any],
    registry: Registry,
    scope: Mapping[str, Any],
) -> JobType:
    """Let ``function`` handle the tasks called ``name``.

    It is given their data as a mapping (or as what its first parameter is annotated with, such as a Struct)
    and, if it has a second parameter, the job: its id, attempt and delivery count. ``scope`` is where the
    function is written, for the names in its annotations.
    """
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not 1 <= len(positional) <= 2 or len(positional) != len(parameters):
        raise ConfigurationError(
            f"the handler of {name!r} must take the data, and may take the job as a second parameter; "
            f"{function.__qualname__}{inspect.signature(function)} does not"
        )
    handle = _handle(function, with_job=len(positional) == 2)
    kind = _data_type(name, function, positional[0].annotation, scope)
    base = type("_Task", (Task,), {"_data_type": kind})
    cls = class_for(base, function, handle, Schema(name, (), ()), {**options, "name": name}, registry)
    return cls._type


def _handle(function: Callable[..., Any], *, with_job: bool) -> Callable[[Any], Any]:
    if inspect.iscoroutinefunction(function):

        async def handle_async(self: Job) -> Any:
            data = self.__dict__["data"]
            return await (function(data, self) if with_job else function(data))

        return handle_async

    def handle(self: Job) -> Any:
        data = self.__dict__["data"]
        return function(data, self) if with_job else function(data)

    return handle


def _data_type(name: str, function: Callable[..., Any], annotation: Any, scope: Mapping[str, Any]) -> Any:
    """What the data are to be: the annotation, where it says something narrower than a mapping."""
    try:
        if isinstance(annotation, str):
            holder = type("_", (), {"__annotations__": {"data": annotation}})
            scope = {**getattr(function, "__globals__", {}), **scope}
            annotation = typing.get_type_hints(holder, scope, {}, include_extras=True)["data"]
        if annotation in (inspect.Parameter.empty, Any, dict, object):
            return dict[str, Any]
        msgspec.json.Decoder(annotation)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"the handler of {name!r}: its data cannot be {annotation!r} ({error}); "
            "use dict, or a type that msgspec can read"
        ) from error
    return annotation


def check_data(type_name: str, data: object) -> dict[str, Any]:
    """The data of a task as a dict with text keys. Raises InvalidPayload."""
    try:
        mapping = dict(data)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise InvalidPayload(
            type_name, f"the data must be a mapping such as {{'to': 'x'}}, not {data!r}"
        ) from None
    for key in mapping:
        if not isinstance(key, str):
            raise InvalidPayload(type_name, f"the key {key!r} is not a text")
    return typing.cast("dict[str, Any]", mapping)
