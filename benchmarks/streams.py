"""How fast the stream brokers are, always against something on the same machine at the same time.

    python benchmarks/streams.py             everything, about two minutes
    python benchmarks/streams.py --quick     a few seconds: shows that it runs, its figures mean little
    python benchmarks/streams.py --only soak --soak 30

Sections: `fakeredis` (local broker against fakeredis), `redis` (Redis broker against bare redis-py, same
server, same payload), `scale` (cost per operation of the local broker with a thousand and with a million
entries), `soak` (32 threads adding and 32 consuming). Contenders take turns within a round, and the median of
the rounds counts, because machines are noisy; read the ratios, not the figures. The table is also written to
out/bench-streams.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from millstream import LocalStreamBroker, open_broker

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("fakeredis", "redis", "scale", "soak")
encode, decode = msgspec.json.encode, msgspec.json.decode
GROUP, CONSUMER = "workers", "c1"


def payload(number: int) -> dict[str, Any]:
    """About sixty bytes of JSON, as in the benchmark of jobs."""
    return {"user_id": number, "email": "somebody@example.org", "attempt": 1}


@dataclass(frozen=True)
class Row:
    """One comparison: ``ratio`` is ours over theirs, or the large case over the small one."""

    section: str
    what: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    wanted: str


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int
    additions: int  # single additions per round
    batches: int  # batches per round
    small: int
    large: int
    cycle: int  # operations per timed stretch of the scale section


FULL = Scale(rounds=9, additions=2000, batches=20, small=1000, large=1_000_000, cycle=500)
QUICK = Scale(rounds=2, additions=100, batches=2, small=200, large=2000, cycle=50)


def timed(work: Callable[[], Any]) -> float:
    gc.collect()  # what an earlier contender left is not this one's to clear away
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def race(rounds: int, *contenders: Callable[[int], tuple[int, float]]) -> list[float]:
    """Operations per second of each contender: (operations, seconds) of each round, in turns; the median."""
    rates: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds):
        order = list(range(len(contenders)))
        for position in order if number % 2 == 0 else reversed(order):
            operations, seconds = contenders[position](number)
            rates[position].append(operations / seconds)
    return [statistics.median(values) for values in rates]


def compare(
    section: str, what: str, rounds: int, wanted: str, *contenders: Callable[[int], tuple[int, float]]
) -> Row:
    ours, theirs = race(rounds, *contenders)
    return Row(section, what, ours, theirs, "per second", ours / theirs, wanted)


# -- local broker against fakeredis -----------------------------------------------------------------


def against_fakeredis(scale: Scale) -> Iterator[Row]:
    import fakeredis

    fake = fakeredis.FakeRedis()
    names = count()
    few = max(scale.additions // 10, 50)  # fakeredis is slow: fewer of its operations give the same rate

    def add_local(_: int) -> tuple[int, float]:
        broker, many = LocalStreamBroker(), scale.additions * 5
        payloads = [payload(number) for number in range(many)]

        def work() -> None:
            for data in payloads:
                broker.xadd("s", data)

        return many, timed(work)

    def add_fake(_: int) -> tuple[int, float]:
        name = f"s{next(names)}"
        payloads = [payload(number) for number in range(few)]

        def work() -> None:
            for data in payloads:
                fake.xadd(name, {"data": encode(data)})

        return few, timed(work)

    yield compare("fakeredis", "xadd", 3 * scale.rounds, ">= 50", add_local, add_fake)

    def read_local(*, look: bool) -> Callable[[int], tuple[int, float]]:
        def run(_: int) -> tuple[int, float]:
            broker, many = LocalStreamBroker(max_stream_length=None), scale.additions * 10
            broker.create_group("s", GROUP, "0")
            broker.xadd_many("s", [payload(number) for number in range(many)])

            def work() -> None:
                while messages := broker.xreadgroup(GROUP, CONSUMER, "s", 10):
                    if look:
                        for message in messages:
                            assert message.data["attempt"] == 1
                    broker.xack("s", GROUP, [message.id for message in messages])

            return many, timed(work)

        return run

    def read_fake(*, look: bool) -> Callable[[int], tuple[int, float]]:
        def run(_: int) -> tuple[int, float]:
            name = f"s{next(names)}"
            fake.xgroup_create(name, GROUP, "0", mkstream=True)
            for number in range(few):
                fake.xadd(name, {"data": encode(payload(number))})

            def work() -> None:
                while reply := fake.xreadgroup(GROUP, CONSUMER, {name: ">"}, count=10):
                    entries = entries_of(reply)
                    if look:
                        for _, fields in entries:
                            assert decode(fields[b"data"])["attempt"] == 1
                    fake.xack(name, GROUP, *[entry_id for entry_id, _ in entries])

            return few, timed(work)

        return run

    for look, what, wanted in (
        (False, "read 10 + ack", ">= 50"),
        (True, "read 10 + ack, data looked at", ""),
    ):
        contenders = read_local(look=look), read_fake(look=look)
        yield compare("fakeredis", what, 3 * scale.rounds, wanted, *contenders)


def entries_of(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of a one-stream reply, in the form of RESP2 or RESP3."""
    if isinstance(reply, dict):
        (entries,) = reply.values()
        return entries[0] if entries and isinstance(entries[0], list) else entries
    return reply[0][1]


