"""The spark-submit line: what is in it, what it refuses, and that a shell reads it as it was meant."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

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
        ({"master": "yarn", "deploy_mode": "remote"}, "must be cluster or client, not 'remote'"),
        ({"master": "k8s://https://h"}, "give image"),
        ({"master": "yarn", "image": "x"}, "image is for a k8s:// master"),
        ({"master": "k8s://https://h", "image": "x", "environment": "e"}, "belongs into the image"),
    ],
)
def test_what_cannot_be_submitted(submission: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Submission(**submission)  # type: ignore[arg-type]


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
