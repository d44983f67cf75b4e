"""A policy that pins the constitution of a log takes decisions under no other, and all else as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, known_in
from lying import voted
from msgspec.structs import replace
from signers import ORIGIN, domain_signer
from simulated_log import ANCHORS, SUFFIXES, LogBuilder, open_log
from simulated_registry import OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_client.policy import Policy, load_policy
from treaty_client.protocols.verification.replay import replay
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.bundle import Bundle, BundledLeaf
from treaty_consensus.amendment import constitution_of
from treaty_consensus.audit import Replay
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import Malformed, TreatyError
from treaty_consensus.facts import log_of

BEFORE, AFTER = development_parameters(), replace(development_parameters(), quorum_share=5)
PIN = {ORIGIN: constitution_of(BEFORE)}


@pytest.fixture
def amended() -> SimulatedRegistry:
    """A log with a decision under BEFORE, then one under AFTER."""
    registry = with_echo()
    voted(registry)
    registry.add(AFTER, OPERATOR)
    return registry


async def test_an_amendment_needs_a_new_pin(amended: SimulatedRegistry, tmp_path: Path) -> None:
    async with fetcher(amended, tmp_path, constitutions=PIN) as agent:
        (view,) = await agent.topic(TOPIC)
        assert view.epoch == 0, "announced, and not yet in force"
        assert (await agent.candidates(TOPIC)).uris == (uri_of(),)
    for _ in range(2):  # the first of them is still an epoch of the old constitution
        voted(amended)
    amended.now += 7200
    async with fetcher(amended, tmp_path, constitutions=PIN) as agent:
        with pytest.raises(VerificationFailed) as refused:
            await agent.topic(TOPIC)
        assert refused.value.code == "decision.constitution"
        assert constitution_of(AFTER) in refused.value.message and "treaty audit" in refused.value.fix
        names = known_in(tmp_path)
        with pytest.raises(TreatyError) as error:
            await agent.candidates(TOPIC, fresh=True)
        assert error.value.code == "decision.constitution"
        assert known_in(tmp_path) == names
        # The proof of a protocol needs no election.
        verified = await agent.fetch(uri_of(), fresh=True)
        assert verified.election is None
        assert any("another constitution" in warning for warning in verified.warnings)
    for constitutions in ({ORIGIN: constitution_of(AFTER)}, {"other.example": "0" * 64}, {}):
        async with fetcher(amended, tmp_path, constitutions=constitutions) as agent:
            (view,) = await agent.topic(TOPIC)
            assert view.epoch == 2


async def test_a_stored_answer_is_held_to_a_pin_that_came_later(amended: SimulatedRegistry, tmp_path: Path) -> None:
    async with fetcher(amended, tmp_path) as agent:
        await agent.candidates(TOPIC)
    other = {ORIGIN: constitution_of(AFTER)}
    async with fetcher(amended, tmp_path, constitutions=other) as agent:
        with pytest.raises(TreatyError) as error:
            await agent.candidates(TOPIC)
        assert error.value.code == "decision.constitution"


def test_a_pin_is_read_from_the_file_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(f'[constitutions]\n"{ORIGIN}" = "{PIN[ORIGIN]}"\n')
    assert load_policy(file).constitutions == PIN
    for wrong in ({ORIGIN: "abc"}, {"https://registry.example": PIN[ORIGIN]}):
        with pytest.raises(Malformed):
            Policy(constitutions=wrong)


def test_a_proof_may_lack_an_amendment_between_two_parameters() -> None:
    """Bounds refer to the parameters in force, which are not in the bundle when no decision of it needs them."""
    base = replace(open_log().parameters, rule="schulze-margins-v3")
    log = LogBuilder(base, replay=Replay(lambda _: SUFFIXES))
    log.agents = tuple(map(domain_signer, ANCHORS))
    log.add(replace(base, quorum_share=5), log.operator)
    while log_of(log.replay.facts).announced:
        log.everybody_votes("none")
        log.close()
    log.add(replace(base, quorum_share=6), log.operator)
    indexes = (0, 1, len(log.leaves) - 1)
    replayed = replay(Bundle(b"", tuple(BundledLeaf(index, log.leaves[index], ()) for index in indexes), {}))
    assert [logged.index for logged in replayed] == [*indexes]