# -- Redis broker against bare redis-py -------------------------------------------------------------


@contextmanager
def a_redis(url: str | None) -> Iterator[str]:
    """``url`` itself, or a server that is started for the benchmark."""
    if url is not None:
        yield url
        return
    sys.path.insert(0, str(ROOT))
    from tests.servers import FLAVOURS, RedisServer, find_redis

    flavour = next((name for name in FLAVOURS if find_redis(name)[0]), None)
    if flavour is None:
        raise SystemExit("no Redis here: install redis-server, or give --url")
    with RedisServer(flavour) as server:
        yield server.url


def against_redis_py(scale: Scale, url: str | None) -> Iterator[Row]:
    import redis

    with ExitStack() as stack:
        address = stack.enter_context(a_redis(url))
        broker = stack.enter_context(open_broker(address))
        bare = stack.enter_context(redis.Redis.from_url(address))
        names = [f"bench:{os.getpid()}:{who}" for who in ("ours", "theirs")]
        stack.callback(lambda: bare.delete(*names))
        ours, theirs = names

        def add_ours(_: int) -> tuple[int, float]:
            def work() -> None:
                for number in range(scale.additions):
                    broker.xadd(ours, payload(number))

            return scale.additions, timed(work)

        def add_theirs(_: int) -> tuple[int, float]:
            def work() -> None:
                for number in range(scale.additions):
                    bare.xadd(theirs, {"data": encode(payload(number))})

            return scale.additions, timed(work)

        yield compare("redis", "xadd, one by one", scale.rounds, ">= 0.8", add_ours, add_theirs)

        def many_ours(_: int) -> tuple[int, float]:
            def work() -> None:
                for _ in range(scale.batches):
                    broker.xadd_many(ours, [payload(number) for number in range(1000)])

            broker.delete_stream(ours)
            return scale.batches * 1000, timed(work)

        def many_theirs(_: int) -> tuple[int, float]:
            def work() -> None:
                for _ in range(scale.batches):
                    pipe = bare.pipeline(transaction=False)
                    for number in range(1000):
                        pipe.xadd(theirs, {"data": encode(payload(number))})
                    pipe.execute()

            bare.delete(theirs)
            return scale.batches * 1000, timed(work)

        what = "xadd_many of 1000, against a pipeline"
        yield compare("redis", what, scale.rounds, ">= 2", many_ours, many_theirs)

        def refill(name: str) -> None:
            bare.delete(name)
            bare.xgroup_create(name, GROUP, "0", mkstream=True)
            for _ in range(scale.batches):
                broker.xadd_many(name, [payload(number) for number in range(1000)])

        def read_ours(_: int) -> tuple[int, float]:
            def work() -> None:
                while messages := broker.xreadgroup(GROUP, CONSUMER, ours, 200):
                    broker.xack(ours, GROUP, [message.id for message in messages])

            refill(ours)
            return scale.batches * 1000, timed(work)

        def read_theirs(_: int) -> tuple[int, float]:
            def work() -> None:
                while reply := bare.xreadgroup(GROUP, CONSUMER, {theirs: ">"}, count=200):
                    bare.xack(theirs, GROUP, *[entry_id for entry_id, _ in entries_of(reply)])

            refill(theirs)
            return scale.batches * 1000, timed(work)

        yield compare("redis", "xreadgroup 200 + xack", scale.rounds, ">= 0.7", read_ours, read_theirs)


