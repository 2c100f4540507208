"""millstream worker: run the jobs of an application."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.common import USAGE, Duration
from millstream.drivers.base import RateLimit
from millstream.settings import load_settings


@click.command("worker")
@click.argument("target", metavar="MODULE:NAME")
@click.option("--connection", metavar="NAME", help="Which connection, where the target is a QueueManager.")
@click.option("--queues", "-q", help="Names with commas between them, such as default,emails.")
@click.option("--workers", "-w", type=click.IntRange(min=1), help="Processes.  [default: 1]")
@click.option(
    "--concurrency", "-c", type=click.IntRange(min=1), help="Jobs at a time in each.  [default: 16]"
)
@click.option("--lease", type=Duration(), help="A dead worker's jobs run again after this.  [default: 30]")
@click.option("--grace", type=Duration(), help="Time to finish after SIGTERM.  [default: 30]")
@click.option("--max-wait", type=Duration(), help="A low job waits no longer than this.  [default: 60]")
@click.option("--max-jobs", type=click.IntRange(min=1), help="Replace a process after so many jobs.")
@click.option("--max-memory-mb", type=click.IntRange(min=1), help="Replace a process that grew past this.")
@click.option(
    "--rate-limit",
    "rate_limits",
    multiple=True,
    metavar="QUEUE=LIMIT/SECONDS",
    help="Such as emails=10/60; repeatable.",
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
)
def command(
    target: str,
    connection: str | None,
    queues: str | None,
    workers: int | None,
    rate_limits: tuple[str, ...],
    log_level: str,
    **options: Any,
) -> int:
    """Run the jobs of MODULE:NAME, a Queue or QueueManager (or a function that makes one), such as app:queue.

    What is not given is read from [worker] of millstream.toml. SIGTERM and Ctrl-C finish what runs, a
    second one hands it back at once; SIGHUP starts the processes anew with the code as it is then.
    """
    from millstream.worker.launcher import launch  # noqa: PLC0415 - heavier than the rest of the program
    from millstream.worker.options import EXIT_CONFIG, LaunchOptions, WorkerOptions  # noqa: PLC0415

    chosen = dict(load_settings().worker)
    processes = workers or chosen.pop("workers", 1)
    chosen.pop("workers", None)
    chosen.update({name: value for name, value in options.items() if value is not None})
    if queues is not None:
        chosen["queues"] = tuple(name.strip() for name in queues.split(",") if name.strip())
    if rate_limits:
        chosen["rate_limits"] = dict(map(_limit, rate_limits))
    launch_options = LaunchOptions(
        worker=WorkerOptions(**chosen), workers=processes, connection=connection, log_level=log_level.upper()
    )
    code = launch(target, launch_options)
    return USAGE if code == EXIT_CONFIG else code


def _limit(text: str) -> tuple[str, RateLimit]:
    queue, _, limit = text.rpartition("=")
    count, slash, per = limit.partition("/")
    try:
        return queue, RateLimit(int(count), float(per) if slash else 1.0)
    except ValueError:
        raise click.UsageError(
            f"--rate-limit {text!r}: expected QUEUE=LIMIT/SECONDS with numbers above 0, such as emails=10/60"
        ) from None
