"""How fast jobs are on PostgreSQL and on SQLite, beside other Python queues there, in one run.

    python benchmarks/sql_jobs.py              everything, about eight minutes; makes the peers' environments
    python benchmarks/sql_jobs.py --quick      less than a minute: shows that it runs, its figures mean little
    python benchmarks/sql_jobs.py --database sqlite --only push --rounds 5
    python benchmarks/sql_jobs.py --peers none --only plan

Sections: `push` (one by one from one thread, from eight and from a hundred tasks of asyncio, and in bulk),
`drain` (one worker process), `backlog` (our drain rate with 10 k and with 1 M jobs waiting behind) and `plan`
(what the database does for our statements with 1 M jobs waiting, while they are worked off, and with their
dead rows behind).

Everybody pushes the same no-op job with a payload of 60 bytes. The same PostgreSQL server serves all, and
syncs each commit (fsync=on). Each measurement begins with a database of its own. SQLite files lie on the disk
of the folder out/. Who can be run with and without syncing is measured both ways, and compared with those who
do the same. On SQLite a synced push waits for the disk once, whoever makes it: what the disk does alone is
measured as well. The limit is the database's client library alone, with SELECT … FOR UPDATE SKIP LOCKED and
DELETE. How starts are noted and how workers are waited for is told in benchmarks/jobs.py. Contenders take
turns within a round, and the median of the rounds counts; read the ratios, not the figures. Results:
out/bench-sql-jobs.json, and a plot for each database.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.jobs import contenders, environments
from benchmarks.jobs import report as figures
from benchmarks.sql_jobs import homes, measures, plans, report

DATABASES = ("postgresql", "sqlite")
SECTIONS = ("push", "drain", "backlog", "plan")
Say = Callable[[str], None]
Step = tuple[contenders.Contender, str, Callable[[], dict[str, float]]]


def choose(
    home: homes.Home, peers: Path, wanted: str | None, *, quick: bool
) -> tuple[list[contenders.Contender], dict[str, str]]:
    """Ours, the limit and the peers on one database; and what is not available, with the reason.

    With ``quick``, one form of each, and no environment is made.
    """
    known = environments.names(peers)
    asked = known if wanted is None else [name for name in wanted.split(",") if name in known]
    found: list[contenders.Contender] = []
    missing: dict[str, str] = {}
    for name in (*environments.OWN, *asked):
        home.flush()
        folder = environments.PEERS if name == "millstream" else peers
        some, reason = contenders.describe(name, home.url, make=not quick, peers=folder)
        found += some[:1] if quick else some
        if reason:
            missing[name] = f"not available: {reason}"
    return found, missing


def steps(
    section: str,
    home: homes.Home,
    everybody: list[contenders.Contender],
    amount: measures.Amount,
    quick: bool,
) -> Iterator[Step]:
    """What one round of a section consists of."""
    for each in everybody:
        if section == "push" and not each.variant.startswith(("8 threads", "concurrency 10")):
            # Those variants differ in their worker only.
            yield each, "push", lambda each=each: measures.push(home, each, amount)
        elif section == "drain":
            # How ours syncs makes no difference to the kind of handler.
            for kind in each.kinds[:1] if quick or (each.ours and each.variant) else each.kinds:
                yield (
                    each,
                    f"drain, {kind}",
                    lambda each=each, kind=kind: measures.drain(home, each, amount, kind),
                )
        elif section == "backlog" and each.ours and not each.variant:
            for size in amount.backlogs:
                yield (
                    each,
                    f"backlog of {size:,}",
                    lambda each=each, size=size: measures.backlog(home, each, amount, size),
                )


def run(
    results: figures.Results,
    home: homes.Home,
    amount: measures.Amount,
    sections: list[str],
    rounds: int,
    say: Say,
    *,
    quick: bool,
) -> None:
    for number in range(rounds):
        for section in sections:
            planned = list(steps(section, home, results.contenders, amount, quick))
            for each, what, measure in planned if number % 2 == 0 else reversed(planned):
                began = time.monotonic()
                try:
                    values = measure()
                except contenders.Failed as error:
                    results.failed(each, what, str(error))
                    say(f"{each.label}: {what}: failed: {error}")
                    continue
                results.add(each, values)
                told = ", ".join(f"{name} {value:,.4g}" for name, value in values.items())
                say(
                    f"{home.name}, round {number + 1}, {time.monotonic() - began:.1f} s: {each.label}: {told}"
                )


def one_database(
    home: homes.Home, args: argparse.Namespace, amount: measures.Amount, console: Console, say: Say
) -> dict[str, Any]:
    """Measure and print everything on one database; what goes into the file of results."""
    peers = args.peers_folder / home.name
    everybody, missing = choose(home, peers, args.peers, quick=args.quick)
    results = figures.Results(everybody)
    sections = args.only or list(SECTIONS)
    ours, study = results.ours(), None
    if ours is not None and {"backlog", "plan"} & set(sections):
        began = time.monotonic()
        try:
            measures.fill(home, ours, amount)
            say(f"{home.name}: queued {amount.backlogs} jobs in {time.monotonic() - began:.0f} s")
        except contenders.Failed as error:
            results.failed(ours, "filling the queue", str(error))
            sections = [name for name in sections if name not in ("backlog", "plan")]
    run(results, home, amount, sections, args.rounds, say, quick=args.quick)
    if ours is not None and "plan" in sections:
        began = time.monotonic()
        try:
            study = plans.study(home, ours, max(amount.backlogs), amount.window, args.patience)
        except contenders.Failed as error:
            results.failed(ours, "plan", str(error))
        say(f"{home.name}: plans in {time.monotonic() - began:.0f} s")
    title = f"{home.name}: jobs per second unless said otherwise; medians"
    figures.show_figures(console, results, missing, report.COLUMNS, title)
    backlogs = amount.backlogs if "backlog" in sections else ()
    report.show_backlogs(console, results, backlogs)
    figures.show_failures(console, results)
    figures.show_settings(console, results)
    found = report.ratios(home.name, results, backlogs)
    ratios = figures.show_ratios(console, found, judge=not args.quick)
    if study is not None:
        report.show_study(console, study)
    if not args.quick:  # such figures are not worth drawing
        path = args.out.with_name(f"{args.out.stem}-{home.name}.png")
        reason = figures.plot(results, path, report.PANELS)
        console.print(f"no plot: {reason}" if reason else f"plot: {path.name}")
    return {
        "about": home.about(),
        "contenders": results.as_json(),
        "not_available": missing,
        "ratios": [asdict(each) for each in ratios],
        "study": study,
        "failed": bool(
            ours is None or any(results.failures.get(each.label) for each in everybody if each.ours)
        ),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less than a minute, to see that it runs")
    parser.add_argument("--database", action="append", choices=DATABASES, help="this one; may be repeated")
    parser.add_argument("--peers", help="of these only, by comma; `none` for ours and the limits alone")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be repeated")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument("--pushes", type=int, help="jobs that are pushed one by one")
    parser.add_argument("--bulk", type=int, help="jobs that are pushed in bulk, and drained")
    parser.add_argument("--backlog", help="jobs that wait behind, by comma (10000,1000000)")
    parser.add_argument("--seconds", type=float, default=3.0, help="cut a drain after so long")
    parser.add_argument("--patience", type=float, default=300.0, help="for working off the longest backlog")
    parser.add_argument("--peers-folder", type=Path, default=homes.PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench-sql-jobs.json")
    args = parser.parse_args()
    known = {name for kind in DATABASES for name in environments.names(args.peers_folder / kind)}
    unknown = sorted(set((args.peers or "none").split(",")) - known - {"none", ""})
    if unknown:
        parser.error(f"no adapter for {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    args.rounds = args.rounds or (1 if args.quick else 3)
    return args


def main() -> int:
    args = arguments()
    quick = args.quick
    amount = measures.Amount(
        pushes=args.pushes or (200 if quick else 1000),
        bulk=args.bulk or (2000 if quick else 30_000),
        peer_bulk=min(args.bulk or (1000 if quick else 20_000), 20_000),
        peer_drain=min(args.bulk or (200 if quick else 4000), 4000),
        seconds=args.seconds,
        window=500 if quick else 20_000,
        backlogs=tuple(map(int, (args.backlog or ("500,5000" if quick else "10000,1000000")).split(","))),
    )
    console = Console(width=170)
    say = functools.partial(Console(stderr=True, width=170, highlight=False).print, markup=False)

    def end(*_: object) -> NoReturn:
        raise SystemExit("stopped")

    signal.signal(signal.SIGTERM, end)  # so that servers and workers are stopped too
    began, told = time.monotonic(), {}
    for name in args.database or DATABASES:
        with homes.opened(name) as home:
            told[name] = one_database(home, args, amount, console, say)
    text = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "seconds": round(time.monotonic() - began, 1),
        "load": os.getloadavg(),
        "machine": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
        "rounds": args.rounds,
        "amount": asdict(amount),
        "databases": told,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(text, indent=2) + "\n")
    return 1 if any(each["failed"] for each in told.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
