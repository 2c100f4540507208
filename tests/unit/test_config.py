"""open_broker: from a URL to a broker, or to an error that says what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millstream import LocalStreamBroker, open_broker
from millstream.errors import ConfigurationError, MissingExtra, UnknownScheme


def test_memory_is_the_local_broker() -> None:
    assert isinstance(open_broker("memory://"), LocalStreamBroker)


def test_no_url_is_a_file_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_broker() as broker:
        broker.xadd("s", {"n": 1})
    with open_broker("sqlite:///millstream.db") as again:
        assert [message.data for message in again.xrange("s")] == [{"n": 1}]
    assert (tmp_path / "millstream.db").is_file()


def test_options_may_stand_in_the_url() -> None:
    broker = open_broker("memory://?max_stream_length=3")
    broker.xadd_many("s", [{}] * 5)
    assert broker.xlen("s") == 3
    broker = open_broker("memory://?max_stream_length=none")
    broker.xadd_many("s", [{}] * 10_001)
    assert broker.xlen("s") == 10_001


def test_options_may_be_arguments() -> None:
    broker = open_broker("memory://", max_stream_length=2)
    broker.xadd_many("s", [{}] * 5)
    assert broker.xlen("s") == 2


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(UnknownScheme, match=r"'ftp'; use one of: memory://, .*redis://") as caught:
        open_broker("ftp://somewhere")
    assert caught.value.scheme == "ftp"


@pytest.mark.parametrize("bad", ["", "localhost:6379", "redis", None, 7])
def test_what_is_no_url_says_what_one_looks_like(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="not a broker URL; expected a form such as memory://"):
        open_broker(bad)


@pytest.mark.parametrize(
    "bad", ["memory://host", "memory:///path", "memory://?max_length=5", "memory://?max_stream_length=many"]
)
def test_a_memory_url_with_something_wrong(bad: str) -> None:
    with pytest.raises(ConfigurationError, match=r"memory://|max_stream_length"):
        open_broker(bad)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("millstream.brokers.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"pip install 'millstream\[redis\]'"):
        open_broker("redis://localhost:6379/0")
