"""The verifier: statements are parsed and verified together, and each has its own result, on the event loop and in a thread."""

from __future__ import annotations

import pytest
from registries import grant
from signers import Signer, key_signer

from treaty_consensus.errors import Malformed, Unauthorized
from treaty_consensus.statement import Statement, Verified
from treaty_registry.admission.verifier import Verifier

ALICE, BOB, CAROL = map(key_signer, ("alice", "bob", "carol"))


def signed(signer: Signer, key: bytes) -> tuple[Statement, dict[str, bytes]]:
    return signer.statement(grant(signer)), {signer.key_id: key}


@pytest.mark.parametrize("more", [0, 1, 100])
async def test_an_error_of_one_statement_is_its_own_result(more: int) -> None:
    verifier = Verifier()
    good = signed(CAROL, CAROL.public_key)
    forged, cut = signed(BOB, CAROL.public_key), signed(ALICE, ALICE.public_key[:-1])
    results = await verifier.verify([forged, good, cut, (ALICE.statement(grant(ALICE)), {}), *[good] * more])
    lone = [(await verifier.verify([work]))[0] for work in (forged, good, cut)]
    verifier.close()
    kinds = [Unauthorized, Verified, Unauthorized, Unauthorized, *[Verified] * more]
    assert [type(result) for result in results] == kinds
    assert [type(result) for result in lone] == kinds[:3]


@pytest.mark.parametrize("more", [0, 1, 100])
async def test_each_leaf_is_parsed_or_refused_by_itself(more: int) -> None:
    verifier = Verifier()
    leaf = ALICE.statement(grant(ALICE)).leaf
    results = await verifier.parse([b"{}", leaf, b"\xff", *[leaf] * more, b" " * 70_000])
    verifier.close()
    assert isinstance(results[0], Malformed) and isinstance(results[2], Malformed) and not isinstance(results[-1], Statement)
    assert [result.leaf for result in results if isinstance(result, Statement)] == [leaf] * (more + 1)
