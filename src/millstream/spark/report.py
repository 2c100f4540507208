"""The metrics as one HTML file: plots, the same in words and tables, and how to read them.

The file needs nothing else: no script, no font, no address. It follows the reader's light or dark setting,
fits a phone, and says beside each plot what the plot shows, so that nothing is only to be seen.
"""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from millstream.errors import InvalidInput
from millstream.spark import plots
from millstream.spark.figures import ACCURACY, Figures, Percentiles
from millstream.spark.forecast import MIN_STEPS, Forecast
from millstream.spark.metrics import MetricsResult
from millstream.spark.plots import span_text

_COLUMNS = (
    "jobs", "failed", "attempts", "retried", "wait p50", "wait p95", "wait p99",
    "run p50", "run p95", "run p99", "wasted",
)  # fmt: skip
_TITLES = {"type": "job type", "queue": "queue", "priority": "priority", "tenant": "tenant"}


def write_report(result: MetricsResult, path: str) -> None:
    """Write the page to ``path``, whole or not at all. Raises InvalidInput where there is no such folder."""
    target = Path(path)
    if target.is_dir():
        raise InvalidInput(f"{path!r} is a folder; give the name of an HTML file in it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as file:
        try:
            file.write(page(result))
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


def page(result: MetricsResult) -> str:
    """The HTML text."""
    body = [f"<h1>What the jobs did</h1>{_about(result)}"]
    if result.unusable:
        body.append(_unusable(result.unusable))
    if result.records == 0:
        body.append(
            "<p class=note>The history is empty, so there is nothing to measure. Workers record it where the "
            "queue was opened with <code>connect(url, history=True)</code>.</p>"
        )
    else:
        body += [_tiles(result), _over_time(result), _types(result), _groups(result)]
        body += [_failures(result), _flaky(result), _capacity(result)]
    body.append(_reading())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What the jobs did</title><style>{_style()}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )


# -- the parts -------------------------------------------------------------------------------------


def _about(result: MetricsResult) -> str:
    if result.first is None or result.last is None:
        return f"<p class=soft>From {_text(result.source)}.</p>"
    return (
        f"<p class=soft>{result.records:,} records from {_text(result.source)}, {_moment(result.first)} to "
        f"{_moment(result.last)} ({span_text(result.span)}).</p>"
    )


def _unusable(unusable: dict[str, int]) -> str:
    reasons = "; ".join(f"{_text(why)}: {count:,}" for why, count in unusable.items())
    return (
        f"<p class=note>{sum(unusable.values()):,} records could not be used and are not part of the "
        f"figures. {reasons}.</p>"
    )


def _tiles(result: MetricsResult) -> str:
    total = result.total
    tiles = [
        ("jobs finished", f"{total.finished:,}"),
        ("per second", _number(total.finished / result.span) if result.span else "–"),
        ("failed for good", _percent(total.failure_rate)),
        ("attempts retried", _percent(total.retry_rate)),
        ("median wait", _span(total.wait, "p50")),
        ("p95 wait", _span(total.wait, "p95")),
        ("time wasted", _percent(total.wasted_share)),
    ]
    if result.forecast is not None:
        tiles.append(("workers needed", f"{result.forecast.needed:,}"))
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    return f"<dl class=tiles>{cells}</dl>"


def _over_time(result: MetricsResult) -> str:
    busiest = max(result.timeline, key=lambda step: step.figures.attempts)
    words = (
        f"Each bar is {span_text(result.step_seconds)}. {result.total.enqueued:,} jobs arrived; "
        f"{result.total.completed:,} were completed, {result.total.failed:,} failed for good, and "
        f"{result.total.retried:,} attempts were retried. The busiest time began at "
        f"{_moment(busiest.start)}, with {busiest.figures.attempts:,} attempts."
    )
    parts = ["<h2>Over time</h2>", _figure(plots.activity, result, words)]
    if result.total.wait is not None:
        waited = result.total.wait
        parts.append(
            _figure(
                plots.waits,
                result,
                f"How long jobs waited for their first attempt. Half of all waited no longer than "
                f"{span_text(waited.p50)}, 95 of 100 no longer than {span_text(waited.p95)}, 99 of 100 no "
                f"longer than {span_text(waited.p99)}.",
            )
        )
    return "".join(parts)


