"""The spark-submit line: what is in it, what it refuses, and that a shell reads it as it was meant."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millstream.cli.pipeline import command as pipelines
from millstream.errors import InvalidInput
from millstream.spark.submit import Submission, submit_line

ARCHIVE = ["archive", "--url", "redis://host/0", "--table", "s3://bucket/my archive"]


def words(arguments: list[str], **submission: Any) -> list[str]:
    """The line as a shell splits it."""
    return shlex.split(submit_line(arguments, Submission(**submission)).replace("\\\n", " "))


def pairs(line: list[str], name: str) -> list[str]:
    return [line[at + 1] for at, word in enumerate(line) if word == name]


def test_yarn_with_a_packed_environment() -> None:
    line = words(ARCHIVE, master="yarn", environment="env.tar.gz", conf={"spark.executor.memory": "4g"})
    assert line[:3] == ["spark-submit", "--master", "yarn"]
    assert pairs(line, "--deploy-mode") == ["cluster"]
    assert pairs(line, "--archives") == ["env.tar.gz#environment"]
    python = "./environment/bin/python"
    assert pairs(line, "--conf") == [
        f"spark.yarn.appMasterEnv.PYSPARK_PYTHON={python}",
        f"spark.executorEnv.PYSPARK_PYTHON={python}",
        "spark.executor.memory=4g",
    ]
    assert line[-len(ARCHIVE) - 1 :] == ["pipeline", *ARCHIVE]
    assert Path(line[-len(ARCHIVE) - 2]).name == "submitted.py"
    assert Path(line[-len(ARCHIVE) - 2]).exists()


def test_yarn_with_the_driver_here() -> None:
    line = words(ARCHIVE, master="yarn", deploy_mode="client", environment="hdfs:///env.tar.gz")
    assert "spark.pyspark.python=./environment/bin/python" in pairs(line, "--conf")
    assert words(ARCHIVE, master="yarn", deploy_mode="client").count("--conf") == 0


def test_kubernetes_runs_an_image() -> None:
    line = words(ARCHIVE, master="k8s://https://host:6443", image="me/spark:1")
    assert pairs(line, "--conf") == ["spark.kubernetes.container.image=me/spark:1"]
    assert "local:///opt/millstream/submitted.py" in line


def test_the_package_alone_can_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    (sent,) = pairs(words(ARCHIVE, master="spark://host:7077", ship=True), "--py-files")
    assert Path(sent).parent == tmp_path
    assert Path(sent).exists()


@pytest.mark.parametrize(
    ("submission", "said"),
    [
        ({"master": "local[2]"}, "no spark-submit line for the master"),
        ({"master": "sc://host"}, "no spark-submit line for the master"),
        ({"master": "yarn", "conf": {"memory": "4g"}}, "'memory' is no setting of Spark"),
        ({"master": "yarn", "deploy_mode": "remote"}, "must be cluster or client, not 'remote'"),
        ({"master": "k8s://https://h"}, "give image"),
        ({"master": "yarn", "image": "x"}, "image is for a k8s:// master"),
        ({"master": "k8s://https://h", "image": "x", "environment": "e"}, "belongs into the image"),
    ],
)
def test_what_cannot_be_submitted(submission: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Submission(**submission)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs a pipeline"),
        (["--url", "x"], "needs a pipeline"),
        (["archive", "--master", "yarn"], "give the master before the pipeline"),
        (["archive", "--master=yarn"], "give the master before the pipeline"),
    ],
)
def test_arguments_that_are_no_pipeline(arguments: list[str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        submit_line(arguments, Submission(master="yarn"))


# -- the command -----------------------------------------------------------------------------------


def submit(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(pipelines, ["submit-line", "--master", "yarn", *arguments])
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["archive", "--url", "redis://host/0", "--history", "--table", "hdfs:///archive"],
        ["metrics", "hdfs:///archive", "--by", "type,queue", "--window", "5m", "--conf", "spark.a=b"],
        ["replay", "--table", "hdfs:///archive", "--where", "state = 'failed'", "--name", "x"],
        ["project", "events", "hdfs:///state", "--key", "id", "--fold", "app:fold", "--initial", "{}"],
        ["enqueue", "--source", "sql:SELECT 1", "--job-type", "T", "--url", "redis://host/0"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_command_shows_the_line_of_a_pipeline(arguments: list[str]) -> None:
    code, shown = submit(*arguments)
    assert code == 0, shown
    assert shlex.split(shown.replace("\\\n", " "))[-len(arguments) - 1 :] == ["pipeline", *arguments]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("archive --nope", "No such option '--nope'"),
        ("archive --table t --history", "Missing option '--url'"),
        ("archive --url u --table t", "say what to archive"),
        ("archive --url u --table t --history --trim-unread", "give --trim as well"),
        ("archive --url u --table t --archive-table --trim", "--trim is for streams"),
        ("archive --url u --table t --history --vacuum --keep 1h", "add --force"),
        ("metrics --table t", "No such option '--table'"),
        ("metrics --by colour", "cannot group by 'colour'"),
        ("metrics --window soon", "'soon' is no length of time"),
        ("metrics --workers 0", "not in the range x>0"),
        ("metrics --conf memory=4g", "'memory' is no setting of Spark"),
        ("replay --table t --where x --name n --run", "--run needs --url"),
        ("project s t --key k --fold a:b --initial {", "it is not JSON"),
        ("project s t --key k --fold a:b --rebuild --rebuild-from a", "give one"),
        ("project s t --key k --fold a:b --rebuild --every 1s", "a rebuild ends by itself"),
        ("enqueue --source csv:/x", "by one of: --job-type, --job-type-column"),
        ("enqueue --source csv:/x --job-type T --job-type-column t", "by one of: --job-type"),
        ("enqueue --source csv:/x --job-type T --again --name n", "leave out --name"),
        ("enqueue --source csv:/x --job-type T --url u --connection c", "not both"),
        ("enqueue --source x --job-type T", "'x' is no source"),
        ("prepare", "'prepare' is no pipeline"),
        ("--nope archive", "No such option '--nope'"),
    ],
)
def test_the_command_refuses_what_the_pipeline_would(line: str, said: str) -> None:
    code, shown = submit(*line.split())
    assert said in shown
    assert "spark-submit" not in shown
    assert code in (1, 2)  # 1: an error of ours, to which `main` gives its exit code, 2


def test_the_usage_that_is_shown_is_that_of_the_pipeline() -> None:
    assert "Usage: pipeline archive " in submit("archive", "--url", "u", "--table", "t")[1]
