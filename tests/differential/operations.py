"""Operations as plain data: made by a random generator, applied to any broker, printable as a call.

An operation that speaks of an entry refers to it by its position among the entries known so far, because the
two brokers give it different ids; `IdRef` is that reference, resolved for each side when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from millstream import StreamBroker

STREAMS = ("s0", "s1", "s2")
GROUPS = ("g0", "g1")
CONSUMERS = ("c0", "c1", "c2")
NEVER = 10**9  # an idle time that nothing reaches
FUTURE = 99_999_999_999_999  # a millisecond after every clock: what follows it is the same on both sides


@dataclass(frozen=True)
class IdRef:
    """The ``back``-th newest known entry of a stream, or an id as text; ``prefix`` is ``(`` or nothing."""

    back: int | None = None
    text: str = ""
    prefix: str = ""

    def __repr__(self) -> str:
        return self.prefix + (self.text if self.back is None else f"<known {self.back}>")


@dataclass(frozen=True)
class Operation:
    name: str
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.args.items())})"


class Generator:
    """Draws operations from a source of randomness; the same draws give the same operations."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.number = 0

    def next(self) -> Operation:
        name = self.random.choices(_NAMES, _WEIGHTS)[0]
        args: dict[str, Any] = getattr(self, f"_{name}")()
        return Operation(name, args)

    # -- parts of operations -----------------------------------------------------------------------

    def _stream(self) -> str:
        return self.random.choices(STREAMS, (5, 3, 1))[0]

    def _group(self) -> str:
        return self.random.choices(GROUPS, (3, 2))[0]

    def _consumer(self) -> str:
        return self.random.choice(CONSUMERS)

    def _place(self) -> dict[str, Any]:
        return {"stream": self._stream(), "group": self._group()}

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _data(self) -> dict[str, Any]:
        self.number += 1
        return {"n": self.number}

    def _explicit(self) -> str:
        ms, seq = self.random.randrange(1, 30), self.random.randrange(4)
        return self.random.choice((f"{ms}-{seq}", f"{ms}-{seq}", f"{ms}", f"0{ms}-{seq}"))

    def _ref(self, *, prefixes: tuple[str, ...] = ("",)) -> IdRef:
        prefix = self.random.choice(prefixes)
        if self._chance(0.85):
            return IdRef(back=int(25 * self.random.random() ** 3), prefix=prefix)
        return IdRef(text=self._explicit(), prefix=prefix)

    def _refs(self) -> list[IdRef]:
        return [self._ref() for _ in range(self.random.choice((0, 1, 1, 2, 3, 5, 8)))]

    def _bound(self, end: str) -> IdRef:
        if self._chance(0.5):
            return IdRef(text=end)
        return self._ref(prefixes=("", "", "("))

    def _count(self, *, may_be_none: bool = True) -> int | None:
        choices: tuple[int | None, ...] = (1, 1, 2, 3, 5, 10)
        return self.random.choice((*choices, None, None) if may_be_none else choices)

    def _idle(self) -> int:
        return self.random.choice((0, 0, 0, NEVER))

    def _limits(self) -> dict[str, Any]:
        limits: dict[str, Any] = (
            {"maxlen": self.random.choice((0, 1, 2, 3, 5, 8))}
            if self._chance(0.6)
            else {"minid": self._ref()}
        )
        if self._chance(0.5):
            limits["plain"] = True
        return limits

    # -- operations --------------------------------------------------------------------------------

    def _xadd(self) -> dict[str, Any]:
        args: dict[str, Any] = {"stream": self._stream(), "data": self._data()}
        kind = self.random.random()
        if kind < 0.35:
            args["id"] = self._explicit()
        elif kind < 0.42:
            args["id"] = f"{self.random.randrange(30)}-*"
        elif kind < 0.45:
            args["id"] = f"{FUTURE}-{self.random.choice(('*', 0, 1, 5))}"
        if self._chance(0.15):
            args |= self._limits()
        if self._chance(0.05):
            args["key"] = f"k{self.random.randrange(3)}"
        if self._chance(0.05):
            args["type"] = self.random.choice(("order.placed", "order.paid"))
        if self._chance(0.05):
            args["headers"] = {"trace": str(self.number)}
        return args

    def _xadd_many(self) -> dict[str, Any]:
        return {"stream": self._stream(), "items": [self._data() for _ in range(self.random.randrange(6))]}

    def _create_group(self) -> dict[str, Any]:
        start = self.random.choice((IdRef(text="$"), IdRef(text="0"), IdRef(text="0"), self._ref()))
        return {**self._place(), "start_id": start}

    def _delete_group(self) -> dict[str, Any]:
        return self._place()

    def _delete_consumer(self) -> dict[str, Any]:
        return {**self._place(), "consumer": self._consumer(), "only_idle": self._chance(0.5)}

    def _xreadgroup(self) -> dict[str, Any]:
        args = {**self._place(), "consumer": self._consumer(), "count": self._count(may_be_none=False)}
        if self._chance(0.25):
            args["start"] = self.random.choice((IdRef(text="0"), IdRef(text="0"), self._ref()))
        return args

    def _xack(self) -> dict[str, Any]:
        return {**self._place(), "ids": self._ref() if self._chance(0.2) else self._refs()}

    def _xackdel(self) -> dict[str, Any]:
        return self._xack()

    def _xpending(self) -> dict[str, Any]:
        args = self._place()
        if self._chance(0.5):
            args["consumer"] = self._consumer()
        if self._chance(0.5):
            args |= {"start": self._bound("-"), "end": self._bound("+"), "count": self._count()}
        return {**args, "min_idle_ms": self._idle()}

    def _xclaim(self) -> dict[str, Any]:
        return {
            **self._place(),
            "consumer": self._consumer(),
            "min_idle_ms": self._idle(),
            "ids": self._refs(),
        }

    def _xautoclaim(self) -> dict[str, Any]:
        args = {**self._place(), "consumer": self._consumer(), "min_idle_ms": self._idle()}
        return {**args, "count": self._count(may_be_none=False)}

    def _xautoclaim_page(self) -> dict[str, Any]:
        start = IdRef(text="0-0") if self._chance(0.5) else self._ref()
        return {**self._xautoclaim(), "start": start}

    def _xrange(self) -> dict[str, Any]:
        bounds = {"start": self._bound("-"), "end": self._bound("+")}
        return {"stream": self._stream(), **bounds, "count": self._count()}

    def _xrevrange(self) -> dict[str, Any]:
        return self._xrange()

    def _xread(self) -> dict[str, Any]:
        streams = self.random.sample(STREAMS, self.random.randrange(1, 4))
        starts = (IdRef(text="0"), IdRef(text="$"), self._ref(), self._ref())
        return {"streams": {name: self.random.choice(starts) for name in streams}, "count": self._count()}

    def _xlen(self) -> dict[str, Any]:
        return {"stream": self._stream()}

    def _xtrim(self) -> dict[str, Any]:
        limits = self._limits()
        names = {"maxlen": "max_len", "minid": "min_id", "plain": "plain"}
        return {"stream": self._stream(), **{names[key]: value for key, value in limits.items()}}

    def _xdel(self) -> dict[str, Any]:
        return {"stream": self._stream(), "ids": self._refs()}

    def _delete_stream(self) -> dict[str, Any]:
        return {"stream": self._stream()}

    def _group_info(self) -> dict[str, Any]:
        return {"stream": self._stream()}


# How often each is drawn. Deletions are rare, so that states grow that are worth comparing.
_MIX = {
    "xadd": 22, "xadd_many": 6, "create_group": 5, "delete_group": 0.6, "delete_consumer": 1.5,
    "xreadgroup": 18, "xack": 6, "xackdel": 5, "xpending": 5, "xclaim": 6, "xautoclaim": 4,
    "xautoclaim_page": 4, "xrange": 3, "xrevrange": 3, "xread": 3, "xlen": 1, "xtrim": 3, "xdel": 4,
    "delete_stream": 0.4, "group_info": 3,
}  # fmt: skip
_NAMES, _WEIGHTS = tuple(_MIX), tuple(_MIX.values())
OPERATIONS = _NAMES


def apply(broker: StreamBroker, operation: Operation, resolve: Callable[[str, IdRef], str]) -> Any:
    """Make the call that the operation describes; ``resolve`` gives the id that a reference means here."""
    args = operation.args
    if operation.name == "xread":
        streams = {name: resolve(name, ref) for name, ref in args["streams"].items()}
        return broker.xread(streams, args["count"])
    stream = args["stream"]

    def plain(value: Any) -> Any:
        if isinstance(value, IdRef):
            return resolve(stream, value)
        if isinstance(value, list):
            return [plain(item) for item in value]
        return value

    return getattr(broker, operation.name)(**{key: plain(value) for key, value in args.items()})
