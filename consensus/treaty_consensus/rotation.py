"""Define the body of a `rotation`: the keys of a log and its clock from its leaf on, and the proof that all of them agree.

Until `until` the keys before them sign too, so that a reader who pinned an old key still verifies every checkpoint, finds the
rotation in the log, and pins the new key. `proof` is a signed note of this text, by each key that comes and each that goes:

    treaty-rotation/v1 LF
    registry.example+7fb3a1c2+AX… LF                      the log's key before, then its clock's
    registry.example/clock+91d2c0aa+BG… LF
    registry.example+1c9d04e7+AQ… LF                      the log's key from now on, then its clock's
    registry.example/clock+91d2c0aa+BG… LF
    1797776000 LF                                         `until`
    9f86d081… LF                                          with `authority`: the SHA-256 of the next Sigstore authority

The text names the log and the keys before, so no proof holds in another log or a second time. It is no checkpoint, because its
second line is no number. `log_keys` has the rule. Specification: `docs/specification/log.md`, "Rotation of keys".
"""

from __future__ import annotations

from .authority import Authority
from .codes import RotationCode
from .errors import Malformed, TreatyError, Untrusted
from .kinds import Body, Count, Note, Text
from .log.checkpoint import KeyTerm
from .log.note import KeyType, VerifierKey, open_note


class Rotation(Body, frozen=True):
    """Name the keys that sign from this leaf on.

    `log_key`, `clock_key`: verifier keys (C2SP signed-note). At least one of them is new, or there is an `authority`.
    `until`: the keys before them sign too until then (POSIX seconds).
    `proof`: a signed note.
    `authority`: the next Sigstore authority. The one before it signs until `until`, and this one from then on.
    """

    log_key: Text
    clock_key: Text
    until: Count
    proof: Note
    authority: Authority | None = None

    def check(self) -> None:
        if (self.log.type, self.clock.type) != (KeyType.ED25519, KeyType.COSIGNATURE):
            raise Malformed(RotationCode.KEYS, "The log's key must have type 1, its clock's key type 4.")
        if self.authority is not None:
            self.authority.check()

    @property
    def log(self) -> VerifierKey:
        """Return the parsed key of the log. Raises `Malformed` (`note.form`)."""
        return VerifierKey.parse(self.log_key)

    @property
    def clock(self) -> VerifierKey:
        """Return the parsed key of the clock. Raises `Malformed` (`note.form`)."""
        return VerifierKey.parse(self.clock_key)

    def check_proof(self, before: KeyTerm) -> None:
        """Check that every key that comes or goes signed this rotation of the keys `before`. Raises `Untrusted`."""
        needed = signers_of_rotation(before, self.log, self.clock, self.authority)
        text = rotation_text(before, self.log, self.clock, self.until, self.authority)
        try:
            note = open_note(self.proof.encode(), needed)
        except TreatyError as error:
            raise Untrusted(RotationCode.PROOF, f"The proof of the rotation does not verify: {error.message}") from error
        if note.text != text:
            raise Untrusted(RotationCode.PROOF, "The proof is of another rotation: of other keys, another log or another time.")
        missing = [str(key) for key in needed if note.signature_of(key) is None]
        if missing:
            raise Untrusted(RotationCode.PROOF, f"The rotation is not signed by {', '.join(missing)}.")
        if self.authority is not None:
            self.authority.check_proofs(text)


def rotation_text(before: KeyTerm, log: VerifierKey, clock: VerifierKey, until: int, authority: Authority | None = None) -> str:
    """Return the text that the keys sign. `before`: the term that ends. `log`, `clock`, `authority`: those of the new term."""
    lines = ["treaty-rotation/v1", before.log, before.clock, log, clock, until, *([authority.digest] if authority else [])]
    return "".join(f"{line}\n" for line in lines)


def signers_of_rotation(
    before: KeyTerm, log: VerifierKey, clock: VerifierKey, authority: Authority | None = None
) -> list[VerifierKey]:
    """Return the keys of a note that must sign a rotation: those that come, those that go, and the log's for an authority."""
    pairs = [(before.log, log), (before.clock, clock)]
    keys = [key for old, new in pairs if old != new for key in (old, new) if key is not None]
    # So that the operator's key alone names no authority.
    return keys if authority is None or before.log in keys else [before.log, *keys]
