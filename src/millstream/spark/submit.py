"""The spark-submit line of a pipeline, for clusters that start the driver themselves: YARN and Kubernetes.

Nothing is started here. The line is text to read, to keep in a scheduler, and to change.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millstream.errors import InvalidInput
from millstream.spark import submitted
from millstream.spark.java import cache_folder
from millstream.spark.package import package_zip
from millstream.spark.session import check_settings

DEPLOY_MODES = ("cluster", "client")
UNPACKED = "environment"  # the folder that a packed environment becomes beside each process on YARN
IN_IMAGE = "local:///opt/millstream/submitted.py"  # where docs/spark.md puts the program in an image


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a line needs to know beside the pipeline's own arguments."""

    master: str
    deploy_mode: str = "cluster"
    # A packed environment (conda-pack, venv-pack) with Millstream in it; None: the nodes have one installed.
    environment: str | None = None
    image: str | None = None  # for Kubernetes: an image with Spark and Millstream in it
    program: str | None = None  # the path of submitted.py as the cluster sees it
    ship: bool = False  # send the package alone, to nodes that have only its dependencies
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.master == "yarn" or self.master.startswith(("k8s://", "spark://"))):
            raise InvalidInput(
                f"there is no spark-submit line for the master {self.master!r}; use yarn, "
                "k8s://https://host:6443 or spark://host:7077 (local[*] and sc:// need none: "
                "give them as --master to the pipeline)"
            )
        check_settings(self.master, self.conf)
        if self.deploy_mode not in DEPLOY_MODES:
            raise InvalidInput(f"deploy_mode must be cluster or client, not {self.deploy_mode!r}")
        if self.on_kubernetes and self.image is None:
            raise InvalidInput("Kubernetes runs images: give image, one that has Spark and Millstream in it")
        if self.image is not None and not self.on_kubernetes:
            raise InvalidInput("image is for a k8s:// master; YARN and standalone clusters take environment")
        if self.environment is not None and self.on_kubernetes:
            raise InvalidInput("environment is for YARN; on Kubernetes it belongs into the image")

    @property
    def on_kubernetes(self) -> bool:
        return self.master.startswith("k8s://")


def submit_line(arguments: Sequence[str], submission: Submission) -> str:
    """The command for a shell, one option a line. ``arguments`` begin with the pipeline's name.

    Raises InvalidInput where there is no pipeline in them.
    """
    if not arguments or arguments[0].startswith("-"):
        raise InvalidInput("a line needs a pipeline and its options, such as archive --url … --table …")
    if any(one == "--master" or one.startswith("--master=") for one in arguments):
        raise InvalidInput("give the master before the pipeline: spark-submit hands it to the program")
    options = [
        ("--master", submission.master),
        ("--deploy-mode", submission.deploy_mode),
        ("--name", f"millstream {arguments[0]}"),
    ]
    if submission.ship:
        options.append(("--py-files", str(package_zip(cache_folder()))))
    if submission.environment is not None:
        options.append(("--archives", f"{submission.environment}#{UNPACKED}"))
    settings = {**_python_settings(submission), **submission.conf}
    options += [("--conf", f"{name}={value}") for name, value in settings.items()]
    lines = ["spark-submit", *(f"{name} {shlex.quote(value)}" for name, value in options)]
    lines += [shlex.quote(_program(submission)), shlex.join(["pipeline", *arguments])]
    return " \\\n  ".join(lines)


def _python_settings(submission: Submission) -> dict[str, str]:
    """Which Python the driver and the executors run."""
    if submission.on_kubernetes:
        assert submission.image is not None
        return {"spark.kubernetes.container.image": submission.image}
    if submission.environment is None:
        return {}
    python = f"./{UNPACKED}/bin/python"
    if submission.master == "yarn" and submission.deploy_mode == "cluster":
        return {
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": python,
            "spark.executorEnv.PYSPARK_PYTHON": python,
        }
    return {"spark.pyspark.python": python, "spark.pyspark.driver.python": "python3"}


def _program(submission: Submission) -> str:
    if submission.program is not None:
        return submission.program
    return IN_IMAGE if submission.on_kubernetes else str(Path(submitted.__file__).resolve())
