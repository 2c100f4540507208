"""From a class's annotations, or a function's signature, to the schema of a job's fields."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, get_origin

import msgspec

from millstream.errors import ConfigurationError

_NONE = inspect.Parameter.empty  # for "has no default", as None is one


class Field(msgspec.Struct, frozen=True):
    """One field as it was declared; its type may still be text."""

    name: str
    type: Any
    default: Any = _NONE  # a value, or what msgspec.field() or dataclasses.field() gave
    kw_only: bool = False


class Schema:
    """The fields of one job type: a generated Struct that checks them, and decoders for what arrives.

    Annotations are resolved when they are first needed, because a class may name one that is defined
    further down in its module.
    """

    def __init__(self, owner: str, fields: Iterable[Field], namespaces: Iterable[Mapping[str, Any]]) -> None:
        self.owner = owner
        self.fields = tuple(fields)
        self.names = tuple(field.name for field in self.fields)
        self._namespaces = tuple(namespaces)
        with contextlib.suppress(NameError):  # a forward reference: looked up again at the first use
            self.struct = self._generate()

    @functools.cached_property
    def struct(self) -> type[msgspec.Struct]:
        """The Struct of the job's fields. Raises ConfigurationError where an annotation means nothing."""
        try:
            return self._generate()
        except NameError as error:
            raise ConfigurationError(f"{self.owner}: an annotation cannot be resolved: {error}") from error

    @functools.cached_property
    def takes_null_for_nan(self) -> bool:
        """Whether a field accepts the null that JSON makes of a NaN or an infinity."""
        return _takes_null_for_float(msgspec.inspect.type_info(self.struct), set())

    def _generate(self) -> type[msgspec.Struct]:
        scope: dict[str, Any] = {}
        for namespace in self._namespaces:
            scope.update(namespace)
        required_after: str | None = None
        for field in self.fields:
            if field.kw_only:
                continue
            if field.default is not _NONE:
                required_after = field.name
            elif required_after is not None:
                raise ConfigurationError(
                    f"{self.owner}: the field {field.name!r} has no default, but comes after "
                    f"{required_after!r}, which has one; give it a default, or move it up"
                )
        keyword = [_definition(field, scope) for field in self.fields if field.kw_only]
        positional = [_definition(field, scope) for field in self.fields if not field.kw_only]
        try:
            bases = (msgspec.defstruct("Keywords", keyword, kw_only=True),) if keyword else None
            struct = msgspec.defstruct(self.owner.rpartition(".")[2], positional, bases=bases)
            msgspec.json.Decoder(struct)  # so that a type msgspec cannot read shows now
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{self.owner}: {error}") from error
        self._namespaces = ()  # they may hold much that nobody else needs any more
        return struct


def class_fields(
    cls: type, base: type, reserved: Iterable[str], scope: Mapping[str, Any]
) -> tuple[list[Field], list[Mapping[str, Any]]]:
    """The fields that ``cls`` declares and inherits, and where their annotations are to be looked up."""
    found: dict[str, Field] = {}
    namespaces: list[Mapping[str, Any]] = []
    taken = frozenset(reserved)
    for klass in reversed(cls.__mro__):
        if not issubclass(klass, base) or klass is base:
            continue
        namespaces.append(vars(sys.modules[klass.__module__]) if klass.__module__ in sys.modules else {})
        for name, kind in inspect.get_annotations(klass).items():
            if _is_class_variable(kind):
                continue
            if name in taken:
                raise ConfigurationError(
                    f"{cls.__qualname__}: a field cannot be called {name!r}, because a job has an option or "
                    f"a method of that name; use another, such as {name + '_'!r}"
                )
            found[name] = Field(name, kind, klass.__dict__.get(name, _NONE))
    namespaces.append(scope)
    return list(found.values()), namespaces


def function_fields(function: Callable[..., Any]) -> list[Field]:
    """The parameters of ``function``. Raises ConfigurationError for one that could not be sent by name."""
    fields = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"{function.__qualname__}: the parameter {str(parameter)!r} cannot be one of a job; "
                "every parameter needs a name that it can be sent by"
            )
        if name.startswith("_"):
            raise ConfigurationError(
                f"{function.__qualname__}: a job's parameter cannot begin with _: {name!r}"
            )
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        fields.append(Field(name, kind, parameter.default, parameter.kind == parameter.KEYWORD_ONLY))
    return fields


def _definition(field: Field, scope: dict[str, Any]) -> tuple[str, Any] | tuple[str, Any, Any]:
    kind = field.type
    if isinstance(kind, str) or _holds_text(kind):
        holder = type("_", (), {"__annotations__": {field.name: kind}})
        kind = typing.get_type_hints(holder, scope, {}, include_extras=True)[field.name]
    if field.default is _NONE:
        return field.name, kind
    default = field.default
    if isinstance(default, dataclasses.Field):
        if default.default_factory is not dataclasses.MISSING:
            default = msgspec.field(default_factory=default.default_factory)
        elif default.default is not dataclasses.MISSING:
            default = default.default
        else:
            return field.name, kind
    return field.name, kind, default


def _is_class_variable(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind.replace(" ", "").startswith(("ClassVar", "typing.ClassVar", "t.ClassVar"))
    return kind is ClassVar or get_origin(kind) is ClassVar


def _holds_text(kind: Any) -> bool:
    """Whether an annotation such as ``list["Later"]`` has a part that is still text."""
    return isinstance(kind, typing.ForwardRef) or any(
        isinstance(part, str) or _holds_text(part) for part in typing.get_args(kind) if part is not kind
    )


def _takes_null_for_float(kind: Any, seen: set[int]) -> bool:
    """Whether ``kind``, as msgspec describes a type, has a place for any value, or for a float or None."""
    if isinstance(kind, (msgspec.inspect.AnyType, msgspec.inspect.CustomType)):
        return True
    if isinstance(kind, msgspec.inspect.UnionType):
        kinds = {type(part) for part in kind.types}
        if kinds >= {msgspec.inspect.FloatType, msgspec.inspect.NoneType}:
            return True
    if id(kind) in seen:  # a type that holds itself
        return False
    seen.add(id(kind))
    parts = kind if isinstance(kind, tuple) else [getattr(kind, name) for name in kind.__struct_fields__]
    inner = (part for part in parts if isinstance(part, (tuple, msgspec.inspect.Type, msgspec.inspect.Field)))
    return any(_takes_null_for_float(part, seen) for part in inner)
