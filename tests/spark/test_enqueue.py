"""A table or a query into jobs: every row once, however often it is run."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream import Job, Queue, connect
from millstream.errors import ConfigurationError, InvalidInput, MillstreamError
from millstream.spark.enqueue import enqueue, preview
from millstream.spark.sink.options import JobWriteOptions, read_options
from millstream.spark.sink.targets import open_target
from millstream.spark.sink.writer import BatchWriter
from millstream.spark.tables import read_table, split_source
from tests.servers import RedisServer
from tests.spark.conftest import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PEOPLE = "number BIGINT, who STRING, team STRING"


class Greet(Job, queue="greetings", name="enqueuetest.Greet"):
    number: int
    who: str
    team: str | None = None

    def handle(self) -> None: ...


@pytest.fixture
def prefix() -> str:
    return f"enqueue-{uuid.uuid4().hex}"


@pytest.fixture(params=["redis", "sqlite"])
def queue(request: pytest.FixtureRequest, prefix: str, tmp_path: Path) -> Iterator[Queue]:
    """An empty place for jobs, of each kind that the sink has."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        server: RedisServer = request.getfixturevalue("redis7")
        url = server.url
    with connect(url, prefix=prefix) as made:
        yield made


@pytest.fixture
def people(spark: SparkSession) -> DataFrame:
    rows = [(number, f"name {number}", "red" if number % 2 else "blue") for number in range(40)]
    return spark.createDataFrame(rows, PEOPLE).repartition(3)


def push(spark: SparkSession, source: DataFrame | str, place: Queue, prefix: str, **options: Any) -> Any:
    options = {"job_type": "enqueuetest.Greet", "queue": "greetings", "prefix": prefix} | options
    return enqueue(spark, source, str(place.url), **options)


def taken(queue: Queue, name: str = "greetings") -> list[Greet]:
    found = []
    while (job := queue.pop(name)) is not None:
        assert isinstance(job, Greet)
        found.append(job)
        queue.complete(job)
    return found


def test_every_row_is_a_job_with_its_columns_as_fields(
    spark: SparkSession, people: DataFrame, queue: Queue, prefix: str
) -> None:
    done = push(spark, people, queue, prefix)
    assert (done.state, done.rows, done.job_type) == ("pushed", 40, "enqueuetest.Greet")
    jobs = taken(queue)
    assert sorted((job.number, job.who, job.team) for job in jobs) == sorted(map(tuple, people.collect()))


def test_the_same_rows_again_add_nothing_and_changed_ones_are_a_new_enqueue(
    spark: SparkSession, people: DataFrame, queue: Queue, prefix: str
) -> None:
    first = push(spark, people, queue, prefix)
    again = push(spark, people.orderBy("who").repartition(2), queue, prefix)
    assert (again.state, again.rows, again.name) == ("already done", 0, first.name)
    assert queue.size("greetings") == 40
    assert push(spark, people.where("number < 39"), queue, prefix).rows == 39
    assert push(spark, people, queue, prefix, priority="high").rows == 40
    assert push(spark, people, queue, prefix, again=True).rows == 40
    assert queue.size("greetings") == 40 + 39 + 40 + 40


def test_a_second_run_of_a_name_adds_nothing_and_reads_nothing(
    spark: SparkSession, people: DataFrame, queue: Queue, prefix: str
) -> None:
    name = f"monday-{prefix}"
    assert push(spark, people, queue, prefix, name=name).rows == 40
    again = push(spark, "parquet:/there/is/nothing/here", queue, prefix, name=name)
    assert (again.state, again.rows, again.name) == ("already done", 0, name)
    assert queue.size("greetings") == 40


