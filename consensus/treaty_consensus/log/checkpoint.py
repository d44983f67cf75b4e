"""C2SP tlog-checkpoint: the head of a log, as the text of a signed note.

    origin LF               who issues it: not empty; here always the name of the log's key
    size LF                 the number of leaves: decimal, no leading zeros, at most 2**63 - 1
    base64(root hash) LF    32 bytes, RFC 6962
    (extension LF)*         opaque, not empty; a log of Treaty writes none

The log's Ed25519 key signs it (type 0x01), and its clock key cosigns it (type 0x04), again and again while the
head stays as it is: the time of that cosignature is the checkpoint's age.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..canonical import b64decode, b64encode, parse_decimal
from ..errors import Malformed, TreatyError, Untrusted
from .merkle import HASH_SIZE, MAX_SIZE
from .note import MAX_NOTE_BYTES, KeyType, VerifierKey, check_text, open_note


@dataclass(frozen=True)
class Checkpoint:
    """A log's head. Raises `Malformed` when no checkpoint can have these parts."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for line in (self.origin, *self.extensions):
            if not line or "\n" in line:
                raise _bad_checkpoint("a line is empty")
        if not 0 <= self.size <= MAX_SIZE or len(self.root) != HASH_SIZE:
            raise _bad_checkpoint("the size or the root hash is out of range")
        check_text(self.format())

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read a note's text. Raises `Malformed`."""
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
        """The note's text; the inverse of `parse`."""
        return "".join(f"{line}\n" for line in (self.origin, self.size, b64encode(self.root), *self.extensions))


@dataclass(frozen=True)
class SignedCheckpoint:
    """A verified checkpoint, the clock's time (POSIX seconds) if there was one to verify, and the note's bytes."""

    checkpoint: Checkpoint
    time: int | None
    note: bytes


def open_checkpoint(note: bytes, log_key: VerifierKey, clock_key: VerifierKey | None = None) -> SignedCheckpoint:
    """Verify a checkpoint: signed by `log_key`, whose name is its origin.

    `time` is None without `clock_key`, and when the clock has not cosigned: who needs the checkpoint's age must
    refuse None. Further signatures are ignored. Raises `Malformed` or `TooLarge` when this is no checkpoint,
    `Untrusted("note.signature")` when the log's signature is missing or a known key's does not verify,
    `Untrusted("log.origin")` when it is another log's.
    """
    if log_key.type != KeyType.ED25519 or (clock_key and clock_key.type != KeyType.COSIGNATURE):
        raise Malformed("note.key-type", "A log signs with a key of type 1, its clock with one of type 4.")
    opened = open_note(note, [log_key, clock_key] if clock_key else [log_key])
    if opened.signature_of(log_key) is None:
        raise Untrusted("note.signature", f"The checkpoint is not signed by {log_key.name}.")
    checkpoint = Checkpoint.parse(opened.text)
    if checkpoint.origin != log_key.name:
        raise Untrusted("log.origin", f"This is a checkpoint of {checkpoint.origin}, not of {log_key.name}.")
    cosignature = opened.signature_of(clock_key) if clock_key else None
    return SignedCheckpoint(checkpoint, cosignature.time if cosignature else None, note)


def _bad_checkpoint(why: str) -> Malformed:
    return Malformed("log.checkpoint", f"This is not a checkpoint: {why}.")
