"""How fast Spark reads from and writes to Millstream, beside what one would use otherwise, in one run.

    python benchmarks/spark.py                       both parts with a million rows
    python benchmarks/spark.py --rows 10000000       and with ten million
    python benchmarks/spark.py --quick               shows that it runs; its figures mean little
    python benchmarks/spark.py --part read --only sum

The parts, and what they are compared with, are explained in benchmarks/spark/read.py and write.py. Each
runs in a process of its own, so that neither warms up the JVM for the other.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    part: path
    for part in ("read", "write")
    if (path := ROOT / "benchmarks" / "spark" / f"{part}.py").exists()
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=sorted(PARTS), help="this one alone")
    parser.add_argument("--rows", type=int, help="entries (1000000)")
    parser.add_argument("--rounds", type=int, help="how often each is measured (3)")
    parser.add_argument("--quick", action="store_true", help="twenty thousand entries, once")
    parser.add_argument("--only", help="for read: contenders whose name has this, or `bare`, or `stream`")
    args = parser.parse_args()
    rows = args.rows or (20_000 if args.quick else 1_000_000)
    rounds = args.rounds or (1 if args.quick else 3)
    worst = 0
    for part, path in PARTS.items():
        if args.part not in (None, part):
            continue
        command = [sys.executable, str(path), "--rows", str(rows), "--rounds", str(rounds)]
        if part == "read":
            command += ["--quick"] * args.quick + (["--only", args.only] if args.only else [])
        print(f"== {part}", flush=True)
        worst = max(worst, subprocess.run(command, cwd=ROOT, check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
