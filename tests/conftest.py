"""Fixtures for every test, and the summary of what this machine could not run."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.servers import FLAVOURS, MariaDbServer, PostgresServer, RedisServer
from tests.servers.process import LACKS

LONG = os.environ.get("MILLSTREAM_FAULTS") == "long"
ROOT = Path(__file__).parents[1]
SLOW = ("docs/", "contract/test_", "spark/", "benchmarks/", "cli/test_demo", "outbox/test_campaign")
WRITING = ("test_sink", "test_enqueue", "test_replay")
# Every Java that a test starts is at its end before the optimising compiler's work has paid.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
# New examples are for `make faults`: a failure of `make test` is the doing of what was changed.
hypothesis.settings.register_profile("the same every time", derandomize=True)
if not LONG:
    hypothesis.settings.load_profile("the same every time")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long(why): runs with `make faults` only (MILLSTREAM_FAULTS=long)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` has twelve minutes. What takes long and has a shorter sibling waits for `make faults`.

    What else takes long begins first, so that no process is left alone with it in the end.
    """
    for item in items:
        if not LONG and (mark := item.get_closest_marker("long")):
            item.add_marker(pytest.mark.skip(reason=f"{mark.args[0]}: make faults runs it"))
    items.sort(key=lambda item: _begins(item.path.relative_to(ROOT).as_posix()))


@pytest.hookimpl(optionalhook=True)  # the runs of the mutants do without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Three processes share the files; those that use Spark share it in two of them."""
    from xdist.scheduler import LoadScopeScheduling

    # Not by xdist_group: pytest 9 has no place for the suffix by which pytest-xdist 3 tells its groups.
    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # mypy does not follow pytest-xdist
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid.partition("::")[0])

    return ByFile(config, log)


def _together(file: str) -> str:
    """What runs in one process: a file; of those that use the shared Spark, one half or the other."""
    if file == "tests/docs/test_snippets.py":  # which comes last there: some snippets stop Spark
        return "spark that reads"
    if not _uses_spark(file):
        return file
    return "spark that writes" if Path(file).name.startswith(WRITING) else "spark that reads"


def _begins(file: str) -> int:
    """A key to sort by; what has the same stays in its order."""
    if _uses_spark(file):
        return 0
    return 1 if file.removeprefix("tests/").startswith(SLOW) else 2


@functools.cache
def _uses_spark(file: str) -> bool:
    return file.startswith("tests/spark/") and "spark: SparkSession" in (ROOT / file).read_text("utf-8")


def _server(flavour: str) -> Iterator[RedisServer]:
    with RedisServer(flavour) as server:
        yield server


@pytest.fixture(scope="session")
def redis7() -> Iterator[RedisServer]:
    """A Redis 7.0 for the whole run. Tests share it: use stream names of your own."""
    yield from _server("redis7")


@pytest.fixture(scope="session")
def redis8() -> Iterator[RedisServer]:
    """A Redis 8.2 for the whole run."""
    yield from _server("redis8")


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisServer]:
    """A Valkey for the whole run."""
    yield from _server("valkey")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for the whole run, as fast as it gets: without syncing to the disk."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """A MariaDB for the whole run, as fast as it gets: without syncing to the disk."""
    with MariaDbServer() as server:
        yield server


@pytest.fixture(params=FLAVOURS)
def redis_flavour(request: pytest.FixtureRequest) -> RedisServer:
    """Each of the three in turn."""
    server: RedisServer = request.getfixturevalue(request.param)
    return server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end what was skipped because of the machine, by reason."""
    reasons: Counter[str] = Counter()
    others = 0
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _, found, reason = text.partition(LACKS)
        if found:
            reasons[reason.strip()] += 1
        else:
            others += 1
    total = reasons.total()
    terminalreporter.section("what this machine could not run")
    if total:
        terminalreporter.line(f"skipped because this machine lacks something: {total}")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"  {count:5d}  {reason}")
    else:
        terminalreporter.line("skipped because this machine lacks something: 0 (nothing was skipped)")
    if others:
        terminalreporter.line(f"skipped for another reason: {others} (see the short summary above)")
