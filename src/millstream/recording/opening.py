"""From ``archive=`` and ``history=`` of a queue to its recorder."""

from __future__ import annotations

from typing import Any

from millstream.drivers.base import Driver
from millstream.envelope import Codec
from millstream.history import history_options
from millstream.recording.driver import Recorder
from millstream.recording.outlet import Outlet
from millstream.recording.stream import open_stream_sink


def open_recorder(driver: Driver, codec: Codec, archive: Any, history: Any) -> Recorder | None:
    """What records the jobs on ``driver``; None where nobody asked for it. Raises ConfigurationError.

    An archive that is given as an object stays its owner's to close.
    """
    options = history_options(history)
    outlets: dict[str, Outlet] = {}
    on_push: list[str] = []
    owned = None
    if archive is not None and archive is not False:
        from millstream.archive import SqlArchive, open_archive  # noqa: PLC0415 - slow to import

        opened = open_archive(archive)
        assert opened is not None
        owned = None if isinstance(archive, SqlArchive) else opened
        outlets["archive"] = opened.outlet(codec)
        if opened.keeps.enqueued:
            on_push.append("archive")
    if options is not None:
        outlets["history"] = Outlet(open_stream_sink(driver, options, codec))
        on_push.append("history")
    return Recorder(outlets, on_push=on_push, owned=owned) if outlets else None
