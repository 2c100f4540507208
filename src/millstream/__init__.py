"""Millstream: a job queue and event-stream broker, modelled on Redis Streams."""

from millstream.brokers.base import StreamBroker
from millstream.brokers.local import LocalStreamBroker
from millstream.config import open_broker
from millstream.message import ConsumerInfo, GroupInfo, Message, PendingMessage

__version__ = "0.1.0"

__all__ = [
    "ConsumerInfo",
    "GroupInfo",
    "LocalStreamBroker",
    "Message",
    "PendingMessage",
    "StreamBroker",
    "__version__",
    "open_broker",
]
