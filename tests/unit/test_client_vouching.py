"""Vouching: the next seq, what can be withdrawn, and a receipt that is checked."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fetching import fetcher
from signers import ORIGIN
from simulated_registry import ALICE, BOB, NAME, SimulatedRegistry, with_echo

from treaty_client.statements.vote import Vouched, vouch
from treaty_consensus import kinds
from treaty_consensus.errors import Malformed, NotFound, TreatyError, Untrusted
from treaty_io.identity import Identity

VOUCHER = Identity(ALICE.did, ALICE.key_id, ALICE.private_key)


async def say(
    registry: SimulatedRegistry, home: Path, to: str = BOB.did, *, withdrawn: bool = False, voucher: Identity = VOUCHER
) -> Vouched:
    async with fetcher(registry, home) as agent:
        client, head = agent.client(ORIGIN), agent.head(ORIGIN)
        return await vouch(client, head, voucher, to, withdrawn=withdrawn, origin=ORIGIN, now=int(time.time()))


async def test_vouches_follow_each_other(tmp_path: Path) -> None:
    registry = with_echo()
    for seq, withdrawn in enumerate((False, True, False)):
        done = await say(registry, tmp_path, withdrawn=withdrawn)
        assert (done.vouch, done.epoch) == (kinds.Vouch(BOB.did, seq, withdrawn), 0)
        assert done.delivery.receipt is not None
        assert registry.leaves[done.delivery.receipt.index] == done.statement.leaf
        assert done.delivery.receipt.verify(done.statement.leaf, NAME.key).checkpoint.size == registry.size


async def test_only_what_was_said_is_withdrawn(tmp_path: Path) -> None:
    registry = with_echo()
    with pytest.raises(NotFound) as refusal:
        await say(registry, tmp_path, withdrawn=True)
    assert refusal.value.code == "statement.no-target"
    assert not any(request.startswith("POST") for request in registry.requests)


async def test_a_name_that_is_no_did_is_refused_before_sending(tmp_path: Path) -> None:
    registry = with_echo()
    with pytest.raises(Malformed):
        await say(registry, tmp_path, "bob.example")
    assert registry.requests == []


async def test_a_stranger_is_refused_by_the_registry(tmp_path: Path) -> None:
    registry = with_echo()
    before = len(registry.leaves)
    with pytest.raises(TreatyError) as error:
        await say(registry, tmp_path, ALICE.did, voucher=Identity(BOB.did, f"{BOB.did}#other", BOB.private_key))
    assert error.value.code == "statement.unknown-key"
    assert len(registry.leaves) == before


async def test_a_receipt_of_something_else_is_noticed(tmp_path: Path) -> None:
    registry = with_echo()
    registry.tamper = lambda path, body: registry.receipt(0) if path == "/statements" else body
    with pytest.raises(Untrusted) as error:
        await say(registry, tmp_path)
    assert error.value.code == "log.inclusion"
