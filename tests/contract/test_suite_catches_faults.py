"""The contract suite fails on every broken broker, and passes on the same class unbroken."""

from __future__ import annotations

import pytest

from millstream import LocalStreamBroker
from tests.contract.catching import Done, check_noticed, check_passed, chosen, run_all, run_suite
from tests.contract.mutants import MUTANTS, Correct
from tests.contract.streams.factories import UNDER_TEST

Runs = dict[type[LocalStreamBroker], Done]


def run(broker: type[LocalStreamBroker], *files: str) -> Done:
    patience = 30 if broker is Correct else 2  # what a mutant will not do is not waited for
    return run_suite("streams", UNDER_TEST, broker, *files, patience=patience, timeout=60)


@pytest.fixture(scope="module")
def runs() -> Runs:
    return run_all(run, Correct, chosen(MUTANTS))


def test_the_control_passes(runs: Runs) -> None:
    check_passed(runs[Correct])


@pytest.mark.parametrize("mutant", chosen(MUTANTS), ids=lambda mutant: mutant.__name__)
def test_a_broken_broker_fails(runs: Runs, mutant: type[LocalStreamBroker]) -> None:
    check_noticed(runs[mutant], mutant)