def test_a_run_that_died_while_it_published_is_finished_by_the_next(
    spark: SparkSession, people: DataFrame, queue: Queue, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill of the driver: the stages are there, the fence names them, nothing is published yet."""
    name = f"crash-{prefix}"
    options = {"url": str(queue.url), "jobType": "enqueuetest.Greet", "queue": "greetings", "prefix": prefix}
    options["writeId"] = f"enqueue-{name}"
    from millstream.spark.sink import batch_writer
    from millstream.spark.sink.staging import Manifest

    writer = batch_writer(people.schema, options, False)
    assert isinstance(writer, BatchWriter)
    staged = writer.write(iter(people.toArrow().to_batches()))
    checked = read_options(options)
    assert isinstance(checked, JobWriteOptions)
    with open_target(checked) as target:
        target.hold(staged.stages)
        target.begin(str(checked.write_id), 0, Manifest(0, staged.stages))
    assert queue.size("greetings") == 0
    steps: list[tuple[str, int, int | None]] = []
    done = push(
        spark, "parquet:/there/is/nothing/here", queue, prefix, name=name,
        on_progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert (done.state, done.rows) == ("resumed", 40)
    assert steps == [("finishing what an earlier run began", 0, 40)]
    assert queue.size("greetings") == 40
    assert push(spark, people, queue, prefix, name=name).state == "already done"


def test_columns_say_queue_priority_delay_id_and_unique_key(
    spark: SparkSession, queue: Queue, prefix: str
) -> None:
    frame = spark.createDataFrame(
        [
            (1, "a", "greetings", "low", 0.0, "one", "k1"),
            (2, "b", "greetings", "critical", 0.0, "two", "k2"),
            (3, "c", "greetings", "high", 3600.0, "three", "k3"),
            (4, "d", "others", "high", 0.0, "four", "k4"),
            (5, "e", "greetings", "high", 0.0, "five", "k1"),
        ],
        "number BIGINT, who STRING, q STRING, p STRING, wait DOUBLE, job STRING, key STRING",
    ).coalesce(1)
    done = push(
        spark, frame, queue, prefix, queue=None, queue_column="q", priority_column="p", delay_column="wait",
        id_column="job", unique_key_column="key", unique_for=3600,
    )  # fmt: skip
    assert done.rows == 5
    assert queue.sizes("greetings").delayed == 1
    assert [job.who for job in taken(queue)] == ["b", "a"]  # "e" has the key of "a"
    (other,) = taken(queue, "others")
    assert other.envelope is not None
    assert other.envelope.id == "four"


def test_fields_pick_and_rename_columns(
    spark: SparkSession, people: DataFrame, queue: Queue, prefix: str
) -> None:
    wide = people.selectExpr("number AS person", "who", "team AS q", "'x' AS secret").where("person < 2")
    push(spark, wide, queue, prefix, fields={"number": "person", "who": "who"}, queue=None, queue_column="q")
    assert [(job.number, job.team) for job in [*taken(queue, "red"), *taken(queue, "blue")]] == [
        (1, None),
        (0, None),
    ]
    with pytest.raises(
        InvalidInput, match="no column 'nobody' for the field 'nobody'; the columns are: person"
    ):
        push(spark, wide, queue, prefix, fields=["nobody"])


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"job_type": None}, "needs job_type"),
        ({"again": True, "name": "x"}, "leave out name"),
        ({"priority": "soonish"}, "priority"),
        ({"queue_colum": "q"}, "queueColum"),
        ({"name": ""}, "write ?id|name"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(options: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidInput, ConfigurationError), match=said):
        enqueue(None, "parquet:/nowhere", "redis://127.0.0.1:1", **({"job_type": "T"} | options))  # type: ignore[arg-type]


def test_memory_cannot_be_reached_from_spark() -> None:
    with pytest.raises(ConfigurationError, match="lives in one process"):
        enqueue(None, "parquet:/nowhere", "memory://", "T")  # type: ignore[arg-type]


# -- sources ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["", "orders", "parquet:", "excel:/x", "sql: "])
def test_a_source_that_is_none(source: str) -> None:
    with pytest.raises(InvalidInput, match="is no source; use KIND:WHERE"):
        split_source(source)


def test_sources_of_every_kind(spark: SparkSession, people: DataFrame, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    people.write.parquet(str(tmp_path / "parquet"))
    people.write.option("header", "true").csv(str(tmp_path / "csv"))
    people.write.json(str(tmp_path / "json"))
    write_deltalake(str(tmp_path / "delta"), people.toArrow(), partition_by=["team"])
    write_deltalake(str(tmp_path / "delta"), people.where("number < 5").toArrow(), mode="append")
    people.createOrReplaceTempView("enqueue_people")
    expected = sorted(map(tuple, people.collect()))

    def rows(source: str, **more: Any) -> list[Any]:
        return sorted(map(tuple, read_table(spark, source, **more).select("number", "who", "team").collect()))

    for kind in ("parquet", "csv", "json"):
        assert rows(f"{kind}:{tmp_path / kind}") == expected, kind
    assert rows(f"delta:{tmp_path / 'delta'}", options={"version": "0"}) == expected
    assert len(rows(f"delta:{tmp_path / 'delta'}")) == 45
    assert rows("table:enqueue_people") == expected
    assert rows("sql:SELECT * FROM enqueue_people WHERE number > 1") == expected[2:]
    views = {"here": f"parquet:{tmp_path / 'parquet'}", "there": f"csv:{tmp_path / 'csv'}"}
    assert rows("sql:SELECT a.* FROM here a JOIN there b USING (number)", views=views) == expected


def test_csv_as_other_programs_write_it(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('id,email,amount\n1,5" disk,7\n2,"q""uote, comma",8\n3,"back\\",9\n', encoding="utf-8")
    rows = [tuple(row) for row in read_table(spark, f"csv:{file}").collect()]
    assert rows == [(1, '5" disk', 7), (2, 'q"uote, comma', 8), (3, "back\\", 9)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2,b@x,6,more", "has not as many values as there are columns: 2,b@x,6,more; correct it, or"),
        ("2,b@x", "as many values as there are columns: 2,b@x; correct"),
        ('2,"b\nc",6', 'as many values as there are columns: 2,"b; correct'),
        ('2,"say \\"b\\"",6', "a quote within quotes that is not doubled; correct it"),
    ],
)
def test_a_csv_line_that_does_not_fit_the_header_is_no_job(
    spark: SparkSession, tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"id,email,amount\n1,a@x,5\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidInput) as failed:
        preview(spark, f"csv:{file}", fields=["id"])
    assert said in str(failed.value)


def test_a_csv_line_that_does_not_fit_stops_the_enqueue_before_anything_is_pushed(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, url = tmp_path / "a.csv", f"sqlite:///{tmp_path}/jobs.db"
    file.write_text("number,who\n1,a\n2,b,more\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"a line of file:\S+a\.csv has not as many values"):
        enqueue(spark, f"csv:{file}", url, "enqueuetest.Greet", name="one")
    with connect(url) as place:
        assert place.size() == 0
        again: dict[str, Any] = {"name": "one", "reader_options": {"mode": "PERMISSIVE"}}
        assert enqueue(spark, f"csv:{file}", url, "enqueuetest.Greet", **again).state == "pushed"
        assert place.size() == 2


def test_a_database_by_jdbc(spark: SparkSession, people: DataFrame, tmp_path: Path) -> None:
    """Derby is in Spark's own jars: a database without a server."""
    assert spark._jvm is not None
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:memory:{uuid.uuid4().hex};create=true"
    people.write.format("jdbc").option("url", url).option("dbtable", "people").save()
    read = read_table(spark, url, options={"query": 'SELECT "number" FROM people WHERE "number" < 3'})
    assert sorted(row[0] for row in read.collect()) == [0, 1, 2]
    with pytest.raises(InvalidInput, match="dbtable=orders"):
        read_table(spark, url)


@pytest.mark.parametrize(
    ("source", "more", "kind", "said"),
    [
        ("delta:{}/none", {}, ConfigurationError, "there is no Delta table at"),
        ("delta:{}/none", {"options": {"mergeSchema": "true"}}, InvalidInput, "no 'mergeSchema'"),
        ("delta:{}/none", {"options": {"version": "last"}}, InvalidInput, "a whole number, not 'last'"),
        ("parquet:{}", {"views": {"a": "csv:x"}}, InvalidInput, "views are for a sql: source"),
        ("sql:SELECT 1", {"options": {"a": "b"}}, InvalidInput, "takes no reader options"),
    ],
)
def test_sources_that_cannot_be_read(
    source: str, more: dict[str, Any], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=said):
        read_table(None, source.format(tmp_path), **more)  # type: ignore[arg-type]


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def parquet(people: DataFrame, tmp_path: Path) -> str:
    people.write.parquet(str(tmp_path / "people"))
    return f"parquet:{tmp_path / 'people'}"


def test_the_command_pushes_once_and_tells(run: Run, parquet: str, redis7: RedisServer, prefix: str) -> None:
    call = ("pipeline", "enqueue", "--source", parquet, "--url", redis7.url, "--prefix", prefix)
    call += ("--job-type", "enqueuetest.Greet", "--queue", "greetings", "--fields", "number,who")
    shown = run(*call, "--dry-run").stdout
    assert "40 rows would be pushed, such as" in shown
    assert json.loads(run(*call, "--dry-run", "--json").stdout)["rows"] == 40
    first = json.loads(run(*call, "--json").stdout)
    assert (first["state"], first["rows"]) == ("pushed", 40)
    table = run(*call)
    assert "already done" in table.stdout
    assert table.stderr == ""
    with connect(redis7.url, prefix=prefix) as queue:
        assert queue.size("greetings") == 40
        assert {job.team for job in taken(queue)} == {None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--source", "excel:/x", "--url", "redis://127.0.0.1:1", "--job-type", "T"), "is no source"),
        (("--source", "csv:/x", "--url", "u", "--connection", "c", "--job-type", "T"), "not both"),
        (("--source", "csv:/x", "--url", "redis://127.0.0.1:1"), "by one of: --job-type"),
        (("--source", "csv:/x", "--connection", "nobody", "--job-type", "T"), "no connection 'nobody'"),
        (("--source", "csv:/x", "--option", "header", "--job-type", "T"), "has not the form NAME=VALUE"),
    ],
)
def test_the_command_called_wrongly(run: Run, arguments: tuple[str, ...], said: str) -> None:
    done = run("pipeline", "enqueue", *arguments, code=2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_spark_says_becomes_one_line(run: Run, redis7: RedisServer) -> None:
    call = ("pipeline", "enqueue", "--url", redis7.url, "--job-type", "T", "--source")
    done = run(*call, "parquet:/there/is/nothing/here", code=1)
    assert done.stderr.startswith("Error: [PATH_NOT_FOUND]")
    assert "Traceback" not in done.stderr
    assert "\tat org." not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"queue_column": "nope"},
            "queueColumn='nope': there is no such column; there are number, who, team",
        ),
        ({"queue_column": "whom"}, "did you mean 'who'?"),
        ({"tags_column": "number"}, "tagsColumn='number': the column is of the type bigint"),
        ({"fields": ["number"], "queue_column": "nope"}, "there is no column 'nope'"),
        ({"job_module": "tests.spark.test_enqueue", "job_type": "enqueuetest.Great"}, "enqueuetest.Great"),
        ({"job_module": "tests.nowhere"}, "jobModule='tests.nowhere' cannot be imported"),
        ({"job_module": "tests.spark.test_enqueue", "id_column": "who"}, "the field 'who' has no default"),
        ({"job_type": None}, "needs job_type"),
        ({"name": " "}, "cannot be empty"),
        ({"name": "x", "again": True}, "leave out name"),
        ({"url": "memory://"}, "memory:// lives in one process"),
    ],
)
def test_preview_refuses_what_an_enqueue_would(
    spark: SparkSession, people: DataFrame, options: dict[str, Any], said: str
) -> None:
    given = {"url": "redis://127.0.0.1:1", "job_type": "enqueuetest.Greet", **options}
    with pytest.raises(MillstreamError, match=re.escape(said)):
        preview(spark, people, **given)


def test_a_dry_run_checks_the_columns(run: Run, parquet: str) -> None:
    call = ("pipeline", "enqueue", "--source", parquet, "--url", "redis://127.0.0.1:1", "--job-type", "T")
    done = run(*call, "--queue-column", "nope", "--dry-run", code=2)
    assert done.stderr.startswith("Error: queueColumn='nope': there is no such column; ")
    assert done.stdout == ""


def test_preview_writes_nothing(spark: SparkSession, people: DataFrame) -> None:
    count, rows = preview(spark, people, fields=["number"], sample=2)
    assert count == 40
    assert [set(row) for row in rows] == [{"number"}, {"number"}]