# -- the local broker as its streams grow -----------------------------------------------------------


class Loaded:
    """A local broker with ``size`` entries that are pending, or settled, and a timer for each operation."""

    def __init__(self, size: int, *, pending: bool) -> None:
        self.broker = LocalStreamBroker(max_stream_length=None)
        self.broker.create_group("s", GROUP, "0")
        for start in range(0, size, 1000):
            chunk = range(start, min(start + 1000, size))
            self.broker.xadd_many("s", [payload(number) for number in chunk])
            messages = self.broker.xreadgroup(GROUP, "holder", "s", 1000)
            if not pending:
                self.broker.xack("s", GROUP, [message.id for message in messages])
        self.pending = [entry.id for entry in self.broker.xpending("s", GROUP, count=200_000)]

    def cycle(self, operations: int) -> dict[str, float]:
        """Seconds per operation; the stream is as long afterwards as before."""
        broker, seconds = self.broker, {}
        bodies = [payload(number) for number in range(operations)]
        ids: list[str] = []
        each = range(operations)
        seconds["add"] = timed(lambda: ids.extend(broker.xadd("s", body) for body in bodies))
        seconds["read"] = timed(lambda: [broker.xreadgroup(GROUP, CONSUMER, "s") for _ in each])
        held = self.pending or ids
        step = max(len(held) // operations, 1)
        wanted = [held[position * step % len(held)] for position in each]
        claims = [
            lambda entry_id=entry_id: broker.xclaim("s", GROUP, "d", 0, entry_id) for entry_id in wanted
        ]
        seconds["xclaim"] = timed(lambda: [claim() for claim in claims])
        seconds["xautoclaim"] = timed(lambda: [broker.xautoclaim("s", GROUP, "d", 0) for _ in each])
        seconds["ack"] = timed(lambda: [broker.xack("s", GROUP, entry_id) for entry_id in ids])
        broker.xdel("s", ids)
        return {name: value / operations for name, value in seconds.items()}


def as_it_grows(scale: Scale) -> Iterator[Row]:
    for pending in (False, True):
        small, large = Loaded(scale.small, pending=pending), Loaded(scale.large, pending=pending)
        gc.collect()
        spent: dict[str, list[tuple[float, float]]] = {}
        for number in range(scale.rounds * 2 + 1):
            # In turns, and the first round is only to get warm.
            pair = [
                loaded.cycle(scale.cycle) for loaded in ((small, large) if number % 2 else (large, small))
            ]
            of_small, of_large = pair if number % 2 else pair[::-1]
            for name in of_small if number else ():
                spent.setdefault(name, []).append((of_large[name], of_small[name]))
        state = "pending" if pending else "entries"
        for name, values in spent.items():
            big, little = (statistics.median(value[side] for value in values) * 1e6 for side in (0, 1))
            what = f"{name}, {scale.large:,} against {scale.small:,} {state}"
            yield Row("scale", what, big, little, "µs per operation", big / little, "<= 1.5")
        small.broker.close()
        large.broker.close()


# -- many threads -----------------------------------------------------------------------------------


def resident_mb() -> float:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


class Seen:
    """Which of a producer's numbers were delivered: a bit for each, so that the record itself stays small."""

    def __init__(self) -> None:
        self.bits = bytearray(1 << 16)
        self.lock = threading.Lock()
        self.count = self.duplicates = 0

    def mark(self, number: int) -> None:
        at, bit = number >> 3, 1 << (number & 7)
        with self.lock:
            if at >= len(self.bits):
                self.bits.extend(bytes(1 << 16))
            if self.bits[at] & bit:
                self.duplicates += 1
            self.bits[at] |= bit
            self.count += 1

    def missing(self, total: int) -> int:
        return sum(not self.bits[number >> 3] & 1 << (number & 7) for number in range(total))


def soak(seconds: float, threads: int = 32) -> dict[str, Any]:
    """``threads`` adding and as many consuming on one broker: everything delivered once, memory flat."""
    broker = LocalStreamBroker()
    broker.create_group("soak", GROUP, "0")
    seen = [Seen() for _ in range(threads)]
    added = [0] * threads
    stop, all_added = threading.Event(), threading.Event()
    unread = (
        100  # additions between two tickets; work that is not read is kept, so producers must not run away
    )
    tickets = threading.Semaphore(200)
    errors: list[BaseException] = []

    def produce(me: int) -> None:
        while not stop.is_set():
            if added[me] % unread == 0 and not tickets.acquire(timeout=0.2):
                continue
            broker.xadd("soak", {"p": me, "n": added[me], "text": "x" * 40})
            added[me] += 1

    def consume(name: str) -> None:
        done = 0
        while True:
            last_round = all_added.is_set()
            messages = broker.xreadgroup(GROUP, name, "soak", 10, 50)
            for message in messages:
                seen[message.data["p"]].mark(message.data["n"])
            settled = broker.xack("soak", GROUP, [message.id for message in messages])
            if settled != len(messages):
                raise AssertionError(f"{settled} of {len(messages)} acknowledgements counted")
            before, done = done, done + settled
            for _ in range(done // unread - before // unread):
                tickets.release()
            if last_round and not messages:
                return

    def guarded(work: Callable[..., None], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*args)
            except BaseException as error:  # noqa: BLE001 - reported with the result, which then is a failure
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    began = time.monotonic()
    producers = [guarded(produce, me) for me in range(threads)]
    consumers = [guarded(consume, f"c{number}") for number in range(threads)]
    samples, lengths = [], []
    while time.monotonic() - began < seconds:
        stop.wait(min(0.5, seconds / 10))
        samples.append(round(resident_mb(), 1))
        lengths.append(broker.xlen("soak"))
    stop.set()
    for thread in producers:
        thread.join()
    all_added.set()
    for thread in consumers:
        thread.join()
    spent = time.monotonic() - began
    (info,) = broker.group_info("soak")
    third = max(len(samples) // 3, 1)
    early, late = (
        statistics.median(samples[third : 2 * third] or samples),
        statistics.median(samples[-third:]),
    )
    return {
        "seconds": round(spent, 1),
        "threads": f"{threads} adding, {threads} consuming",
        "added": sum(added),
        "delivered": sum(one.count for one in seen),
        "duplicates": sum(one.duplicates for one in seen),
        "lost": sum(one.missing(total) for one, total in zip(seen, added, strict=True)),
        "pending": info.pending,
        "lag": info.lag,
        "per_second": round(sum(added) / spent),
        "longest_stream": max(lengths),
        "rss_mb": samples,
        "rss_growth": round(late / early, 3),
        "errors": [repr(error) for error in errors],
    }


def soak_verdict(result: dict[str, Any]) -> str:
    """Empty where the run was right."""
    wrong = [name for name in ("duplicates", "lost", "pending", "lag") if result[name]]
    wrong += ["errors"] if result["errors"] else []
    wrong += [] if result["delivered"] == result["added"] > 0 else ["delivered"]
    # A short run is still warming up; its growth says nothing.
    wrong += ["rss_growth"] if result["seconds"] >= 15 and result["rss_growth"] > 1.1 else []
    return ", ".join(wrong)


# -- the command ------------------------------------------------------------------------------------


def show(console: Console, rows: list[Row]) -> None:
    table = Table("", "", "ours", "theirs", "", "ratio", "wanted")
    for row in rows:
        figures = (f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in (row.ours, row.theirs))
        table.add_row(row.section, row.what, *figures, row.unit, f"{row.ratio:.2f}", row.wanted)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be repeated")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="how long the threads run")
    parser.add_argument("--url", help="a Redis of your own for the section redis")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench-streams.json")
    args = parser.parse_args()
    scale = QUICK if args.quick else FULL
    sections = args.only or list(SECTIONS)
    console = Console(width=130)
    rows: list[Row] = []
    if "fakeredis" in sections:
        rows += against_fakeredis(scale)
    if "redis" in sections:
        rows += against_redis_py(scale, args.url)
    if "scale" in sections:
        rows += as_it_grows(scale)
    if rows:
        show(console, rows)
    result = None
    verdict = ""
    if "soak" in sections:
        result = soak(args.soak or (1.0 if args.quick else 10.0))
        verdict = soak_verdict(result)
        console.print("soak:", result)
        console.print(
            "soak: " + (f"WRONG: {verdict}" if verdict else "every message delivered once, none lost")
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    report = {"quick": args.quick, "machine": machine, "rows": [asdict(row) for row in rows], "soak": result}
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if verdict else 0


if __name__ == "__main__":
    sys.exit(main())
