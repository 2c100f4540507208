"""The options of connections: how each is read from a text, and what it may be.

One table for what URLs, millstream.toml, the environment and `connect` accept. It needs no client library and
nothing that takes long to import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millstream.drivers.checks import check_prefix
from millstream.envelope import find_codec
from millstream.errors import ConfigurationError, InvalidInput

_SWITCH = {"true": True, "yes": True, "on": True, "1": True}
_SWITCH |= {"false": False, "no": False, "off": False, "0": False}


class Option(NamedTuple):
    """One option. ``read`` raises ValueError or KeyError, ``check`` ConfigurationError or InvalidInput."""

    read: Callable[[str], Any]  # its text in a URL or in the environment
    check: Callable[[str, Any], object]  # its name, for the message, and its value


def switch(text: str) -> bool:
    """What a text such as "yes" or "0" means. Raises KeyError."""
    return _SWITCH[text.lower()]


def length_or_none(text: str) -> int | None:
    """What a text such as "1000" or "none" means. Raises ValueError."""
    return None if text.lower() == "none" else int(text)


def readers(options: Mapping[str, Option]) -> dict[str, Callable[[str], Any]]:
    """The readers alone, for who takes the options apart from a URL."""
    return {name: option.read for name, option in options.items()}


# -- kinds -----------------------------------------------------------------------------------------


def _kind(
    read: Callable[[str], Any], fits: Callable[[Any], bool], what: str, *, optional: bool = False
) -> Option:
    """``optional``: None leaves it to the client library."""

    def check(name: str, value: object) -> None:
        if not (fits(value) or (optional and value is None)):
            shown = "what was given" if "password" in name else repr(value)
            raise ConfigurationError(f"{name} must be {what}, not {shown}")

    return Option(read, check)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(least: int, what: str = "", *, optional: bool = False) -> Option:
    what = what or f"a whole number of at least {least}"
    return _kind(int, lambda value: _is_whole(value) and value >= least, what, optional=optional)


def _seconds(*, zero: bool, optional: bool = False) -> Option:
    def fits(value: Any) -> bool:
        number = _is_whole(value) or isinstance(value, float)
        return number and math.isfinite(value) and (value > 0 or (zero and value == 0))

    what = f"a number of seconds, {'0 or more' if zero else 'more than 0'}"
    return _kind(float, fits, what, optional=optional)


def _text(*, optional: bool = False) -> Option:
    return _kind(str, lambda value: isinstance(value, str), "a text", optional=optional)


def _flag() -> Option:
    return _kind(switch, lambda value: isinstance(value, bool), "true or false", optional=True)


def _one_of(*allowed: object, read: Callable[[str], Any], optional: bool = False) -> Option:
    what = " or ".join(map(repr, allowed))
    return _kind(
        read, lambda value: not isinstance(value, bool) and value in allowed, what, optional=optional
    )


def _history_or_name(text: str) -> bool | str:
    return _SWITCH.get(text.lower(), text)


def _check_history(name: str, value: object) -> None:
    from millstream.history import history_options  # noqa: PLC0415 - few need it

    _check_part(name, history_options, value)


def _check_archive(name: str, value: object) -> None:
    if value is not None:
        from millstream.archive import open_archive  # noqa: PLC0415 - slow to import

        _check_part(name, open_archive, value)


def _check_part(name: str, check: Callable[[Any], object], value: object) -> None:
    try:
        check(value)
    except (ConfigurationError, InvalidInput) as error:
        raise ConfigurationError(f"option {name!r}: {error}") from None


# -- the options -----------------------------------------------------------------------------------

# Of every queue.
QUEUE: dict[str, Option] = {
    "codec": Option(str, lambda name, value: find_codec(value)),
    "max_payload": _whole(1, "a whole number of bytes above 0"),
    "prefix": Option(str, lambda name, value: check_prefix(value)),
    "archive": Option(str, _check_archive),
    "history": Option(_history_or_name, _check_history),
}
KEY_TTL = {"key_ttl": _seconds(zero=False)}
RETRY_FOR = {"retry_for": _seconds(zero=True)}
REDIS_CONNECTION: dict[str, Option] = {
    "db": _whole(0, optional=True),
    "username": _text(optional=True),
    "password": _text(optional=True),
    "protocol": _one_of(2, 3, read=int, optional=True),
    "client_name": _text(optional=True),
    "max_connections": _whole(1, optional=True),
    "socket_timeout": _seconds(zero=False, optional=True),
    "socket_connect_timeout": _seconds(zero=False, optional=True),
    "socket_keepalive": _flag(),
    "socket_read_size": _whole(1, optional=True),
    "sentinel_username": _text(optional=True),
    "sentinel_password": _text(optional=True),
    "ssl_ca_certs": _text(optional=True),
    "ssl_ca_path": _text(optional=True),
    "ssl_certfile": _text(optional=True),
    "ssl_keyfile": _text(optional=True),
    "ssl_password": _text(optional=True),
    "ssl_cert_reqs": _kind(  # or a member of ssl.VerifyMode
        str, lambda value: isinstance(value, (str, int)), "'required', 'optional' or 'none'", optional=True
    ),
    "ssl_check_hostname": _flag(),
    "ssl_min_version": _whole(0, optional=True),
    "ssl_ciphers": _text(optional=True),
}
ENGINE: dict[str, Option] = {
    "pool_size": _whole(1),
    "max_overflow": _whole(0),
    "pool_timeout": _seconds(zero=True),
    "connect_timeout": _seconds(zero=True),
    "lock_timeout": _seconds(zero=True),
    "synchronous": _one_of("always", "full", "normal", read=str),
}
TABLES: dict[str, Option] = {"tables": _text(), "create": _flag()}

OF_MEMORY = QUEUE | KEY_TTL
OF_REDIS = QUEUE | KEY_TTL | RETRY_FOR | REDIS_CONNECTION
OF_SQL = QUEUE | RETRY_FOR | TABLES | ENGINE
ALL = OF_MEMORY | OF_REDIS | OF_SQL
