"""Build and verify the proof that a log signed two histories. It can be checked offline, with nothing else.

The file holds two checkpoints that the log's key signed and that contradict each other. It is canonical JSON (JCS) with the
file name extension `.equivocation.json`:

    {"equivocation": 1, "first": NOTE, "key": VKEY, "second": NOTE}

With different roots at one size, the two checkpoints are the proof. With two sizes they are not: the larger tree might extend
the smaller one. Then the file also has `proof`, a consistency proof (RFC 6962 §2.1.2), and `root`, the root of the larger
tree at the smaller size. A valid proof fixes that root, because a second one would be a collision of SHA-256. If `first` has
another root, no tree has both checkpoints.

The proof shows that the owner of the key signed both. An honest log never does, not even after a crash or a restored backup
(`treaty_registry.log.fence`). Specification: `docs/specification/log.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from .. import canonical
from ..codes import EquivocationCode
from ..errors import Malformed, TreatyError, Untrusted
from .checkpoint import Checkpoint, LogKeys, SignedCheckpoint, open_checkpoint
from .merkle import HASH_SIZE, consistency_roots, verify_consistency
from .note import MAX_NOTE_BYTES, VerifierKey, signature_lines, text_of
from .witness import MAX_PROOF_LINES, AddCheckpoint, signed_alone

# Two notes of at most 256 KiB, escaped in JSON, and 64 hashes.
MAX_EQUIVOCATION = 1024 * 1024
SUFFIX = ".equivocation.json"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    equivocation: Literal[1]
    first: Annotated[str, msgspec.Meta(max_length=MAX_NOTE_BYTES)]
    second: Annotated[str, msgspec.Meta(max_length=MAX_NOTE_BYTES)]
    key: str
    proof: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_PROOF_LINES)] | msgspec.UnsetType = msgspec.UNSET
    root: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Equivocation:
    """Hold a claim that the log of `key` signed two histories. Trust none of it before `verify`.

    `root`, `proof`: present where the sizes differ.
    """

    key: VerifierKey
    first: bytes
    second: bytes
    root: bytes | None = None
    proof: tuple[bytes, ...] = ()

    @classmethod
    def of(
        cls, key: VerifierKey | LogKeys, note: bytes, other: bytes, *, root: bytes | None = None, proof: tuple[bytes, ...] = ()
    ) -> Equivocation:
        """Return the proof from two notes, in either order, without the lines of other keys. Raises the errors of `verify`.

        `key`: one that signed both, or the keys of the log, one of which did.
        `root`, `proof`: required where their sizes differ.
        """
        key = key.common(note, other) if isinstance(key, LogKeys) else key
        # The smaller one first, so that a contradiction has one file for every finder.
        # Without other lines: they prove nothing, anyone can add them, and each set of them would make another file.
        signed = sorted((open_checkpoint(each, key) for each in (note, other)), key=lambda each: _place(each.checkpoint))
        first, second = (f"{text_of(each.note)}\n".encode() + signature_lines(each.note, [key]) for each in signed)
        equivocation = cls(key, first, second, root, proof)
        equivocation.verify()
        return equivocation

    @classmethod
    def parse(cls, data: bytes) -> Equivocation:
        """Read a file, without verifying it. Raises `TooLarge` or `Malformed` (`equivocation.form`)."""
        value = canonical.loads(data, limit=MAX_EQUIVOCATION, name="proof of an equivocation")
        try:
            file = msgspec.convert(value, _File)
        except msgspec.ValidationError as error:
            raise _bad_file(str(error)) from error
        if (file.proof is msgspec.UNSET) != (file.root is msgspec.UNSET):
            raise _bad_file("`proof` and `root` go together")
        try:
            key = VerifierKey.parse(file.key)
            notes = file.first.encode(), file.second.encode()
            root = None if file.root is msgspec.UNSET else canonical.b64decode(file.root, limit=HASH_SIZE)
            hashes = () if file.proof is msgspec.UNSET else file.proof
            return cls(key, *notes, root, tuple(canonical.b64decode(text, limit=HASH_SIZE) for text in hashes))
        except (TreatyError, UnicodeEncodeError) as error:
            raise _bad_file("a member is not in its one spelling") from error

    def format(self) -> bytes:
        """Return the file's bytes; the inverse of `parse`."""
        value: dict[str, object] = {
            "equivocation": 1,
            "first": self.first.decode("utf-8"),
            "second": self.second.decode("utf-8"),
            "key": str(self.key),
        }
        if self.root is not None:
            value |= {"root": canonical.b64encode(self.root), "proof": [*map(canonical.b64encode, self.proof)]}
        return canonical.dumps(value)

    def verify(self) -> tuple[Checkpoint, Checkpoint]:
        """Check the proof and return the two checkpoints, the smaller one first.

        Raises `Untrusted` (`equivocation.form`) when the checkpoints do not contradict each other or the proof does not show
        it, and the errors of `open_checkpoint` when the key did not sign one of them.
        """
        first, second = (open_checkpoint(note, self.key).checkpoint for note in (self.first, self.second))
        # One order only, so that the same contradiction has one file.
        if _place(first) >= _place(second):
            raise _no_proof("its checkpoints are the same, or not in their order")
        if (first.size == second.size) != (self.root is None):
            raise _no_proof("checkpoints of two sizes need the larger tree's root at the smaller size, those of one size do not")
        # Roots of two sizes contradict each other only if the larger tree has another root at the smaller size.
        if self.root is not None:
            if self.root == first.root:
                raise _no_proof("the larger tree has the root that was signed for the smaller one")
            try:
                verify_consistency(first.size, second.size, self.root, second.root, self.proof)
            except Untrusted as error:
                raise _no_proof("its proof does not show which root the larger tree has at the smaller size") from error
        return first, second


def contradiction(request: AddCheckpoint, log_key: VerifierKey, latest: SignedCheckpoint) -> Equivocation | None:
    """Return the equivocation that a request to a witness proves, or None.

    Two roots at one size are a proof. A valid consistency proof from another root than the cosigned one is also a proof,
    except where the old size is a power of two: the proof does not contain the old root then.

    `latest`: the checkpoint that was cosigned last.
    """
    try:
        signed = signed_alone(request.note, log_key)
        head, earlier = signed.checkpoint, latest.checkpoint
        if head.size == earlier.size:
            return Equivocation.of(log_key, latest.note, signed.note)
        if request.old != earlier.size or head.size < earlier.size or earlier.size & (earlier.size - 1) == 0:
            return None
        root, _ = consistency_roots(earlier.size, head.size, request.proof)
        return Equivocation.of(log_key, latest.note, signed.note, root=root, proof=request.proof)
    # A request that is invalid in any way proves nothing; its sender gets the error from `judge`.
    except TreatyError:
        return None


def _place(checkpoint: Checkpoint) -> tuple[int, bytes]:
    return checkpoint.size, checkpoint.root


def _bad_file(why: str) -> Malformed:
    return Malformed(EquivocationCode.FORM, f"This is not a proof of an equivocation: {why}.")


def _no_proof(why: str) -> Untrusted:
    return Untrusted(EquivocationCode.FORM, f"This does not prove that the log signed two histories: {why}.")
