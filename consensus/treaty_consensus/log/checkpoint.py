"""Read and verify the head of a log: a C2SP tlog-checkpoint, the text of a signed note.

    registry.example LF                                   the origin, which is the name of the log's key
    1234 LF                                               the number of leaves, at most 2**63 - 1
    47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= LF       the root hash, RFC 6962
    (extension LF)*                                       not empty; a Treaty log writes at most one (`durability`)

The log's Ed25519 key signs it (type 0x01). Its clock key cosigns it (type 0x04), repeatedly while the head stays the same.
The time of that cosignature is the checkpoint's age. A log may rotate its keys, so a reader knows a log by `LogKeys`.
Specification: `docs/specification/log.md`, "Checkpoint" and "Rotation of keys".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..canonical import b64decode, b64encode, parse_decimal
from ..codes import LogCode, NoteCode, RotationCode
from ..errors import Malformed, TreatyError, Untrusted
from .merkle import HASH_SIZE, MAX_SIZE
from .note import MAX_NOTE_BYTES, KeyType, VerifierKey, check_text, open_note, signers_of, text_of

if TYPE_CHECKING:
    from ..authority import Authority


@dataclass(frozen=True)
class Checkpoint:
    """Hold a log's head. Raises `Malformed` (`log.form`) when no checkpoint can have these parts."""

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
        """Read a note's text. Raises `Malformed` (`log.form`)."""
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


@dataclass(frozen=True)
class KeyTerm:
    """Hold the keys that sign the trees of `since` leaves and more, up to the next term.

    `clock`: None where a reader knows the log's key alone.
    `until`: the keys of the term before sign too until then (POSIX seconds).
    `authority`: the next Sigstore authority, which takes over at `until`; None if the one before stays. Readers that keep terms
    do not keep it, and find it in leaf `since - 1` each time, so terms are equal without it.
    """

    log: VerifierKey
    clock: VerifierKey | None = None
    since: int = 0
    until: int = 0
    authority: Authority | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class LogKeys:
    """Hold the keys of a log in the order of their rotations. Raises `Malformed` (`rotation.keys`) for terms out of order."""

    terms: tuple[KeyTerm, ...]

    def __post_init__(self) -> None:
        sizes = [term.since for term in self.terms]
        if not sizes or sizes != sorted(set(sizes)) or len({term.log.name for term in self.terms}) != 1:
            raise Malformed(RotationCode.KEYS, "The keys of a log have one name, and follow each other.")

    @classmethod
    def pinned(cls, key: VerifierKey) -> LogKeys:
        """Return the keys of a log of which only `key` is known."""
        return cls((KeyTerm(key),))

    @property
    def name(self) -> str:
        """Return the log's origin."""
        return self.newest.log.name

    @property
    def newest(self) -> KeyTerm:
        """Return the term that signs now."""
        return self.terms[-1]

    def at(self, size: int) -> KeyTerm:
        """Return the term that signs trees of `size` leaves; the first one for all smaller trees."""
        return next((term for term in reversed(self.terms) if term.since <= size), self.terms[0])

    def below(self, size: int) -> LogKeys:
        """Return the keys as a tree of `size` leaves shows them."""
        return LogKeys(tuple(term for term in self.terms if term.since <= size) or self.terms[:1])

    def signers(self, note: bytes) -> list[VerifierKey]:
        """Return the keys of the log, newest first, that a note has a line of. The lines are not verified."""
        lines = signers_of(note)
        keys = dict.fromkeys(term.log for term in reversed(self.terms))
        return [key for key in keys if (key.name, key.id) in lines]

    def common(self, note: bytes, other: bytes) -> VerifierKey:
        """Return a key of the log that two notes have a line of; the newest key if there is none."""
        others = self.signers(other)
        return next((key for key in self.signers(note) if key in others), self.newest.log)

    def open_by_any(self, note: bytes) -> SignedCheckpoint:
        """Verify a checkpoint that may carry the signature of any key the log ever had. The result has no time.

        For checkpoints that only must not contradict the log, never for its newest state. Raises as `open_checkpoint`.
        """
        return open_checkpoint(note, next(iter(self.signers(note)), self.newest.log))

    def open(self, note: bytes, clock_key: VerifierKey | None = None) -> SignedCheckpoint:
        """Verify a checkpoint by the keys that are in force at its size. `clock_key`: where the term has none.

        Raises as `open_checkpoint`, and `Untrusted` (`note.signature`) when the keys were retired at the checkpoint's time.
        """
        term = self.at(Checkpoint.parse(text_of(note)).size)
        signed = open_checkpoint(note, term.log, term.clock or clock_key)
        after = self.terms[self.terms.index(term) + 1 :]
        # Without this a thief of retired keys could date an old head anew, and so hide everything after it.
        if after and signed.time is not None and signed.time >= after[0].until:
            raise Untrusted(
                NoteCode.SIGNATURE,
                f"The checkpoint of {signed.checkpoint.size} leaves is signed by keys of {self.name} that were retired by then.",
                fix="Do not use this source: the holder of an old key may show you an old state of the log.",
            )
        return signed


def open_checkpoint(note: bytes, log_key: VerifierKey | LogKeys, clock_key: VerifierKey | None = None) -> SignedCheckpoint:
    """Verify a checkpoint: it is signed by `log_key`, whose name is its origin. Other signatures are ignored.

    The time of the result is None without a key of the clock, and when the clock has not cosigned. A caller that needs the
    checkpoint's age must refuse None.

    Raises `Malformed` or `TooLarge` when this is not a checkpoint; `Untrusted` (`note.signature`) when the log's signature is
    missing or the signature of a known key does not verify; `Untrusted` (`log.other`) when it is a checkpoint of another
    log; and, with the keys of a log that rotated them, the errors of `LogKeys.open`.
    """
    if isinstance(log_key, LogKeys):
        return log_key.open(note, clock_key)
    if log_key.type != KeyType.ED25519 or (clock_key and clock_key.type != KeyType.COSIGNATURE):
        raise Malformed(NoteCode.FORM, "The log's key must have type 1, its clock's key type 4.")
    signers = signers_of(note)
    if (log_key.name, log_key.id) not in signers and any(name == log_key.name for name, _ in signers):
        raise Untrusted(
            NoteCode.SIGNATURE,
            f"The checkpoint is signed by another key of {log_key.name} than {log_key}.",
            fix="If its operator rotated the key while you were away, learn the new URL#KEY from the operator. "
            f"Then: treaty trust remove {log_key.name}; treaty trust add URL#KEY",
        )
    opened = open_note(note, [log_key, clock_key] if clock_key else [log_key])
    if opened.signature_of(log_key) is None:
        raise Untrusted(NoteCode.SIGNATURE, f"The checkpoint is not signed by {log_key.name}.")
    checkpoint = Checkpoint.parse(opened.text)
    # A key can sign any text: the origin ties the checkpoint to this log.
    if checkpoint.origin != log_key.name:
        raise Untrusted(LogCode.OTHER, f"This is a checkpoint of {checkpoint.origin}, not of {log_key.name}.")
    cosignature = opened.signature_of(clock_key) if clock_key else None
    return SignedCheckpoint(checkpoint, cosignature.time if cosignature else None, note)


def _bad_checkpoint(why: str) -> Malformed:
    return Malformed(LogCode.FORM, f"This is not a checkpoint: {why}.")
