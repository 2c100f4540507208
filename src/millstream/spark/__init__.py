"""Spark over everything that Millstream handles: a source, a sink and pipelines, through PySpark."""

from millstream.spark.session import session

__all__ = ["session"]
