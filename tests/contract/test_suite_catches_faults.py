"""The contract suite fails on every broken broker, and passes on the same class unbroken.

Each mutant runs the file that should notice it, in a process of its own, up to the first failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream import LocalStreamBroker
from tests.contract.mutants import MUTANTS, Correct
from tests.contract.streams.factories import UNDER_TEST

SUITE = Path(__file__).parent / "streams"
ROOT = SUITE.parents[2]


def run_suite(broker: type[LocalStreamBroker], *files: str) -> subprocess.CompletedProcess[str]:
    """pytest on the named files of the suite, or all of it, with ``broker`` as the only implementation."""
    return subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "--tb=short",
                "-p",
                "pytest_timeout",
                "--timeout",
                "20",
            ),
            *("-p", "no:cacheprovider"),
            *(str(SUITE / name) for name in files or ("",)),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            UNDER_TEST: f"{broker.__module__}:{broker.__name__}",
            "MILLSTREAM_TEST_PATIENCE": "2",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # starting pytest is most of what these runs cost
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def runs() -> dict[type[LocalStreamBroker], subprocess.CompletedProcess[str]]:
    """Every run, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        control = pool.submit(run_suite, Correct)
        mutants = {mutant: pool.submit(run_suite, mutant, file) for mutant, file in MUTANTS.items()}
        return {Correct: control.result(), **{mutant: run.result() for mutant, run in mutants.items()}}


Runs = dict[type[LocalStreamBroker], subprocess.CompletedProcess[str]]


def test_the_control_passes(runs: Runs) -> None:
    done = runs[Correct]
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_broker_fails(runs: Runs, mutant: type[LocalStreamBroker]) -> None:
    done = runs[mutant]
    assert done.returncode == 1, f"the suite did not notice: {mutant.__doc__}\n{done.stdout[-3000:]}"
    assert "1 failed" in done.stdout, done.stdout[-3000:]
    assert " error" not in done.stdout.splitlines()[-1], "it must fail in a test, not in a fixture"
