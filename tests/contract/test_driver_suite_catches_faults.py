"""The contract suite of drivers fails on every broken one, and passes on the same class unbroken."""

from __future__ import annotations

import pytest

from millstream.drivers.base import Driver
from tests.contract.catching import Done, check_noticed, check_passed, chosen, run_all, run_suite
from tests.contract.driver_mutants import MUTANTS, Correct, WithoutDelays
from tests.contract.drivers.factories import UNDER_TEST

# All runs belong to one fixture, and a busy machine takes its time for twenty of them.
pytestmark = pytest.mark.timeout(600)
Runs = dict[type[Driver], Done]


def run(driver: type[Driver], *files: str) -> Done:
    patience = 30 if driver is Correct else 3  # what a mutant will not do is not waited for
    return run_suite("drivers", UNDER_TEST, driver, *files, patience=patience, timeout=60)


@pytest.fixture(scope="module")
def runs() -> Runs:
    return run_all(run, Correct, chosen(MUTANTS))


def test_the_control_passes(runs: Runs) -> None:
    check_passed(runs[Correct])


def test_what_a_driver_lacks_is_skipped_by_name() -> None:
    done = run(WithoutDelays, "test_delays.py")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "the under_test driver has no delays (see its Capabilities)" in done.stdout
    assert " passed" not in done.stdout


@pytest.mark.parametrize("mutant", chosen(MUTANTS), ids=lambda mutant: mutant.__name__)
def test_a_broken_driver_fails(runs: Runs, mutant: type[Driver]) -> None:
    check_noticed(runs[mutant], mutant)
