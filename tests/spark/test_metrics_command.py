"""millstream pipeline metrics and project, as one types them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from millstream import open_broker
from millstream.cli.pipeline import command as pipeline
from tests.servers.process import requirement_missing
from tests.spark.histories import as_entries, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def call(*arguments: str) -> Result:
    return CliRunner().invoke(pipeline, arguments, standalone_mode=False)


def test_metrics_shows_tables_and_says_where_the_files_are(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    records = history(300)
    with open_broker(url) as broker:
        broker.xadd_many("shop:history", [*as_entries(records), {"nothing": 1}])
    given = ("metrics", url, "--prefix", "shop", "--window", "5s", "--master", "local[2]")
    done = call(*given, "--workers", "30", "--plot", f"{tmp_path}/plots.png")
    assert (done.return_value, done.exception) == (0, None), done.output
    assert f"{len(records):,} records of 300 finished jobs" in done.output
    assert "1 records could not be used: it has no job_id" in done.output
    assert "shop.SyncStock" in done.output
    assert "of 30 workers" in done.output
    assert f"plots: {tmp_path}/plots.png" in done.output
    assert (tmp_path / "plots.png").exists()
    told: dict[str, Any] = json.loads(call(*given, "--by", "queue", "--json").output)
    assert told["total"]["finished"] == 300
    assert set(told["by"]["queue"]) == {record.queue for record in records}


def test_metrics_where_nothing_can_be_used_fails(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with open_broker(url) as broker:
        broker.xadd("millstream:history", {"nothing": 1})
    done = call("metrics", url, "--master", "local[2]")
    assert done.return_value == 1
    assert "The history is empty" in done.output


@pytest.mark.timeout(300)
def test_project_takes_a_fold_of_the_working_folder(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        requirement_missing("the Python package protobuf")
    (tmp_path / "folds_of_the_command.py").write_text(
        "def total(state, event):\n    return {'sum': state['sum'] + event.data['n']}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    url = f"sqlite:///{tmp_path}/events.db"
    with open_broker(url) as broker:
        broker.xadd_many("numbers", [{"odd": n % 2 == 1, "n": n} for n in range(11)])
    done = call(
        "project", "numbers", "totals", "--url", url, "--key", "odd", "--fold", "folds_of_the_command:total",
        "--initial", '{"sum": 0}', "--columns", "sum bigint", "--json", "--rebuild", "--master", "local[2]",
    )  # fmt: skip
    assert (done.return_value, done.exception) == (0, None), done.output
    summary = json.loads(done.output)
    assert (summary["events"], summary["keys"], summary["rebuilt"]) == (11, 2, True)
    rows = DeltaTable("totals").to_pyarrow_table().to_pylist()
    assert {row["key"]: row["sum"] for row in rows} == {"false": 30, "true": 25}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("metrics", "x", "--since", "soon"), "is not a time"),
        (("metrics", "x", "--horizon", "soon"), "is not a duration"),
        (
            ("project", "s", "t", "--key", "k", "--fold", "m:f", "--rebuild", "--rebuild-from", "a"),
            "give one",
        ),
        (
            ("project", "s", "t", "--key", "k", "--fold", "m:f", "--rebuild", "--every", "5s"),
            "ends by itself",
        ),
        (("project", "s", "t", "--fold", "m:f"), "--key"),
    ],
)
def test_a_wrong_call_is_said_before_spark_starts(arguments: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(pipeline, arguments)
    assert done.exit_code == 2
    assert says in done.output
