"""The report is one file that stands alone, and says in words what it shows. No Spark is needed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from millstream.errors import InvalidInput

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

from millstream.spark.figures import Figures, Percentiles
from millstream.spark.forecast import forecast
from millstream.spark.metrics import ErrorCount, MetricsResult, Step
from millstream.spark.plots import png, span_text
from millstream.spark.report import capacity_text, page, write_report

EVIL = '<script>alert("x")</script>'
SOME = Figures(
    enqueued=100, completed=80, failed=5, retried=10, recovered=8, finished=85, attempts=95,
    failure_rate=5 / 85, retry_rate=10 / 95, run_seconds=40.0, wasted_seconds=6.0, wasted_share=0.15,
    wait=Percentiles(0.1, 0.4, 0.9), run=Percentiles(0.2, 0.8, 1.5),
)  # fmt: skip


def result(**changes: object) -> MetricsResult:
    made = MetricsResult(
        source="sqlite:///jobs.db",
        records=190,
        unusable={},
        first=1_780_000_000.0,
        last=1_780_000_100.0,
        window_seconds=10.0,
        step_seconds=10.0,
        total=SOME,
        by={"type": {EVIL: SOME, "b.Mail": Figures()}, "queue": {"mails": SOME}, "tenant": {"": SOME}},
        timeline=[Step(1_780_000_000.0 + 10 * n, SOME if n % 2 else Figures(), 4.0, 0.6) for n in range(11)],
        errors=[ErrorCount(EVIL, "Boom", 15)],
        flaky=[],
        forecast=forecast([10] * 11, step_seconds=10, span_seconds=100, run_seconds=40, finished=85,
                          backlog=15, peak_busy=4.0, workers=2),
        queues={},
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


class Reader(HTMLParser):
    """Checks that what is opened is closed, and gathers what is to be seen."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "svg":
            self.labels.append(given.get("aria-label") or "")
        self.ids += [given["id"] or ""] if "id" in given else []
        for name in ("src", "href", "xlink:href"):
            if not (given.get(name) or "#").startswith("#"):
                self.outside.append(str(given[name]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop() if tag not in self.VOID else None

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text() -> str:
    return page(result())


def test_the_page_stands_alone_and_is_well_formed(text: str) -> None:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.outside == []
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text
    assert "<script" not in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text


def test_every_plot_has_its_words_and_follows_the_page(text: str) -> None:
    reader = Reader()
    reader.feed(text)
    assert len(reader.labels) == text.count("<figcaption>") == 5
    assert all(len(label) > 20 for label in reader.labels)
    assert "currentColor" in text
    assert "#7f7e7d" not in text


def test_names_of_jobs_cannot_become_markup() -> None:
    text = page(result(source=EVIL, unusable={EVIL: 2}))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 4


def test_the_same_result_is_the_same_page(text: str) -> None:
    assert page(result()) == text


def test_the_forecast_in_words() -> None:
    busy = forecast([10] * 20, step_seconds=1, span_seconds=20, run_seconds=100, finished=200, backlog=30,
                    peak_busy=5, workers=4, note="said so")  # fmt: skip
    assert busy is not None
    words = capacity_text(busy)
    assert "keep 5.0 workers busy (Little's law); 7 are needed" in words
    assert "125% of 4 workers" in words
    assert "the backlog grows by 2 jobs per second" in words
    assert "30 jobs are waiting or running, and are not being worked off" in words
    assert words.endswith("Said so.")


def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    write_report(result(), str(target))
    before = target.read_text(encoding="utf-8")
    with pytest.raises(AttributeError):
        write_report(result(total=None), str(target))  # it cannot be drawn
    assert target.read_text(encoding="utf-8") == before
    assert [each.name for each in target.parent.iterdir()] == ["report.html"]
    with pytest.raises(InvalidInput, match="is a folder"):
        write_report(result(), str(tmp_path))


def test_the_picture_is_one(tmp_path: Path) -> None:
    png(result(), str(tmp_path / "plots.png"))
    assert (tmp_path / "plots.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0021, "2.1 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (90, "90 s"),
        (300, "5 min"),
        (7200, "2 h"),
        (3e5, "3.47 d"),
    ],
)
def test_spans_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
