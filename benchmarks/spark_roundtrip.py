"""Archive → replay, the whole way round: job history into a Delta table, a SQL slice of it back into queues.

    python benchmarks/spark_roundtrip.py --rows 1000000      # the full size, a few minutes on two cores
    python benchmarks/spark_roundtrip.py --quick             # 20,000 jobs

It starts a Valkey of its own, fills the history stream, archives it (trimming the stream as it goes),
compacts the table, replays one slice chosen by SQL, and then compares every job that came to the queues,
field by field, with the record it was made of. A second run of both must do nothing. It ends with a non-zero
exit code if anything is missing, twice or different. Figures go to out/spark_roundtrip.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
from tests.servers import RedisServer

from millstream import connect
from millstream.drivers.base import Settlement
from millstream.history import Record

OUT = Path(__file__).parents[1] / "out"
BEGIN = 1_790_000_000.0
encode = msgspec.json.Encoder().encode
FIELDS = ("type", "queue", "priority", "max_attempts", "tags", "headers", "version")
WHERE = "state = 'failed' AND type = 'report.build' AND array_contains(tags, 'eu')"


def job(number: int) -> Record:
    """The enqueued record of a job; everything about it follows from its number."""
    kind = ("email.send", "report.build", "image.resize")[number % 3]
    return Record(
        job_id=f"{number:032x}",
        type=kind,
        state="enqueued",
        at=BEGIN + number / 100,
        queue=("mail", "reports", "images")[number % 3],
        priority=("default", "high", "low", "critical")[number % 4],
        max_attempts=1 + number % 7,
        tags=["eu" if number % 2 else "us", f"batch{number % 10}"],
        headers={"tenant": f"tenant{number % 50}", "trace": f"{number * 7919:016x}"},
        payload=json.dumps({"id": number, "note": "naïve — text " * (number % 3)}, ensure_ascii=False),
        version=1 + number % 2,
    )


def fails(number: int) -> bool:
    return number % 5 == 1


def chosen(number: int) -> bool:
    """What WHERE means, in Python."""
    return fails(number) and number % 3 == 1 and number % 2 == 1


def entries(rows: int) -> Iterator[bytes]:
    """One record of a job that was completed; two of one that failed, the second without its payload."""
    for number in range(rows):
        first = job(number)
        if not fails(number):
            yield encode(msgspec.structs.replace(first, state="completed", at=first.at + 2.5, seconds=0.25))
            continue
        yield encode(first)
        error = {"error_type": "ValueError", "error": f"ValueError: {number}"}
        yield encode(
            msgspec.structs.replace(
                first, state="failed", at=first.at + 2.5, seconds=0.25, payload="", **error
            )
        )


def fill(url: str, rows: int) -> None:
    """The history stream, as a worker writes it; a thousand entries per round trip."""
    import redis

    with redis.Redis.from_url(url) as client:
        pipe = client.pipeline(transaction=False)
        for number, entry in enumerate(entries(rows), 1):
            pipe.xadd("millstream:history", {"data": entry})
            if number % 1000 == 0:
                pipe.execute()
        pipe.execute()


def timed(what: str, figures: dict[str, Any], step: Callable[[], Any]) -> Any:
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    found = step()
    seconds = time.perf_counter() - wall
    figures[what] = {"seconds": round(seconds, 2), "driver_cpu": round(sum(os.times()[:4]) - cpu, 2)}
    print(f"{what:28} {seconds:8.1f} s", flush=True)
    return found


def check(url: str, rows: int) -> dict[str, int]:
    """Take every job from the queues and compare it with what it was; what is wrong, by kind."""
    wrong = {"missing": 0, "twice": 0, "different": 0, "unexpected": 0}
    seen: set[int] = set()
    with connect(url) as queue:
        names = ["mail", "reports", "images"]
        while found := queue.driver.reserve(names, "check", 1000):
            for one in found:
                got = queue.codec.decode(one.body)
                number = int(str(got.replay_of), 16)
                wrong["twice"] += number in seen
                seen.add(number)
                wrong["unexpected"] += not (number < rows and chosen(number))
                was = job(number)
                same = all(getattr(got, field) == getattr(was, field) for field in FIELDS)
                same = same and bytes(got.payload).decode() == was.payload and got.attempt == 1
                wrong["different"] += not (
                    same and got.id != was.job_id and (one.queue, one.priority) == (was.queue, was.priority)
                )
            queue.driver.settle([Settlement(one, "complete") for one in found])
    wrong["missing"] = sum(1 for number in range(rows) if chosen(number)) - len(seen)
    return wrong


def run(rows: int, master: str, memory: str) -> int:
    from millstream.spark import session
    from millstream.spark.archiving import archive, read_archive
    from millstream.spark.replaying import replay

    figures: dict[str, Any] = {"rows": rows}
    with RedisServer("valkey") as server, tempfile.TemporaryDirectory() as folder:
        url, table = f"redis://127.0.0.1:{server.port}/0", f"{folder}/archive"
        timed("filling the stream", figures, lambda: fill(url, rows))
        conf = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": memory,
            "spark.sql.session.timeZone": "UTC",
        }
        spark = timed("starting Spark", figures, lambda: session(master, conf=conf))
        try:
            common: dict[str, Any] = {"table": table, "history": True, "trim": True}
            first = timed(
                "archive, trim, compact", figures, lambda: archive(spark, url, compact=True, **common)
            )
            again = timed("archive again", figures, lambda: archive(spark, url, **common))
            counted = timed(
                "count the archive",
                figures,
                lambda: read_archive(spark, table).selectExpr("count(*)", "count(DISTINCT id)").first(),
            )
            dry = timed("replay, dry run", figures, lambda: replay(spark, table, url, WHERE, name="bench"))
            options: dict[str, Any] = {"name": "bench", "dry_run": False}
            done = timed("replay", figures, lambda: replay(spark, table, url, WHERE, **options))
            twice = timed("replay again", figures, lambda: replay(spark, table, url, WHERE, **options))
            wrong = timed("field by field", figures, lambda: check(url, rows))
            after = timed(
                "replay after they ran", figures, lambda: replay(spark, table, url, WHERE, **options)
            )
            left = check(url, 0)
        finally:
            spark.stop()
    records = rows + sum(1 for number in range(rows) if fails(number))
    expected = sum(1 for number in range(rows) if chosen(number))
    counts = {
        "jobs": rows,
        "records archived": first.rows,
        "records archived again": again.rows,
        "in the table": counted[0],
        "of them different": counted[1],
        "trimmed": first.trimmed,
        "chosen by the dry run": dry.chosen,
        "replayed": done.pushed,
        "replayed again": twice.pushed + after.pushed,
        "expected": expected,
        **{f"{kind} of the replayed": count for kind, count in wrong.items()},
    }
    for name, value in counts.items():
        print(f"{name:28} {value:>12,}")
    good = (
        first.rows == first.trimmed == counted[0] == counted[1] == records
        and again.rows == twice.pushed == after.pushed == 0
        and dry.chosen == done.pushed == expected
        and not any(wrong.values())
        and left["unexpected"] == 0
    )
    figures |= {"counts": counts, "good": good, "files": first.files, "bytes": first.bytes}
    OUT.mkdir(exist_ok=True)
    (OUT / "spark_roundtrip.json").write_text(json.dumps(figures, indent=2) + "\n")
    print("every job came back as it was, once" if good else "NOT the same: see above")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="jobs; those that failed have two records"
    )
    parser.add_argument("--quick", action="store_true", help="20,000 jobs")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="2g", help="of the JVM")
    given = parser.parse_args()
    return run(20_000 if given.quick else given.rows, given.master, given.memory)


if __name__ == "__main__":
    sys.exit(main())
