"""Where a table is: a folder that every task can reach, or a place in an object store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from deltalake import DeltaTable

from millstream.errors import ConfigurationError

_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs")


class Location:
    """A table's address, and how a task creates a file below it. Cheap to send to a task.

    A local file is synced to the disk before it counts: what was archived may be trimmed at its source.
    Object stores keep what they confirmed.
    """

    def __init__(self, address: str) -> None:
        self.uri = parse_location(address)
        self.is_local = "://" not in self.uri

    def __repr__(self) -> str:
        return f"<Location {self.uri}>"

    def child(self, *names: str) -> str:
        """The address of something below the table."""
        return "/".join([self.uri.rstrip("/"), *names])

    def create(self, path: str) -> Any:
        """A new file, open for writing in binary."""
        if self.is_local:
            full = Path(self.uri, path)
            full.parent.mkdir(parents=True, exist_ok=True)
            return full.open("xb")
        from pyarrow.fs import FileSystem  # noqa: PLC0415 - only for object stores

        system, root = FileSystem.from_uri(self.uri)
        return system.open_output_stream(f"{root.rstrip('/')}/{path}")

    def open(self, path: str) -> Any:
        """A file of the table, open for reading in binary."""
        if self.is_local:
            return Path(self.uri, path).open("rb")
        from pyarrow.fs import FileSystem  # noqa: PLC0415 - only for object stores

        system, root = FileSystem.from_uri(self.uri)
        return system.open_input_file(f"{root.rstrip('/')}/{path}")

    def finish(self, sink: Any) -> None:
        """Close ``sink``; when this returns the file survives the end of the machine."""
        if self.is_local:
            sink.flush()
            os.fsync(sink.fileno())
            name = sink.name
            sink.close()
            sync_folder(Path(name).parent)
        else:
            sink.close()

    def sync_log(self, known: int) -> int:
        """Let every commit after version ``known`` survive the end of the machine; the newest version."""
        newest = DeltaTable(self.uri).version()
        if self.is_local:
            log = Path(self.uri, "_delta_log")
            for version in range(known + 1, newest + 1):
                with suppress(FileNotFoundError):  # a checkpoint may have taken its place
                    sync_file(log / f"{version:020d}.json")
            sync_folder(log)
        return newest


def parse_location(address: str | os.PathLike[str]) -> str:
    """The absolute path, or the URI of an object store, that ``address`` means."""
    text = os.fspath(address)
    if not text.strip():
        raise ConfigurationError("the table's address is empty; give a folder such as archive/events")
    if "://" not in text:
        return os.path.abspath(os.path.expanduser(text))
    parts = urlsplit(text)
    if parts.scheme == "file":
        return os.path.abspath(url2pathname(parts.path))
    if parts.scheme not in _STORES:
        raise ConfigurationError(
            f"{text!r} is not a place for a table; give a folder, or one of {', '.join(_STORES)}://…"
        )
    return text.rstrip("/")


def sync_file(path: Path) -> None:
    """Have the content of a file on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk, where the system can do that."""
    with suppress(OSError):
        sync_file(path)
