"""The head of a registry's log, as this client has come to know it.

Whatever shows us a checkpoint (a receipt, a vote, a page) goes through `observe`: signed by the pinned key, proved consistent
with the newest one seen by hash tiles that we fetch ourselves, and then remembered when it is larger. So whoever shows us two
sides of a fork is found out, and the two signed checkpoints are the evidence; where those tiles make a proof of it that others
can check, it is kept.
"""

from __future__ import annotations

from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, TooLarge, Untrusted
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.merkle import consistency_nodes, consistency_proof, verify_consistency
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import Statement

from ..verification.steps import Step, VerificationFailed
from .api import RegistryClient
from .forks import advice, document, fetch_hashes
from .trust import TrustedRegistries

_ATTEMPTS = 8


class LogHead:
    """Safe for concurrent use, and among processes of one home."""

    def __init__(self, client: RegistryClient, registries: TrustedRegistries, origin: str) -> None:
        self._client = client
        self._registries = registries
        self._origin = origin

    async def refresh(self) -> SignedCheckpoint:
        """Fetch the newest checkpoint and observe it."""
        return await self.observe(await self._client.checkpoint())

    async def observe(self, note: bytes) -> SignedCheckpoint:
        """Verify a checkpoint and remember it if it is the newest.

        Raises `Malformed` or `Untrusted` when it is not signed as it should be, `VerificationFailed` (step 2, with both
        checkpoints) when it contradicts the newest one seen, and what `RegistryClient.tile` raises.
        """
        for _ in range(_ATTEMPTS):
            registry = self._registries.get(self._origin)
            signed = open_checkpoint(note, registry.name.key)
            seen, newest = registry.newest, note
            if seen is not None:
                try:
                    await self._check_consistency(*sorted((seen, signed), key=lambda known: known.checkpoint.size))
                except VerificationFailed as error:
                    raise await self.documented(error) from error.__cause__
                newest = note if signed.checkpoint.size > seen.checkpoint.size else seen.note
            if self._registries.advance(self._origin, registry.seen, newest):
                return signed
        raise Conflict("registry.busy", f"Other processes keep changing what is known of {self._origin}.", fix="Try again.")

    async def accept_receipt(self, receipt: bytes, statement: Statement) -> Receipt:
        """Check that a receipt proves that the log holds exactly this statement, and observe its checkpoint.

        Raises as `observe`, and `Untrusted` (`log.inclusion`).
        """
        parsed = Receipt.parse(receipt)
        parsed.verify(statement.leaf, self._registries.get(self._origin).name.key)
        await self.observe(parsed.checkpoint)
        return parsed

    async def consistency(self, old: int, new: int) -> list[bytes]:
        """The proof that the tree of `new` leaves extends that of `old`, from hash tiles. It is yet to be verified.

        Raises `Untrusted` (`log.rollback`) when the registry does not have them, and `Unavailable`.
        """
        try:
            hashes = await fetch_hashes(self._client, consistency_nodes(old, new), new)
        except (NotFound, Gone, Malformed, TooLarge) as error:
            raise Untrusted(
                "log.rollback",
                f"A log of {new} leaves was signed, and this registry cannot show that its {old} leaves are the first of them.",
                fix="Try again later, in case it lags behind; if it stays so, it lost or rewrote its log.",
            ) from error
        return consistency_proof(old, new, hashes)

    async def documented(self, failure: VerificationFailed) -> VerificationFailed:
        """What to raise for a step that failed: where it carries two checkpoints and the registry's own tiles show that they
        contradict each other, the proof is written to `TrustedRegistries.evidence`, and the fix says where."""
        if not failure.evidence:
            return failure
        (one, another), key = failure.evidence, self._registries.get(self._origin).name.key
        kept = await document(self._client, key, one, another, self._registries.evidence)
        if kept is None:
            return failure
        return VerificationFailed(failure.step, failure.code, failure.message, advice(kept), evidence=failure.evidence)

    async def _check_consistency(self, old: SignedCheckpoint, new: SignedCheckpoint) -> None:
        before, after = old.checkpoint, new.checkpoint
        try:
            proof = await self.consistency(before.size, after.size)
            verify_consistency(before.size, after.size, before.root, after.root, proof)
        except Untrusted as error:
            raise VerificationFailed(
                Step.CHECKPOINT, error.code, error.message, error.fix, evidence=(old.note, new.note)
            ) from error
