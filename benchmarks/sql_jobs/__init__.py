"""The parts of the benchmark of jobs on SQL databases; `benchmarks/sql_jobs.py` is the command."""
