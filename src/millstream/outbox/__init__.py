"""The transactional outbox: jobs pushed in a transaction of your own database, relayed to any queue.

    Outbox(session).push(SendReceipt(order=7))       # committed with the order, or not at all
    Relay("postgresql://…", queue).run()             # moves them to the queue, each once

`millstream.inbox` is the other end: it lets a handler's own transaction take effect once.
"""

from millstream.outbox.keeping import LaneStatus, OutboxKeeper, OutboxStatus, SetAside
from millstream.outbox.relay import Relay
from millstream.outbox.writing import Outbox

__all__ = ["LaneStatus", "Outbox", "OutboxKeeper", "OutboxStatus", "Relay", "SetAside"]
