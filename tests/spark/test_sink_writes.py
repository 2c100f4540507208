"""DataFrames become entries and jobs: through Spark, on real servers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from millstream import Job, connect, open_broker
from millstream.envelope import Envelope
from tests.servers import RedisServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODULE = __name__
handled: list[tuple[int, str, str | None]] = []
all_handled = threading.Event()


class Greet(Job, queue="greetings", max_attempts=2):
    """A job that a worker of this test runs."""

    user_id: int
    name: str = "nobody"

    def handle(self) -> None:
        handled.append((self.user_id, self.name, self.id))
        if len(handled) == 40:
            all_handled.set()


def save(df: DataFrame, url: str, **options: Any) -> None:
    writer = df.write.format("millstream").option("url", url).mode("append")
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


@pytest.fixture
def name() -> str:
    return f"sink-{uuid4().hex[:8]}"


@pytest.fixture(params=["redis7", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/sink.db"
    found: str = request.getfixturevalue(request.param).url
    if request.param == "postgres":
        open_broker(found, create=True).close()
    return found


def entries(url: str, stream: str) -> list[Any]:
    broker = open_broker(url)
    try:
        return list(broker.xrange(stream))
    finally:
        broker.close()


def test_rows_become_entries_with_each_column_as_a_field(spark: SparkSession, url: str, name: str) -> None:
    df = spark.range(0, 2500, numPartitions=3).selectExpr(
        "id AS n", "concat('user-', id) AS user", "id / 4 AS x"
    )
    save(df, url, stream=name)
    found = entries(url, name)
    assert sorted(message.data["n"] for message in found) == list(range(2500))
    assert found[0].data == {"n": 0, "user": "user-0", "x": 0.0}


def test_every_type_arrives(spark: SparkSession, redis7: RedisServer, name: str) -> None:
    df = spark.sql(
        """SELECT 1 AS i, CAST(2 AS BIGINT) AS l, CAST(0.5 AS FLOAT) AS f, 1e300D AS d, true AS b,
        'ä"\\n' AS s, X'00ff' AS bin, DATE'2026-01-02' AS day, TIMESTAMP'2026-01-02 03:04:05.678Z' AS at,
        TIMESTAMP_NTZ'2026-01-02 03:04:05' AS local, CAST('12.50' AS DECIMAL(10, 2)) AS money,
        named_struct('x', 1, 'y', array('a', NULL)) AS st, map('k', 1.5D) AS m, array(1, 2) AS a,
        CAST(NULL AS STRING) AS nothing, CAST(NULL AS STRUCT<x: INT>) AS no_struct"""
    )
    save(df, redis7.url, stream=name)
    (entry,) = entries(redis7.url, name)
    assert entry.data == {
        **{"i": 1, "l": 2, "f": 0.5, "d": 1e300, "b": True, "s": 'ä"\n', "bin": "AP8=", "day": "2026-01-02"},
        **{"at": "2026-01-02T03:04:05.678000Z", "local": "2026-01-02T03:04:05.000000", "money": 12.5},
        **{
            "st": {"x": 1, "y": ["a", None]},
            "m": {"k": 1.5},
            "a": [1, 2],
            "nothing": None,
            "no_struct": None,
        },
    }
    with redis7.client() as client:  # as on the wire: one field, JSON text, the decimal with its digits
        ((_, fields),) = client.xrange(name)
        assert list(fields) == [b"data"]
        assert b'"money":12.50' in fields[b"data"]


def test_a_column_of_json_texts_type_and_headers(spark: SparkSession, url: str, name: str) -> None:
    rows = [('{"a": 1}', "order.placed", {"by": "ann"}), ('{"a":2}', None, None), ('{"a":3}', "x", {})]
    df = spark.createDataFrame(rows, "data STRING, type STRING, headers MAP<STRING, STRING>").coalesce(1)
    save(df, url, stream=name)
    found = [(one.data["a"], one.type, one.headers) for one in entries(url, name)]
    assert found == [(1, "order.placed", {"by": "ann"}), (2, None, {}), (3, "x", {})]


def test_type_and_headers_may_be_fields(spark: SparkSession, redis7: RedisServer, name: str) -> None:
    df = spark.sql("SELECT 7 AS n, 'gold' AS type")
    save(df, redis7.url, stream=name, typeColumn="")
    assert [(one.data, one.type) for one in entries(redis7.url, name)] == [({"n": 7, "type": "gold"}, None)]


def test_a_column_names_the_stream(spark: SparkSession, url: str, name: str) -> None:
    df = spark.range(0, 3000, numPartitions=2).selectExpr("id AS n", f"concat('{name}:', id % 50) AS dest")
    save(df, url, streamColumn="dest")
    for k in (0, 7, 49):
        assert [one.data["n"] for one in entries(url, f"{name}:{k}")] == list(range(k, 3000, 50))


def test_an_empty_dataframe_adds_nothing(spark: SparkSession, url: str, name: str) -> None:
    save(spark.range(0), url, stream=name)
    save(spark.range(10).where("id > 100"), url, stream=name)
    assert entries(url, name) == []


def test_a_write_with_an_id_is_done_once(spark: SparkSession, url: str, name: str) -> None:
    for _ in range(2):
        save(spark.range(10), url, stream=name, writeId=f"{name}-2026-01-01")
    assert len(entries(url, name)) == 10
    for _ in range(2):
        save(spark.range(10), url, stream=name)  # without one each write is new
    assert len(entries(url, name)) == 30


def test_null_fields_are_left_out_where_asked(spark: SparkSession, redis7: RedisServer, name: str) -> None:
    save(spark.sql("SELECT 1 AS a, CAST(NULL AS INT) AS b"), redis7.url, stream=name, ignoreNullFields="true")
    assert entries(redis7.url, name)[0].data == {"a": 1}


def test_jobs_are_run_by_a_worker(spark: SparkSession, url: str) -> None:
    handled.clear()
    all_handled.clear()
    df = spark.range(40).selectExpr("id AS user_id", "concat('user-', id) AS name")
    save(df, url, jobType="Greet", jobModule=MODULE)
    with connect(url) as queue:
        assert queue.size("greetings") == 40
        with queue.worker(["greetings"], concurrency=4):
            assert all_handled.wait(60)
        deadline = time.monotonic() + 30
        while queue.size("greetings") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert queue.size("greetings") == 0
    assert sorted(handled)[0][:2] == (0, "user-0")
    assert sorted(one[0] for one in handled) == list(range(40))


def envelopes(url: str, queue_name: str) -> dict[Any, tuple[Envelope, Any]]:
    with connect(url) as queue:
        queue.driver.promote_due([queue_name])
        taken = queue.driver.reserve([queue_name], "test", 1000)
        found = [*taken, *queue.driver.delayed(queue_name)]
        decoded = [(queue.codec.decode(one.body), one) for one in found]
    return {json.loads(bytes(envelope.payload))["n"]: (envelope, one) for envelope, one in decoded}


def test_columns_and_options_say_how_a_job_is_delivered(spark: SparkSession, url: str, name: str) -> None:
    rows = [
        (0, "mail.send", "high", 0.0, "k1", "id-0", "old-0", '{"by":"ann"}', "acme", ["a", "b"], 7),
        (1, "mail.send", "low", 3600.0, "k2", "id-1", None, None, None, None, None),
        (2, "mail.drop", None, None, "k1", "id-2", None, None, None, None, None),
    ]
    df = spark.createDataFrame(
        rows,
        "n INT, kind STRING, prio STRING, wait DOUBLE, key STRING, jid STRING, old STRING, hd STRING, "
        "tn STRING, tags ARRAY<STRING>, tries INT",
    ).coalesce(1)
    save(
        df,
        url,
        **{"jobTypeColumn": "kind", "queue": name, "priorityColumn": "prio", "delayColumn": "wait"},
        **{"uniqueKeyColumn": "key", "idColumn": "jid", "replayOfColumn": "old", "headersColumn": "hd"},
        **{"tenantColumn": "tn", "tagsColumn": "tags", "maxAttemptsColumn": "tries", "maxAttempts": 5},
        **{"headers": '{"source": "spark"}', "timeout": 30, "expiresIn": 7200, "tenant": "nobody"},
    )
    found = envelopes(url, name)
    first, second, third = (found[n][0] for n in range(3))
    assert (first.id, first.type, first.priority, first.max_attempts) == ("id-0", "mail.send", "high", 7)
    assert first.replay_of == "old-0"
    assert first.headers == {"source": "spark", "by": "ann", "tenant": "acme"}
    assert first.tags == ["a", "b"]
    assert first.unique_key == "mail.send:k1"
    assert (first.timeout, first.due_at) == (30.0, None)
    assert (second.priority, second.max_attempts, second.tags) == ("low", 5, [])
    assert second.headers == {"source": "spark", "tenant": "nobody"}
    assert second.due_at is not None and second.expires_at is not None  # noqa: PT018
    assert second.due_at - second.pushed_at == pytest.approx(3600)
    assert second.expires_at - second.pushed_at == pytest.approx(10800)
    assert third.type == "mail.drop"
    # Unique keys hold: the same key again pushes nothing, a job's id neither.
    save(df.selectExpr("n + 10 AS n", "key"), url, jobType="mail.send", queue=name, uniqueKeyColumn="key")
    assert not {10, 11} & set(envelopes(url, name))


def test_a_job_is_delayed_until_a_moment(spark: SparkSession, redis7: RedisServer, name: str) -> None:
    df = spark.sql("SELECT 1 AS n, current_timestamp() + INTERVAL 1 HOUR AS at")
    save(df, redis7.url, jobType="Later", queue=name, delayColumn="at")
    with connect(redis7.url) as queue:
        (job,) = queue.driver.delayed(name)
        assert job.due_in == pytest.approx(3600, abs=60)


def test_payloads_as_text_and_queues_by_column(spark: SparkSession, url: str, name: str) -> None:
    rows = [(f'{{"n": {n}}}', f"{name}-{n % 3}", "Old") for n in range(30)]
    df = spark.createDataFrame(rows, "payload STRING, q STRING, t STRING")
    save(df, url, jobTypeColumn="t", payloadColumn="payload", queueColumn="q")
    for k in range(3):
        assert sorted(envelopes(url, f"{name}-{k}")) == list(range(k, 30, 3))
    with connect(url) as queue:
        assert {f"{name}-{k}" for k in range(3)} <= set(queue.driver.queues())


def failure(action: Callable[[], None]) -> str:
    with pytest.raises(Exception, match="millstream") as caught:
        action()
    return str(caught.value)


def test_a_mistake_is_told_before_spark_starts_a_task(spark: SparkSession, name: str) -> None:
    text = failure(lambda: save(spark.range(3), "redis://ann:pa55word@127.0.0.1:1/0", streem=name))
    assert "did you mean 'stream'" in text
    assert "pa55word" not in text
    text = failure(lambda: save(spark.range(3), "redis://127.0.0.1:1/0", stream=name, dataColumn="nope"))
    assert "dataColumn='nope'" in text


def test_a_server_that_is_away_is_told_without_the_password(spark: SparkSession, name: str) -> None:
    text = failure(
        lambda: save(spark.range(3), "redis://ann:pa55word@127.0.0.1:1/0?retry_for=0", stream=name)
    )
    assert "127.0.0.1:1" in text
    assert "pa55word" not in text


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, redis7: RedisServer, name: str) -> None:
    bad = spark.range(0, 3000, numPartitions=1).selectExpr("IF(id = 2999, double('nan'), id) AS x")
    assert "NaN or infinite" in failure(lambda: save(bad, redis7.url, stream=name))
    with redis7.client() as client:
        assert client.keys(f"*{name}*") == []
