"""Runs a contract suite on classes that are wrong on purpose: how the suites themselves are tested."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.conftest import LONG

Done = subprocess.CompletedProcess[str]
Kind = TypeVar("Kind", bound=type)
ROOT = Path(__file__).parents[2]


def run_suite(suite: str, variable: str, kind: type, *files: str, patience: int, timeout: int) -> Done:
    """pytest on the named files of a suite, or all of it, up to the first failure.

    ``variable`` is the one that makes the suite take ``kind`` as its only implementation.
    """
    folder = Path(__file__).parent / suite
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-rs", "--tb=short", "-p", "no:cacheprovider"),
            *("-p", "pytest_timeout", "--timeout", str(timeout)),
            *(str(folder / name) for name in files or ("",)),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            variable: f"{kind.__module__}:{kind.__name__}",
            "MILLSTREAM_TEST_PATIENCE": str(patience),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # starting pytest is most of what these runs cost
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def chosen(mutants: Mapping[Kind, str]) -> dict[Kind, str]:
    """All of them for `make faults`, and for `make test` every fifth: each run starts a pytest of its own."""
    return dict(list(mutants.items())[:: 1 if LONG else 5])


def run_all(run: Callable[..., Done], control: Kind, mutants: Mapping[Kind, str]) -> dict[Kind, Done]:
    """On each mutant the file of the suite that should notice it, and those on the control; two at a time.

    For `make faults` it is the whole suite on the control.
    """
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, control, *(() if LONG else sorted(set(mutants.values()))))
        others = {mutant: pool.submit(run, mutant, file) for mutant, file in mutants.items()}
        return {control: first.result(), **{mutant: each.result() for mutant, each in others.items()}}


def check_passed(done: Done) -> None:
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def check_noticed(done: Done, mutant: type) -> None:
    assert done.returncode == 1, f"the suite did not notice: {mutant.__doc__}\n{done.stdout[-3000:]}"
    assert "1 failed" in done.stdout, done.stdout[-3000:]
    assert " error" not in done.stdout.splitlines()[-1], "it must fail in a test, not in a fixture"
