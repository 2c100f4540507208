"""What the differential runs did, printed at the end of the test run."""

from __future__ import annotations

import pytest

REPORT: list[str] = []


@pytest.fixture(scope="session")
def report() -> list[str]:
    return REPORT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORT:
        terminalreporter.section("differential test: local broker against Redis 7.0")
        for line in REPORT:
            terminalreporter.line(line)
