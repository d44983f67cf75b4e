"""A grant ended, and its guest, or a registry, goes on as if it were in force: step 4, and the memory of step 10."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from signers import Signer, domain_signer, identity_body, key_signer, signed
from simulated_registry import ALICE, BOB, OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_consensus import canonical, kinds
from treaty_consensus.did import encode_multikey

TAKEN_BACK = kinds.Grant("alice.example", BOB.did, withdrawn=True)
DAY = 24 * 3600


def publication(registry: SimulatedRegistry, author: Signer, version: str = "2.0") -> bytes:
    card = registry.put(canonical.dumps({"summary": "", "title": "Echo 2.0"}))
    body = kinds.Publish(uri_of(version), TOPIC, registry.put(b"# Echo 2.0\n"), card, "negotiated")
    return signed(body, author, issued=registry.now).leaf


def guest_published() -> SimulatedRegistry:
    """ALICE lets BOB publish, and he does."""
    registry = with_echo()
    registry.add(kinds.Grant("alice.example", BOB.did), ALICE)
    registry.submit(publication(registry, BOB))
    registry.attach("2.0", signer=BOB)
    return registry


def change_hands(registry: SimulatedRegistry, signer: Signer) -> Signer:
    """The operator sees a domain with another key."""
    before = next(statement for _, statement in registry.statements() if getattr(statement.body, "did", None) == signer.did)
    heir = Signer(signer.did, signer.key_id, domain_signer("heir.example").private_key)
    key = kinds.Key(heir.key_id, encode_multikey(heir.public_key))
    registry.add(kinds.Identity(signer.did, kinds.Blob("22" * 32, 5), (key,), 2, before.id), OPERATOR)
    return heir


@pytest.mark.threat(130)
async def test_a_publish_after_the_grant_was_taken_back_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Grant("alice.example", BOB.did), ALICE)
    registry.add(TAKEN_BACK, ALICE)
    registry.force(publication(registry, BOB))
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"), publishers=(BOB,))
    assert failure.code == "publish.not-entitled"


@pytest.mark.threat(130)
@pytest.mark.parametrize("sold", [ALICE, BOB], ids=["owner", "guest"])
async def test_a_publish_after_a_domain_changed_hands_is_refused(tmp_path: Path, sold: Signer) -> None:
    registry = with_echo()
    registry.add(kinds.Grant("alice.example", BOB.did), ALICE)
    heir = change_hands(registry, sold)
    body = identity_body(domain_signer("witness.example"))
    registry.submit(signed(body, OPERATOR, issued=registry.now + 40 * DAY).leaf)
    registry.force(publication(registry, heir if sold is BOB else BOB))
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"), publishers=(BOB,))
    assert failure.code == "publish.not-entitled"


@pytest.mark.threat(28)
async def test_a_new_owner_publishes_through_no_key_without_tenure(tmp_path: Path) -> None:
    registry, guest = with_echo(), key_signer("guest")
    heir = change_hands(registry, ALICE)
    registry.add(kinds.Grant("alice.example", guest.did), heir)
    registry.force(publication(registry, guest))
    failure = await refused_at(4, registry, tmp_path, uri_of("2.0"), publishers=(guest,))
    assert failure.code == "identity.new-tenure"


async def test_what_was_published_before_comes_with_a_warning(tmp_path: Path) -> None:
    registry = guest_published()
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        assert (await agent.fetch(uri_of("2.0"))).warnings == ()
        registry.add(TAKEN_BACK, ALICE)
        registry.now += 7200
        (warning,) = (await agent.fetch(uri_of("2.0"), fresh=True)).warnings
    assert "alice.example" in warning and "no longer" in warning


async def test_a_domain_that_changed_hands_comes_with_a_warning(tmp_path: Path) -> None:
    registry = guest_published()
    change_hands(registry, ALICE)
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        (warning,) = (await agent.fetch(uri_of("2.0"))).warnings
    assert "another owner" in warning


@pytest.mark.threat(130)
async def test_a_registry_that_hides_a_proved_end_contradicts_itself(tmp_path: Path) -> None:
    registry = guest_published()
    registry.add(TAKEN_BACK, ALICE)
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        await agent.fetch(uri_of("2.0"))
    hidden = next(index for index, statement in registry.statements() if statement.body == TAKEN_BACK)
    registry.left_out = {hidden}
    registry.now += 7200
    failure = await refused_at(10, registry, tmp_path, uri_of("2.0"), publishers=(BOB,))
    assert failure.code == "memory.contradicted"


async def test_a_newer_grant_replaces_the_one_that_was_seen(tmp_path: Path) -> None:
    """A bundle shows the newest grant of a pair, and it may leave those in between out."""
    registry = guest_published()
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        for withdrawn in (True, False, True, False):
            registry.now += 7200
            registry.add(kinds.Grant("alice.example", BOB.did, withdrawn), ALICE)
            verified = await agent.fetch(uri_of("2.0"), fresh=True)
            assert bool(verified.warnings) is withdrawn
