"""millstream bench: the benchmarks of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from millstream.cli.common import FAILED

NAMES = ("jobs", "streams")


@click.command("bench", context_settings={"ignore_unknown_options": True})
@click.argument("name", default="jobs")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(name: str, arguments: tuple[str, ...]) -> int:
    """Run benchmarks/NAME.py of the checkout that this is run in; ARGUMENTS are handed on."""
    folder = _folder()
    if folder is None:
        click.echo("the benchmarks are not part of the installed package; run this in a checkout", err=True)
        return FAILED
    script = folder / f"{name}.py"
    if not script.is_file():
        found = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
        raise click.UsageError(f"there is no benchmark {name!r}; there are: {', '.join(found) or 'none yet'}")
    return subprocess.run([sys.executable, str(script), *arguments], check=False).returncode


def _folder() -> Path | None:
    """benchmarks/ of the current folder, or beside the sources that run."""
    for base in (Path.cwd(), *Path(__file__).resolve().parents):
        folder = base / "benchmarks"
        if folder.is_dir() and (base / "pyproject.toml").is_file():
            return folder
    return None
