"""How fast jobs are, beside other Python queues on one Redis, in one run; and how near to bare redis-py.

    python benchmarks/jobs.py              everything, about an hour; makes the peers' environments first
    python benchmarks/jobs.py --quick      half a minute: shows that it runs, its figures mean little
    python benchmarks/jobs.py --peers dramatiq,taskiq --only drain --rounds 1
    python benchmarks/jobs.py --peers none --only backlog

Sections: `push` (one by one, in bulk, Redis memory per queued job), `drain` (one and two worker processes,
sync and async handlers, Redis commands and round trips per job), `latency` (push to start on an idle queue)
and `backlog` (our drain rate with 10 k and with 1 M jobs waiting behind).

Everybody pushes the same no-op job with a payload of 60 bytes. Each handler writes the moment of its start
into memory that the benchmark shares with all workers (benchmarks/jobs/inside/meter.py): that costs the same
for all, and nothing worth mentioning. A worker's start-up does not count: the first handler in each process
waits at a gate, which opens when all have come. Redis commands and reads are counted by the server. The
limit is redis-py alone, with a fenced ack (benchmarks/jobs/peers/bare/peer.py). Contenders take turns within
a round (short ones, forty times over, where they push), and the median of the rounds counts,
because machines are noisy; read the ratios, not the figures.
Our drains use more jobs than the peers', because they would be over too soon. A latency runs from just before
the push is called to the handler's first line. Results: out/bench-jobs.json and out/bench-jobs.png.
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

from benchmarks.jobs import contenders, environments, measures, report

SECTIONS = ("push", "drain", "latency", "backlog")
QUICK_PEERS = 2
QUICK_START = ("dramatiq", "huey")  # whose workers start soon
Step = tuple[contenders.Contender, str, Callable[[], measures.Values]]


def steps(
    section: str,
    everybody: list[contenders.Contender],
    monitor: measures.Monitor,
    amount: measures.Amount,
    *,
    quick: bool,
) -> Iterator[Step]:
    """What one round of a section consists of; with ``quick``, no more than shows that each part works."""
    for each in everybody:
        short = quick and not each.ours
        kinds = each.kinds[:1] if short else each.kinds
        if section == "push":
            yield each, "memory", lambda each=each: measures.memory(monitor, each, amount)
        elif section == "drain":
            for processes in (1,) if short else (1, 2):
                for kind in kinds[:1] if quick and processes == 2 else kinds:
                    yield (
                        each,
                        f"drain, {kind}, {processes} process{'es' if processes > 1 else ''}",
                        lambda each=each, kind=kind, n=processes: measures.drain(
                            monitor, each, amount, kind, n
                        ),
                    )
        elif section == "latency" and not each.is_limit:
            for kind in kinds[:1] if quick else kinds:
                yield (
                    each,
                    f"latency, {kind}",
                    lambda each=each, kind=kind: measures.latency(monitor, each, amount, kind),
                )
        elif section == "backlog" and not each.is_peer and not short:
            for size in amount.backlogs:
                yield (
                    each,
                    f"backlog of {size:,}",
                    lambda each=each, size=size: measures.backlog(monitor, each, amount, size),
                )


def run(
    results: report.Results,
    monitor: measures.Monitor,
    amount: measures.Amount,
    sections: list[str],
    rounds: int,
    say: Callable[[str], None],
    *,
    quick: bool,
) -> None:
    for number in range(rounds):
        for section in sections:
            if section == "push":
                _push_in_turns(results, monitor, amount, say, number)
            planned = list(steps(section, results.contenders, monitor, amount, quick=quick))
            for each, what, measure in planned if number % 2 == 0 else reversed(planned):
                began = time.monotonic()
                try:
                    values = measure()
                except contenders.Failed as error:
                    results.failed(each, what, str(error))
                    say(f"{each.label}: {what}: failed: {error}")
                    continue
                results.add(each, values)
                figures = ", ".join(f"{name} {value:,.4g}" for name, value in values.items())
                say(f"round {number + 1}, {time.monotonic() - began:.0f} s: {each.label}: {figures}")


def _push_in_turns(
    results: report.Results,
    monitor: measures.Monitor,
    amount: measures.Amount,
    say: Callable[[str], None],
    number: int,
) -> None:
    found = measures.push_in_turns(monitor, results.contenders, amount)
    for each in results.contenders:
        values = found[each.name]
        if isinstance(values, contenders.Failed):
            results.failed(each, "push", str(values))
            say(f"{each.label}: push: failed: {values}")
        else:
            results.add(each, values)
            figures = ", ".join(f"{name} {value:,.4g}" for name, value in values.items())
            say(f"round {number + 1}: {each.label}: {figures}")


def choose(wanted: str | None, url: str, *, quick: bool) -> tuple[list[contenders.Contender], dict[str, str]]:
    """Ours, the limit and the peers; and what is not available, with the reason."""
    known = environments.names()
    asked = known if wanted is None else [name for name in wanted.split(",") if name not in ("", "none")]
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise SystemExit(f"no adapter for {', '.join(unknown)}; there are: {', '.join(known)}")
    if quick:
        asked = sorted(asked, key=lambda name: name not in QUICK_START)
    found: list[contenders.Contender] = []
    missing: dict[str, str] = {}
    taken = 0
    for name in (*environments.OWN, *asked):
        if quick and taken == QUICK_PEERS:
            missing[name] = f"left out: --quick takes {QUICK_PEERS} peers at most"
            continue
        some, reason = contenders.describe(name, url, make=not quick)
        found += some[:1] if quick else some
        taken += bool(some) and name in asked
        if reason:
            missing[name] = f"not available: {reason}"
    return found, missing


def a_redis() -> Any:
    """A Redis 7 for this run, or what else there is."""
    from tests.servers import FLAVOURS, RedisServer, find_redis

    flavour = next((name for name in FLAVOURS if find_redis(name)[0]), None)
    if flavour is None:
        raise SystemExit("no Redis here: install redis-server")
    return RedisServer(flavour)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--peers", help="of these only, by comma; `none` for ours and the limits alone")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be repeated")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument("--jobs", type=int, help="jobs per measurement of a peer")
    parser.add_argument("--our-jobs", type=int, help="jobs per measurement of ours and of the limits")
    parser.add_argument("--latencies", type=int, help="pushes per latency measurement")
    parser.add_argument("--backlog", help="jobs that wait behind, by comma (10000,1000000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="cut a drain after so long")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench-jobs.json")
    args = parser.parse_args()
    quick = args.quick
    sections = args.only or list(SECTIONS)
    backlogs = tuple(map(int, (args.backlog or ("500,5000" if quick else "10000,1000000")).split(",")))
    amount = measures.Amount(
        jobs=args.jobs or (300 if quick else 8000),
        our_jobs=args.our_jobs or (2000 if quick else 200_000),
        latencies=args.latencies or (30 if quick else 1000),
        seconds=args.seconds,
        window=1000 if quick else 20_000,
        backlogs=backlogs,
        turns=2 if quick else 40,
        turn=50 if quick else 200,
        bulk_turn=500 if quick else 10_000,
    )
    rounds = args.rounds or (1 if quick else 3)
    console = Console(width=170)
    loud = Console(stderr=True, width=170, highlight=False)

    def end(*_: object) -> NoReturn:
        raise SystemExit("stopped")

    signal.signal(signal.SIGTERM, end)  # so that servers and workers are stopped too
    began = time.monotonic()
    with a_redis() as server, server.client(decode_responses=True) as client:
        everybody, missing = choose(args.peers, server.url, quick=quick)
        results = report.Results(everybody)
        monitor = measures.Monitor(client, server.url)
        version = client.info("server")["redis_version"]
        say = functools.partial(loud.print, markup=False)
        run(results, monitor, amount, sections, rounds, say, quick=quick)
    ratios = report.show(
        console, results, missing, backlogs if "backlog" in sections else (), judge=not quick
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "redis": version,
    }
    text = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "seconds": round(time.monotonic() - began, 1),
        "load": os.getloadavg(),
        "machine": machine,
        "rounds": rounds,
        "amount": asdict(amount),
        "contenders": results.as_json(),
        "not_available": missing,
        "ratios": [asdict(each) for each in ratios],
    }
    args.out.write_text(json.dumps(text, indent=2) + "\n")
    reason = report.plot(results, args.out.with_suffix(".png"))
    console.print(f"no plot: {reason}" if reason else f"plot: {args.out.with_suffix('.png').name}")
    if results.ours() is None:
        console.print("Millstream itself could not be measured: there are no ratios")
        return 1
    return 1 if results.failures.get("millstream") else 0


if __name__ == "__main__":
    sys.exit(main())
