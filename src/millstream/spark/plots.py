"""The plots of the metrics, as SVG text for a page or as a PNG file.

An SVG takes its text colour from the page around it (``currentColor``) and has no background, so that it
reads on light and on dark. Series have colours that people with any kind of colour vision can tell apart,
and marks or labels of their own. No global state of matplotlib is touched: a report may be drawn in any
thread.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from millstream.spark.ticks import even_ticks, log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from millstream.spark.metrics import MetricsResult

Plot = Callable[["Axes", "MetricsResult"], None]
# The palette of Okabe and Ito. Each has a contrast of 3:1 or near it to white and to a dark page.
DONE, RECOVERED, RETRIED, FAILED = "#009E73", "#56B4E9", "#E69F00", "#D55E00"
ARRIVED, LINE = "#CC79A7", "#0072B2"
INK = "#7f7e7d"  # stands for the text colour of the page until the SVG is written
NARROW = 5.0  # inches: a plot below it is for a phone, with fewer marks and shorter names
SHOWN = 8  # types in a plot; the report's table has them all
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "millstream",
    "font.size": 10.0,
    "font.family": "sans-serif",
}


def svg(plot: Plot, result: MetricsResult, label: str, *, size: tuple[float, float] = (7.2, 3.4)) -> str:
    """The plot as an ``<svg>`` element that fills its place; ``label`` is read out instead of it."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # the names are known to matplotlib
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        _dress(axes, INK)
        plot(axes, result)
        _legend(axes, INK)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    used = set(re.findall(r"#([\w.-]+)", text))  # several plots on one page must not share names
    text = re.sub(r' id="([\w.-]+)"', lambda found: found[0] if found[1] in used else "", text)
    text = text.replace("*{stroke", "figure svg *{stroke")  # its style would reach the whole page
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(
        r'(<svg[^>]*?) width="[^"]*"', rf'\1 role="img" aria-label="{_attribute(label)}"', text, count=1
    )
    return text.strip()


def png(result: MetricsResult, path: str) -> None:
    """Four plots in one picture."""
    plots: Sequence[tuple[str, Plot]] = (
        ("What happened", activity),
        ("How long attempts run, by type", run_times),
        ("How jobs ended, by type", outcomes),
        ("Busy workers", busy),
    )
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # the names are known to matplotlib
        figure = Figure(figsize=(13, 8), dpi=110, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        figure.suptitle(
            f"{result.total.finished:,} jobs, {result.total.attempts:,} attempts in {span_text(result.span)}",
            fontsize=15,
        )
        for place, (title, plot) in enumerate(plots, 1):
            axes = figure.add_subplot(2, 2, place)
            _dress(axes, "#444444")
            axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=28)
            plot(axes, result)
            _legend(axes, "#444444")
        figure.savefig(path, format="png")


# -- the plots -------------------------------------------------------------------------------------


def activity(axes: Axes, result: MetricsResult) -> None:
    """What ended in each step, stacked; and what arrived, as a line."""
    starts, width = _times(result)
    below = [0.0] * len(starts)
    for name, colour in (("completed", DONE), ("retried", RETRIED), ("failed", FAILED)):
        values = [getattr(step.figures, name) / result.step_seconds for step in result.timeline]
        if any(values):
            axes.bar(starts, values, width, bottom=below, align="edge", color=colour, label=name)
        below = [low + value for low, value in zip(below, values, strict=True)]
    arrived = [step.figures.enqueued / result.step_seconds for step in result.timeline]
    if any(arrived):
        axes.step(
            [*starts, starts[-1] + width],
            [*arrived, arrived[-1]],
            where="post",
            color=ARRIVED,
            linewidth=2,
            label="enqueued",
        )
    axes.set_ylabel("per second")
    axes.set_ylim(bottom=0)
    _clock(axes, result)


