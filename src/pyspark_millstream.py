"""Spark finds ``format("millstream")`` here by the name of this module: nothing has to be registered."""

from millstream.spark.datasource import MillstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
