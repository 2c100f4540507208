"""The URL of a broker as every process of Spark understands it."""

from __future__ import annotations

import os


def absolute_url(url: str) -> str:
    """``url`` with the whole path of a SQLite file: a task's working folder is not the driver's.

    Every other URL is returned as it is, also one that cannot be used: whoever opens it says why.
    """
    head, found, rest = url.partition(":///")
    path, mark, query = rest.partition("?")
    if not found or not head.lower().startswith("sqlite") or not path:
        return url
    if path.startswith(("/", "file:")) or path == ":memory:":  # the last two are refused, and must stay so
        return url
    return f"{head}:///{os.path.abspath(path)}{mark}{query}"
