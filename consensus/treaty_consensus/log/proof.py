"""The receipt: a C2SP tlog-proof, everything that proves offline that an entry is in the log.

c2sp.org/tlog-proof@v1 LF
["extra " base64(data) LF]      1 to 65,536 bytes, opaque, authenticated by nothing; left out when there are none
"index " index LF               of the leaf, from 0: decimal, no leading zeros
(base64(hash) LF)*              the inclusion proof, leaf's sibling first: at most 63 times 32 bytes
LF
checkpoint                      the signed note, verbatim
"""

from __future__ import annotations

from dataclasses import dataclass

from ..canonical import b64decode, b64encode, parse_decimal
from ..errors import Malformed, TooLarge, TreatyError
from . import merkle
from .checkpoint import SignedCheckpoint, open_checkpoint
from .note import MAX_NOTE_BYTES, VerifierKey

MAX_EXTRA_BYTES = 64 * 1024
MAX_PROOF_HASHES = 63
MAX_RECEIPT_BYTES = MAX_NOTE_BYTES + 2 * MAX_EXTRA_BYTES

_HEADER = "c2sp.org/tlog-proof@v1"
_EXTRA = "extra "
_INDEX = "index "


@dataclass(frozen=True)
class Receipt:
    """A claim of inclusion: nothing of it is to be believed before `verify`, and `extra` not even then.

    Raises `Malformed` or `TooLarge` when no tlog-proof can have these parts.
    """

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: bytes
    extra: bytes | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < merkle.MAX_SIZE:
            raise _bad_receipt("the index is out of range")
        if len(self.hashes) > MAX_PROOF_HASHES or any(len(h) != merkle.HASH_SIZE for h in self.hashes):
            raise _bad_receipt(f"it has more than {MAX_PROOF_HASHES} hashes, or one that is not SHA-256")
        if self.extra is not None and not 1 <= len(self.extra) <= MAX_EXTRA_BYTES:
            raise _bad_receipt("its extra data are empty or too long")
        if not self.checkpoint:
            raise _bad_receipt("it has no checkpoint")
        if len(self.checkpoint) > MAX_NOTE_BYTES:
            raise TooLarge("note.size", f"A note has at most {MAX_NOTE_BYTES} bytes.")

    @classmethod
    def parse(cls, data: bytes) -> Receipt:
        """Read a tlog-proof. Raises `TooLarge` or `Malformed`; the checkpoint is only looked at by `verify`."""
        if len(data) > MAX_RECEIPT_BYTES:
            raise TooLarge("log.receipt-size", f"A receipt has at most {MAX_RECEIPT_BYTES} bytes.")
        head, _, checkpoint = data.partition(b"\n\n")
        try:
            header, *lines = head.decode("ascii").split("\n")
        except UnicodeDecodeError as error:
            raise _bad_receipt("its first part is not ASCII") from error
        extra_line = lines.pop(0) if lines and lines[0].startswith(_EXTRA) else None
        if header != _HEADER or not lines or not lines[0].startswith(_INDEX):
            raise _bad_receipt("its first lines are not those of a tlog-proof")
        if len(lines) > 1 + MAX_PROOF_HASHES:
            raise _bad_receipt(f"it has more than {MAX_PROOF_HASHES} hashes")
        index_line, *hash_lines = lines
        try:
            index = parse_decimal(index_line.removeprefix(_INDEX), limit=merkle.MAX_SIZE)
            hashes = tuple(b64decode(line, limit=merkle.HASH_SIZE) for line in hash_lines)
            extra = b64decode(extra_line.removeprefix(_EXTRA), limit=MAX_EXTRA_BYTES) if extra_line else None
        except TreatyError as error:
            raise _bad_receipt("a line is not in its one spelling") from error
        return cls(index, hashes, checkpoint, extra)

    def format(self) -> bytes:
        """The tlog-proof; the inverse of `parse`."""
        lines = [_HEADER]
        if self.extra is not None:
            lines.append(_EXTRA + b64encode(self.extra))
        lines.append(f"{_INDEX}{self.index}")
        lines.extend(b64encode(value) for value in self.hashes)
        return "\n".join(lines).encode() + b"\n\n" + self.checkpoint

    def verify(self, entry: bytes, log_key: VerifierKey, clock_key: VerifierKey | None = None) -> SignedCheckpoint:
        """Check that the log of `log_key` holds exactly `entry` at `index`; return the checkpoint that says so.

        `clock_key` and what is raised: as `open_checkpoint`, and `Untrusted("log.inclusion")`.
        """
        signed = open_checkpoint(self.checkpoint, log_key, clock_key)
        head = signed.checkpoint
        merkle.verify_inclusion(self.index, head.size, merkle.leaf_hash(entry), self.hashes, head.root)
        return signed


def _bad_receipt(why: str) -> Malformed:
    return Malformed("log.receipt", f"This is not a receipt (C2SP tlog-proof): {why}.")
