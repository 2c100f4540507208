"""The history of jobs: one record for each change of a job's state.

Records are flat, so that the same fields are an entry of the history stream, a row of the archive table and a
row of a DataFrame. A record never changes: a job's story is its records in the order of ``at``.
"""

from __future__ import annotations

import msgspec

HISTORY = "history"  # the stream is "{prefix}:history", beside the queues of that prefix
STATES = ("enqueued", "completed", "retried", "snoozed", "released", "failed", "cancelled", "expired")
FINAL_STATES = ("completed", "failed", "cancelled", "expired")  # nothing comes after these but a replay


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What happened to a job, and when. Times are seconds since the epoch; field names are on the wire."""

    job_id: str
    type: str
    state: str  # one of STATES
    at: float  # when it came to that state
    queue: str = "default"
    priority: str = "default"
    attempt: int = 1  # the attempt that ended so; of "enqueued": the one that comes
    max_attempts: int = 1
    enqueued_at: float = 0.0
    due_at: float | None = None  # where it was delayed
    started_at: float | None = None  # of this attempt
    seconds: float | None = None  # how long this attempt ran
    worker: str = ""
    error_type: str = ""  # the exception's class
    error: str = ""  # "Type: message"
    traceback: str = ""
    tags: list[str] = []
    tenant: str = ""  # of the header "tenant"
    headers: dict[str, str] = {}
    payload: str = ""  # JSON text: the job's fields
    version: int = 1  # of the payload's schema
    replay_of: str | None = None
