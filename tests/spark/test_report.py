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

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from millstream.spark.figures import Figures, Percentiles
from millstream.spark.forecast import forecast
from millstream.spark.metrics import ErrorCount, MetricsResult, Step
from millstream.spark.plots import Plot, activity, busy, png, span_text, waits
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
    assert text.count("<figcaption>") == 5
    assert len(reader.labels) == 2 * 5  # for a broad page and for a narrow one
    assert all(len(label) > 20 for label in reader.labels)
    assert "currentColor" in text
    assert "#7f7e7d" not in text


def test_plots_fit_a_phone_with_letters_that_can_be_read(text: str) -> None:
    widths = [float(width) for width in re.findall(r'viewBox="0 0 ([\d.]+) ', text)]
    assert sorted(set(map(round, widths))) == [302, 547]
    assert re.findall(r"<svg[^>]* width=", text) == []  # each fills its place
    assert "min-width: 30rem" not in text
    assert text.count("<div class=broad>") == text.count("<div class=narrow>") == 5
    small, large = (text.partition("@media (max-width: 40rem)")[place] for place in (2, 0))
    assert ".broad { display: none; }" in small
    assert ".narrow, .hint { display: none; }" in large


def test_a_table_that_is_cut_says_so(text: str) -> None:
    wide = [table for table in re.findall(r"<table.*?</table>", text) if table.count("<th ") > 4]
    assert len(wide) == text.count("<p class=hint>") > 0
    assert "no-repeat local" in text  # the shadow at the edge, which is covered at the end


def drawn(plot: Plot, found: MetricsResult, width: float = 7.6) -> Axes:
    axes = Figure(figsize=(width, 3.4)).add_subplot()
    plot(axes, found)
    return axes


@pytest.mark.parametrize("plot", [activity, waits, busy])
def test_the_time_axis_begins_where_the_first_bar_does(plot: Plot) -> None:
    axes = drawn(plot, result(first=1_780_000_005.65, last=1_780_000_099.0))
    assert axes.get_xlabel() == "after 2026-05-28 20:26:40 UTC"
    assert axes.get_xticks()[0] == 0
    low, high = axes.get_xlim()
    assert low < 0
    assert high > 110
    assert all(bar.get_x() >= 0 for bar in axes.patches)


def test_an_axis_that_begins_within_a_second_says_so() -> None:
    steps = [Step(1_780_000_000.25 + n / 4, SOME) for n in range(4)]
    found = result(first=1_780_000_000.3, last=1_780_000_001.1, timeline=steps, step_seconds=0.25)
    assert drawn(activity, found).get_xlabel() == "after 2026-05-28 20:26:40.250 UTC"


def test_a_narrow_plot_has_fewer_marks() -> None:
    hour = [Step(1_780_000_000.0 + 600 * n, SOME) for n in range(6)]
    found = result(last=1_780_003_600.0, step_seconds=600.0, timeline=hour)
    broad, narrow = (drawn(activity, found, width).get_xticks() for width in (7.6, 4.2))
    assert 2 <= len(narrow) < len(broad)


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
