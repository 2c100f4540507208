"""The Lua files beside this module, each run by its digest.

The name of a file ends with the number of its keys, or with ``n`` where it varies. A line
``--@include _name`` stands for that file, once. The scripts of the job driver are in a folder beside it.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

_FOLDER = files(__package__) / "lua"


class Script:
    """One atomic step on the server. Its file, and those that it includes, are in one of ``folders``."""

    def __init__(self, name: str, *folders: Traversable) -> None:
        self.name = name
        keys = name.rpartition("_")[2]
        self.keys = -1 if keys == "n" else int(keys)
        self.source = _assemble(name, folders or (_FOLDER,), set())
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


def _assemble(name: str, folders: tuple[Traversable, ...], seen: set[str]) -> str:
    """The text of a file with its includes in place."""
    lines = []
    for line in _text(f"{name}.lua", folders).splitlines():
        if line.startswith("--@include "):
            included = line.split()[1]
            if included not in seen:
                seen.add(included)
                lines.append(_assemble(included, folders, seen))
        else:
            lines.append(line)
    return "\n".join(lines)


def _text(name: str, folders: tuple[Traversable, ...]) -> str:
    found = next(path for folder in folders if (path := folder / name).is_file())
    return found.read_text("utf-8")


ADD_MANY = Script("add_many_1")
ADD_TRIM = Script("add_trim_1")
ADD_ONCE = Script("add_once_2")
TRIM = Script("trim_1")
CLAIM = Script("claim_1")
AUTOCLAIM = Script("autoclaim_1")
JOIN = Script("join_1")
HISTORY = Script("history_1")
RECOVER = Script("recover_1")
ACKDEL = Script("ackdel_1")
ACKDEL_NATIVE = Script("ackdel_native_1")
DELETE_CONSUMER = Script("delete_consumer_1")
GROUP_INFO = Script("group_info_1")
COUNT = Script("count_1")