def waits(axes: Axes, result: MetricsResult) -> None:
    """How long jobs waited for their first attempt, over time."""
    starts, width = _times(result)
    for name, colour, style in (("p50", DONE, "-"), ("p95", RETRIED, "--"), ("p99", FAILED, ":")):
        points = [
            (start + width / 2, getattr(step.figures.wait, name))
            for start, step in zip(starts, result.timeline, strict=True)
            if step.figures.wait is not None
        ]
        axes.plot([x for x, _ in points], [y for _, y in points], style, color=colour, marker=".", label=name)
    axes.set_ylabel("waited")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(FixedLocator(even_ticks(0.0, axes.get_ylim()[1], most=8)))
    axes.yaxis.set_major_formatter(FuncFormatter(_duration_tick))
    _clock(axes, result)


def run_times(axes: Axes, result: MetricsResult) -> None:
    """From the median to p99 for each type, with p95 marked."""
    known = [(name, figures.run) for name, figures in _types(result) if figures.run is not None]
    for place, (_, run) in enumerate(known):
        low, high = max(run.p50, 1e-6), max(run.p99, 1e-6)
        axes.plot([low, high], [place, place], color=LINE, linewidth=5, alpha=0.35, solid_capstyle="round")
        first = place == 0
        axes.plot(low, place, "o", color=DONE, markersize=8, label="p50" if first else None)
        axes.plot(max(run.p95, 1e-6), place, "D", color=RETRIED, markersize=7, label="p95" if first else None)
        axes.plot(high, place, "s", color=FAILED, markersize=7, label="p99" if first else None)
    axes.set_xscale("log")
    if known:
        shortest = min(max(run.p50, 1e-6) for _, run in known)
        longest = max(run.p99 for _, run in known)
        marks = log_ticks(shortest, longest, most=_most_marks(axes))
        axes.set_xlim(marks[0] * 0.85, max(marks[-1], longest, marks[0] * 2) * 1.18)
        axes.xaxis.set_major_locator(FixedLocator(marks))
    axes.xaxis.set_major_formatter(FuncFormatter(_duration_tick))
    axes.xaxis.set_minor_locator(NullLocator())
    _names(axes, [name for name, _ in known])
    axes.set_xlabel("run time of an attempt (logarithmic)")


def outcomes(axes: Axes, result: MetricsResult) -> None:
    """The shares of jobs that were completed at once, after a retry, or not at all."""
    known = [(name, figures) for name, figures in _types(result) if figures.finished]
    left = [0.0] * len(known)
    for label, colour, counts in (
        ("first attempt", DONE, [figures.completed - figures.recovered for _, figures in known]),
        ("after a retry", RECOVERED, [figures.recovered for _, figures in known]),
        ("failed", FAILED, [figures.failed for _, figures in known]),
    ):
        shares = [100 * count / figures.finished for count, (_, figures) in zip(counts, known, strict=True)]
        axes.barh(range(len(known)), shares, 0.62, left=left, color=colour, label=label)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    _names(axes, [name for name, _ in known])
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of finished jobs")


def busy(axes: Axes, result: MetricsResult) -> None:
    """Workers that were busy, against what there is and what the load needs."""
    starts, width = _times(result)
    wasted = [step.wasted for step in result.timeline]
    useful = [step.busy - step.wasted for step in result.timeline]
    axes.bar(starts, useful, width, align="edge", color=DONE, label="useful work")
    if any(wasted):
        axes.bar(
            starts, wasted, width, bottom=useful, align="edge", color=FAILED, label="attempts that failed"
        )
    if result.forecast is not None and result.forecast.workers_given:
        axes.axhline(result.forecast.workers, color=LINE, label=f"workers: {result.forecast.workers:g}")
    if result.span > 0:
        mean = result.total.run_seconds / result.span
        axes.axhline(mean, color=INK, linestyle="--", label=f"mean: {mean:.1f}")
    axes.set_ylabel("busy workers")
    axes.set_ylim(bottom=0)
    _clock(axes, result)


