"""From a URL to what answers it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from millstream.brokers.base import StreamBroker
from millstream.brokers.local import LocalStreamBroker
from millstream.connecting import OF_MEMORY, OF_REDIS, OF_SQL, Option
from millstream.drivers.base import Driver
from millstream.errors import ConfigurationError, MissingExtra, UnknownScheme
from millstream.options import unknown_option
from millstream.settings import DEFAULT_URL

_REDIS_SCHEMES = (
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
_SQL_SCHEMES = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")
_SCHEMES = ("memory", *_REDIS_SCHEMES, *_SQL_SCHEMES)
_QUEUE_SCHEMES = ("memory", *_REDIS_SCHEMES, *_SQL_SCHEMES)  # those that have a driver
_PLANNED = ("kafka", "amqp", "amqps", "sqs")
_shared: dict[tuple[str, str | None], Driver] = {}  # the drivers of memory://name
_shared_lock = threading.Lock()
_LOCAL_OPTIONS = {"max_stream_length": int, "max_payload": int, "key_ttl": float}


def open_broker(url: str = DEFAULT_URL, **options: Any) -> StreamBroker:
    """The stream broker that ``url`` names; without one, that of the file millstream.db in this folder.

    ``options`` are those of its class, such as ``max_stream_length``, and may stand in the URL as well
    (``memory://?max_stream_length=100``; ``none`` for None). Each call for ``memory://`` gives a new
    and empty broker; pass the object around to share it.

    Raises UnknownScheme, MissingExtra, ConfigurationError, and what connecting raises: BrokerUnavailable,
    AccessDenied.
    """
    scheme = scheme_of(url)
    if scheme == "memory":
        return LocalStreamBroker(**{**_local_options(url), **options})
    if scheme in _REDIS_SCHEMES:
        try:
            from millstream.brokers.redis import RedisStreamBroker  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            if error.name not in ("redis", "hiredis"):
                raise
            raise MissingExtra("redis", error.name) from error
        return RedisStreamBroker(url, **options)
    if scheme.partition("+")[0] in _SQL_SCHEMES:
        from millstream.brokers.sql import SqlStreamBroker  # noqa: PLC0415 - slow to import

        return SqlStreamBroker(url, **options)
    raise UnknownScheme(scheme, tuple(f"{known}://" for known in _SCHEMES))


def open_driver(url: str, *, max_body: int, **options: Any) -> tuple[Driver, bool]:
    """The driver that ``url`` names, and whether others in this process share it, so that nobody closes it.

    ``memory://`` is new and private; ``memory://name`` is the same one for that name while the process runs.
    Raises UnknownScheme, MissingExtra, ConfigurationError, BrokerUnavailable, AccessDenied.
    """
    from millstream.drivers.stream import open_stream_driver  # noqa: PLC0415 - it opens its broker from here

    check_connection_options(url, options)
    if scheme_of(url).partition("+")[0] in _SQL_SCHEMES:
        return _open_sql_driver(url, max_body, options), False
    parts = urlsplit(url)
    if scheme_of(url) != "memory" or not parts.netloc:
        return open_stream_driver(url, max_payload=max_body, **options), False
    key = (parts.netloc, options.get("prefix"))
    with _shared_lock:
        if key not in _shared:
            private = f"memory://{'?' if parts.query else ''}{parts.query}"
            _shared[key] = open_stream_driver(private, max_payload=max_body, **options)
        return _shared[key], True


def _open_sql_driver(url: str, max_body: int, options: dict[str, Any]) -> Driver:
    from millstream.drivers.sql import SqlDriver  # noqa: PLC0415 - slow to import

    return SqlDriver(url, max_payload=max_body, **options)


def connection_options(url: str) -> Mapping[str, Option]:
    """The options that a queue at ``url`` has. Raises UnknownScheme, or ConfigurationError for no URL."""
    scheme = scheme_of(url)
    if scheme == "memory":
        return OF_MEMORY
    if scheme in _REDIS_SCHEMES:
        return OF_REDIS
    if scheme.partition("+")[0] in _SQL_SCHEMES:
        return OF_SQL
    error = UnknownScheme(scheme, tuple(f"{known}://" for known in _QUEUE_SCHEMES))
    if scheme in _PLANNED:
        error.args = (f"{scheme}:// is not available yet; available are: {', '.join(error.known)}",)
    raise error


def check_connection_option(allowed: Mapping[str, Option], name: str, value: object) -> None:
    """Raise ConfigurationError or InvalidInput for an option that is not known, or cannot be ``value``."""
    if name not in allowed:
        raise ConfigurationError(unknown_option("queue option", name, allowed))
    allowed[name].check(name, value)


def check_connection_options(url: str, options: Mapping[str, Any]) -> None:
    """Raise UnknownScheme, or what is raised for an option that no queue at ``url`` can have."""
    allowed = connection_options(url)
    for name, value in options.items():
        check_connection_option(allowed, name, value)


def scheme_of(url: str) -> str:
    """The scheme of a URL, or ConfigurationError where there is none."""
    if not isinstance(url, str) or "://" not in url:
        raise ConfigurationError(
            f"{url!r} is not a broker URL; expected a form such as memory:// or redis://localhost:6379/0"
        )
    return url.partition("://")[0].lower()


def _local_options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.netloc or parts.path.strip("/"):
        raise ConfigurationError(f"{url!r}: memory:// has no host and no path; write memory://")
    options: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _LOCAL_OPTIONS:
            raise ConfigurationError(
                f"{url!r}: unknown option {name!r}; allowed are {', '.join(sorted(_LOCAL_OPTIONS))}"
            )
        options[name] = option_value(name, text, _LOCAL_OPTIONS[name])
    return options


def option_value(name: str, text: str, kind: type[int] | type[float]) -> int | float | None:
    """The number that an option of a URL gives; ``none`` is None."""
    if text.lower() == "none":
        return None
    try:
        return kind(text)
    except ValueError:
        raise ConfigurationError(f"option {name}={text!r} is not a number") from None
