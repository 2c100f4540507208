"""Becoming a contender's own worker command, with the interpreter that runs now."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379/0")
KIND = os.environ.get("BENCH_KIND", "sync")  # which of the two handlers is pushed


def become(program: str, *arguments: str) -> NoReturn:
    """Replace this process by ``program``, a script of the same environment."""
    path = str(Path(sys.executable).with_name(program))
    os.execv(path, [path, *arguments])
