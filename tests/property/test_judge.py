"""Group commit changes nothing: however statements are cut into batches, the same ones are logged, refused and known, at the same
places and with the same facts."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from signers import Signer, key_signer, signed

from treaty_consensus import kinds, statement
from treaty_consensus.admit import admit
from treaty_consensus.errors import TreatyError
from treaty_consensus.facts import Fact
from treaty_consensus.statement import Verified
from treaty_registry.log.proposals import Batch, Proposal, judge
from treaty_registry.log.wheel_names import WheelNames

OPERATOR = key_signer("operator")
VOTERS = [key_signer(f"voter {number}") for number in range(3)]
TOPICS = ("a/one", "b/two")


class NoBlobs:
    async def get(self, sha256: str) -> bytes | None:
        return None


def verified(body: kinds.Body, signer: Signer) -> Verified:
    return statement.verify(signed(body, signer), {signer.key_id: signer.public_key})


GENESIS = verified(kinds.Genesis("registry.example", "log", "clock", OPERATOR.did, "00" * 32), OPERATOR)
VOTES = [
    verified(kinds.Ballot(topic, seq, ((f"{number:02}" * 32,),), "note"), voter)
    for voter in VOTERS
    for topic in TOPICS
    for seq in range(3)
    for number in range(2)
]


def run(batches: list[list[Verified]]) -> tuple[list[str], dict[str, Fact], list[str]]:
    """Judge batch after batch, as the sequencer does; what became of each statement, the facts, and the ids of the leaves."""

    async def judge_all() -> tuple[list[str], dict[str, Fact], list[str]]:
        facts = dict(admit({}, GENESIS, 0))
        leaves, places, fates = [GENESIS.statement.id], dict[bytes, int](), list[str]()
        for votes in batches:
            proposals = [Proposal(vote.statement.leaf, vote) for vote in votes]
            batch: Batch = judge(proposals, dict(facts), dict(places), WheelNames(), len(leaves), NoBlobs())
            fate: dict[int, str] = {}
            for proposal, entry in zip(batch.added, batch.entries, strict=True):
                assert (entry.index, entry.leaf, entry.statement) == (
                    len(leaves),
                    proposal.leaf,
                    proposal.verified and proposal.verified.statement,
                )
                assert proposal.id is not None
                leaves.append(proposal.id.hex())
                places[proposal.id] = entry.index
                fate[id(proposal)] = f"leaf {entry.index}"
            fate |= {id(proposal): f"known {index}" for proposal, index in batch.known}
            fate |= {id(proposal): error.code for proposal, error in batch.refused}
            facts |= batch.facts
            fates += [fate[id(proposal)] for proposal in proposals]
        return fates, facts, leaves

    return asyncio.run(judge_all())


@given(st.lists(st.sampled_from(VOTES), max_size=24), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_cut_into_batches_gives_the_same_log(votes: list[Verified], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(votes)))) | {0, len(votes)})
    batches = [votes[begin:end] for begin, end in pairwise(cuts)]
    one_by_one = run([[vote] for vote in votes])
    assert run(batches) == one_by_one
    assert run([votes]) == one_by_one


@given(st.lists(st.sampled_from(VOTES), max_size=24))
@settings(max_examples=examples(60), deadline=None)
def test_a_batch_is_what_the_rules_say_of_each_statement_in_turn(votes: list[Verified]) -> None:
    facts, logged, expected = dict(admit({}, GENESIS, 0)), dict[str, int](), list[str]()
    for vote in votes:
        if vote.statement.id in logged:
            expected.append(f"known {logged[vote.statement.id]}")
            continue
        try:
            facts |= admit(facts, vote, 1 + len(logged))
        except TreatyError as error:
            expected.append(error.code)
            continue
        logged[vote.statement.id] = 1 + len(logged)
        expected.append(f"leaf {logged[vote.statement.id]}")
    assert run([votes])[:2] == (expected, facts)
