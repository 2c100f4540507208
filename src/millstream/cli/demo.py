"""millstream demo: the tour, on the embedded default, without a server. Written to be read as an example."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import time
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from millstream import Job, Queue, Retry, connect, job, open_broker
from millstream.brokers.base import StreamBroker
from millstream.cli.common import FAILED, age, console, table
from millstream.cli.demo_spark import show_spark

# -- the jobs --------------------------------------------------------------------------------------


class SendWelcomeEmail(Job, queue="emails", name="demo.SendWelcomeEmail", timeout=5):
    """A job class: typed fields, and an async handler that runs beside many others."""

    user_id: int

    async def handle(self) -> None:
        note(self, f"welcome, user {self.user_id}")
        await asyncio.sleep(random.uniform(0.01, 0.05))


@job(queue="reports", name="demo.build_report")
def build_report(day: str, *, full: bool = False) -> None:
    """A function as a job: sync handlers run on threads."""
    time.sleep(0.05)
    events.append(("demo.build_report", f"{'full ' if full else ''}report of {day}", 1))


class FetchRates(Job, queue="reports", name="demo.FetchRates", backoff=0.2, jitter=0.0):
    """A job that fails once and then works: the retry rule waits, and tries again."""

    source: str

    def handle(self) -> None:
        if self.attempt == 1:
            note(self, f"{self.source} does not answer, once more in 0.2 s")
            raise Retry(reason=f"{self.source} does not answer")
        note(self, f"rates of {self.source}")


class ChargeCard(Job, queue="payments", name="demo.ChargeCard", max_attempts=3, backoff=0.1, jitter=0.0):
    """A job that fails for good: after its last attempt it is a dead letter."""

    card: str
    cents: int

    def handle(self) -> None:
        note(self, "card declined")
        raise ValueError(f"card {self.card} was declined")

    def failed(self, error: Exception) -> None:
        note(self, f"gave up: {error}")


# -- the tour --------------------------------------------------------------------------------------

events: list[tuple[str, str, int]] = []  # what the handlers did: the type, a text, the attempt


def note(done: Job, text: str) -> None:
    """Remember what a handler did, for the table at the end."""
    name = done.envelope.type if done.envelope else type(done).__name__
    events.append((name, text, done.attempt))


@click.command("demo")
@click.option("--spark/--no-spark", default=True, help="End with a Spark pipeline over what the workers did.")
@click.option("--out", "folder", metavar="FOLDER", help="Where the report goes. [default: a temporary one]")
def command(spark: bool, folder: str | None) -> int:
    """A tour: jobs, priorities, delays, retries, dead letters, an event stream; then Spark looks at it."""
    logging.getLogger("millstream").addHandler(logging.NullHandler())  # the table tells it better
    events.clear()
    out = console()
    with tempfile.TemporaryDirectory(prefix="millstream-demo-") as home:  # leaves nothing behind
        file = f"sqlite:///{home}/millstream.db"
        with connect(file) as queue:
            finished = tour(queue, out)
        with open_broker(file) as broker:
            show_events(broker, out)
        if spark:
            finished = show_spark(file, folder, out, say) and finished
    say(out, "That was all in a SQLite file, as with connect() alone. With a server only the URL is another:")
    out.print(Text("  queue = connect('redis://localhost:6379/0')"))
    return 0 if finished else FAILED


def tour(queue: Queue, out: Console) -> bool:
    """Push jobs of several kinds, let a worker run them, and show what happened; whether all ended."""

    @queue.handler("audit.log")
    def audit(data: dict[str, Any]) -> None:  # a task that only has a name
        events.append(("audit.log", f"{data['who']} looked at {data['what']}", 1))

    say(out, "Pushing jobs: many at once, by priority, delayed, and some that will fail.")
    queue.push_many([SendWelcomeEmail(user_id=number) for number in range(20)])
    queue.push(SendWelcomeEmail(user_id=99).with_priority("high"))
    queue.push(build_report("2026-01-01", full=True))
    queue.push(build_report("2026-01-02").delay(0.5))
    queue.push(FetchRates("ecb.example"))
    declined = queue.push(ChargeCard(card="4000-0002", cents=1299))
    queue.enqueue("audit.log", {"who": "ada", "what": "invoice 7"}, priority="urgent")
    show_sizes(queue, out)

    say(out, "A worker in this process runs them.")
    names = ["default", "emails", "reports", "payments"]
    started = time.monotonic()
    with queue.worker(names, concurrency=8):
        finished = queue.drain(names, timeout=8.0)
    took = time.monotonic() - started
    show_done(out)
    say(out, f"All of it in {age(took)}.")
    show_sizes(queue, out)

    say(out, "What failed for good is kept, with the history of its attempts:")
    letter = queue.dead("payments").show(declined)
    if letter is not None:
        rows = [(past.number, past.outcome, past.error) for past in letter.history]
        out.print(table(("attempt", "outcome", "error"), rows, right=("attempt",)))
        say(out, "An operator corrects the card and tries again: queue.dead('payments').edit(…) and .retry()")
        queue.dead("payments").edit(declined, {"card": "4000-0077", "cents": 1299})
        queue.dead("payments").retry(declined)
        show_sizes(queue, out)
    return finished and letter is not None


def show_events(broker: StreamBroker, out: Console) -> None:
    """An event stream: two groups read the same entries, each for itself."""
    say(out, "An event stream: every group gets every event, the members of a group share them.")
    stream = "events:orders"
    broker.create_group(stream, "billing", start_id="0")
    broker.create_group(stream, "shipping", start_id="0")
    broker.xadd_many(stream, [{"order": number, "state": "paid"} for number in range(1, 7)])
    rows = []
    for group, consumer, count in (("billing", "one", 6), ("shipping", "left", 3), ("shipping", "right", 2)):
        messages = broker.xreadgroup(group, consumer, stream, count)
        broker.xack(stream, group, [message.id for message in messages])
        rows.append((group, consumer, ", ".join(str(message.data["order"]) for message in messages)))
    out.print(table(("group", "consumer", "orders"), rows))
    for info in broker.group_info(stream):
        out.print(Text(f"  {info.name}: {info.lag} still to read, {info.pending} not acknowledged"))


# -- how it is shown -------------------------------------------------------------------------------


def say(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="bold"))


def show_sizes(queue: Queue, out: Console) -> None:
    columns = ("queue", "undelivered", "in flight", "delayed", "dead")
    rows = []
    for name in queue.queues():
        size = queue.sizes(name)
        rows.append((name, size.waiting, size.reserved, size.delayed, size.dead))
    out.print(table(columns, rows, right=columns[1:]))


def show_done(out: Console) -> None:
    """What the handlers did, in its order; the many e-mails as one row."""
    rows: list[tuple[object, ...]] = []
    emails = [event for event in events if event[0] == "demo.SendWelcomeEmail"]
    for name, text, attempt in events:
        if name != "demo.SendWelcomeEmail":
            rows.append((name, attempt, text))
        elif (name, text, attempt) == emails[0]:
            rows.append((name, attempt, f"{text} (the first of {len(emails)}: its priority is high)"))
    out.print(table(("job", "attempt", "what happened"), rows, right=("attempt",)))
