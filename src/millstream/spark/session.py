"""A SparkSession that is ready to use."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession


def session(
    master: str = "local[*]", *, app_name: str = "millstream", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The SparkSession on ``master``: a new one, or the one that this process has."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
