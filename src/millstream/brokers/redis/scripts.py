"""The Lua files beside this module, each run by its digest.

The name of a file ends with the number of its keys. A line ``--@include _name`` stands for that file, once.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

_FOLDER = files(__package__) / "lua"


class Script:
    """One atomic step on the server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys = int(name.rpartition("_")[2])
        self.source = _assemble(name, set())
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


def _assemble(name: str, seen: set[str]) -> str:
    """The text of a file with its includes in place."""
    lines = []
    for line in (_FOLDER / f"{name}.lua").read_text("utf-8").splitlines():
        if line.startswith("--@include "):
            included = line.split()[1]
            if included not in seen:
                seen.add(included)
                lines.append(_assemble(included, seen))
        else:
            lines.append(line)
    return "\n".join(lines)


ADD_MANY = Script("add_many_1")
ADD_TRIM = Script("add_trim_1")
ADD_ONCE = Script("add_once_2")
TRIM = Script("trim_1")
CLAIM = Script("claim_1")
AUTOCLAIM = Script("autoclaim_1")
HISTORY = Script("history_1")
RECOVER = Script("recover_1")
ACKDEL = Script("ackdel_1")
ACKDEL_NATIVE = Script("ackdel_native_1")
DELETE_CONSUMER = Script("delete_consumer_1")
GROUP_INFO = Script("group_info_1")
COUNT = Script("count_1")
