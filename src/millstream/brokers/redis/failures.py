"""What the client library raises, in the words of `millstream.errors`. The only place that knows both.

What decides whether a call may be repeated is not which error it was but whether the server can have
executed it, so that is told first:

* NotSent: the command never left, or left incomplete; a server does not execute half a command.
* ReplyLost: it left, and no answer came.
* Anything else is an answer of the server; those in NOT_READY say that it executed nothing.
"""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    MaxConnectionsError,
    RedisClusterException,
    RedisError,
)
from redis.sentinel import MasterNotFoundError

from millstream.errors import (
    AccessDenied,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    OutcomeUnknown,
    WrongType,
)

# A server that is loading, electing or moving data: it refused without executing anything.
NOT_READY = frozenset(
    ("LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "MOVED", "ASK")
)
_DENIED = frozenset(("NOAUTH", "WRONGPASS", "NOPERM"))
_FULL = frozenset(("OOM", "MISCONF"))
_GONE = frozenset(("NOGROUP", "UNBLOCKED"))
_DENIED_TEXTS = (
    "AUTH",  # "AUTH <password> called without any password configured", and its older forms
    "invalid password",
    "invalid username-password",
    "ACL failure",  # how a script reports what NOPERM is outside of it; older servers in other words
    "can't run this command",
    "can't access at least one of the keys",
)
_BAD_ADD_ID = ("specified in XADD", "exhausted the last possible ID")
_NO_KEY = ("requires the key to exist", "no such key")


class NotSent(Exception):
    """The command was not sent; the client library's error is the cause."""


class ReplyLost(Exception):
    """The command was sent and its reply did not come; the client library's error is the cause."""


# What `translate` makes of answers that only the caller can put into words: it knows the names.


class NoGroup(BrokerError):
    """The server says that the group, or its stream, does not exist."""


class NoKey(BrokerError):
    """The server says that the stream does not exist."""


class BadAddId(BrokerError):
    """XADD refused the id."""


# Everything that an exchange with a server can raise.
FAILURES = (NotSent, ReplyLost, RedisError, RedisClusterException)


def code_of(error: BaseException) -> str:
    """The first word of a server's answer, such as WRONGTYPE; empty where it has none."""
    code = getattr(error, "status_code", None)
    if code:
        return str(code)
    word = str(error).partition(" ")[0]
    return word if word.isupper() else ""


def had_no_effect(error: BaseException) -> bool:
    """Whether the server cannot have executed the call, but might execute it a little later."""
    if isinstance(error, NotSent):
        return not isinstance(error.__cause__, MaxConnectionsError)
    if isinstance(error, ReplyLost):
        return False
    # The cluster client raises this one where no node answered, or a slot has none.
    if isinstance(error, RedisClusterException):
        return True
    return code_of(error) in NOT_READY or "max number of clients" in str(error)


def translate(error: BaseException, where: str, stream: str | None) -> BrokerError:
    """The Millstream error for what an exchange raised; ``where`` is the address without any password."""
    if isinstance(error, ReplyLost):
        return OutcomeUnknown(
            f"the connection to {where} was lost before the answer came ({error.__cause__}): the call may "
            "have taken effect; look before repeating it, or give xadd() a key= so that it can be repeated"
        )
    if isinstance(error, NotSent):
        if isinstance(error.__cause__, MaxConnectionsError):
            return BrokerUnavailable(
                f"all connections to {where} are in use; open the broker with a larger max_connections"
            )
        if isinstance(error.__cause__, MasterNotFoundError):
            # The library's own text lists every detail of its connections.
            return BrokerUnavailable(
                f"no master is known of the service {where}; check the name of the service, that the "
                "sentinels can be reached, and their password, if they have one (?sentinel_password=)"
            )
        return BrokerUnavailable(
            f"cannot reach Redis at {where} ({error.__cause__}); check that the server runs, and that the "
            "address, the port and the use of TLS in the URL are right"
        )
    return _translate_answer(error, where, stream)


def _translate_answer(error: BaseException, where: str, stream: str | None) -> BrokerError:
    text, code = str(error), code_of(error)
    if code == "WRONGTYPE" and stream is not None:
        return WrongType(stream)
    if code in _GONE:
        return NoGroup(text)
    if any(part in text for part in _NO_KEY):
        return NoKey(text)
    if any(part in text for part in _BAD_ADD_ID):
        return BadAddId(text)
    if code in _FULL:
        return BrokerFull(
            f"the server at {where} refuses writes ({text}); nothing was written: free memory or disk, or "
            "raise its limit, and repeat the call"
        )
    if (
        code in _DENIED
        or isinstance(error, (AuthenticationError, AuthorizationError))
        or any(part in text for part in _DENIED_TEXTS)
    ):
        return AccessDenied(
            f"the server at {where} refuses access ({text}); check the user and the password in the URL, and "
            "what the user may do (ACL LIST on the server)"
        )
    if had_no_effect(error):
        return BrokerUnavailable(
            f"the server at {where} is not ready ({text}); repeat the call a little later"
        )
    return BrokerError(f"the server at {where} answered: {text}")
