"""Read and verify the head of a log: a C2SP tlog-checkpoint, the text of a signed note.

    registry.example LF                                   the origin, which is the name of the log's key
    1234 LF                                               the number of leaves, at most 2**63 - 1
    47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= LF       the root hash, RFC 6962
    (extension LF)*                                       opaque, not empty; a Treaty log writes none

The log's Ed25519 key signs it (type 0x01). Its clock key cosigns it (type 0x04), repeatedly while the head stays the same.
The time of that cosignature is the checkpoint's age. Specification: `docs/specification/log.md`, "Checkpoint".
"""

from __future__ import annotations

from dataclasses import dataclass

from ..canonical import b64decode, b64encode, parse_decimal
from ..codes import LogCode, NoteCode
from ..errors import Malformed, TreatyError, Untrusted
from .merkle import HASH_SIZE, MAX_SIZE
from .note import MAX_NOTE_BYTES, KeyType, VerifierKey, check_text, open_note


@dataclass(frozen=True)
class Checkpoint:
    """Hold a log's head. Raises `Malformed` (`log.checkpoint`) when no checkpoint can have these parts."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for line in (self.origin, *self.extensions):
            # C2SP tlog-checkpoint: no line is empty.
            if not line or "\n" in line:
                raise _bad_checkpoint("a line is empty")
        if not 0 <= self.size <= MAX_SIZE or len(self.root) != HASH_SIZE:
            raise _bad_checkpoint("the size or the root hash is out of range")
        check_text(self.format())

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read a note's text. Raises `Malformed` (`log.checkpoint`)."""
        # Before splitting, so that the number of lines is bounded.
        if len(text) > MAX_NOTE_BYTES or not text.endswith("\n"):
            raise _bad_checkpoint("it does not end in a newline, or is too long")
        lines = text[:-1].split("\n")
        if len(lines) < 3:
            raise _bad_checkpoint("it has fewer than three lines")
        origin, size, root, *extensions = lines
        try:
            return cls(
                origin,
                parse_decimal(size, limit=MAX_SIZE),
                b64decode(root, limit=HASH_SIZE),
                tuple(extensions),
            )
        except TreatyError as error:
            raise _bad_checkpoint("a line is not in its one spelling") from error

    def format(self) -> str:
        """Return the note's text; the inverse of `parse`."""
        return "".join(f"{line}\n" for line in (self.origin, self.size, b64encode(self.root), *self.extensions))


@dataclass(frozen=True)
class SignedCheckpoint:
    """Hold a verified checkpoint.

    `time`: the time of the clock's cosignature (POSIX seconds), or None.
    `note`: the bytes.
    """

    checkpoint: Checkpoint
    time: int | None
    note: bytes


def open_checkpoint(note: bytes, log_key: VerifierKey, clock_key: VerifierKey | None = None) -> SignedCheckpoint:
    """Verify a checkpoint: it is signed by `log_key`, whose name is its origin. Other signatures are ignored.

    The time of the result is None without `clock_key`, and when the clock has not cosigned. A caller that needs the
    checkpoint's age must refuse None.

    Raises `Malformed` or `TooLarge` when this is not a checkpoint; `Untrusted` (`note.signature`) when the log's signature is
    missing or the signature of a known key does not verify; `Untrusted` (`log.origin`) when it is a checkpoint of another
    log.
    """
    if log_key.type != KeyType.ED25519 or (clock_key and clock_key.type != KeyType.COSIGNATURE):
        raise Malformed(NoteCode.KEY_TYPE, "The log's key must have type 1, its clock's key type 4.")
    opened = open_note(note, [log_key, clock_key] if clock_key else [log_key])
    if opened.signature_of(log_key) is None:
        raise Untrusted(NoteCode.SIGNATURE, f"The checkpoint is not signed by {log_key.name}.")
    checkpoint = Checkpoint.parse(opened.text)
    # A key can sign any text: the origin ties the checkpoint to this log.
    if checkpoint.origin != log_key.name:
        raise Untrusted(LogCode.ORIGIN, f"This is a checkpoint of {checkpoint.origin}, not of {log_key.name}.")
    cosignature = opened.signature_of(clock_key) if clock_key else None
    return SignedCheckpoint(checkpoint, cosignature.time if cosignature else None, note)


def _bad_checkpoint(why: str) -> Malformed:
    return Malformed(LogCode.CHECKPOINT, f"This is not a checkpoint: {why}.")
