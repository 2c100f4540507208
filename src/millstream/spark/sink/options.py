"""The sink's options: read from Spark's texts, checked before any task starts.

Spark hands options over as texts under names in any case. An option that nobody knows is refused, because a
slip in ``uniqueKeyColumn`` must not push every job twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from millstream.brokers.payload import DEFAULT_MAX_PAYLOAD, check_name
from millstream.config import scheme_of
from millstream.errors import ConfigurationError, InvalidInput
from millstream.options import DEFAULTS as JOB_DEFAULTS
from millstream.options import OPTION_NAMES as JOB_NAMES
from millstream.options import check_queue_name, delay_or_time, merge, unknown_option
from millstream.spark.urls import absolute_url

T = TypeVar("T")

DAY = 86400.0
# Long enough for the slowest write: what a killed task staged is garbage after it.
STAGE_TTL = DAY
# How long a write that is done, or that was interrupted, is remembered. A query that is started again later
# than that after a crash in its last commit writes that batch twice.
FENCE_TTL = 30 * DAY
# What Spark itself puts among the options of a write.
_SPARKS_OWN = frozenset(("checkpointlocation", "path", "queryname"))
_SQL = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What every write has. ``url`` may hold a password, so it is never shown."""

    url: str
    write_id: str | None = None
    stage_ttl: float = STAGE_TTL
    fence_ttl: float = FENCE_TTL
    max_payload: int = DEFAULT_MAX_PAYLOAD
    ignore_null_fields: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redacted(self.url)})"

    @property
    def is_sql(self) -> bool:
        return scheme_of(self.url).partition("+")[0] in _SQL


@dataclass(frozen=True, kw_only=True, repr=False)
class EntryOptions(CommonOptions):
    """A write of stream entries."""

    stream: str | None = None
    stream_column: str | None = None
    data_column: str | None = None
    type_column: str | None = None  # None: "type", where there is one; "": none
    headers_column: str | None = None  # None: "headers", where there is one; "": none


@dataclass(frozen=True, kw_only=True, repr=False)
class JobWriteOptions(CommonOptions):
    """A write of jobs. What a column says wins over the option of the same name."""

    job_type: str | None = None
    job_type_column: str | None = None
    job_module: str | None = None
    payload_column: str | None = None
    id_column: str | None = None
    queue: str | None = None
    queue_column: str | None = None
    priority: str | None = None
    priority_column: str | None = None
    delay: float | None = None
    delay_column: str | None = None
    unique_key_column: str | None = None
    unique_for: float | None = None
    replay_of_column: str | None = None
    headers: str | None = None
    headers_column: str | None = None
    tenant: str | None = None
    tenant_column: str | None = None
    tags: str | None = None
    tags_column: str | None = None
    max_attempts: int | None = None
    max_attempts_column: str | None = None
    version: int | None = None
    version_column: str | None = None
    backoff: float | None = None
    multiplier: float | None = None
    max_backoff: float | None = None
    jitter: float | None = None
    timeout: float | None = None
    expires_in: float | None = None
    prefix: str = "millstream"

    def job_options(self) -> dict[str, Any]:
        """Those that a job itself has, where they were given."""
        names = {field.name for field in fields(self)} & set(JOB_NAMES)
        given = {name: getattr(self, name) for name in sorted(names) if getattr(self, name) is not None}
        if self.tags is not None:
            given["tags"] = tuple(tag.strip() for tag in self.tags.split(",") if tag.strip())
        return given

    def fixed_headers(self) -> dict[str, str]:
        """The headers that every job of this write gets."""
        found: dict[str, str] = {}
        if self.headers is not None:
            try:
                found = msgspec.json.decode(self.headers, type=dict[str, str])
            except (msgspec.DecodeError, UnicodeError) as error:
                raise ConfigurationError(
                    f'the option headers must be a JSON object of texts such as {{"from": "spark"}}: {error}'
                ) from None
        return found if self.tenant is None else {**found, "tenant": self.tenant}


SinkOptions = EntryOptions | JobWriteOptions


