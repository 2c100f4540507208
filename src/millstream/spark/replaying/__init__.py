"""Replay: jobs of the archive pushed again.

    selection    which jobs, by SQL over the archive's records
    ledger       the jobs frozen under the replay's name, and how far it is
    pushing      in order, at a rate, none twice
    pipeline     `replay`, which drives them

Nothing is pushed twice; `pushing` says why.
"""

from millstream.spark.replaying.pipeline import ReplaySummary, replay

__all__ = ["ReplaySummary", "replay"]