# -- how they look ---------------------------------------------------------------------------------


def _dress(axes: Axes, ink: str) -> None:
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(ink)
    axes.tick_params(which="both", colors=ink, labelcolor=ink)
    axes.xaxis.label.set_color(ink)
    axes.yaxis.label.set_color(ink)
    axes.grid(visible=True, color=ink, alpha=0.2, linewidth=0.7)
    axes.set_axisbelow(True)


def _legend(axes: Axes, ink: str) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if _is_narrow(axes) and len("".join(labels)) > 25 else 5
    if handles:
        # Above the plot: it never covers data, whatever the data are.
        axes.legend(
            loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, frameon=False, labelcolor=ink,
            borderaxespad=0.1, columnspacing=1.2, handlelength=1.4, fontsize=9,
        )  # fmt: skip


def _is_narrow(axes: Axes) -> bool:
    return axes.get_figure(root=True).get_figwidth() < NARROW  # type: ignore[union-attr]  # it has one


def _most_marks(axes: Axes) -> int:
    return 4 if _is_narrow(axes) else 7


def _names(axes: Axes, names: list[str]) -> None:
    limit = 14 if _is_narrow(axes) else 26
    axes.set_yticks(range(len(names)), [_short(name, limit) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)  # the busiest on top
    axes.grid(visible=False, axis="y")


def _short(name: str, limit: int) -> str:
    """The end of a long name, from a dot on where there is one: there it differs from the others."""
    if len(name) <= limit:
        return name
    end = name[-limit + 1 :]
    return "…" + (end.partition(".")[2] or end)


def _types(result: MetricsResult) -> list[tuple[str, Any]]:
    return list(result.by.get("type", {}).items())[:SHOWN]


def _times(result: MetricsResult) -> tuple[list[float], float]:
    """Where each step begins, in seconds after the begin of the first one, and how wide it is."""
    return [step.start - _origin(result) for step in result.timeline], result.step_seconds


def _origin(result: MetricsResult) -> float:
    """The moment at 0 s: where the first bar begins, which is at or before the first record."""
    return result.timeline[0].start


def _clock(axes: Axes, result: MetricsResult) -> None:
    """The time axis: seconds from the start for a short history, times of day or dates for a long one."""
    first, most = _origin(result), _most_marks(axes)
    starts, width = _times(result)
    low, high = starts[0], starts[-1] + width
    if result.span < 600:
        ticks = even_ticks(low, high, most=most)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g} s"))
        axes.set_xlabel(f"after {_exactly(first)} UTC")
    else:
        days = result.span >= 2 * 86400
        form = "%m-%d" if days else "%H:%M"
        # At full hours and days of the clock, not so many after the first record: a date means its midnight.
        clock = even_ticks(first + low, first + high, most=most, least_step=86400.0 if days else 60.0)
        ticks = [at - first for at in clock]
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: f"{datetime.fromtimestamp(first + x, UTC):{form}}")
        )
        axes.set_xlabel(f"UTC, from {datetime.fromtimestamp(first, UTC):%Y-%m-%d %H:%M}")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    margin = (high - low) * 0.03
    axes.set_xlim(low - margin, high + margin)  # whatever is drawn: the plots of one page have one time axis


def _exactly(at: float) -> str:
    """A moment to the second, or to the millisecond where it is not a full one: steps may be shorter."""
    shown = datetime.fromtimestamp(round(at, 3), UTC)
    return f"{shown:%Y-%m-%d %H:%M:%S}" + (f".{shown.microsecond // 1000:03}" if shown.microsecond else "")


def _duration_tick(seconds: float, _: object) -> str:
    return "0" if seconds == 0 else span_text(seconds)


def span_text(seconds: float) -> str:
    """A span of time with the unit that fits: 2 ms, 1.5 s, 3 min, 2 h, 4 d."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if abs(seconds) >= size * (2 if size > 1 else 1):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("\\", "\\\\")
