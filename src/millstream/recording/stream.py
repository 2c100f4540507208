"""The sink of the history stream: records as entries of a stream beside the queues."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from millstream.brokers.base import StreamBroker
from millstream.drivers.base import Driver
from millstream.envelope import Codec
from millstream.errors import ConfigurationError, InvalidInput
from millstream.history import HistoryOptions, Record
from millstream.recording.notes import Note, record_of

TRIM_EVERY = 5.0  # seconds between two looks at the stream's length


class StreamSink:
    """Adds records to a stream in one call per batch, and keeps the stream short.

    A batch whose reply was lost is added again, so a record may be there twice: (job_id, at, state, attempt)
    says which. A record that is too large for the broker is written without its payload and traceback.
    """

    name = "history"

    def __init__(
        self, broker: StreamBroker, stream: str, options: HistoryOptions, codec: Codec, *, owned: bool
    ) -> None:
        self.broker, self.stream, self.options = broker, stream, options
        self._codec, self._owned = codec, owned
        self._trimmed_at = 0.0

    def write(self, notes: Sequence[Note]) -> None:
        records = [record for note in notes if (record := record_of(note, self._codec)) is not None]
        if records:
            self._add(records)
        if time.monotonic() - self._trimmed_at >= TRIM_EVERY:
            self._trim()
            self._trimmed_at = time.monotonic()

    def _add(self, records: list[Record]) -> None:
        try:
            self.broker.xadd_many(self.stream, [_data(record) for record in records])
        except InvalidInput:
            if len(records) > 1:
                raise  # the outlet finds the one that is at fault
            small = msgspec.structs.replace(records[0], payload="", traceback="")
            self.broker.xadd_many(self.stream, [_data(small)])

    def _trim(self) -> None:
        if self.options.length is not None:
            self.broker.xtrim(self.stream, max_len=self.options.length, plain=True)
        if self.options.age is not None:
            oldest = max(0, int((time.time() - self.options.age) * 1000))
            self.broker.xtrim(self.stream, min_id=f"{oldest}-0", plain=True)

    def close(self) -> None:
        if self._owned:
            self.broker.close()


def _data(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found


def open_stream_sink(driver: Driver, options: HistoryOptions, codec: Codec) -> StreamSink:
    """The sink for the stream ``{prefix}:{name}`` on the broker that ``driver`` works with.

    A driver on a stream broker lends its own, so that readers of a queue in memory see it too.
    """
    prefix = getattr(driver, "prefix", None)
    broker, database = getattr(driver, "broker", None), getattr(driver, "_database", None)
    if isinstance(prefix, str) and isinstance(broker, StreamBroker):
        return StreamSink(broker, f"{prefix}:{options.name}", options, codec, owned=False)
    if isinstance(prefix, str) and database is not None:
        from millstream.brokers.sql import SqlStreamBroker  # noqa: PLC0415 - slow to import

        url = database.target.url.render_as_string(hide_password=False)
        # The same options as the driver's, so that both use one pool of connections.
        broker = SqlStreamBroker(
            url, prefix=database.prefix, retry_for=0.0, create=False, **asdict(database.options)
        )
        return StreamSink(broker, f"{prefix}:{options.name}", options, codec, owned=True)
    raise ConfigurationError(
        f"history=: the {driver.name} driver has no streams; record to a database with archive= instead"
    )