def _types(result: MetricsResult) -> str:
    types = result.by.get("type")
    if not types:
        return ""
    known = [(name, figures) for name, figures in types.items() if figures.run is not None]
    parts = ["<h2>By job type</h2>"]
    height = 1.4 + 0.42 * min(len(types), plots.SHOWN)
    if known:
        slowest = max(known, key=lambda item: item[1].run.p95 if item[1].run else 0.0)
        slow = slowest[1].run
        words = f"From the median to p99 of an attempt, for the {min(len(known), plots.SHOWN)} busiest types."
        if slow is not None:
            words += f" The slowest is {slowest[0]}: p95 is {span_text(slow.p95)}."
        parts.append(_figure(plots.run_times, result, words, height))
    if any(figures.finished for figures in types.values()):
        worst = max(types.items(), key=lambda item: item[1].failure_rate or 0.0)
        words = "How jobs ended: at the first attempt, after a retry, or not at all. "
        words += (
            f"{worst[0]} fails most: {_percent(worst[1].failure_rate)} of its jobs."
            if worst[1].failed
            else "No job failed for good."
        )
        parts.append(_figure(plots.outcomes, result, words, height))
    parts.append(_table("type", types))
    return "".join(parts)


def _groups(result: MetricsResult) -> str:
    parts = []
    for name, values in result.by.items():
        if name != "type" and values:
            parts.append(f"<h2>By {_TITLES[name]}</h2>{_table(name, values)}")
    return "".join(parts)


def _table(name: str, values: dict[str, Figures]) -> str:
    rows = []
    for value, each in values.items():
        wait, run = each.wait, each.run
        rows.append(
            (
                value or "(none)",
                f"{each.finished:,}",
                _percent(each.failure_rate),
                f"{each.attempts:,}",
                _percent(each.retry_rate),
                *(_span(wait, p) for p in ("p50", "p95", "p99")),
                *(_span(run, p) for p in ("p50", "p95", "p99")),
                _percent(each.wasted_share),
            )
        )
    return _rows((_TITLES[name], *_COLUMNS), rows)


def _failures(result: MetricsResult) -> str:
    total = result.total
    if not result.errors:
        return "<h2>Retry cost</h2><p>No attempt failed, so nothing was wasted.</p>"
    words = (
        f"<p>Attempts that failed took {span_text(total.wasted_seconds)} of the workers' "
        f"{span_text(total.run_seconds)} of running: {_percent(total.wasted_share)} of the work was for "
        "nothing.</p>"
    )
    rows = [(each.type, each.error_type, f"{each.count:,}") for each in result.errors]
    return f"<h2>Retry cost</h2>{words}{_rows(('job type', 'error', 'attempts'), rows, words=True)}"


def _flaky(result: MetricsResult) -> str:
    words = (
        "<p>Flaky handlers fail and then work: worth a look, because nothing is wrong with their jobs. "
        "The score is what the share of such jobs is at least, with 95 % confidence; types with few jobs are "
        "left out.</p>"
    )
    if not result.flaky:
        return f"<h2>Flaky handlers</h2>{words}<p>None was found.</p>"
    rows = [
        (each.type, f"{each.score:.1%}", f"{each.share:.1%}", f"{each.recovered:,}", f"{each.finished:,}")
        for each in result.flaky
    ]
    columns = ("job type", "score", "share", "succeeded later", "finished jobs")
    return f"<h2>Flaky handlers</h2>{words}{_rows(columns, rows)}"


def _capacity(result: MetricsResult) -> str:
    if result.forecast is None:
        return "<h2>Capacity</h2><p>The history is too short for a forecast.</p>"
    words = capacity_text(result.forecast)
    rows = [
        (
            name,
            _number(each.arrivals_per_second),
            span_text(each.run_seconds_per_job),
            f"{each.busy:.2f}",
            f"{each.needed:,}",
            f"{each.needed_at_horizon:,}",
            f"{each.backlog:,}",
        )
        for name, each in result.queues.items()
    ]
    columns = (
        "queue",
        "jobs per second",
        "run time per job",
        "busy",
        "needed now",
        "needed later",
        "backlog",
    )
    busiest = max(result.timeline, key=lambda step: step.busy)
    drawn = _figure(
        plots.busy,
        result,
        f"How many workers were busy at once, each bar the mean over {span_text(result.step_seconds)}; "
        f"the most were {busiest.busy:.1f}, from {_moment(busiest.start)} on.",
    )
    return f"<h2>Capacity</h2><p>{_text(words)}</p>{drawn}{_rows(columns, rows)}"


