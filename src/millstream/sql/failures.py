"""What an error of SQLAlchemy or of a driver means, and which error of ours says it.

The text of SQLAlchemy's errors has the statement in it; ours is made from the driver's own message, which
never holds a password or an entry's data.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from sqlalchemy.exc import DBAPIError, InvalidRequestError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from millstream.errors import (
    AccessDenied,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigurationError,
    MillstreamError,
)


class Kind(Enum):
    """What can be done about a failure."""

    LOST = "the connection is gone"
    CONFLICT = "the transaction was rolled back because of another; repeat it"
    BUSY = "somebody else's lock was held for too long"
    UNREACHABLE = "there was no connection; nothing was sent"
    OTHER = "repeating it would not help"


# SQLSTATE of PostgreSQL, and the numbers of MySQL and MariaDB.
_KINDS: dict[Kind, set[str | int]] = {
    Kind.CONFLICT: {"40001", "40P01", 1213, 1020},
    Kind.BUSY: {"55P03", 1205, 3572},
    Kind.UNREACHABLE: {"57P03", "53300", "08001", "08004", 1040, 1129, 1203, 1226, 2002, 2003, 2005},
    Kind.LOST: {"57P01", "57P02", "57P05", "08000", "08003", "08006", "08P01"}
    | {0, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2014, 2055, 4031},
}
_DENIED = {"28000", "28P01", "42501", "25006", 1044, 1045, 1142, 1143, 1227, 1290, 1370, 1698, 1792, 1836}
_FULL = {"53000", "53100", "53200", 1021, 1030, 1037, 1041, 1114}
_NO_TABLE = {"42P01", "42703", 1054, 1146}
_NO_DATABASE = {"3D000", 1049}
_TOO_LARGE = {1153}

# libpq's words for a connection that failed: there is no SQLSTATE then.
_DENIED_WORDS = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf|role .* does not exist", re.I
)
_NO_DATABASE_WORDS = re.compile(r"database .* does not exist", re.I)
_BAD_OPTION_WORDS = re.compile(r"invalid (connection option|.*value)|unexpected keyword", re.I)


def kind_of(error: SQLAlchemyError) -> Kind:
    """What can be done about ``error``."""
    if not isinstance(error, DBAPIError):
        return Kind.UNREACHABLE if _is_torn(error) else Kind.OTHER
    origin: Any = error.orig
    if (name := getattr(origin, "sqlite_errorname", None)) is not None:
        return Kind.BUSY if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) else Kind.OTHER
    code = _code_of(origin)
    for kind, codes in _KINDS.items():
        if code in codes:
            return kind
    if error.connection_invalidated:
        return Kind.LOST
    if code is None and type(origin).__name__ in ("OperationalError", "ConnectionTimeout"):
        # libpq could not connect. Only its words say why.
        text = str(origin)
        refused = _DENIED_WORDS.search(text) or _NO_DATABASE_WORDS.search(text)
        return Kind.OTHER if refused else Kind.UNREACHABLE
    return Kind.OTHER


def translate(error: SQLAlchemyError, address: str) -> MillstreamError:
    """The error of ours that says what ``error`` means."""
    if isinstance(error, PoolTimeout):
        return BrokerUnavailable(
            f"{address}: every connection of the pool was in use for too long; open it with a larger "
            "pool_size, or look for calls that hang"
        )
    if _is_torn(error):
        return BrokerUnavailable(f"cannot reach {address}: it closes every connection at once")
    if not isinstance(error, DBAPIError):
        return BrokerError(f"{address}: {type(error).__name__}: {error}")
    origin: Any = error.orig
    said = _words(origin)
    if (name := getattr(origin, "sqlite_errorname", None)) is not None:
        return _sqlite(name, said, address)
    return _server(kind_of(error), origin, said, address)


def _server(kind: Kind, origin: Any, said: str, address: str) -> MillstreamError:
    if kind is Kind.BUSY:
        return BrokerUnavailable(
            f"{address}: somebody else has held a lock for longer than lock_timeout; look for a transaction "
            f"that was left open ({said})"
        )
    if kind is Kind.CONFLICT:
        return BrokerUnavailable(f"{address}: too many conflicting transactions; try again ({said})")
    code = _code_of(origin)
    if code in _DENIED or (code is None and _DENIED_WORDS.search(said)):
        return AccessDenied(f"{address} refuses: {said}")
    if code in _NO_DATABASE or (code is None and _NO_DATABASE_WORDS.search(said)):
        return ConfigurationError(f"{address}: there is no such database; create it first ({said})")
    if code in _FULL:
        return BrokerFull(f"{address} has no room left; nothing was written: {said}")
    if code in _NO_TABLE:
        return ConfigurationError(
            f"{address}: a table of Millstream is missing; run: millstream migrate schema  ({said})"
        )
    if code in _TOO_LARGE:
        return BrokerError(
            f"{address} refuses an entry of that size; raise the server's max_allowed_packet ({said})"
        )
    if kind in (Kind.LOST, Kind.UNREACHABLE):
        return BrokerUnavailable(f"cannot reach {address}: {said}")
    if _BAD_OPTION_WORDS.search(said):
        return ConfigurationError(f"{address}: {said}")
    return BrokerError(f"{address}: {said}")


def _sqlite(name: str, said: str, address: str) -> MillstreamError:
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return BrokerUnavailable(
            f"{address} is locked: another process was writing for longer than lock_timeout; nothing was "
            "changed, so the call may be repeated"
        )
    if name.startswith("SQLITE_FULL"):
        return BrokerFull(
            f"{address}: the disk is full, or the file has reached its limit; nothing was written"
        )
    if name.startswith("SQLITE_READONLY"):
        return AccessDenied(f"{address} cannot be written: the file, its folder or its disk is read-only")
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return AccessDenied(f"{address} cannot be opened: check that its folder exists and may be written")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return BrokerError(f"{address} is not a sound SQLite database: {said}")
    if name.startswith("SQLITE_IOERR"):
        return BrokerError(f"{address}: the disk reports an error; nothing was written: {said}")
    if name.startswith("SQLITE_TOOBIG"):
        return BrokerError(f"{address}: SQLite keeps no entry of that size: {said}")
    return BrokerError(f"{address}: {said}")


def _is_torn(error: SQLAlchemyError) -> bool:
    """Whether the pool gave up, because each new connection was closed before it could be used."""
    return type(error) is InvalidRequestError and "closed" in str(error)


def _code_of(origin: Any) -> str | int | None:
    """MySQL's number, which says more than its SQLSTATE; PostgreSQL's SQLSTATE; None for neither."""
    number = _mysql_code(origin)
    return getattr(origin, "sqlstate", None) if number is None else number


def _mysql_code(origin: Any) -> int | None:
    if type(origin).__module__.startswith("pymysql") and origin.args:
        return origin.args[0] if isinstance(origin.args[0], int) else None
    return None


def _words(origin: Any) -> str:
    """A driver's message on one line."""
    if _mysql_code(origin) is not None and len(origin.args) > 1:
        return f"{origin.args[1]} ({origin.args[0]})".replace("\n", " ")
    return " ".join(str(origin).split())
