"""The newest checkpoint of a registry's log that this client has verified.

Every checkpoint that arrives in a receipt, a vote or a page is verified by `observe`. It must be signed by the pinned key and be
consistent with the newest one seen, by a proof from hash tiles that this client fetches. If it is larger, it is remembered. So a
party that shows two sides of a fork is detected. The two signed checkpoints are the evidence. If the tiles suffice for a proof
that third parties can check, it is stored.
"""

from __future__ import annotations

import asyncio

from treaty_consensus.codes import RegistryCode
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, Refused, TooLarge, Untrusted
from treaty_consensus.log.checkpoint import SignedCheckpoint
from treaty_consensus.log.durability import Durability
from treaty_consensus.log.merkle import consistency_nodes, consistency_proof, verify_consistency
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import Statement
from treaty_io.codes import ClientLogCode

from ..registries.api import RegistryClient
from ..registries.trust import TrustedRegistries
from .equivocation import document, fetch_hashes, fix_for
from .verification.steps import Step, VerificationFailed

_ATTEMPTS = 8
"""Attempts, because another process may move the checkpoint while this one verifies."""


class LogHead:
    """The log of one registry. Safe for concurrent use, and among processes of one home."""

    def __init__(self, client: RegistryClient, registries: TrustedRegistries, origin: str, *, copies: int = 0) -> None:
        """Set the registry. `copies`: of the policy; a receipt must say that its leaf is in so many places besides one disk."""
        self._copies = copies
        self._client = client
        self._registries = registries
        self._origin = origin

    async def refresh(self) -> SignedCheckpoint:
        """Fetch the newest checkpoint and observe it."""
        return await self.observe(await self._client.checkpoint())

    async def observe(self, note: bytes) -> SignedCheckpoint:
        """Verify a checkpoint and remember it if it is the newest.

        Raises `Malformed` or `Untrusted` if its signature is wrong, `VerificationFailed` (step 2, with both checkpoints) if it
        contradicts the newest one seen, and the errors of `RegistryClient.tile`.
        """
        for _ in range(_ATTEMPTS):
            registry = self._registries.get(self._origin)
            # The signature first: an unsigned note must not make this client fetch tiles.
            signed = registry.keys.open(note)
            seen, newest = registry.newest, note
            if seen is not None:
                await self._compare(seen, signed)
                newest = note if signed.checkpoint.size > seen.checkpoint.size else seen.note
            # False if another process moved the checkpoint: prove consistency with the new one.
            if self._registries.advance(self._origin, registry.seen, newest):
                return signed
        raise Conflict(RegistryCode.BUSY, f"Other processes keep changing the state of {self._origin}.", fix="Try again.")

    async def observe_carried(self, note: bytes) -> None:
        """Verify a checkpoint that another agent has seen, and remember it if it is the newest. Raises as `observe`.

        During the overlap of a rotation it may have the signature of the earlier key alone. Then it is compared, not remembered.
        """
        registry = self._registries.get(self._origin)
        signed = registry.keys.open_by_any(note)
        if registry.keys.at(signed.checkpoint.size).log in registry.keys.signers(note):
            await self.observe(note)
        elif registry.newest is not None:
            await self._compare(registry.newest, signed)

    async def _compare(self, seen: SignedCheckpoint, signed: SignedCheckpoint) -> None:
        try:
            await self._check_consistency(*sorted((seen, signed), key=lambda head: head.checkpoint.size))
        except VerificationFailed as error:
            raise await self.documented(error) from error.__cause__

    async def submit(self, statement: Statement) -> Receipt:
        """Send a statement of this home and check its receipt. Safe to repeat.

        Its id is recorded first (`registries.signed`). Raises as `accept_receipt`, the errors of `RegistryClient.submit`, and
        OSError if the record cannot be written; then nothing is sent. Nothing is sent either when the newest checkpoint
        promises too few copies.
        """
        if self._copies:
            newest = self._registries.get(self._origin).newest
            if newest is None or _places(newest) < self._copies:
                self._check_copies(await self.refresh(), "Nothing was sent.")
        await self.record(statement)
        return await self.accept_receipt(await self._client.submit(statement), statement)

    async def record(self, statement: Statement) -> None:
        """Record a statement of this home before it goes anywhere. Raises OSError."""
        # If an answer is lost, the watch of this home must still know the statement as its own.
        await asyncio.to_thread(self._registries.signed.add, statement.id)

    async def accept_receipt(self, receipt: bytes, statement: Statement) -> Receipt:
        """Check that a receipt proves that the log holds exactly this statement, and observe its checkpoint.

        Raises as `observe`, `Untrusted` (`log.inclusion`), and `Refused` (`log.too-few-copies`) for a leaf that the log has, in
        fewer places than the policy asks for.
        """
        parsed = Receipt.parse(receipt)
        # The receipt as a whole, size included: an inclusion proof alone does not fix the size of the tree.
        parsed.verify(statement.leaf, self._registries.get(self._origin).keys)
        self._check_copies(await self.observe(parsed.checkpoint), f"The statement is logged, as leaf {parsed.index}.")
        return parsed

    def _check_copies(self, signed: SignedCheckpoint, done: str) -> None:
        if (places := _places(signed)) < self._copies:
            raise Refused(
                ClientLogCode.TOO_FEW_COPIES,
                f"{self._origin} promises that a leaf is in {places} places besides one disk, and the policy asks for "
                f"{self._copies}. {done}",
                fix="Use a registry that promises more, or lower `copies` in HOME/policy.toml.",
            )

    async def consistency(self, old: int, new: int) -> list[bytes]:
        """Build the proof, from hash tiles, that the tree of `new` leaves extends that of `old`. The caller verifies it.

        Raises `Untrusted` (`log.rollback`) if the registry lacks the tiles, and `Unavailable`.
        """
        try:
            # Tiles and not a proof endpoint: tiles are static, and a lagging server cannot compute the proof.
            hashes = await fetch_hashes(self._client, consistency_nodes(old, new), new)
        except (NotFound, Gone, Malformed, TooLarge) as error:
            raise Untrusted(
                ClientLogCode.ROLLBACK,
                f"A log of {new} leaves was signed, but this registry cannot prove that they begin with the {old} seen before.",
                fix="Try again later, because it may lag behind. If it stays so, it lost or rewrote its log.",
            ) from error
        return consistency_proof(old, new, hashes)

    async def documented(self, failure: VerificationFailed) -> VerificationFailed:
        """Return the error to raise for a failed step.

        If `failure` carries two checkpoints and the registry's own tiles prove that they contradict each other, the proof is
        written to `TrustedRegistries.evidence`, and the returned error's fix names the file. Otherwise return `failure`.
        """
        if not failure.evidence:
            return failure
        (one, another), keys = failure.evidence, self._registries.get(self._origin).keys
        evidence_path = await document(self._client, keys, one, another, self._registries.evidence)
        if evidence_path is None:
            return failure
        return VerificationFailed(failure.step, failure.code, failure.message, fix_for(evidence_path), evidence=failure.evidence)

    async def _check_consistency(self, old: SignedCheckpoint, new: SignedCheckpoint) -> None:
        before, after = old.checkpoint, new.checkpoint
        try:
            proof = await self.consistency(before.size, after.size)
            verify_consistency(before.size, after.size, before.root, after.root, proof)
        except Untrusted as error:
            raise VerificationFailed(
                Step.CHECKPOINT, error.code, error.message, error.fix, evidence=(old.note, new.note)
            ) from error


def _places(signed: SignedCheckpoint) -> int:
    return Durability.parse(signed.checkpoint.extensions).places
