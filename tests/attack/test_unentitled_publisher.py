"""A registry logs a protocol in a namespace that its author does not own: step 4."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from signers import Signer, domain_signer, identity_body, signed
from simulated_registry import ALICE, BOB, OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_consensus import canonical, kinds
from treaty_consensus.did import encode_multikey

DAY = 24 * 3600


def publication(registry: SimulatedRegistry, author: Signer) -> bytes:
    card = registry.put(canonical.dumps({"summary": "", "title": "Echo 2.0"}))
    body = kinds.Publish(uri_of("2.0"), TOPIC, registry.put(b"# Echo 2.0\n"), card, "negotiated")
    return signed(body, author, issued=registry.now).leaf


@pytest.mark.threat(27)
async def test_a_stranger_in_a_namespace_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.force(publication(registry, BOB))
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"), publishers=(ALICE, BOB))
    assert failure.code == "publish.not-entitled"


async def test_whom_the_owner_granted_it_is_accepted(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Grant("alice.example", BOB.did), ALICE)
    registry.submit(publication(registry, BOB))
    registry.attach("2.0", signer=BOB)
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        verified = await agent.fetch(uri_of("2.0"))
    assert (verified.author, verified.publisher) == (BOB.did, BOB.did)


async def test_a_grant_by_who_does_not_own_the_namespace_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.force(signed(kinds.Grant("alice.example", BOB.did), BOB, issued=registry.now).leaf)
    registry.force(publication(registry, BOB))
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"), publishers=(BOB,))
    assert failure.code == "publish.not-entitled"


def inherited(registry: SimulatedRegistry) -> Signer:
    """ALICE's domain in new hands, as the operator saw it."""
    before = next(
        statement
        for _, statement in registry.statements()
        if isinstance(statement.body, kinds.Identity) and statement.body.did == ALICE.did
    )
    heir = Signer(ALICE.did, ALICE.key_id, domain_signer("heir.example").private_key)
    key = kinds.Key(heir.key_id, encode_multikey(heir.public_key))
    registry.add(kinds.Identity(ALICE.did, kinds.Blob("22" * 32, 5), (key,), 2, before.id), OPERATOR)
    return heir


def pass_days(registry: SimulatedRegistry, days: int) -> int:
    """Let the log's clock move: the leaf that says so."""
    body = identity_body(domain_signer("witness.example"))
    return registry.submit(signed(body, OPERATOR, issued=registry.now + days * DAY).leaf)


@pytest.mark.threat(28)
async def test_the_new_owner_of_a_domain_waits_thirty_days(tmp_path: Path) -> None:
    registry = with_echo()
    heir = inherited(registry)
    pass_days(registry, 29)
    registry.force(publication(registry, heir))
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"))
    assert failure.code == "identity.new-tenure"


async def test_a_publisher_changes_after_thirty_logged_days(tmp_path: Path) -> None:
    registry = with_echo()
    heir = inherited(registry)
    pass_days(registry, 30)
    registry.submit(publication(registry, heir))
    registry.attach("2.0", signer=heir)
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of("2.0"))).tenure == 2
    failure = await refused_at(6, registry, tmp_path / "pinned", uri_of("2.0"), tenures={ALICE.did: 1})
    assert failure.code == "policy.refused"


async def test_a_wait_needs_the_leaf_that_moved_the_clock(tmp_path: Path) -> None:
    registry = with_echo()
    heir = inherited(registry)
    moved = pass_days(registry, 30)
    registry.submit(publication(registry, heir))
    registry.time_index = lambda before: 0  # type: ignore[method-assign]
    assert moved not in (0, 1)
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"))
    assert failure.code == "identity.new-tenure"
