"""An archive as a DataFrame, without any jar: deltalake knows the files, Spark reads them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from millstream.errors import InvalidInput
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.table import ArchiveTable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


def read_archive(
    spark: SparkSession, table: str | os.PathLike[str], *, version: int | None = None
) -> DataFrame:
    """The Delta table at ``table`` as it is now, or as it was at ``version``.

    A filter on ``day`` reads only the folders of those days. The DataFrame holds on to the files of its
    version: read anew after a vacuum. Raises ConfigurationError where there is no table, InvalidInput for an
    unknown version.
    """
    opened = ArchiveTable(Location(os.fspath(table))).open()
    if version is not None:
        if not 0 <= version <= opened.version():
            raise InvalidInput(f"{table} has the versions 0 to {opened.version()}, and no {version}")
        opened.load_as_version(version)
    return read_files(spark, opened)


def read_files(spark: SparkSession, table: DeltaTable) -> DataFrame:
    """The files of an open table. The schema is the table's: older files may lack columns that came later."""
    schema = StructType.fromJson(json.loads(table.schema().to_json()))  # Delta writes types as Spark does
    files = table.file_uris()
    if not files:
        return spark.createDataFrame([], schema)
    # Not the folder: it also holds files that are no longer, or never were, part of the table.
    return spark.read.schema(schema).option("basePath", table.table_uri).parquet(*files)
