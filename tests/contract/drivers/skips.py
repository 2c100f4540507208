"""What a test needs of a driver, and the reason for its skip where the driver lacks it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.drivers.base import Capabilities

KNOWN = frozenset(field.name for field in msgspec.structs.fields(Capabilities))


def reason_to_skip(driver: str, capabilities: Capabilities, needs: Iterable[str]) -> str | None:
    """Which of ``needs`` the driver lacks, in words; None where it has them all."""
    wanted = list(needs)
    unknown = [name for name in wanted if name not in KNOWN]
    if unknown:
        raise ValueError(f"no such capability: {', '.join(unknown)}; known are {', '.join(sorted(KNOWN))}")
    lacks = [name for name in wanted if not getattr(capabilities, name)]
    return f"the {driver} driver has no {', no '.join(lacks)} (see its Capabilities)" if lacks else None
