"""The archive: streams and job history in a Delta table that Spark, DuckDB and pandas can read.

    sources      what is read, through the source of ``format("millstream")``
    positions    how far the archive is; written before a batch, so that it means the same to everybody
    batches      plan, write, commit
    shaping      job records: nothing that was in an entry is lost
    writing      what a task does: Arrow into Parquet, by day
    table        the Delta table: made, widened, committed to
    location     where a table is, and what makes a file there durable
    trimming, maintenance    the source's and the table's housekeeping
    reading      the table as a DataFrame
    pipeline     `archive`, which drives them

Each entry is in the table exactly once; `batches` says why.
"""

from millstream.spark.archiving.maintenance import compact, vacuum
from millstream.spark.archiving.pipeline import ArchiveSummary, archive
from millstream.spark.archiving.reading import read_archive

__all__ = ["ArchiveSummary", "archive", "compact", "read_archive", "vacuum"]
