"""From a URL to what answers it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from millstream.brokers.base import StreamBroker
from millstream.brokers.local import LocalStreamBroker
from millstream.errors import ConfigurationError, MissingExtra, UnknownScheme

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
_SCHEMES = ("memory", *_REDIS_SCHEMES)
_LOCAL_OPTIONS = {"max_stream_length": int, "max_payload": int, "key_ttl": float}


def open_broker(url: str = "memory://", **options: Any) -> StreamBroker:
    """The stream broker that ``url`` names.

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
    raise UnknownScheme(scheme, tuple(f"{known}://" for known in _SCHEMES))


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
