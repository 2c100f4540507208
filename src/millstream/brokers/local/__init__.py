"""The broker in this process's memory: no server, nothing to install, gone with the process."""

from millstream.brokers.local.broker import LocalStreamBroker

__all__ = ["LocalStreamBroker"]
