"""Jobs: fields, options, fluent overrides, functions, names, versions."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import subprocess
import sys
import textwrap
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar
from uuid import UUID

import msgspec
import pytest

from millstream import Job, Registry, connect, job
from millstream.drivers.base import Reservation
from millstream.envelope import Codec, Envelope, JsonCodec, MsgpackCodec
from millstream.errors import ConfigurationError, InvalidInput, InvalidName, InvalidPayload, UnknownJobType
from millstream.registry import JobType, decode_payload, default_registry

CODECS = [JsonCodec(), MsgpackCodec()]


class Address(msgspec.Struct):
    street: str
    number: int


@dataclasses.dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


class Colour(Enum):
    RED = "red"


class Rich(Job):
    text: str
    when: datetime
    day: date
    key: UUID
    home: Address
    price: Money
    colour: Colour
    data: bytes
    maybe: int | None = None
    many: list[Address] = []  # noqa: RUF012 - an empty default is copied for each job
    name: str = "n"
    LIMIT: ClassVar[int] = 3

    def handle(self) -> None: ...


class Simple(Job, queue="emails", max_attempts=5, timeout=30):
    user_id: int
    note: str = ""

    def handle(self) -> str:
        return f"{self.user_id} {self.note}"


def type_of(cls: type[Job]) -> JobType:
    return cls._type


def envelope_of(pushed: Job, codec: Codec, **changes: Any) -> Envelope:
    kind = type_of(type(pushed))
    payload = kind.encode(kind.fields_of(pushed), codec)
    return Envelope(
        **{"id": "1", "type": kind.name, "payload": payload, "version": kind.options.version} | changes
    )


def build(pushed: Job, codec: Codec, **changes: Any) -> Job:
    return type_of(type(pushed)).build(envelope_of(pushed, codec, **changes), codec)


# -- fields ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_every_kind_of_field_comes_back_as_it_was(codec: Codec) -> None:
    pushed = Rich(
        text="ä",
        when=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        day=date(2026, 1, 2),
        key=UUID(int=7),
        home=Address("Hill", 3),
        price=Money(Decimal("1.10")),
        colour=Colour.RED,
        data=b"\x00\xff",
        many=[Address("a", 1), Address("b", 2)],
    )
    built = build(pushed, codec)
    assert built == pushed
    assert isinstance(built, Rich)
    assert built.home.number == 3
    assert built.price.amount == Decimal("1.10")
    assert built.maybe is None


def test_positional_and_keyword_construction_and_defaults() -> None:
    assert Simple(7) == Simple(user_id=7, note="")
    assert Simple(7, "x") == Simple(note="x", user_id=7)
    assert Simple(7) != Simple(8)
    assert Simple(7) != object()
    assert repr(Simple(7, "x")) == "Simple(user_id=7, note='x')"


def test_a_job_cannot_be_a_key_because_its_fields_may_change() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        {Simple(1)}


@pytest.mark.parametrize(
    ("args", "fields", "words"),
    [((), {}, "user_id"), ((), {"user_id": 1, "nope": 2}, "nope"), ((1, "a", 3), {}, "positional")],
)
def test_wrong_arguments_are_a_type_error_that_names_the_class(args: Any, fields: Any, words: str) -> None:
    with pytest.raises(TypeError, match=rf"Simple: .*{words}"):
        Simple(*args, **fields)


def test_the_base_class_itself_is_no_job() -> None:
    with pytest.raises(TypeError, match="base class"):
        Job()


def test_each_job_has_its_own_copy_of_an_empty_default() -> None:
    class Copies(Job):
        many: list[int] = []  # noqa: RUF012

    first, second = Copies(), Copies()
    first.many.append(1)
    assert second.many == []


def test_default_factories_of_msgspec_and_dataclasses() -> None:
    class Factories(Job):
        one: list[int] = msgspec.field(default_factory=lambda: [1])
        two: list[int] = dataclasses.field(default_factory=lambda: [2])

    assert Factories().one == [1]
    assert Factories().two == [2]


def test_fields_and_options_are_inherited_but_not_name_and_version() -> None:
    class Base(Job, queue="base", max_attempts=9, version=4, name="the.base"):
        first: int

    class Child(Base, priority="high"):
        second: int = 2

    assert Child(1) == Child(first=1, second=2)
    options = type_of(Child).options
    assert (options.queue, options.max_attempts, options.priority) == ("base", 9, "high")
    assert (options.version, type_of(Child).name) != (4, "the.base")
    assert type_of(Child).name.endswith("Child")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"user_id": "seven"}, "user_id: Expected `int`, got `str`"),
        ({"user_id": None}, "user_id: Expected `int`"),
        ({"user_id": 7, "note": 3}, "note: Expected `str`"),
        ({"user_id": object()}, "user_id: Encoding objects of type object is unsupported"),
        ({"user_id": 7, "note": "\ud800"}, "note: "),
    ],
)
def test_invalid_fields_are_refused_when_pushed_and_named(fields: Any, words: str) -> None:
    with connect("memory://") as queue, pytest.raises(InvalidPayload) as caught:
        queue.push(Simple(**fields))
    assert words in str(caught.value)
    assert "test_job.Simple" in str(caught.value)


def test_constraints_and_nested_fields_are_named_by_their_path() -> None:
    class Constrained(Job):
        amount: Annotated[int, msgspec.Meta(ge=1)]
        homes: list[Address]

    with connect("memory://") as queue:
        with pytest.raises(InvalidPayload, match="amount"):
            queue.push(Constrained(0, []))
        with pytest.raises(InvalidPayload, match=r"homes\[0\]\.number"):
            queue.push(Constrained(1, [{"street": "x", "number": "y"}]))  # type: ignore[list-item]


def test_invalid_fields_are_refused_when_received() -> None:
    codec = JsonCodec()
    bad = envelope_of(Simple(1), codec, payload=msgspec.Raw(b'{"user_id":"x"}'))
    with pytest.raises(InvalidPayload, match="user_id"):
        type_of(Simple).build(bad, codec)
    broken = envelope_of(Simple(1), codec, payload=msgspec.Raw(b"[1]"))
    with pytest.raises(InvalidPayload):
        type_of(Simple).build(broken, codec)


def test_a_field_that_only_a_newer_producer_knows_is_passed_over() -> None:
    codec = JsonCodec()
    newer = envelope_of(Simple(1), codec, payload=msgspec.Raw(b'{"user_id":1,"added_later":true}'))
    assert type_of(Simple).build(newer, codec) == Simple(1)


def test_what_a_handler_puts_beside_the_fields_does_not_travel() -> None:
    held = Simple(1)
    held.cache = object()  # type: ignore[attr-defined]
    assert type_of(Simple).fields_of(held) == {"user_id": 1, "note": ""}


def test_a_forward_reference_is_resolved_at_the_first_use() -> None:
    class Early(Job):
        later: Later

    class Later(msgspec.Struct):
        x: int

    globals()["Later"] = Later
    try:
        assert build(Early(Later(1)), JsonCodec()) == Early(Later(1))
    finally:
        del globals()["Later"]


def test_an_annotation_that_means_nothing_is_said_at_the_first_use() -> None:
    class Lost(Job):
        field: NoSuchType  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match=r"Lost.*NoSuchType"):
        Lost(1)


# -- mistakes in a class ---------------------------------------------------------------------------


def test_an_unknown_class_option_is_an_error_that_knows_what_was_meant() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Wrong: unknown job option 'queu' \(did you mean 'queue'\?\)"
    ):

        class Wrong(Job, queu="x"):
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": "asap"}, "'asap' is not a priority; use one of critical, high"),
        ({"max_attempts": 0}, "max_attempts must be a whole number"),
        ({"max_attempts": True}, "max_attempts"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": "30"}, "timeout must be seconds"),
        ({"backoff": -1}, "backoff must be at least 0"),
        ({"multiplier": 0.5}, "multiplier must be a number at least 1"),
        ({"jitter": 2}, "jitter must be a number from 0 to 1"),
        ({"jitter": float("nan")}, "jitter"),
        ({"max_backoff": float("inf")}, "max_backoff"),
        ({"unique_for": -1}, "unique_for"),
        ({"unique_key": 3}, "unique_key must be a function"),
        ({"expires_in": 0}, "expires_in"),
        ({"version": 0}, "version"),
        ({"tags": ["a\n"]}, "tag"),
        ({"queue": ""}, "queue"),
        ({"queue": "a{b}"}, "brace"),
        ({"queue": 7}, "must be a text"),
    ],
)
def test_a_wrong_value_of_an_option_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")):
        type("Wrong", (Job,), {}, **options)


@pytest.mark.parametrize(
    "field", ["queue", "delay", "timeout", "tags", "backoff", "id", "handle", "options", "attempt"]
)
def test_a_field_cannot_have_the_name_of_a_method_or_an_option(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a field cannot be called {field!r}"):
        type("Wrong", (Job,), {"__annotations__": {field: int}})


def test_a_job_class_has_no_init() -> None:
    with pytest.raises(ConfigurationError, match="no __init__ of its own"):

        class Wrong(Job):
            def __init__(self) -> None: ...


def test_a_field_without_default_after_one_with_is_explained() -> None:
    with pytest.raises(ConfigurationError, match="'second' has no default, but comes after 'first'"):

        class Wrong(Job):
            first: int = 1
            second: int


def test_unique_key_must_name_fields() -> None:
    with pytest.raises(ConfigurationError, match="unique_key names 'nope'"):

        class Wrong(Job, unique_key=["nope"]):
            x: int


def test_a_type_that_cannot_be_read_back_is_refused_with_the_class() -> None:
    with pytest.raises(ConfigurationError, match="Wrong"):

        class Wrong(Job):
            x: dict[str, int] | Address


# -- names and the registry ------------------------------------------------------------------------


def test_the_name_is_that_of_the_module_and_the_class() -> None:
    assert type_of(Simple).name == "tests.unit.test_job.Simple"
    assert default_registry.resolve("tests.unit.test_job.Simple").cls is Simple


def test_an_unknown_type_says_what_is_known() -> None:
    registry = Registry()
    registry.register(type_of(Simple))
    with pytest.raises(UnknownJobType, match=r"no job type 'nope' is registered; known here: tests\.unit"):
        registry.resolve("nope")


def test_two_classes_of_one_name_are_refused_but_a_re_import_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice_app.py").write_text(
        "from millstream import Job\nclass Twice(Job):\n    x: int\n    def handle(self): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("twice_app")
    again = importlib.reload(module)
    assert default_registry.resolve("twice_app.Twice").cls is again.Twice
    with pytest.raises(ConfigurationError, match=r"two job types are called 'twice_app\.Twice'"):

        class Other(Job, name="twice_app.Twice"):
            def handle(self) -> None: ...


def test_a_class_without_handle_is_not_registered() -> None:
    class Declared(Job, name="declared.only"):
        x: int

    assert "declared.only" not in default_registry


@pytest.mark.parametrize("how", ["script", "module"])
def test_a_program_and_an_import_of_it_mean_the_same_type(tmp_path: Path, how: str) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    code = textwrap.dedent("""
        from millstream import Job
        class Buy(Job):
            def handle(self): pass
        print(Buy._type.name)
    """)
    (tmp_path / "app.py").write_text(code)
    (tmp_path / "shop" / "jobs.py").write_text(code)
    command = ["app.py"] if how == "script" else ["-m", "shop.jobs"]
    run = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ("app.Buy" if how == "script" else "shop.jobs.Buy")


# -- fluent ----------------------------------------------------------------------------------------


def test_fluent_overrides_return_the_job_and_leave_the_class_alone() -> None:
    changed = (
        Simple(1)
        .on_queue("other")
        .on_connection("second")
        .with_priority("urgent")
        .delay(timedelta(minutes=1))
        .backoff(2, multiplier=3)
        .unique_for(60, key="k")
        .timeout(None)
        .expires_in(90)
        .tags("a", "b")
    )
    assert isinstance(changed, Simple)
    options = changed.options
    assert (options.queue, options.connection, options.priority) == ("other", "second", "critical")
    assert (options.backoff, options.multiplier) == (2.0, 3.0)
    assert (options.unique_for, options.unique_key) == (60.0, "k")
    assert (options.timeout, options.expires_in, options.tags) == (None, 90.0, ("a", "b"))
    assert changed._delay == 60.0
    assert Simple(1).options is type_of(Simple).options
    assert type_of(Simple).options.queue == "emails"


def test_overrides_survive_each_other() -> None:
    assert Simple(1).on_queue("x").with_priority("low").options.queue == "x"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda made: made.delay(-1), "delay must be at least 0 seconds, not -1"),
        (lambda made: made.delay(timedelta(seconds=-5)), "delay must be at least 0"),
        (lambda made: made.delay("soon"), "delay must be seconds"),
        (lambda made: made.delay(datetime(2026, 1, 1)), "no time zone"),
        (lambda made: made.with_priority("asap"), "not a priority"),
        (lambda made: made.with_priority(1), "not a priority"),
        (lambda made: made.backoff(-1), "backoff"),
        (lambda made: made.timeout(-1), "timeout"),
        (lambda made: made.on_queue("a}"), "brace"),
    ],
)
def test_a_wrong_override_is_refused(change: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        change(Simple(1))


def test_a_moment_that_has_passed_is_no_error() -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    with connect("memory://") as queue:
        queue.push(Simple(1).delay(past))
        assert queue.pop("emails") == Simple(1)


# -- what a delivered job knows --------------------------------------------------------------------


def test_a_job_knows_its_delivery_only_after_it_was_attached() -> None:
    made = Simple(1)
    assert (made.id, made.attempt, made.stream_id, made.delivery_count, made.envelope) == (
        None,
        1,
        None,
        0,
        None,
    )
    reservation = Reservation("j", "emails", "default", "5-0", b"", "me", 2)
    made.attach(Envelope(id="j", type="x", attempt=3), reservation)
    assert (made.id, made.attempt, made.stream_id, made.delivery_count) == ("j", 3, "5-0", 2)


# -- functions -------------------------------------------------------------------------------------


@job(queue="reports", max_attempts=2)
def build_report(day: str, *, full: bool = False) -> str:
    """Builds it."""
    return f"{day} {full}"


@job
async def fetch(url: str, id: int = 0, delay: float = 1.0) -> tuple[str, int, float]:  # noqa: A002
    return url, id, delay


def test_a_function_as_a_job() -> None:
    made = build_report("2026-01-01", full=True)
    assert isinstance(made, Job)
    assert made.options.queue == "reports"
    assert repr(made) == "build_report(day='2026-01-01', full=True)"
    assert made.handle() == "2026-01-01 True"
    assert build_report.run("d") == build_report.__wrapped__("d") == "d False"
    assert build_report.__name__ == "build_report"
    assert build_report.__doc__ == "Builds it."
    assert type_of(type(made)).name == "tests.unit.test_job.build_report"
    assert build(made, JsonCodec()).handle() == "2026-01-01 True"


def test_an_async_function_whose_parameters_have_the_names_of_methods() -> None:
    made = fetch("x", id=7, delay=2.0)
    assert type_of(type(made)).is_async
    made.attach(Envelope(id="the-job", type="x"), Reservation("j", "q", "default", "1-0", b"", "me", 1))
    assert asyncio.run(made.handle()) == ("x", 7, 2.0)
    assert made.id == "the-job"
    assert made.delay(60)._delay == 60.0
    assert asyncio.run(made.handle()) == ("x", 7, 2.0)
    assert not type_of(Simple).is_async


def test_a_function_whose_parameters_are_what_a_worker_calls() -> None:
    @job(name="kept")
    def kept(handle: str, failed: int = 1, attach: int = 2) -> tuple[str, int, int]:
        return handle, failed, attach

    with connect("memory://") as queue:
        queue.push(kept("h", attach=3))
        taken = queue.pop()
        assert taken is not None
        assert taken.handle() == ("h", 1, 3)
        queue.complete(taken)
        with pytest.raises(AttributeError, match="cannot be replaced"):
            taken.failed = None  # type: ignore[method-assign,assignment]


def test_a_function_is_checked_by_its_signature() -> None:
    with pytest.raises(TypeError, match="day"):
        build_report()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        build_report("d", True)  # type: ignore[misc]
    with connect("memory://") as queue, pytest.raises(InvalidPayload, match="full: Expected `bool`"):
        queue.push(build_report("d", full="yes"))  # type: ignore[arg-type]


def test_a_local_function_with_a_local_type() -> None:
    class Local(msgspec.Struct):
        x: int

    @job(name="local.function")
    def handle_local(item: Local) -> int:
        return item.x

    assert build(handle_local(Local(3)), JsonCodec()).handle() == 3


def test_parameters_that_cannot_be_sent_by_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\*args"):

        @job
        def many(*args: int) -> None: ...

    with pytest.raises(ConfigurationError, match="cannot be one of a job"):

        @job
        def only(x: int, /) -> None: ...


def test_only_a_function_can_be_decorated() -> None:
    with pytest.raises(ConfigurationError, match="@job needs a function"):
        job(len)


# -- versions --------------------------------------------------------------------------------------


class Versioned(Job, version=3):
    full_name: str
    age: int

    def handle(self) -> None: ...


@Versioned.upcast(from_version=1)
def _to_two(data: dict[str, Any]) -> dict[str, Any]:
    return {"full_name": f"{data['first']} {data['last']}"}


@Versioned.upcast(from_version=2)
def _to_three(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "age": 0}


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_older_payloads_are_brought_up_to_date(codec: Codec) -> None:
    old = envelope_of(
        Versioned("", 0), codec, version=1, payload=codec.encode_payload({"first": "A", "last": "B"})
    )
    assert type_of(Versioned).build(old, codec) == Versioned("A B", 0)
    middle = envelope_of(Versioned("", 0), codec, version=2, payload=codec.encode_payload({"full_name": "C"}))
    assert type_of(Versioned).build(middle, codec) == Versioned("C", 0)
    assert envelope_of(Versioned("D", 1), codec).version == 3


def test_a_newer_version_is_refused_with_what_to_do() -> None:
    codec = JsonCodec()
    newer = envelope_of(Versioned("", 0), codec, version=4)
    with pytest.raises(InvalidPayload, match=r"version 4, and this worker knows version 3"):
        type_of(Versioned).build(newer, codec)


def test_a_missing_or_failing_upcaster_is_named() -> None:
    class Gap(Job, version=3):
        x: int

    @Gap.upcast(2)
    def fails(data: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("y")

    codec = JsonCodec()
    with pytest.raises(InvalidPayload, match=r"no upcaster leads from 1"):
        build(Gap(1), codec, version=1)
    with pytest.raises(InvalidPayload, match=r"upcaster from version 2 failed: KeyError: 'y'"):
        build(Gap(1), codec, version=2)
    with pytest.raises(InvalidInput, match="would never be used"):
        Gap.upcast(3)


def test_names_of_queues_are_checked() -> None:
    with pytest.raises(InvalidName):
        Simple(1).on_queue("x" * 600)
    assert decode_payload(JsonCodec().encode_payload({"a": 1})) == {"a": 1}
    assert decode_payload(MsgpackCodec().encode_payload({"a": 1})) == {"a": 1}
