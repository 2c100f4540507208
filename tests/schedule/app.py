"""A worker process with a schedule: ``python -m tests.schedule.app URL PREFIX FILE``."""

from __future__ import annotations

import sys

from millstream import Job, connect

URL, PREFIX, FILE = sys.argv[1:] if __name__ == "__main__" else ("", "", "")


class Mark(Job, queue="marks", name="scheduletest.Mark"):
    def handle(self) -> None:
        assert self.envelope is not None
        with open(FILE, "a", encoding="utf-8") as file:  # one short write, whole also from several processes
            file.write(f"{self.envelope.headers['tick']} {self.delivery_count}\n")


if __name__ == "__main__":
    with connect(URL, prefix=PREFIX) as queue:
        queue.schedule("marks", 0.25, Mark, catch_up="all")
        print("ready", flush=True)  # noqa: T201 - the test waits for it
        queue.work(["marks"], concurrency=2, lease=1.0, max_deliveries=1000, recover_every=0.2)
