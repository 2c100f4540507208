"""The job benchmark's parts; `benchmarks/jobs.py` is the command."""
