"""Pushes of several threads in one transaction: who waits is never forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millstream.drivers.sql import gathering
from millstream.drivers.sql.gathering import Gathering, Push
from tests.contract.streams.helpers import Background, until


def test_a_thread_interrupted_while_it_gathers_others_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []

    def write(pushes: Sequence[Push]) -> None:
        written.extend(queue for queue, _ in pushes)

    together = Gathering(write)
    together._together = 2  # the last time there were two
    behind: list[Background] = []

    def ctrl_c(_: float) -> None:
        monkeypatch.undo()
        behind.append(Background(together.push, 2, ()))
        until(lambda: together._waiting, "the second thread")
        raise KeyboardInterrupt

    monkeypatch.setattr(gathering.time, "sleep", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        together.push(1, ())
    behind[0].result()
    together.push(3, ())
    assert written == [2, 3]
