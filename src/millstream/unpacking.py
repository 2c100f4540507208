"""Reading jobs in order to look at them, in the codec that they are written in.

A worker and its producers agree on a codec. Who only looks, or tries a dead letter again, may have been told
nothing but an address.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.envelope import Codec, Envelope
from millstream.errors import UnreadableEnvelope


class Unpacker:
    """Reads bodies in ``codec``, else in one of ``others``."""

    def __init__(self, codec: Codec, others: Iterable[Codec] = ()) -> None:
        self._codecs = {each.name: each for each in (codec, *others)}

    def unpack(self, body: bytes) -> tuple[Envelope | None, str]:
        """The envelope, None where it cannot be read, and the name of the codec that it is written in."""
        for name, codec in self._codecs.items():
            try:
                return codec.decode(body), name
            except UnreadableEnvelope:
                continue
        return None, ""

    def codec(self, name: str) -> Codec:
        """The codec of that name, to write back what was read in the way it was written."""
        return self._codecs[name]
