"""The tables, the ratios and the plot."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.jobs.contenders import Contender
from rich.console import Console
from rich.table import Table

Series = dict[str, dict[str, list[float]]]  # contender's label → metric → one value per round


@dataclass(frozen=True)
class Ratio:
    """One comparison that counts. ``met`` is None where nothing was promised."""

    what: str
    ours: float
    against: str
    theirs: float
    ratio: float
    wanted: str
    met: bool | None


class Results:
    """Everything measured, and its medians."""

    def __init__(self, contenders: list[Contender]) -> None:
        self.contenders = contenders
        self.series: Series = {each.label: {} for each in contenders}
        self.failures: dict[str, dict[str, str]] = {}

    def add(self, contender: Contender, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.series[contender.label].setdefault(name, []).append(value)

    def failed(self, contender: Contender, what: str, reason: str) -> None:
        self.failures.setdefault(contender.label, {})[what] = reason

    def median(self, contender: Contender, metric: str) -> float | None:
        values = self.series[contender.label].get(metric)
        return statistics.median(values) if values else None

    def spread(self, contender: Contender, metric: str) -> float | None:
        """(highest - lowest) / median over the rounds: how noisy the machine was."""
        values = self.series[contender.label].get(metric)
        middle = statistics.median(values) if values else 0
        return (max(values) - min(values)) / middle if values and middle else None

    def ours(self) -> Contender | None:
        return next((each for each in self.contenders if each.ours), None)

    def limit(self) -> Contender | None:
        return next((each for each in self.contenders if each.is_limit), None)

    def best_peer(self, metrics: tuple[str, ...], *, low: bool = False) -> tuple[str, float] | None:
        """The best value that any peer reaches in any of ``metrics``: the hardest comparison there is."""
        found = [
            (value, each.label)
            for each in self.contenders
            if each.is_peer
            for metric in metrics
            if (value := self.median(each, metric)) is not None
        ]
        if not found:
            return None
        value, label = min(found) if low else max(found)
        return label, value

    def ratios(self, backlogs: tuple[int, ...]) -> list[Ratio]:
        ours, limit = self.ours(), self.limit()
        if ours is None:
            return []
        found: list[Ratio] = []

        def note(what: str, mine: float | None, other: tuple[str, float | None] | None, wanted: str) -> None:
            if mine is None or other is None or other[1] is None or not other[1]:
                return
            against, theirs = other
            found.append(compare(what, mine, against, theirs, wanted))

        def of_limit(metric: str) -> tuple[str, float | None] | None:
            return None if limit is None else ("bare redis-py", self.median(limit, metric))

        def mine(metric: str) -> float | None:
            return self.median(ours, metric)

        note("push one by one, per s", mine("push_one"), self.best_peer(("push_one",)), "> 1")
        note("push one by one, per s", mine("push_one"), of_limit("push_one"), "")
        note("push in bulk, per s", mine("push_bulk"), self.best_peer(("push_bulk",)), "")
        note("push in bulk, per s", mine("push_bulk"), of_limit("push_bulk"), ">= 1.5")
        for processes, wanted in ((1, ">= 10"), (2, ">= 8")):
            for kind in ("sync", "async"):
                metric = f"drain_{kind}_{processes}"
                what = f"drain, {processes} process{'es' if processes > 1 else ''}, {kind} handler, per s"
                rivals = (f"drain_sync_{processes}", f"drain_async_{processes}")
                note(what, mine(metric), self.best_peer(rivals), wanted)
                note(
                    what,
                    mine(metric),
                    of_limit(f"drain_sync_{processes}"),
                    ">= 0.4" if processes == 1 else "",
                )
        for kind in ("sync", "async"):
            for part in ("p50", "p99"):
                metric = f"latency_{kind}_{part}"
                rivals = (f"latency_sync_{part}", f"latency_async_{part}")
                note(
                    f"idle latency {part}, {kind}, ms", mine(metric), self.best_peer(rivals, low=True), "< 1"
                )
                promised = 1.0 if part == "p50" else 3.0
                note(f"idle latency {part}, {kind}, ms", mine(metric), ("the promise", promised), "< 1")
            metric = f"drain_{kind}_1_reads"
            note(f"round trips per job, {kind}", mine(metric), ("the promise", 0.1), "< 1")
        note("Redis memory per job, bytes", mine("memory"), self.best_peer(("memory",), low=True), "")
        note("Redis memory per job, bytes", mine("memory"), of_limit("memory"), "")
        if len(backlogs) > 1:
            small, large = min(backlogs), max(backlogs)
            what = f"drain at a backlog of {large:,}, per s"
            against = (f"ours at {small:,}", mine(f"backlog_{small}"))
            note(what, mine(f"backlog_{large}"), against, ">= 0.9")
        cpus = ("drain_sync_1_cpu", "drain_async_1_cpu")
        for kind in ("sync", "async"):
            what, metric = f"worker's processor time per job, {kind}, µs", f"drain_{kind}_1_cpu"
            note(what, mine(metric), self.best_peer(cpus, low=True), "")
            note(what, mine(metric), of_limit("drain_sync_1_cpu"), "")
        for way in ("one", "bulk"):
            what = f"producer's processor time per push, {way.replace('one', 'one by one')}, µs"
            metric = f"push_{way}_cpu"
            note(what, mine(metric), self.best_peer((metric,), low=True), "")
            note(what, mine(metric), of_limit(metric), "")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            each.label: {
                "version": each.version,
                "settings": each.settings,
                "bulk": each.bulk,
                "kinds": each.kinds,
                "median": {
                    name: statistics.median(values) for name, values in self.series[each.label].items()
                },
                "rounds": self.series[each.label],
                "failures": self.failures.get(each.label, {}),
            }
            for each in self.contenders
        }


def compare(what: str, ours: float, against: str, theirs: float, wanted: str) -> Ratio:
    """A ratio, and whether it is the one that is wanted (such as ``>= 3``; empty: any)."""
    return Ratio(what, ours, against, theirs, ours / theirs, wanted, _met(ours / theirs, wanted))


def _met(ratio: float, wanted: str) -> bool | None:
    if not wanted:
        return None
    sign, bound = wanted.split()
    value = float(bound)
    return {">": ratio > value, ">=": ratio >= value, "<": ratio < value}[sign]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def show(
    console: Console, results: Results, missing: dict[str, str], backlogs: tuple[int, ...], *, judge: bool
) -> list[Ratio]:
    """Print everything; return the ratios. Without ``judge``, nothing is said about what was wanted."""
    columns = [
        ("push\n1 by 1", "push_one"),
        ("push\nbulk", "push_bulk"),
        ("1 proc\nsync", "drain_sync_1"),
        ("1 proc\nasync", "drain_async_1"),
        ("2 procs\nsync", "drain_sync_2"),
        ("2 procs\nasync", "drain_async_2"),
        ("idle ms\np50", "p50"),
        ("idle ms\np99", "p99"),
        ("bytes\nper job", "memory"),
        ("commands\nper job", "commands"),
        ("trips\nper job", "reads"),
        ("worker\nµs/job", "cpu"),
        ("Redis\nµs/job", "redis_cpu"),
    ]
    show_figures(console, results, missing, columns, "jobs per second unless said otherwise; medians")
    if backlogs and any(
        results.series[each.label].get(f"backlog_{backlogs[0]}") for each in results.contenders
    ):
        _show_backlogs(console, results, backlogs)
    show_failures(console, results)
    show_settings(console, results)
    return show_ratios(console, results.ratios(backlogs), judge=judge)


def show_figures(
    console: Console,
    results: Results,
    missing: dict[str, str],
    columns: list[tuple[str, str]],
    title: str,
) -> None:
    """A row for each contender, a column for each (heading, metric); and who is missing, with the reason."""
    table = Table("", *[name for name, _ in columns], title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for each in results.contenders:
        row = [_number(_cell(results, each, metric)) for _, metric in columns]
        if not each.bulk:
            row = [
                "no such way" if metric == "push_bulk" else text
                for (_, metric), text in zip(columns, row, strict=True)
            ]
        table.add_row(f"{each.label} {each.version}", *row, style="bold" if each.ours else None)
    for name, reason in missing.items():
        table.add_row(f"{name}: {reason.partition(':')[0]}", *[""] * len(columns), style="dim")
        console.print(f"{name}: {reason}")
    console.print(table)


def show_failures(console: Console, results: Results) -> None:
    for label, failures in results.failures.items():
        for what, reason in failures.items():
            console.print(f"{label}: {what}: failed: {reason}")


def show_settings(console: Console, results: Results) -> None:
    settings = Table("", "settings", "bulk push", title="how each was run")
    for each in results.contenders:
        settings.add_row(each.label, each.settings, each.bulk or "one by one")
    console.print(settings)


def _cell(results: Results, each: Contender, metric: str) -> float | None:
    """The metric; where each kind of handler has its own, the better one (costs: the sync one's)."""
    if metric in ("p50", "p99"):
        both = [results.median(each, f"latency_{kind}_{metric}") for kind in ("sync", "async")]
        return min((value for value in both if value is not None), default=None)
    if metric in ("commands", "reads", "cpu", "redis_cpu"):
        both = [results.median(each, f"drain_{kind}_1_{metric}") for kind in ("sync", "async")]
        return next((value for value in both if value is not None), None)
    return results.median(each, metric)


def _show_backlogs(console: Console, results: Results, backlogs: tuple[int, ...]) -> None:
    table = Table(
        "", *[f"{size:,} waiting" for size in backlogs], title="drain rate by backlog, 1 process, sync"
    )
    for each in results.contenders:
        values = [results.median(each, f"backlog_{size}") for size in backlogs]
        if any(value is not None for value in values):
            table.add_row(each.label, *map(_number, values))
    console.print(table)


def show_ratios(console: Console, ratios: list[Ratio], *, judge: bool) -> list[Ratio]:
    """Print the ratios, and return them; without ``judge``, nothing is said about what was wanted."""
    if not judge:
        ratios = [replace(each, wanted="", met=None) for each in ratios]
    table = Table("", "ours", "against", "theirs", "ratio", "wanted", "met", title="ratios")
    for each in ratios:
        met = "" if each.met is None else "yes" if each.met else "NO"
        figures = (
            _number(each.ours),
            each.against,
            _number(each.theirs),
            f"{each.ratio:.2f}",
            each.wanted,
            met,
        )
        table.add_row(each.what, *figures)
    console.print(table)
    return ratios


Panel = tuple[str, tuple[str, ...], str]  # a title, the metrics of its bars, and the scale
PANELS: list[Panel] = [
    ("push one by one, jobs/s", ("push_one",), "linear"),
    ("push in bulk, jobs/s", ("push_bulk",), "log"),
    ("drain, 1 process, jobs/s", ("drain_sync_1", "drain_async_1"), "log"),
    ("drain, 2 processes, jobs/s", ("drain_sync_2", "drain_async_2"), "log"),
    ("idle latency, ms", ("p50", "p99"), "log"),
    ("Redis memory per job, bytes", ("memory",), "linear"),
]


def plot(results: Results, path: Path, panels: list[Panel] = PANELS) -> str:
    """Draw the bars, three panels in a line; empty, or why there is no plot."""
    try:
        import matplotlib
    except ImportError:
        return "matplotlib is not installed (it is in the group `bench`)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = -(-len(panels) // 3)
    figure, axes = pyplot.subplots(lines, 3, figsize=(16, 4.5 * lines), layout="constrained")
    labels = [each.label for each in results.contenders]
    for axis, (title, metrics, scale) in zip(axes.flat, panels, strict=True):
        height = 0.8 / len(metrics)
        for place, metric in enumerate(metrics):
            values = [_cell(results, each, metric) or 0 for each in results.contenders]
            at = [row + (place - (len(metrics) - 1) / 2) * height for row in range(len(labels))]
            name = {"p50": "p50", "p99": "p99"}.get(metric, "async" if "async" in metric else "sync")
            bars = axis.barh(at, values, height, label=name if len(metrics) > 1 else None)
            texts = [_number(value) if value else "" for value in values]
            axis.bar_label(bars, texts, padding=2, fontsize=7)
        axis.set(title=title, yticks=range(len(labels)), yticklabels=labels)
        axis.invert_yaxis()
        drawn = [_cell(results, each, metric) or 0 for each in results.contenders for metric in metrics]
        axis.margins(x=0.18)
        if scale == "log" and any(drawn):
            axis.set_xscale("log")
            # From a power of ten, so that the bars' lengths mean something.
            axis.set_xlim(left=10 ** math.floor(math.log10(min(value for value in drawn if value)) - 0.2))
        if len(metrics) > 1:
            axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return ""
