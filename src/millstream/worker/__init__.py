"""The worker: takes jobs from a queue, runs their handlers, and tells the broker what became of them."""

from millstream.worker.options import LaunchOptions, WorkerOptions
from millstream.worker.worker import Counters, Worker, WorkerCrashed

__all__ = ["Counters", "LaunchOptions", "Worker", "WorkerCrashed", "WorkerOptions"]
