"""A virtual environment for each peer, made once and kept under out/bench-envs/."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(__file__).parent / "peers"
ENVIRONMENTS = ROOT / "out" / "bench-envs"
OWN = ("millstream", "bare")  # ours and the limit: no peers
PATIENCE = 300  # seconds for one call of uv


def names(peers: Path = PEERS) -> list[str]:
    """Every peer that has an adapter in the folder ``peers``."""
    return sorted(path.parent.name for path in peers.glob("*/peer.py") if path.parent.name not in OWN)


def find(name: str, *, make: bool, peers: Path = PEERS) -> tuple[Path | None, str]:
    """The peer's interpreter, or None and the reason; made, or made anew, where its requirements changed.

    Who has no requirements runs in the environment of the benchmark itself.
    """
    requirements = peers / name / "requirements.txt"
    if not requirements.exists():
        return Path(sys.executable), ""
    folder = ENVIRONMENTS / (name if peers == PEERS else f"{peers.name}-{name}")
    python, stamp = folder / "bin" / "python", folder / "requirements.sha256"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python, ""
    if not make:
        return None, "its environment has not been made yet; a run without --quick makes it"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    for command in (
        ("venv", "--quiet", "--clear", "--python", sys.executable, str(folder)),
        ("pip", "install", "--quiet", "--python", str(python), "--requirement", str(requirements)),
    ):
        reason = _uv(*command)
        if reason:
            return None, f"uv {command[0]} failed: {reason}"
    stamp.write_text(wanted)
    return python, ""


def _uv(*arguments: str) -> str:
    """Run uv; empty, or what went wrong in one line."""
    try:
        done = subprocess.run(
            [str(ROOT / "scripts" / "uv"), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    text = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    return re.sub(r"https?://\S+", "(address)", text)[:300]
