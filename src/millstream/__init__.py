"""Millstream: a job queue and event-stream broker, modelled on Redis Streams."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream.brokers.base import StreamBroker
from millstream.brokers.local import LocalStreamBroker
from millstream.config import open_broker
from millstream.deadletters import DeadJob, DeadLetters
from millstream.drivers.base import RateLimit
from millstream.job import Job, JobFunction, job
from millstream.message import ConsumerInfo, GroupInfo, Message, PendingMessage
from millstream.options import JobOptions
from millstream.queue import JobView, Queue, QueueManager, connect
from millstream.registry import Registry
from millstream.retry import Bury, Cancel, Retry, Snooze

if TYPE_CHECKING:
    from millstream.archive import SqlArchive

__version__ = "0.1.0"

_LAZY = {"SqlArchive": "millstream.archive"}  # what imports SQLAlchemy, which takes long

__all__ = [
    "Bury",
    "Cancel",
    "ConsumerInfo",
    "DeadJob",
    "DeadLetters",
    "GroupInfo",
    "Job",
    "JobFunction",
    "JobOptions",
    "JobView",
    "LocalStreamBroker",
    "Message",
    "PendingMessage",
    "Queue",
    "QueueManager",
    "RateLimit",
    "Registry",
    "Retry",
    "Snooze",
    "SqlArchive",
    "StreamBroker",
    "__version__",
    "connect",
    "job",
    "open_broker",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
