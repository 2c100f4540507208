"""A SparkSession that is ready to use, on a laptop or a cluster.

`session` finds a Java, keeps Spark's start quiet, runs Python workers with this very Python, binds local
sessions to the loopback address only, and uses a class archive where one was prepared. What the caller sets
in ``conf`` always wins.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigurationError, InvalidInput, MissingExtra
from millstream.spark import cds, quiet
from millstream.spark.java import Java, cache_folder, find_java
from millstream.spark.package import package_zip

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOCAL = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
MASTERS = (
    "local[*]", "local[N]", "local-cluster[N,cores,MB]", "spark://host:7077", "sc://host:15002", "yarn",
    "k8s://https://host:6443",
)  # fmt: skip
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # in the environment of a program that spark-submit started
LOG_LEVEL = "spark.log.level"  # who sets it wants to see everything
USE_ARCHIVE = "spark.millstream.cds"  # "false" starts without the class archive


def session(
    master: str = "local[*]",
    *,
    app_name: str = "millstream",
    conf: Mapping[str, str] | None = None,
    ship: bool = False,
    log_failures: bool = True,
) -> SparkSession:
    """The SparkSession on ``master``: a new one, or the one that this process has.

    ``conf`` are Spark's own settings; with ``spark.log.level`` among them nothing at all is kept off the
    screen. ``log_failures=False`` is for a program that shows errors itself: what Spark raises it does not
    also log. ``ship`` sends the package ``millstream`` to the executors, for a
    cluster that has its dependencies but not itself; ``format("millstream")`` is found there as well.

    Raises MissingExtra where PySpark is not installed, MissingJava where no Java will do, and
    ConfigurationError where this process already has a session on another master.
    """
    wanted = check_settings(master, conf)
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - an extra, and a second to import
    except ModuleNotFoundError as error:
        raise MissingExtra("spark", (error.name or "pyspark").partition(".")[0]) from error
    if master.startswith("sc://"):
        spark = _connect(master, app_name, wanted)
    else:
        running = SparkContext._active_spark_context
        spark = (
            _start(master, app_name, wanted, log_failures)
            if running is None
            else _join(running, master, wanted)
        )
    if not log_failures and LOG_LEVEL not in wanted:
        quiet.silence_query_errors()
    if ship:
        _ship(spark)
    return spark


def is_local(master: str) -> bool:
    """Whether driver and executors are on this machine, in processes of our own."""
    return LOCAL.fullmatch(master) is not None


def check_settings(master: str, conf: Mapping[str, str] | None) -> dict[str, str]:
    """The settings as texts. Raises InvalidInput for a master or a setting that Spark cannot have."""
    if not (is_local(master) or master == "yarn" or master.startswith(("spark://", "sc://", "k8s://"))):
        raise InvalidInput(f"{master!r} is no Spark master; use one of: {', '.join(MASTERS)}")
    wanted = {name: str(value) for name, value in (conf or {}).items()}
    for name in wanted:
        if not name.startswith("spark."):
            raise InvalidInput(f"{name!r} is no setting of Spark: their names begin with 'spark.'")
    level = wanted.get(LOG_LEVEL, "ERROR").upper()
    if level not in quiet.LEVELS:
        raise InvalidInput(f"spark.log.level cannot be {level!r}; use one of: {', '.join(quiet.LEVELS)}")
    return wanted


def defaults(master: str) -> dict[str, str]:
    """What differs from Spark's own defaults, and why."""
    chosen = {
        "spark.ui.showConsoleProgress": "false",  # it would write over a program's own output
        LOG_LEVEL: "ERROR",
    }
    if is_local(master):
        cores = re.fullmatch(r"local\[(\d+)(,\d+)?\]", master)
        count = int(cores[1]) if cores else os.cpu_count() or 1
        chosen |= {
            "spark.driver.host": "127.0.0.1",  # nobody else has to reach it
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",  # half a second of the start, and an open port
            # 200, the default, is meant for a cluster; a stateful query would keep 200 small stores.
            "spark.sql.shuffle.partitions": str(max(2, count)),
        }
    return chosen


# -- a JVM of our own ------------------------------------------------------------------------------


def _start(master: str, app_name: str, wanted: Mapping[str, str], log_failures: bool) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # The workers import this package: they have to be this Python, not whichever is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if SUBMITTED in os.environ:
        # spark-submit started the JVM, and its line says where to run: the master there is no matter of ours.
        return _build(SparkSession.builder.appName(app_name), wanted)
    settings = {**defaults(master), **wanted}
    if SparkContext._gateway is None:
        java = find_java()
        show_all = LOG_LEVEL in wanted
        options = _jvm_options(java, settings, log_failures=log_failures or show_all)
        settings[DRIVER_OPTIONS] = " ".join(options)
        _launch(java, _spark_conf(SparkConf(), master, app_name, settings), show_all=show_all)
    return _build(SparkSession.builder.master(master).appName(app_name), settings)


def _build(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _spark_conf(made: SparkConf, master: str, app_name: str, settings: Mapping[str, str]) -> SparkConf:
    made.setMaster(master).setAppName(app_name)
    return made.setAll(list(settings.items()))


def _jvm_options(java: Java, settings: Mapping[str, str], *, log_failures: bool) -> list[str]:
    """Ours first: of two options of the same name, the JVM takes the last, which is the caller's."""
    options = quiet.log_options(settings[LOG_LEVEL], cache_folder(), failures=log_failures)
    if settings.get(USE_ARCHIVE, "true").lower() != "false":
        options += cds.use_options(java)
    if given := settings.get(DRIVER_OPTIONS):
        options.append(given)
    return options


def _launch(java: Java, conf: SparkConf, *, show_all: bool) -> None:
    """Start the JVM and make it the one that PySpark uses in this process."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    stderr = None if show_all else quiet.StderrFilter()
    try:
        with _java_home(java):
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, popen_kwargs={} if stderr is None else {"stderr": stderr.writing}
            )
    finally:
        if stderr is not None:
            stderr.started()
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


@contextmanager
def _java_home(java: Java) -> Iterator[None]:
    """JAVA_HOME as Spark's scripts need it, while they start; the caller's own comes back afterwards."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(java.home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


# -- sessions that exist ---------------------------------------------------------------------------


def _join(running: Any, master: str, wanted: Mapping[str, str]) -> SparkSession:
    """The session of this process, with the settings that can still be changed."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if (
        SUBMITTED not in os.environ
        and running.master != master
        and not (is_local(running.master) and is_local(master))
    ):
        raise ConfigurationError(
            f"this process has a Spark session on {running.master} already, so {master} cannot be used; "
            "stop that one first: SparkSession.active().stop()"
        )
    spark = SparkSession.builder.getOrCreate()
    for name, value in wanted.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
    return spark


def _connect(url: str, app_name: str, wanted: Mapping[str, str]) -> SparkSession:
    """A session on a Spark Connect server: no Java is needed here."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if find_spec("grpc") is None:
        raise ConfigurationError(
            "Spark Connect needs the library 'grpcio', which is not installed; "
            "run: pip install 'pyspark[connect]'"
        )
    return _build(SparkSession.builder.remote(url).appName(app_name), wanted)


def _ship(spark: SparkSession) -> None:
    """Send this package to where the Python workers run."""
    path = str(package_zip(cache_folder()))
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so by an error of its own
        spark.addArtifacts(path, pyfile=True)
    else:
        context.addPyFile(path)
        # A format that Spark found by itself runs without added files; a registered one has them.
        from millstream.spark.datasource import MillstreamDataSource  # noqa: PLC0415 - imports PySpark

        spark.dataSource.register(MillstreamDataSource)
