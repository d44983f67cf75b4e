"""The proof that a log signed two histories: one file, to be checked by anybody, offline, with nothing else.

Two checkpoints that the log's key signed and that cannot both be true. Canonical JSON (JCS) of at most 1 MiB, with the file
name extension `.equivocation.json`:

    {"equivocation": 1,
     "first": NOTE, "second": NOTE,     signed checkpoints, ascending by size, then by root; their other signatures do not matter
     "key": VKEY,                       the log's key (type 0x01), whose name is the origin of both
     "proof"?: [B64(hash), …],          RFC 6962 §2.1.2, at most 63: from the size of `first`, with `root`, to `second`
     "root"?: B64(hash)}                the root that the tree of `second` has at the size of `first`

Of one size, and with two roots, the checkpoints are the proof; `proof` and `root` are absent. Of two sizes they are not yet: the
larger tree might extend the smaller one. But a consistency proof fixes what root the larger tree has at the smaller size, because
a second one would be a collision of SHA-256. So if a valid proof leads from `root` to `second`, and `first` says another root, no
tree has both.

It says that whoever holds the key signed both. An honest log never does, also not after a crash or a restored backup
(`treaty_registry.log.fence`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from .. import canonical
from ..errors import Malformed, TreatyError, Untrusted
from .checkpoint import Checkpoint, SignedCheckpoint, open_checkpoint
from .merkle import HASH_SIZE, consistency_roots, verify_consistency
from .note import MAX_NOTE_BYTES, VerifierKey
from .witness import MAX_PROOF_LINES, AddCheckpoint, signed_alone

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
    """A claim that the log of `key` signed two histories: nothing of it is to be believed before `verify`."""

    key: VerifierKey
    first: bytes
    second: bytes
    root: bytes | None = None
    proof: tuple[bytes, ...] = ()

    @classmethod
    def of(
        cls, key: VerifierKey, note: bytes, other: bytes, *, root: bytes | None = None, proof: tuple[bytes, ...] = ()
    ) -> Equivocation:
        """The proof from two notes, in either order; `root` and `proof`: where their sizes differ. Raises as `verify`."""
        first, second = sorted((note, other), key=lambda each: _place(open_checkpoint(each, key).checkpoint))
        made = cls(key, first, second, root, proof)
        made.verify()
        return made

    @classmethod
    def parse(cls, data: bytes) -> Equivocation:
        """Read a file. Raises `TooLarge` or `Malformed`; verifies nothing."""
        value = canonical.loads(data, limit=MAX_EQUIVOCATION, what="proof of an equivocation")
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
        """The file's bytes; the inverse of `parse`."""
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
        """Check that this proves it; return the two checkpoints, the smaller one first.

        Raises `Untrusted` (`equivocation.none`: they do not contradict each other, or it does not show that they do), and
        as `open_checkpoint` when the key did not sign one of them.
        """
        first, second = (open_checkpoint(note, self.key).checkpoint for note in (self.first, self.second))
        if _place(first) >= _place(second):
            raise _no_proof("its checkpoints are the same, or not in their order")
        if (first.size == second.size) != (self.root is None):
            raise _no_proof("checkpoints of two sizes need the larger tree's root at the smaller size, those of one size do not")
        if self.root is not None:
            if self.root == first.root:
                raise _no_proof("the larger tree has the root that was signed for the smaller one")
            try:
                verify_consistency(first.size, second.size, self.root, second.root, self.proof)
            except Untrusted as error:
                raise _no_proof("its proof does not show which root the larger tree has at the smaller size") from error
        return first, second


def contradiction(request: AddCheckpoint, log_key: VerifierKey, latest: SignedCheckpoint) -> Equivocation | None:
    """What a request to a witness proves against the log, beside the checkpoint that was cosigned `latest`; None for nothing.

    Two roots of one size are a proof. So is a valid consistency proof that leads from another root than the one cosigned; where
    that size is a power of two, it does not say from which, and proves nothing.
    """
    try:
        signed = signed_alone(request.note, log_key)
        head, known = signed.checkpoint, latest.checkpoint
        if head.size == known.size:
            return Equivocation.of(log_key, latest.note, signed.note)
        if request.old != known.size or head.size < known.size or known.size & (known.size - 1) == 0:
            return None
        root, _ = consistency_roots(known.size, head.size, request.proof)
        return Equivocation.of(log_key, latest.note, signed.note, root=root, proof=request.proof)
    except TreatyError:
        return None


def _place(checkpoint: Checkpoint) -> tuple[int, bytes]:
    return checkpoint.size, checkpoint.root


def _bad_file(why: str) -> Malformed:
    return Malformed("equivocation.form", f"This is not a proof of an equivocation: {why}.")


def _no_proof(why: str) -> Untrusted:
    return Untrusted("equivocation.none", f"This does not prove that the log signed two histories: {why}.")
