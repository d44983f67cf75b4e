"""Implement C2SP tlog-witness: requests to cosign a log's head, the decision of a witness, and the quorum of cosignatures.

For each log that it knows, a witness stores the newest checkpoint that it cosigned. It cosigns another checkpoint only with a
proof that this one extends the stored one. So it never cosigns two histories of one log. A request is the body of POST
PREFIX/add-checkpoint:

    old 1200 LF                        the size that the witness cosigned last; 0 for none
    B64(hash) LF                       the consistency proof (RFC 6962 §2.1.2) from there, at most 63 lines; none from 0
    LF
    registry.example LF …              the checkpoint, a signed note

`docs/specification/log.md`, "Witnesses", lists the answers and their order: 400 (form), 404, 403, 400 (size), 409, 422. This
is C2SP of 2026. Version 1.0.0 answered another root of the same size by 409 without a size, and some witnesses do so today. For
a log both mean the same: the witness knows another history.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..canonical import b64decode, b64encode, parse_decimal
from ..codes import CheckpointCode, WitnessCode
from ..errors import Conflict, Malformed, NotFound, TooLarge, TreatyError, Unauthorized, Untrusted
from .checkpoint import Checkpoint, SignedCheckpoint, open_checkpoint
from .merkle import EMPTY_ROOT, HASH_SIZE, MAX_SIZE, verify_consistency
from .note import MAX_NOTE_BYTES, KeyType, VerifierKey, open_note, signature_lines, text_of

# A tree of 2^63 - 1 leaves needs no more hashes.
MAX_PROOF_LINES = 63
# The note, and 8 KiB for 63 hashes in base64 and the first line.
MAX_REQUEST = MAX_NOTE_BYTES + 8 * 1024
MAX_COSIGNERS = 16
# Short enough that a checkpoint with sixteen cosignatures fits the `Note` field of a statement (4,096 characters).
MAX_COSIGNER_NAME = 80
SIZE_TYPE = "text/x.tlog.size"

_OLD = "old "


@dataclass(frozen=True)
class AddCheckpoint:
    """Hold a request to cosign `note`. Nothing in it is verified.

    Raises `Malformed` (`witness.request`) or `TooLarge` when no request can have these parts.
    """

    old: int
    proof: tuple[bytes, ...]
    note: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.old <= MAX_SIZE or any(len(value) != HASH_SIZE for value in self.proof):
            raise _bad_request("the old size or a hash is out of range")
        if len(self.proof) > MAX_PROOF_LINES:
            raise _bad_request(f"it has more than {MAX_PROOF_LINES} hashes")
        _ = self.claimed

    @classmethod
    def parse(cls, data: bytes) -> AddCheckpoint:
        """Read a request's body. Raises `TooLarge` (`witness.request`) or `Malformed` (`witness.request`)."""
        if len(data) > MAX_REQUEST:
            raise TooLarge(WitnessCode.REQUEST, f"A request to a witness has at most {MAX_REQUEST} bytes.")
        # At the first empty line: the checkpoint has one of its own.
        head, separator, note = data.partition(b"\n\n")
        try:
            old, *lines = head.decode("ascii").split("\n")
        except UnicodeDecodeError as error:
            raise _bad_request("its first part is not ASCII") from error
        if not separator or not old.startswith(_OLD) or len(lines) > MAX_PROOF_LINES:
            raise _bad_request("old size, proof, empty line and checkpoint are not all there")
        try:
            size = parse_decimal(old.removeprefix(_OLD), limit=MAX_SIZE)
            proof = tuple(b64decode(line, limit=HASH_SIZE) for line in lines)
        except TreatyError as error:
            raise _bad_request("a line is not in its one spelling") from error
        return cls(size, proof, note)

    def format(self) -> bytes:
        """Return the request's body; the inverse of `parse`."""
        lines = [f"{_OLD}{self.old}", *map(b64encode, self.proof)]
        return "\n".join(lines).encode() + b"\n\n" + self.note

    @cached_property
    def claimed(self) -> Checkpoint:
        """Return the checkpoint in the note, unverified."""
        return Checkpoint.parse(text_of(self.note))


class SizeConflict(Conflict):
    """Report that a request names another old size than the witness has (409).

    `size`: of the checkpoint that the witness cosigned last.
    """

    def __init__(self, size: int, message: str) -> None:
        super().__init__(WitnessCode.SIZE, message)
        self.size = size


def judge(request: AddCheckpoint, logs: Mapping[str, VerifierKey], latest: SignedCheckpoint | None) -> SignedCheckpoint:
    """Decide whether a witness cosigns; return the checkpoint to record and then to cosign.

    The note of the result has only the log's signature.

    `logs`: origin → the key of each known log.
    `latest`: the checkpoint that was cosigned last for the requested log, or None.

    Raises `NotFound` (404), `Unauthorized` (403), `Malformed` (400), `SizeConflict` (409), or `Untrusted` (422).
    """
    key = logs.get(request.claimed.origin)
    if key is None:
        raise NotFound(WitnessCode.UNKNOWN_LOG, f"No log called {request.claimed.origin[:80]} is witnessed here.")
    signed = signed_alone(request.note, key)
    head = signed.checkpoint
    # The order of the checks is the order of the answers in C2SP tlog-witness.
    if request.old > head.size:
        raise Malformed(WitnessCode.REQUEST, f"A log of {head.size} leaves does not extend one of {request.old}.")
    cosigned = latest.checkpoint if latest else Checkpoint(head.origin, 0, EMPTY_ROOT)
    # Checked before the proof: the log has to know the right size to build one.
    if request.old != cosigned.size:
        raise SizeConflict(
            cosigned.size, f"The newest checkpoint cosigned here is of {cosigned.size} leaves, not of {request.old}."
        )
    if head.size == cosigned.size and head.root != cosigned.root:
        raise Untrusted(
            WitnessCode.ROOT, f"Another checkpoint of {cosigned.size} leaves was cosigned here: the log has two histories."
        )
    verify_consistency(cosigned.size, head.size, cosigned.root, head.root, request.proof)
    return signed


