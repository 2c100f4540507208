"""What the pipelines share: a session by --master and --conf, a progress display, a summary."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.text import Text

from millstream.cli.common import console, show_json, table
from millstream.errors import MissingExtra
from millstream.spark.session import check_settings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[Mapping[str, Any]], None]  # of the options by name; raises UsageError or an error of ours
DEFAULT_MASTER = "local[*]"
_REFRESH = 0.25  # seconds between two looks at Spark's tasks: a person reads no faster


class PipelineCommand(click.Command):
    """A command that checks what its options say together, while it parses them.

    So whoever only wants to know whether a line is right, such as submit-line, can ask without running it.
    """

    def __init__(self, *args: Any, check: Check | None = None, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._check = check

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        left = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            check_settings(ctx.params["master"], ctx.params["conf"])
            self._check_together(ctx)
        return left

    def _check_together(self, ctx: click.Context) -> None:
        try:
            if self._check is not None:
                self._check(ctx.params)
        except click.UsageError as error:
            error.ctx = ctx  # its usage, not that of whoever asked
            raise


class SparkOpener:
    """What a command gets as ``open_spark``: call it when the session is needed, as late as possible.

    It is stopped when the command ends, unless it was there before the command.
    """

    def __init__(
        self, context: click.Context, master: str, conf: Mapping[str, str], *, ship: bool = False
    ) -> None:
        self.master, self.conf, self.ship = master, conf, ship
        self._context = context

    def __call__(self, app_name: str | None = None) -> SparkSession:
        """The session. Raises MissingExtra without PySpark, and MissingJava without a usable Java."""
        try:
            from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, and a second to import
        except ModuleNotFoundError as error:
            raise MissingExtra("spark", (error.name or "pyspark").partition(".")[0]) from error
        was_there = SparkSession.getActiveSession() is not None
        name = app_name or f"millstream pipeline {self._context.info_name or ''}".strip()
        # What fails ends the command, with a message of its own.
        spark = session(self.master, app_name=name, conf=self.conf, ship=self.ship, log_failures=False)
        if not was_there:
            self._context.call_on_close(spark.stop)
        return spark


def spark_options(function: F) -> F:
    """Add ``--master``, ``--conf``, ``--ship``; the command gets ``open_spark``, a `SparkOpener`, instead."""

    @click.option(
        "--master",
        default=DEFAULT_MASTER,
        show_default=True,
        envvar="MILLSTREAM_SPARK_MASTER",
        show_envvar=True,
        help="Where Spark runs: local[N], spark://host:7077, sc://host:15002, yarn, k8s://….",
    )
    @click.option(
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        callback=parse_pairs,
        help="A setting of Spark, such as spark.driver.memory=4g; repeatable.",
    )
    @click.option("--ship", is_flag=True, help="Send this package to executors that do not have it.")
    @click.pass_context
    @functools.wraps(function)
    def command(
        context: click.Context, /, *args: Any, master: str, conf: dict[str, str], ship: bool, **rest: Any
    ) -> Any:
        opener = SparkOpener(context, master, conf, ship=ship)
        return context.invoke(function, *args, open_spark=opener, **rest)

    return command  # type: ignore[return-value]  # click replaces two options by one argument


def parse_pairs(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """The values of an option that takes NAME=VALUE and may be repeated."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            form = getattr(parameter, "metavar", None) or "NAME=VALUE"
            raise click.BadParameter(f"{text!r} has not the form {form}", param=parameter)
        found[name.strip()] = value.strip()
    return found


# -- progress --------------------------------------------------------------------------------------


class Steps:
    """A progress display on standard error for a person; nothing at all where nobody looks.

    Call it with what is being done, and how much of it is: ``steps("pushing", 2000, 10_000)``. A library
    function takes it as its ``on_progress``. Between two calls it shows how far Spark's own tasks are.
    """

    def __init__(self, spark: SparkSession | None = None, *, shown: bool | None = None) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._tracker = _status_tracker(spark) if self._shown and spark is not None else None
        self._end = threading.Event()
        self._lock = threading.Lock()  # the watcher's thread and the command's
        self._watcher: threading.Thread | None = None
        self._what, self._counted = "", False
        self._task: TaskID | None = None
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Elapsed(),
            console=Console(stderr=True),
            transient=True,
            disable=not self._shown,
        )

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None:
        if not self._shown:
            return
        with self._lock:
            if self._task is None or what != self._what:
                if self._task is not None:
                    self._bars.remove_task(self._task)
                self._task = self._bars.add_task(what, total=total)
                self._what = what
            self._counted = done > 0 or total is not None
            self._bars.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        self._bars.start()
        if self._tracker is not None:
            self._watcher = threading.Thread(target=self._watch, name="millstream-progress", daemon=True)
            self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._watcher is not None:
            self._watcher.join(5.0)
        self._bars.stop()

    def _watch(self) -> None:
        """Show Spark's tasks while the command itself counts nothing."""
        while not self._end.wait(_REFRESH):
            try:
                done, total = _tasks(self._tracker)
            except Exception:  # noqa: BLE001 - a display must not end a pipeline; the session may be closing
                return
            with self._lock:
                if self._task is not None and not self._counted and total:
                    self._bars.update(self._task, completed=done, total=total)


def _status_tracker(spark: SparkSession) -> Any | None:
    """Spark's view of its running tasks; None on Spark Connect, which does not show it."""
    try:
        return spark.sparkContext.statusTracker()
    except Exception:  # noqa: BLE001 - whatever a session without a context raises
        return None


def _tasks(tracker: Any) -> tuple[int, int]:
    """Finished tasks and all tasks of the stages that run now."""
    done = total = 0
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None:
            done += info.numCompletedTasks
            total += info.numTasks
    return done, total


# -- the end ---------------------------------------------------------------------------------------


def show_summary(summary: object, *, title: str = "", as_json: bool = False) -> None:
    """A mapping, dataclass or Struct on standard output: a table of names and values, or JSON."""
    values = msgspec.to_builtins(summary)
    if as_json:
        show_json(values)
        return
    out = console()
    if title:
        out.print(Text(title, style="bold"))
    rows = [(name.replace("_", " "), _readable(value)) for name, value in values.items() if value is not None]
    out.print(table(("", "value"), rows))


def _readable(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_readable(item)}" for name, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(_readable(item) for item in value) or "-"
    return str(value)
