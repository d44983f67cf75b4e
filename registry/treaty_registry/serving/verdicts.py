"""Serve the verdict on a version and the one before it.

Two wheels have one verdict, which `views` keeps like an answer under their digests. It is read in a process with limits, as for
pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from treaty_consensus.errors import Gone, Malformed, NotFound, Refused, TooLarge
from treaty_consensus.handler.compatibility import Compatibility, PairVerdict
from treaty_consensus.protocol import parse_protocol_uri

from ..catalogue.predecessors import Attached, neighbours
from ..codes import ContentCode
from ..networks import sender

if TYPE_CHECKING:
    from ..catalogue.resources import Record
    from ..readable import ReadableLog

_UNKNOWN = "::"
_USABLE = frozenset({"active", "deprecated"})


class Verdicts:
    """The verdicts of one registry. For one event loop."""

    def __init__(self, registry: ReadableLog) -> None:
        self._registry = registry

    async def pair(self, record: Record) -> tuple[Attached, Attached] | None:
        """Return the handlers of the version before and of this one. None where one of them has none. Raises `Unavailable`."""
        own = next((each for each in record.handlers if each.by == record.publisher and each.status in _USABLE), None)
        if own is None:
            return None
        before, _ = await neighbours(self._registry.pool, parse_protocol_uri(record.uri), record.publisher)
        return None if before is None else (before, Attached(record.uri, own.filename, own.wheel))

    async def read(self, old: Attached, new: Attached) -> Compatibility | None:
        """Return the verdict on two handlers, or None if one cannot be read. Raises `Unavailable`."""
        names = f"{old.filename} {new.filename}"
        try:
            read = await self._registry.read_blobs("compatibility", names, (old.wheel, new.wheel), sender.get() or _UNKNOWN)
            return msgspec.msgpack.decode(read, type=Compatibility)
        except msgspec.DecodeError:  # the process was taken over, or is of another release
            return None
        except Refused as error:
            return undecided(old, new) if error.code == ContentCode.TOO_COSTLY else None
        except (Gone, NotFound, Malformed, TooLarge):
            return None


def undecided(old: Attached, new: Attached) -> Compatibility:
    """Return the verdict on a pair whose comparison takes more time or memory than is allowed."""
    before, after = (parse_protocol_uri(each.uri).version for each in (old, new))
    return Compatibility(old.uri, PairVerdict(before, after, "undecided", 0, []), PairVerdict(after, before, "undecided", 0, []))