def signed_alone(note: bytes, log_key: VerifierKey) -> SignedCheckpoint:
    """Return a log's checkpoint without the signatures of other keys.

    Raises `Unauthorized` (`witness.signature`) unless the log's key signed it, and the errors of `open_checkpoint`.
    """
    try:
        lines = signature_lines(note, [log_key])
    except Untrusted as error:
        raise Unauthorized(WitnessCode.SIGNATURE, f"The checkpoint is not signed by the key of {log_key.name}.") from error
    # Anyone can add lines of other keys, so the record keeps only the log's.
    return open_checkpoint(f"{text_of(note)}\n".encode() + lines, log_key)


def cosignature(answer: bytes, note: bytes, key: VerifierKey) -> bytes:
    """Return the verified signature line of the witness `key` from its answer, for adding to the note.

    Lines of other keys are skipped.

    `answer`: the body of the answer to a request for `note`.

    Raises `Malformed` or `TooLarge` for another form, or `Untrusted` (`note.signature`).
    """
    text = text_of(note)
    signed = f"{text}\n".encode() + answer
    if text_of(signed) != text:  # an empty line in the answer would move its lines into the text
        raise Malformed(WitnessCode.UNREACHABLE, "This is not the answer of a witness: it is more than signature lines.")
    return signature_lines(signed, [key])


@dataclass(frozen=True)
class Quorum:
    """Name witnesses, and how many of them must have cosigned.

    Names and public keys are distinct: a cosignature does not contain the name of its witness.

    Raises `Malformed` (`witness.policy`) when such a quorum is impossible.
    """

    keys: tuple[VerifierKey, ...]
    needed: int

    def __post_init__(self) -> None:
        # One operator with two names must not count as two witnesses.
        distinct = len(self.keys) == len({key.public for key in self.keys}) == len({key.name for key in self.keys})
        proper = all(key.type.has_time and len(key.name) <= MAX_COSIGNER_NAME for key in self.keys)
        if not (distinct and proper and 1 <= self.needed <= len(self.keys) <= MAX_COSIGNERS):
            raise Malformed(
                WitnessCode.POLICY,
                f"Witnesses must be at most {MAX_COSIGNERS} distinct cosignature keys (type 4 or 6) with names of at most "
                f"{MAX_COSIGNER_NAME} characters, and the quorum is no larger than their number.",
            )

    @classmethod
    def parse(cls, keys: Sequence[str], needed: int, types: Collection[KeyType] = tuple(KeyType)) -> Quorum:
        """Return the quorum of verifier keys in text form, all of these types.

        Raises `Malformed` (`witness.policy`, `note.form`).
        """
        quorum = cls(tuple(VerifierKey.parse(key) for key in keys), needed)
        if any(key.type not in types for key in quorum.keys):
            raise Malformed(
                WitnessCode.POLICY, f"Here the keys of witnesses have the type {', '.join(map(str, map(int, types)))}."
            )
        return quorum

    def check(self, note: bytes, checkpoint: Checkpoint, *, since: int = 0, until: float = math.inf) -> None:
        """Check that enough witnesses cosigned exactly `checkpoint`.

        `note`: the checkpoint's note with its cosignatures.
        `since`, `until`: the earliest and the latest time of a cosignature that counts (POSIX seconds). A witness whose clock was
        ahead would otherwise keep an old head fresh until then.

        Raises `Untrusted` (`checkpoint.not-witnessed`), also when the signature of a witness does not verify; `Malformed` or
        `TooLarge` when this is not a note.
        """
        # A cosignature of another head proves nothing about this one.
        if text_of(note) != checkpoint.format():
            raise not_witnessed("it is the note of another checkpoint")
        try:
            signatures = open_note(note, self.keys).signatures
        except Untrusted as error:
            raise not_witnessed("no witness cosigned it, or the signature of one does not verify") from error
        count = sum(signature.time is not None and since <= signature.time <= until for signature in signatures)
        if count < self.needed:
            old = " recently" if since else ""
            raise not_witnessed(f"{count} of {len(self.keys)} witnesses cosigned it{old}, {self.needed} have to")

    def time_of(self, note: bytes) -> int | None:
        """Return the latest time that enough witnesses state in their cosignatures, POSIX seconds; None if too few cosigned.

        Raises `Untrusted` or `Malformed` as `open_note`.
        """
        times = sorted((signature.time or 0 for signature in open_note(note, self.keys).signatures), reverse=True)
        return times[self.needed - 1] if len(times) >= self.needed else None


def not_witnessed(why: str) -> Untrusted:
    """Return the error for a checkpoint without the cosignatures that it needs."""
    return Untrusted(
        CheckpointCode.NOT_WITNESSED,
        f"The checkpoint is not witnessed: {why}.",
        fix="Try again in a minute. If the error remains, the witnesses are down, or they know another history of this log.",
    )


def _bad_request(why: str) -> Malformed:
    return Malformed(WitnessCode.REQUEST, f"This is not a request to a witness (C2SP tlog-witness): {why}.")
