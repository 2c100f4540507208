"""The contract suite of drivers fails on every broken one, and passes on the same class unbroken.

Each mutant runs the file that should notice it, in a process of its own, up to the first failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.drivers.base import Driver
from tests.contract.driver_mutants import MUTANTS, Correct, WithoutDelays
from tests.contract.drivers.factories import UNDER_TEST

SUITE = Path(__file__).parent / "drivers"
ROOT = SUITE.parents[2]
# All runs belong to one fixture, and a busy machine takes its time for twenty of them.
pytestmark = pytest.mark.timeout(600)
Runs = dict[type[Driver], subprocess.CompletedProcess[str]]


def run_suite(driver: type[Driver], *files: str) -> subprocess.CompletedProcess[str]:
    """pytest on the named files of the suite, or all of it, with ``driver`` as the only implementation."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "60", "-rs"),
            *(str(SUITE / name) for name in files or ("",)),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            UNDER_TEST: f"{driver.__module__}:{driver.__name__}",
            "MILLSTREAM_TEST_PATIENCE": "3" if files else "15",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def runs() -> Runs:
    """Every run, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        control = pool.submit(run_suite, Correct)
        mutants = {mutant: pool.submit(run_suite, mutant, file) for mutant, file in MUTANTS.items()}
        return {Correct: control.result(), **{mutant: run.result() for mutant, run in mutants.items()}}


def test_the_control_passes(runs: Runs) -> None:
    done = runs[Correct]
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_what_a_driver_lacks_is_skipped_by_name() -> None:
    done = run_suite(WithoutDelays, "test_delays.py")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "the under_test driver has no delays (see its Capabilities)" in done.stdout
    assert " passed" not in done.stdout


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_driver_fails(runs: Runs, mutant: type[Driver]) -> None:
    done = runs[mutant]
    assert done.returncode == 1, f"the suite did not notice: {mutant.__doc__}\n{done.stdout[-3000:]}"
    assert "1 failed" in done.stdout, done.stdout[-3000:]
    assert " error" not in done.stdout.splitlines()[-1], "it must fail in a test, not in a fixture"