def read_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write. Raises ConfigurationError, which names the option."""
    texts = {name.lower(): text for name, text in given.items()}
    is_job = "jobtype" in texts or "jobtypecolumn" in texts
    kind: type[EntryOptions] | type[JobWriteOptions] = JobWriteOptions if is_job else EntryOptions
    known = {_camel(field.name): field for field in fields(kind)}
    lower = {name.lower(): name for name in known}
    found: dict[str, Any] = {}
    for name, text in texts.items():
        if name in lower:
            field = known[lower[name]]
            found[field.name] = _read(lower[name], text, str(field.type))
        elif name not in _SPARKS_OWN:
            raise ConfigurationError(_unknown(name, known, is_job))
    if "url" not in found:
        raise ConfigurationError('the sink needs option("url", …), such as redis://localhost:6379/0')
    _check_url(found["url"])
    found["url"] = absolute_url(found["url"])  # here, in the driver: a task has a folder of its own
    options = kind(**found)
    _check_common(options)
    if isinstance(options, EntryOptions):
        _check_entries(options)
    else:
        _check_jobs(options)
    return options


def redacted(url: str) -> str:
    """A URL without its user, password and options, for messages."""
    scheme, separator, _ = url.partition("://")
    try:
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2]
        return f"{scheme}{separator}{place}{parts.path}"
    except ValueError:
        return f"{scheme}{separator}…"


def without_secrets(text: str, url: str) -> str:
    """``text`` in which the URL is shown without what is secret about it."""
    text = text.replace(url, redacted(url))
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    return text.replace(f":{password}@", ":***@") if password else text


def _check_url(url: str) -> None:
    if "://" not in url:
        raise ConfigurationError(
            "the option url is not a broker URL; expected redis://localhost:6379/0 or the like"
        )
    if scheme_of(url) == "memory":
        raise ConfigurationError(
            "memory:// lives in one process, and Spark writes from several; "
            "use sqlite:///file.db on one machine, or redis:// or postgresql://"
        )


def _check_common(options: CommonOptions) -> None:
    for name, value in (("stageTtl", options.stage_ttl), ("fenceTtl", options.fence_ttl)):
        if not value >= 1:
            raise ConfigurationError(f"the option {name} must be at least 1 second, not {value:g}")
    if options.max_payload < 1:
        raise ConfigurationError(f"the option maxPayload must be at least 1 byte, not {options.max_payload}")
    if options.write_id is not None:
        _named("writeId", lambda: check_name("write id", options.write_id or ""))


def _check_entries(options: EntryOptions) -> None:
    if (options.stream is None) == (options.stream_column is None):
        raise ConfigurationError(
            'the sink needs option("stream", "events:orders") or option("streamColumn", …) for entries, '
            'and not both; for jobs it needs option("jobType", "SendWelcomeEmail")'
        )
    if options.stream is not None:
        _named("stream", lambda: check_name("stream", options.stream or ""))


def _check_jobs(options: JobWriteOptions) -> None:
    if options.job_type is not None and options.job_type_column is not None:
        raise ConfigurationError("give jobType or jobTypeColumn, not both")
    if options.job_type is not None:
        _named("jobType", lambda: check_name("job type", options.job_type or ""))
    _named("prefix", lambda: check_queue_name(options.prefix))
    _named("delay", lambda: None if options.delay is None else delay_or_time(options.delay))
    _named("headers", options.fixed_headers)
    for name, value in options.job_options().items():
        _named(_camel(name), partial(merge, "the sink", JOB_DEFAULTS, {name: value}))


def _named(name: str, check: Callable[[], T]) -> T:
    try:
        return check()
    except (InvalidInput, TypeError) as error:
        raise ConfigurationError(f"the option {name} cannot be used: {error}") from error


def _unknown(name: str, known: Iterable[str], is_job: bool) -> str:
    others = {_camel(field.name) for field in fields(EntryOptions if is_job else JobWriteOptions)} - set(
        known
    )
    for other in others:
        if other.lower() == name:
            kinds = ("entries", "jobs") if is_job else ("jobs", "entries")
            return f"the option {other} is one for {kinds[0]}, and this write is one of {kinds[1]}" + (
                "" if is_job else " (it has no jobType)"
            )
    return unknown_option("option of the sink", name, known)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _read(name: str, text: str, kind: str) -> Any:
    """The value of an option's text."""
    try:
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
    except (ValueError, KeyError):
        wanted = {"i": "a whole number", "f": "a number", "b": "true or false"}[kind[0]]
        raise ConfigurationError(f"the option {name} must be {wanted}, not {text!r}") from None
    return text
