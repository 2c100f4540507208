"""Recording what happens to jobs, beside the work: a driver that notes, and outlets that write.

    RecordingDriver ──notes──► Outlet (a buffer and a thread) ──batches──► Sink: history stream, archive

The job's state changes first, and its record follows. Nobody who pushes or settles a job waits for a record,
or hears that one could not be written: an outlet keeps what it holds until its sink takes it, up to a bound
of memory. Beyond the bound new records are dropped, counted and said. A process that is killed loses what
its buffers hold; `Recorder.flush` is for those who must not.
"""

from millstream.recording.driver import Recorder, RecordingDriver
from millstream.recording.outlet import Outlet, OutletStats, Sink

__all__ = ["Outlet", "OutletStats", "Recorder", "RecordingDriver", "Sink"]
