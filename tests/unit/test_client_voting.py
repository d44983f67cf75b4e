"""Voting: tiers from words, the next seq, and a receipt that is checked."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fetching import fetcher
from signers import ORIGIN
from simulated_registry import ALICE, BOB, NAME, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_client.identity import Identity
from treaty_client.statements.vote import Vote, parse_tiers, vote
from treaty_consensus import kinds
from treaty_consensus.errors import Malformed, NotFound, TreatyError, Untrusted

VOTER = Identity(ALICE.did, ALICE.key_id, ALICE.private_key)


async def cast(registry: SimulatedRegistry, home: Path, *tiers: str, voter: Identity = VOTER) -> Vote:
    async with fetcher(registry, home) as agent:
        [topic] = await agent.topic(TOPIC)
        choices = parse_tiers(tiers, topic)
        client, head = agent.client(ORIGIN), agent.head(ORIGIN)
        return await vote(client, head, voter, TOPIC, choices, origin=ORIGIN, now=int(time.time()))


async def test_ballots_follow_each_other(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    first, second = (registry.document_of(uri_of(version)).sha256 for version in ("1.0", "2.0"))
    for seq, (tiers, expected) in enumerate(
        [
            ((uri_of(), "none"), ((first,), ("none",))),
            ((f"{first},{uri_of('2.0')}",), ((first, second),)),
            ((f"sha256:{second}", uri_of()), ((second,), (first,))),
            ((), ()),
        ]
    ):
        done = await cast(registry, tmp_path, *tiers)
        assert (done.ballot.seq, done.ballot.tiers, done.epoch) == (seq, expected, 0) and done.receipt is not None
        assert registry.leaves[done.receipt.index] == done.statement.leaf
        assert done.receipt.verify(done.statement.leaf, NAME.key).checkpoint.size == registry.size
    assert sum(isinstance(made.body, kinds.Ballot) for _, made in registry.statements()) == 4


async def test_a_ballot_is_a_witness(tmp_path: Path) -> None:
    registry = with_echo()
    before = registry.checkpoint()
    assert (await cast(registry, tmp_path, "none")).ballot.seen_checkpoint == before.decode()


@pytest.mark.parametrize("tiers", [("nonsense",), ("",), (uri_of("9.9"),), (uri_of() + ",",)])
async def test_a_choice_that_is_none_is_refused_before_anything_is_sent(tmp_path: Path, tiers: tuple[str, ...]) -> None:
    registry = with_echo()
    with pytest.raises(NotFound, match="Vote for"):
        await cast(registry, tmp_path, *tiers)
    assert registry.requests == ["GET /topics/demo/echo.bundle"]


async def test_an_impossible_ballot_is_not_sent(tmp_path: Path) -> None:
    registry = with_echo()
    with pytest.raises(Malformed):
        await cast(registry, tmp_path, uri_of(), uri_of())
    assert not any(request.startswith("POST") for request in registry.requests)


async def test_a_stranger_is_refused_by_the_registry(tmp_path: Path) -> None:
    registry = with_echo()
    before = len(registry.leaves)
    with pytest.raises(TreatyError) as error:
        await cast(registry, tmp_path, "none", voter=Identity(BOB.did, f"{BOB.did}#other", BOB.private_key))
    assert error.value.code == "statement.unknown-key"
    assert len(registry.leaves) == before


async def test_a_receipt_of_something_else_is_noticed(tmp_path: Path) -> None:
    registry = with_echo()
    registry.tamper = lambda path, body: registry.receipt(0) if path == "/statements" else body
    with pytest.raises(Untrusted) as error:
        await cast(registry, tmp_path, "none")
    assert error.value.code == "log.inclusion"
