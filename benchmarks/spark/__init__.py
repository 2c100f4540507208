"""The Spark benchmark's parts; `benchmarks/spark.py` is the command."""
