"""What audit mode costs: pushing to Redis with and without an archive in SQLite, in one run.

    python benchmarks/audit.py             about a minute
    python benchmarks/audit.py --quick     a few seconds: shows that it runs, its figures mean little

The two take turns within a round, and the median of the rounds' ratios counts. A push is what a program waits
for; the archive's thread runs meanwhile, and takes its time on another core where there is one. `Until all is
written` is what a program pays in the end that pushes without a pause. On a busy machine, where every second
of CPU is missed by somebody, the first ratio comes near to the last.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.servers import FLAVOURS, RedisServer, find_redis

from millstream import Job, Queue, connect
from millstream.archive import SqlArchive

LIMIT = 1.2  # what audit mode may cost


class Mail(Job, queue="audit"):
    """A job with a payload of some 60 bytes."""

    user_id: int
    text: str = "a payload of some sixty bytes, as in jobs"

    def handle(self) -> None:
        """Nobody runs it here."""


def one_by_one(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.push(Mail(user_id=number))


def push_many(queue: Queue, count: int) -> None:
    for start in range(0, count, 1000):
        queue.push_many([Mail(user_id=number) for number in range(start, min(start + 1000, count))])


class Spent(NamedTuple):
    """Seconds for one run of pushes."""

    called: float  # by the clock, until the calls had returned
    thread: float  # of CPU, by the thread that pushes
    written: float  # by the clock, until everything was written
    process: float  # of CPU, by the whole process, until everything was written


def timed(queue: Queue, push: Callable[[Queue, int], None], count: int) -> Spent:
    gc.collect()
    began, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    push(queue, count)
    called, thread = time.perf_counter() - began, time.thread_time() - thread
    if not queue.flush(120.0):
        raise SystemExit("the archive did not take everything within two minutes")
    spent = Spent(called, thread, time.perf_counter() - began, time.process_time() - process)
    queue.clear("audit")
    queue.flush(120.0)
    return spent


def measure(
    url: str, archive_url: str, push: Callable[[Queue, int], None], count: int, rounds: int
) -> dict[str, float]:
    archive = SqlArchive(archive_url)
    with archive, connect(url) as plain, connect(url, archive=archive) as audited:
        for queue in (plain, audited):  # connections, scripts, tables
            timed(queue, push, 100)
        pairs: list[tuple[Spent, Spent]] = []
        for number in range(rounds):
            order = [plain, audited] if number % 2 else [audited, plain]
            found = {queue.recorder is None: timed(queue, push, count) for queue in order}
            pairs.append((found[True], found[False]))
        assert audited.recorder is not None
        stats = audited.recorder.stats()["archive"]
        if stats.dropped or sum(archive.counts().values()) != rounds * count + 100:
            raise SystemExit(f"the archive is not complete: {stats}, {archive.counts()}")
    calls = [with_it.called / without.called for without, with_it in pairs]
    return {
        "jobs": count,
        "rounds": rounds,
        "plain_per_second": statistics.median(count / without.called for without, _ in pairs),
        "push": statistics.median(calls),
        # Others on the machine only ever make a round longer, so the fastest ones are the least disturbed.
        "push_fastest": min(each.called for _, each in pairs) / min(each.called for each, _ in pairs),
        "push_best": min(calls),
        "push_worst": max(calls),
        "push_cpu": statistics.median(with_it.thread / without.thread for without, with_it in pairs),
        "until_written": statistics.median(with_it.written / without.called for without, with_it in pairs),
        "process_cpu": statistics.median(with_it.process / without.process for without, with_it in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    flavour = next((name for name in FLAVOURS if find_redis(name)[0]), None)
    if flavour is None:
        raise SystemExit("no Redis or Valkey server was found")
    share, rounds = (50, 2) if arguments.quick else (1, arguments.rounds)
    results = {}
    with RedisServer(flavour) as server, tempfile.TemporaryDirectory() as folder:
        for push, count in ((one_by_one, 20_000), (push_many, 50_000)):
            archive_url = f"sqlite:///{folder}/{push.__name__}.db"
            found = measure(server.url, archive_url, push, count // share, rounds)
            results[push.__name__] = found
            rates = f"{found['plain_per_second']:,.0f}/s without an archive"
            spread = f"{found['push_best']:.2f} to {found['push_worst']:.2f} in {rounds} rounds"
            print(
                f"{push.__name__}: {rates}; with it a push takes {found['push']:.2f} x as long ({spread}, "
                f"{found['push_fastest']:.2f} by the fastest ones; the limit is {LIMIT}), and "
                f"{found['push_cpu']:.2f} x the CPU of the thread that pushes. Until all is written: "
                f"{found['until_written']:.2f} x the time, {found['process_cpu']:.2f} x the process's CPU.",
                flush=True,
            )
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
