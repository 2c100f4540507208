"""The program of a spark-submit line: ``spark-submit … submitted.py pipeline archive …`` is the CLI."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Spark puts a program's own folder first on the path, and there our modules would be top-level ones.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    from millstream.cli import main

    main()
