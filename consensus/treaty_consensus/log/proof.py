"""Read, write and verify receipts: a C2SP tlog-proof, which proves offline that an entry is in the log.

    c2sp.org/tlog-proof@v1 LF
    index 5 LF                                            the leaf, from 0
    B64(hash) LF                                          the inclusion proof, the leaf's sibling first
    LF
    registry.example LF …                                 the checkpoint, a signed note

An `extra` line may precede `index`; nothing authenticates it. Specification: `docs/specification/log.md`, "Proofs and
receipts".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..canonical import b64decode, b64encode, parse_decimal
from ..codes import LogCode, NoteCode
from ..errors import Malformed, TooLarge, TreatyError
from . import merkle
from .checkpoint import LogKeys, SignedCheckpoint, open_checkpoint
from .note import MAX_NOTE_BYTES, VerifierKey

# Opaque and never trusted, so it only needs a bound.
MAX_EXTRA_BYTES = 64 * 1024
# A tree of 2^63 - 1 leaves has 63 levels above the leaf.
MAX_PROOF_HASHES = 63
# Base64 takes four bytes for three; twice the extra data leaves room for the hashes too.
MAX_RECEIPT_BYTES = MAX_NOTE_BYTES + 2 * MAX_EXTRA_BYTES

_HEADER = "c2sp.org/tlog-proof@v1"
_EXTRA = "extra "
_INDEX = "index "


@dataclass(frozen=True)
class Receipt:
    """Hold a claim of inclusion. Trust none of it before `verify`, and `extra` not even afterwards.

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
            raise TooLarge(NoteCode.FORM, f"A note has at most {MAX_NOTE_BYTES} bytes.")

    @classmethod
    def parse(cls, data: bytes) -> Receipt:
        """Read a tlog-proof, without verifying it. Raises `TooLarge` or `Malformed` (`log.form`)."""
        if len(data) > MAX_RECEIPT_BYTES:
            raise TooLarge(LogCode.FORM, f"A receipt has at most {MAX_RECEIPT_BYTES} bytes.")
        # At the first empty line: the checkpoint has one of its own.
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
        """Return the tlog-proof; the inverse of `parse`."""
        lines = [_HEADER]
        if self.extra is not None:
            lines.append(_EXTRA + b64encode(self.extra))
        lines.append(f"{_INDEX}{self.index}")
        lines.extend(b64encode(value) for value in self.hashes)
        return "\n".join(lines).encode() + b"\n\n" + self.checkpoint

    def verify(self, entry: bytes, log_key: VerifierKey | LogKeys, clock_key: VerifierKey | None = None) -> SignedCheckpoint:
        """Check that the log of `log_key` holds exactly `entry` at `index`; return the checkpoint that proves it.

        Raises `Untrusted` (`log.inclusion`) and the errors of `open_checkpoint`.
        """
        # The size must come from the signed checkpoint: an inclusion proof alone does not fix the size of its tree.
        signed = open_checkpoint(self.checkpoint, log_key, clock_key)
        head = signed.checkpoint
        merkle.verify_inclusion(self.index, head.size, merkle.leaf_hash(entry), self.hashes, head.root)
        return signed


class ReceiptWriter:
    """Write the receipts of many leaves at one checkpoint, each as `Receipt.format` does.

    Their proofs have most hashes in common, so the base64 of each hash is made once. For hashes of our own tree only: nothing is
    checked.
    """

    def __init__(self, checkpoint: bytes) -> None:
        self._end = b"\n\n" + checkpoint
        self._lines: dict[bytes, str] = {}

    def write(self, index: int, hashes: Sequence[bytes]) -> bytes:
        """Return the receipt of leaf `index`."""
        lines = self._lines
        for value in hashes:
            if value not in lines:
                lines[value] = "\n" + b64encode(value)
        return f"{_HEADER}\n{_INDEX}{index}{''.join([lines[value] for value in hashes])}".encode("ascii") + self._end


def _bad_receipt(why: str) -> Malformed:
    return Malformed(LogCode.FORM, f"This is not a receipt (C2SP tlog-proof): {why}.")
