"""Serve the verdict on a version and the one before it.

Two wheels have one verdict, which is kept like an answer under their digests. It is read in a process with limits, as for pages.
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
from .representation import OCTETS, Representation

if TYPE_CHECKING:
    from ..catalogue.resources import Record
    from .views import Made, Views

_UNKNOWN = "::"
_USABLE = frozenset({"active", "deprecated"})


class Verdicts:
    """The verdicts of one registry. For one event loop."""

    def __init__(self, views: Views) -> None:
        self._views = views

    async def of(self, record: Record) -> Compatibility | None:
        """Return the verdict on a version and the one before it. None where one of them has no handler that can be read.

        Raises `Unavailable`.
        """
        own = next((each for each in record.handlers if each.by == record.publisher and each.status in _USABLE), None)
        if own is None:
            return None
        before, _ = await neighbours(self._views.registry.pool, parse_protocol_uri(record.uri), record.publisher)
        return None if before is None else await self.between(before, Attached(record.uri, own.filename, own.wheel))

    async def between(self, old: Attached, new: Attached) -> Compatibility | None:
        """Return the verdict on two handlers, or None if one cannot be read. Raises `Unavailable`."""

        async def view() -> Made:
            verdict = await self._read(old, new)
            return Representation(msgspec.msgpack.encode(verdict), OCTETS), ()

        kept = await self._views.made(f"compatibility {old.wheel} {new.wheel} {old.filename} {new.filename}", view)
        return msgspec.msgpack.decode(kept.body, type=Compatibility | None)

    async def _read(self, old: Attached, new: Attached) -> Compatibility | None:
        names = f"{old.filename} {new.filename}"
        try:
            read = await self._views.registry.read_blobs("compatibility", names, (old.wheel, new.wheel), sender.get() or _UNKNOWN)
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
