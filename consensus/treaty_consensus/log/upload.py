"""Read and write uploads of C2SP tlog-mirror: the head of an `add-entries` request, its packages, and the state of a mirror.

    uint16 length ‖ origin ‖ uint64 start ‖ uint64 end ‖ uint16 length ‖ ticket        all big-endian
    then packages in order, each: (uint16 length ‖ entry)* ‖ uint8 count ‖ count hashes

The entries [start, end) are cut at multiples of 256. The hashes of a package are a subtree proof (`subtree`) from the leaves of
its bundle, up to the end of the package, to the tree of `end` leaves. A mirror answers 409 and 202 with three lines: the size of
a pending checkpoint, the index of the next entry, and a ticket in base64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..canonical import b64decode, b64encode, parse_decimal
from ..codes import WitnessCode
from ..errors import Malformed, TooLarge
from .merkle import MAX_SIZE
from .tiles import TILE_WIDTH

INFO_TYPE = "text/x.tlog.mirror-info"
MAX_PACKAGES = 32
"""Packages that a request should have at most."""
MAX_PROOF = 63
MAX_TICKET = 2**16 - 1
"""Bytes of a ticket: its length has two."""
MAX_ORIGIN = 1024
"""Bytes of an origin that are read."""


class Upload(NamedTuple):
    """The head of a request: the entries [start, end) of the log `origin`."""

    origin: str
    start: int
    end: int
    ticket: bytes = b""

    def format(self) -> bytes:
        """Return the bytes of the head."""
        origin = self.origin.encode()
        numbers = self.start.to_bytes(8, "big") + self.end.to_bytes(8, "big")
        return len(origin).to_bytes(2, "big") + origin + numbers + len(self.ticket).to_bytes(2, "big") + self.ticket

    def check(self) -> None:
        """Raise `Malformed` (`witness.request`) unless the interval is one."""
        if not 0 <= self.start <= self.end <= MAX_SIZE:
            raise bad_upload("its entries are no interval")

    def packages(self) -> list[tuple[int, int]]:
        """Return the intervals of its packages, at most `MAX_PACKAGES`."""
        if self.start == self.end:
            return []
        firsts = range(self.start - self.start % TILE_WIDTH, self.end, TILE_WIDTH)
        return [(max(self.start, first), min(self.end, first + TILE_WIDTH)) for first in firsts[:MAX_PACKAGES]]


def encode_package(entries: Sequence[bytes], proof: Sequence[bytes]) -> bytes:
    """Return the bytes of a package."""
    encoded = b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)
    return encoded + bytes([len(proof)]) + b"".join(proof)


def encode_info(pending: int, next_entry: int, ticket: bytes = b"") -> bytes:
    """Return the state of a mirror as it answers it."""
    return f"{pending}\n{next_entry}\n{b64encode(ticket)}\n".encode()


def decode_info(data: bytes) -> tuple[int, int, bytes]:
    """Return the pending size, the index of the next entry and the ticket. Raises `Malformed` (`witness.request`)."""
    try:
        pending, following, ticket, end = data.decode("ascii").split("\n")
        numbers = parse_decimal(pending, limit=MAX_SIZE), parse_decimal(following, limit=MAX_SIZE)
        values = *numbers, b64decode(ticket, limit=MAX_TICKET)
    except (ValueError, Malformed, TooLarge) as error:
        raise Malformed(WitnessCode.REQUEST, "This is not the state of a mirror (C2SP tlog-mirror).") from error
    if end:
        raise Malformed(WitnessCode.REQUEST, "This is not the state of a mirror (C2SP tlog-mirror): it has more lines.")
    return values


def bad_upload(why: str) -> Malformed:
    """Return the error for a request of another form."""
    return Malformed(WitnessCode.REQUEST, f"This is not an upload of entries (C2SP tlog-mirror): {why}.")
