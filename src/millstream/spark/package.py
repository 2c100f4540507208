"""This package as one zip file, for executors on machines where it is not installed."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

import millstream

_FIXED = (2020, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def package_zip(folder: Path) -> Path:
    """Write ``millstream-<version>-<digest>.zip`` into ``folder`` and return its path.

    It holds ``millstream`` and ``pyspark_millstream``. The libraries that they use are not in it: several
    are compiled, and have to be installed where the executors run.
    """
    root = Path(millstream.__file__).parent
    files = [(path, path.relative_to(root.parent)) for path in sorted(root.rglob("*")) if _belongs(path)]
    found = root.parent / "pyspark_millstream.py"
    files.append((found, Path(found.name)))
    digest = hashlib.sha256()
    contents = []
    for path, name in files:
        data = path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
        contents.append((name.as_posix(), data))
    target = folder / f"millstream-{millstream.__version__}-{digest.hexdigest()[:12]}.zip"
    if target.exists():
        return target
    handle, part = tempfile.mkstemp(dir=folder, suffix=".part")
    with os.fdopen(handle, "wb") as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry, data in contents:
            packed.writestr(zipfile.ZipInfo(entry, _FIXED), data, zipfile.ZIP_DEFLATED)
    Path(part).replace(target)
    return target


def _belongs(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
