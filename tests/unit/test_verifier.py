"""The verifier: statements are verified together in threads, and each caller gets its own result."""

from __future__ import annotations

import asyncio

from registries import grant
from signers import Signer, key_signer

from treaty_consensus.errors import Unauthorized
from treaty_consensus.statement import Verified
from treaty_registry.admission.verifier import Verifier

ALICE, BOB, CAROL = map(key_signer, ("alice", "bob", "carol"))


async def test_an_error_of_one_statement_reaches_its_caller_alone() -> None:
    verifier = Verifier()

    async def verify(signer: Signer, key: bytes) -> Verified:
        return await verifier.verify(signer.statement(grant(signer)), {signer.key_id: key})

    too_short = ALICE.public_key[:-1]
    async with asyncio.timeout(10):  # a lost result would wait for ever
        broken, forged, good = await asyncio.gather(
            verify(ALICE, too_short), verify(BOB, CAROL.public_key), verify(CAROL, CAROL.public_key), return_exceptions=True
        )
    verifier.close()
    assert isinstance(broken, Unauthorized) and isinstance(forged, Unauthorized) and isinstance(good, Verified)
