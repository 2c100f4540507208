"""The end of the demo: a busy shop on the embedded default, and what Spark says of what its workers did.

The pipeline runs as the command that a user would type, in a process of its own: a Java that hangs cannot
keep the demo, and where there is no Java or no PySpark the demo says so and ends well.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from millstream import Job, Queue, connect
from millstream.cli.common import USAGE, age

QUEUES = ("emails", "cards", "stock", "images")
CONCURRENCY = 10
TICKS, TICK = 40, 0.1  # four seconds of customers
TIMEOUT = 300.0  # seconds for Spark on a slow machine; it takes about twenty
_SETTINGS = {  # for a thousand rows and one short run: compiling less costs less than it would save
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
}

# -- the shop --------------------------------------------------------------------------------------


class SendReceipt(Job, queue="emails", name="shop.SendReceipt"):
    """Quick, and it never fails."""

    order: int

    async def handle(self) -> None:
        await asyncio.sleep(random.uniform(0.01, 0.04))


class ChargeCard(Job, queue="cards", name="shop.ChargeCard", max_attempts=2, backoff=0.2, jitter=0.0):
    """Some cards are declined, and a second attempt does not help."""

    order: int

    async def handle(self) -> None:
        await asyncio.sleep(random.uniform(0.03, 0.09))
        if self.order % 9 == 0:
            raise ValueError("the card was declined")


class SyncStock(Job, queue="stock", name="shop.SyncStock", max_attempts=6, backoff=0.2, multiplier=1.2):
    """Its partner is flaky: an attempt in four runs into a timeout, and the next one works."""

    order: int

    async def handle(self) -> None:
        slow = random.random() < 0.25
        await asyncio.sleep(0.25 if slow else random.uniform(0.02, 0.08))
        if slow:
            raise TimeoutError("the warehouse does not answer")


class ResizeImage(Job, queue="images", name="shop.ResizeImage"):
    """Most are small, few are large: a long tail."""

    order: int

    async def handle(self) -> None:
        await asyncio.sleep(min(1.5, 0.08 * random.lognormvariate(0.0, 0.8)))


def open_shop(queue: Queue) -> tuple[int, bool]:
    """Customers come for four seconds, with a rush in the middle; how many jobs, and whether all ended."""
    random.seed(7)  # the same shop every time
    jobs = orders = 0
    with queue.worker(QUEUES, concurrency=CONCURRENCY):
        for tick in range(TICKS):
            next_tick = time.monotonic() + TICK
            customers = 8 if 12 <= tick < 22 else 3
            pushed: list[Job] = []
            for order in range(orders, orders + customers):
                pushed += [SendReceipt(order), ChargeCard(order).with_priority("high")]
                pushed += [SyncStock(order)] if order % 2 else [ResizeImage(order).with_priority("low")]
            queue.push_many(pushed)
            orders += customers
            jobs += len(pushed)
            time.sleep(max(0.0, next_tick - time.monotonic()))
        finished = queue.drain(QUEUES, timeout=30.0)
    return jobs, finished


# -- Spark -----------------------------------------------------------------------------------------


def show_spark(url: str, folder: str | None, out: Console, say: Callable[[Console, str], None]) -> bool:
    """Run the shop at ``url`` and then the metrics over its history; False where something went wrong.

    The report goes to ``folder``, or to a new temporary one. That PySpark or Java is missing is said, and is
    no error.
    """
    say(out, "A shop opens: some hundred jobs of four kinds, and every change of theirs is recorded.")
    out.print(Text("  queue = connect(url, history=True)"))
    begun = time.monotonic()
    with connect(url, history=True) as queue:
        jobs, finished = open_shop(queue)
        finished = queue.flush() and finished
    out.print(Text(f"  {jobs} jobs in {age(time.monotonic() - begun)}."))
    say(out, "Spark reads that history, here in a SQLite file, and measures it:")
    if find_spec("pyspark") is None:
        _note(out, "PySpark is not installed; run: pip install 'millstream[spark]'")
        return finished
    place = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="millstream-report-"))
    place.mkdir(parents=True, exist_ok=True)
    report, plot, figures = place / "report.html", place / "metrics.png", place / "metrics.parquet"
    arguments = ["pipeline", "metrics", url, "--window", "250ms", "--workers", str(CONCURRENCY)]
    arguments += [
        "--by",
        "type,priority",
        "--report",
        str(report),
        "--plot",
        str(plot),
        "--out",
        str(figures),
    ]
    out.print(Text(f"  millstream {' '.join(arguments[:3])} --report {report.name} --plot {plot.name} …"))
    out.print()
    program = [sys.executable, "-c", "from millstream.cli import main; main()"]
    code, words = run_bounded([*program, *arguments, "--master", "local[2]", *_conf()], TIMEOUT)
    if code == 0:
        if words:
            click.echo(words, nl=False)
        say(out, f"Look at it: {report}")
        out.print(Text(f"  or as a picture: {plot}"))
        return finished
    if code == USAGE:  # what is missing, and how to get it
        _note(out, words or "see above")  # on a terminal it was said already
        return finished
    click.echo(f"The metrics failed: {words or code}", err=True)
    return False


def _conf() -> list[str]:
    return [part for name, value in _SETTINGS.items() for part in ("--conf", f"{name}={value}")]


def _note(out: Console, words: str) -> None:
    out.print(Text(f"  Left out: {words.strip().removeprefix('Error: ')}"))


def run_bounded(program: list[str], timeout: float) -> tuple[int | None, str]:
    """Run a program; its exit code (None: it took too long), and its words where nobody saw them.

    On a terminal it writes there itself, with its colours and progress bars.
    """
    seen = sys.stdout.isatty()
    sys.stdout.flush()
    child = subprocess.Popen(
        program,
        stdin=subprocess.DEVNULL,
        stdout=None if seen else subprocess.PIPE,
        stderr=None if seen else subprocess.PIPE,
        text=True,
        start_new_session=True,  # with its Java in one group, to be ended together
    )
    try:
        written, complaints = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"it took more than {timeout:.0f} seconds"
    finally:
        _end(child)
    return child.returncode, (written or "") if child.returncode == 0 else (complaints or "")


def _end(child: subprocess.Popen[str]) -> None:
    """Leave no process of the group behind, however this ends: Ctrl-C reaches only the demo itself."""
    with suppress(ProcessLookupError, PermissionError):  # it has ended, with all of its group
        os.killpg(child.pid, signal.SIGKILL)
    if child.returncode is None:
        child.communicate()
