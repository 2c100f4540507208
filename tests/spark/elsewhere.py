"""Where the Python tasks of the tests' Spark are started: as Spark does it, but in a folder of their own.

On a cluster a task's working folder is never the driver's, and on local[2] it always is. This makes
local[2] the same as a cluster in that: what is resolved in a task by mistake is not found.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark import daemon

FOLDER = Path(__file__).parent  # deeper than the driver's: "../.." from here is another place

if __name__ == "__main__":
    os.chdir(FOLDER)
    daemon.manager()  # type: ignore[no-untyped-call]  # PySpark has no types for it
