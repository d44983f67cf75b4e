"""C2SP tlog-witness: how a log asks a witness to cosign its head, what the witness answers, and how many have to.

A witness keeps, for each log that it knows, the newest checkpoint that it cosigned, and cosigns another one only once that is
proved to extend it. So it never cosigns two histories of one log. POST PREFIX/add-checkpoint, a body of at most 270,336 bytes:

    "old " SIZE LF            what the witness cosigned last: decimal, no leading zeros, at most 2**63 - 1; 0 for nothing
    (base64(hash) LF)*        at most 63: the consistency proof (RFC 6962 §2.1.2) from there; none from 0
    LF
    checkpoint                the signed note, verbatim

    200   the witness's signature lines (cosignature/v1), each as in a note       the head is recorded, and cosigned now
    400   the body has another form, or SIZE is larger than the checkpoint's
    403   no signature by the key that the witness knows the log by
    404   no log of that origin is known
    409   the size cosigned last, decimal and LF, as text/x.tlog.size             SIZE is another one
    409   anything of another type                                                SIZE is right, and the root is another one
    422   the proof does not lead from there to this checkpoint

They are checked in the order 400 (form), 404, 403, 400 (size), 409, 422.

So it stands in v1.0.0. Its successor will answer another root of the same size by 422, which is the same to a log: the witness
knows another history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..canonical import b64decode, b64encode, parse_decimal
from ..errors import Conflict, Malformed, NotFound, TooLarge, TreatyError, Unauthorized, Untrusted
from .checkpoint import Checkpoint, SignedCheckpoint, open_checkpoint
from .merkle import EMPTY_ROOT, HASH_SIZE, MAX_SIZE, verify_consistency
from .note import MAX_NOTE_BYTES, KeyType, VerifierKey, open_note, signature_lines, text_of

MAX_PROOF_LINES = 63
MAX_REQUEST = MAX_NOTE_BYTES + 8 * 1024
MAX_COSIGNERS = 16
MAX_COSIGNER_NAME = 80
"""So that a checkpoint with the cosignatures of sixteen witnesses still fits into a statement."""
SIZE_TYPE = "text/x.tlog.size"

_OLD = "old "


@dataclass(frozen=True)
class AddCheckpoint:
    """A request to cosign `note`. Nothing of it is verified. Raises `Malformed` or `TooLarge` when no request has these parts."""

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
        """Read a request's body. Raises `TooLarge` or `Malformed`."""
        if len(data) > MAX_REQUEST:
            raise TooLarge("witness.request-size", f"A request to a witness has at most {MAX_REQUEST} bytes.")
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
        """The request's body; the inverse of `parse`."""
        lines = [f"{_OLD}{self.old}", *map(b64encode, self.proof)]
        return "\n".join(lines).encode() + b"\n\n" + self.note

    @cached_property
    def claimed(self) -> Checkpoint:
        """What the note says, unverified."""
        return Checkpoint.parse(text_of(self.note))


class SizeConflict(Conflict):
    """The 409 of a witness that is asked with another old size. `size`: of the checkpoint that it cosigned last."""

    def __init__(self, size: int, message: str) -> None:
        super().__init__("witness.size", message)
        self.size = size


def judge(request: AddCheckpoint, logs: Mapping[str, VerifierKey], latest: SignedCheckpoint | None) -> SignedCheckpoint:
    """The checkpoint to record and then to cosign, its note with no signature but the log's.

    `logs`: the keys that logs are known by, by origin. `latest`: what was cosigned last for the one of the request, None for
    nothing. Raises `NotFound` (404), `Unauthorized` (403), `Malformed` (400), `SizeConflict` or another `Conflict` (409), or
    `Untrusted` (422).
    """
    key = logs.get(request.claimed.origin)
    if key is None:
        raise NotFound("witness.unknown-log", f"No log called {request.claimed.origin[:80]} is witnessed here.")
    signed = signed_alone(request.note, key)
    head = signed.checkpoint
    if request.old > head.size:
        raise Malformed("witness.old-size", f"A log of {head.size} leaves does not extend one of {request.old}.")
    known = latest.checkpoint if latest else Checkpoint(head.origin, 0, EMPTY_ROOT)
    if request.old != known.size:
        raise SizeConflict(known.size, f"The newest checkpoint cosigned here is of {known.size} leaves, not of {request.old}.")
    if head.size == known.size and head.root != known.root:
        raise Conflict("witness.root", f"Another checkpoint of {known.size} leaves was cosigned here: the log has two histories.")
    verify_consistency(known.size, head.size, known.root, head.root, request.proof)
    return signed


