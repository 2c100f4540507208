"""The tables, the ratios and the plan, in words."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs.contenders import Contender
from benchmarks.jobs.report import Panel, Ratio, Results, compare
from rich.console import Console
from rich.table import Table

COLUMNS = [
    ("push\n1 by 1", "push_one"),
    ("push\n8 threads", "push_threads"),
    ("push\n100 tasks", "push_tasks"),
    ("push\nbulk", "push_bulk"),
    ("drain\nsync", "drain_sync"),
    ("drain\nasync", "drain_async"),
    ("worker\nµs/job", "drain_sync_cpu"),
    ("server\nµs/job", "drain_sync_server_cpu"),
    ("log bytes\nper job", "drain_sync_wal"),
]
PANELS: list[Panel] = [
    ("push one by one, jobs/s", ("push_one", "push_threads", "push_tasks"), "linear"),
    ("push in bulk, jobs/s", ("push_bulk",), "log"),
    ("drain, 1 process, jobs/s", ("drain_sync", "drain_async"), "log"),
]
# The peer that counts on each database, and what is wanted against it.
RIVALS = {"postgresql": "procrastinate", "sqlite": "huey"}
DRAINS = ("drain_sync", "drain_async")
BACKLOG = ">= 0.8"


def ratios(database: str, results: Results, backlogs: tuple[int, ...]) -> list[Ratio]:
    """Each of our forms against each form of the rival that promises as much, and against the limit."""
    found: list[Ratio] = []
    times = ">= 5" if database == "postgresql" else ">= 3"
    rival = [each for each in results.contenders if each.name == RIVALS[database]]
    limits = [each for each in results.contenders if each.is_limit]

    def note(mine: Contender, what: str, metric: str, others: list[Contender], metrics: Any, wanted: str):
        ours = results.median(mine, metric)
        rates = [
            (rate, each.label)
            for each in others
            if _synced(each) == _synced(mine)
            for name in metrics
            if (rate := results.median(each, name))
        ]
        if ours is not None and rates:
            theirs, label = max(rates)
            found.append(compare(f"{mine.label}: {what}, per s", ours, label, theirs, wanted))

    for limit in limits[:1]:  # nobody who waits for the disk can be faster than it
        note(limit, "the disk, 4 KiB written and synced", "disk", rival, ("push_one",), "")
    for limit in limits:  # what is possible at all, where waiting for the disk is most of it
        note(limit, "push one by one", "push_one", rival, ("push_one",), "")
        note(limit, "push from 8 threads", "push_threads", rival, ("push_threads",), "")
    for mine in (each for each in results.contenders if each.ours):
        counts = _synced(mine)  # what is not synced is compared, and nothing was promised of it
        bulk = ("push_bulk", "push_one") if database == "sqlite" else ("push_bulk",)
        one = times if counts and database == "sqlite" else ""
        note(mine, "push one by one", "push_one", rival, ("push_one",), one)
        note(mine, "push one by one", "push_one", limits, ("push_one",), "")
        note(mine, "push from 8 threads", "push_threads", rival, ("push_threads",), one)
        note(mine, "push from 8 threads", "push_threads", limits, ("push_threads",), "")
        note(mine, "push from 100 tasks", "push_tasks", rival, ("push_one", "push_threads"), one)
        note(mine, "push in bulk", "push_bulk", rival, bulk, times if counts else "")
        note(mine, "push in bulk", "push_bulk", limits, ("push_bulk",), "")
        note(mine, "drain", "drain_sync", rival, DRAINS, times if counts else "")
        note(mine, "drain", "drain_sync", limits, DRAINS, "")
        others = [each for each in results.contenders if each.is_peer and each not in rival]
        note(mine, "drain", "drain_sync", others, DRAINS, "")
        note(mine, "push in bulk", "push_bulk", others, ("push_bulk", "push_one"), "")
        if len(backlogs) > 1:
            small, large = min(backlogs), max(backlogs)
            few, many = (results.median(mine, f"backlog_{size}") for size in (small, large))
            if few and many:
                what = f"{mine.label}: drain, {large:,} waiting, per s"
                found.append(compare(what, many, f"with {small:,} waiting", few, BACKLOG))
    return found


def _synced(each: Contender) -> bool:
    """Whether a push of this one survives a power failure once it has returned."""
    return each.variant != "not synced"


def show_backlogs(console: Console, results: Results, backlogs: tuple[int, ...]) -> None:
    headings = [f"{size:,} waiting" for size in backlogs]
    table = Table("", *headings, title="drain rate by backlog, 1 process, sync")
    for each in results.contenders:
        values = [results.median(each, f"backlog_{size}") for size in backlogs]
        if any(values):
            table.add_row(each.label, *(f"{value:,.0f}" if value else "-" for value in values))
    if table.row_count:
        console.print(table)


def show_study(console: Console, study: dict[str, Any]) -> None:
    """The plans in short, the table's figures, and the rates of a whole drain."""
    for picture in study["pictures"]:
        console.print(f"{picture['moment']}; the table: {_figures(picture['table'])}", markup=False)
        for plan in picture["plans"]:
            facts = [plan["step"]]
            if plan["milliseconds"] is not None:
                facts += [f"{plan['milliseconds']:.2f} ms", f"{plan['blocks']} blocks"]
            console.print(f"  {', '.join(facts)}", markup=False)
            for line in shortened(plan["plan"]):
                console.print(f"    {line}", markup=False)
    rates = ", ".join(f"{rate:,.0f}" for rate in study["rates_by_tenth"])
    console.print(f"jobs per second of each tenth of the whole drain: {rates}")


def shortened(plan: str) -> list[str]:
    """The lines of a plan that say how rows are found."""
    return [
        line
        for line in plan.splitlines()
        if any(word in line for word in ("Scan", "Index Cond", "SEARCH", "SCAN", "Seq", "Execution Time"))
    ]


def _figures(table: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in table.items())
