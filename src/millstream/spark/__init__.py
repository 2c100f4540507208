"""Spark over everything that Millstream handles: a source, a sink and pipelines, through PySpark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from millstream.spark.session import session

if TYPE_CHECKING:
    from millstream.spark.archiving import archive, compact, read_archive, vacuum
    from millstream.spark.projections import project
    from millstream.spark.replaying import replay

__all__ = ["archive", "compact", "project", "read_archive", "replay", "session", "vacuum"]

# Where a pipeline is: imported when it is first asked for, so that a session starts without all of them.
_PIPELINES = {
    "archive": "millstream.spark.archiving",
    "compact": "millstream.spark.archiving",
    "project": "millstream.spark.projections",
    "read_archive": "millstream.spark.archiving",
    "replay": "millstream.spark.replaying",
    "vacuum": "millstream.spark.archiving",
}


def __getattr__(name: str) -> Any:
    module = _PIPELINES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