def capacity_text(found: Forecast) -> str:
    """The forecast in words."""
    there = (
        f"{found.workers:g} workers" if found.workers_given else f"the {found.workers:.1f} seen busy at most"
    )
    words = [
        f"{_number(found.arrivals_per_second)} jobs per second, each {span_text(found.run_seconds_per_job)} "
        f"of work, keep {found.busy:.1f} workers busy (Little's law); {found.needed} are needed.",
    ]
    if found.utilisation is not None:
        words.append(f"That is {found.utilisation:.0%} of {there}.")
    if found.trend_per_hour:
        words.append(
            f"Arrivals change by {found.trend_per_hour:+.3g} jobs per second per hour: in "
            f"{span_text(found.horizon_seconds)} it will be {_number(found.arrivals_at_horizon)} per second, "
            f"for {found.needed_at_horizon} workers."
        )
    else:
        words.append("Arrivals show no certain trend.")
    if found.saturated_in_seconds == 0:
        words.append(
            "More arrives than can be done: the backlog grows by "
            f"{_number(found.backlog_growth_per_second)} jobs per second as long as this lasts."
        )
    elif found.saturated_in_seconds is not None:
        words.append(f"From {span_text(found.saturated_in_seconds)} on the backlog would grow without bound.")
    if found.backlog:
        drain = found.drains_in_seconds
        words.append(
            f"{found.backlog:,} jobs are waiting or running"
            + (
                f", worked off in {span_text(drain)}."
                if drain is not None
                else ", and are not being worked off."
            )
        )
    if found.note:
        words.append(found.note[0].upper() + found.note[1:] + ".")
    return " ".join(words)


def _reading() -> str:
    return (
        "<h2>How to read this</h2><p class=soft>A job waits from when it is due until its first attempt "
        "begins. The run time is that of one attempt. Failed jobs failed for good, after their last attempt; "
        "retried attempts failed and were followed by another. Percentiles are exact up to "
        f"{ACCURACY:,} values, and beyond that off by at most one rank in {ACCURACY:,}. Wasted is the run "
        "time of attempts that failed. An attempt counts in the time in which it ended, and keeps its worker "
        "busy from its beginning to its end. The forecast assumes "
        "that run times stay as they are and that arrivals go on as they did, or along a straight line "
        f"where that is certain (at least {MIN_STEPS} steps); it knows no daily or weekly waves.</p>"
    )


def _style() -> str:
    return resources.files("millstream.spark").joinpath("report.css").read_text(encoding="utf-8")


# -- pieces ----------------------------------------------------------------------------------------


def _figure(plot: plots.Plot, result: MetricsResult, words: str, height: float = 3.4) -> str:
    """The plot twice, of which the page shows the one that fits: letters must not shrink with the page."""
    drawn = "".join(
        f"<div class={place}>{plots.svg(plot, result, words, size=(width, height))}</div>"
        for place, width in (("broad", 7.6), ("narrow", 4.2))
    )
    return f"<figure>{drawn}<figcaption>{_text(words)}</figcaption></figure>"


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> str:
    """A table; with ``words``, the second column is text as the first is, and no number."""
    head = "".join(f"<th scope=col>{_text(name)}</th>" for name in columns)
    lines = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = " class=words" if words else ""
    table = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    hint = "<p class=hint>Move the table sideways to see all of it.</p>" if len(columns) > 4 else ""
    return f"{hint}<div class=wide tabindex=0>{table}</div>"


def _text(text: object) -> str:
    return html.escape(str(text))


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _span(times: Percentiles | None, name: str) -> str:
    return "–" if times is None else span_text(getattr(times, name))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