def signed_alone(note: bytes, log_key: VerifierKey) -> SignedCheckpoint:
    """A log's checkpoint without signatures of anybody else. Raises `Unauthorized` unless the log's key signed it, and as
    `open_checkpoint`."""
    try:
        lines = signature_lines(note, [log_key])
    except Untrusted as error:
        raise Unauthorized("witness.signature", f"The checkpoint is not signed by the key of {log_key.name}.") from error
    return open_checkpoint(f"{text_of(note)}\n".encode() + lines, log_key)


def cosignature(answer: bytes, note: bytes, key: VerifierKey) -> bytes:
    """The signature line of the witness `key` in its answer to a request for `note`, verified: to be added to the note.

    Lines of other keys are passed over. Raises `Malformed`, `TooLarge`, or `Untrusted("note.signature")`.
    """
    text = text_of(note)
    signed = f"{text}\n".encode() + answer
    if text_of(signed) != text:  # an empty line in the answer would make more of it text
        raise Malformed("witness.answer", "This is not the answer of a witness: it is more than signature lines.")
    return signature_lines(signed, [key])


@dataclass(frozen=True)
class Quorum:
    """Witnesses, and how many of them must have cosigned. Raises `Malformed` when there can be no such quorum.

    The keys are distinct by name and by what signs: a cosignature does not say by which name it was made.
    """

    keys: tuple[VerifierKey, ...]
    needed: int

    def __post_init__(self) -> None:
        distinct = len(self.keys) == len({key.public for key in self.keys}) == len({key.name for key in self.keys})
        proper = all(key.type == KeyType.COSIGNATURE and len(key.name) <= MAX_COSIGNER_NAME for key in self.keys)
        if not (distinct and proper and 1 <= self.needed <= len(self.keys) <= MAX_COSIGNERS):
            raise Malformed(
                "witness.keys",
                f"Witnesses are at most {MAX_COSIGNERS} distinct cosignature keys (type 4) with names of at most "
                f"{MAX_COSIGNER_NAME} characters, and the quorum is no larger than their number.",
            )

    @classmethod
    def parse(cls, keys: Sequence[str], needed: int) -> Quorum:
        """From verifier keys as text. Raises `Malformed`."""
        return cls(tuple(VerifierKey.parse(key) for key in keys), needed)

    def check(self, note: bytes, checkpoint: Checkpoint, *, since: int = 0) -> None:
        """Make sure that enough of the witnesses cosigned exactly `checkpoint` in `note`, at or after `since` (POSIX seconds).

        Raises `Untrusted("checkpoint.not-witnessed")`, also when a witness's signature does not verify, and `Malformed` or
        `TooLarge` when this is no note.
        """
        if text_of(note) != checkpoint.format():
            raise _not_witnessed("it is the note of another checkpoint")
        try:
            signatures = open_note(note, self.keys).signatures
        except Untrusted as error:
            raise _not_witnessed("no witness cosigned it, or the signature of one does not verify") from error
        count = sum(signature.time is not None and signature.time >= since for signature in signatures)
        if count < self.needed:
            old = " recently" if since else ""
            raise _not_witnessed(f"{count} of {len(self.keys)} witnesses cosigned it{old}, {self.needed} have to")


def _not_witnessed(why: str) -> Untrusted:
    return Untrusted(
        "checkpoint.not-witnessed",
        f"The checkpoint is not witnessed: {why}.",
        fix="Try again in a minute. If it stays so, its witnesses are down, or know another history of this log.",
    )


def _bad_request(why: str) -> Malformed:
    return Malformed("witness.request", f"This is not a request to a witness (C2SP tlog-witness): {why}.")
