"""A registry of a newer release logs what this one does not know: protocols are fetched as before, elections are not read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from fetching import fetcher, known_in
from lying import indexes, seen, voted, with_leaf
from signers import ORIGIN, Signer
from simulated_registry import ALICE, OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import canonical, kinds, statement
from treaty_consensus.errors import Malformed
from treaty_consensus.events import Subject, event_of
from treaty_consensus.statement import Draft


def newer_leaf(registry: SimulatedRegistry, kind: str, body: Mapping[str, object], signer: Signer = OPERATOR) -> bytes:
    """A statement as only a newer release can make it."""
    value = {"type": kind, "log": ORIGIN, "by": [signer.key_id], "issued": registry.now, "body": body}
    draft = Draft(canonical.dumps(value), (signer.key_id,))
    signature = canonical.b64encode(signer.sign(draft.signing_input))
    envelope = {
        "payload": canonical.b64encode(draft.payload),
        "payloadType": statement.PAYLOAD_TYPE,
        "signatures": [{"keyid": signer.key_id, "sig": signature}],
    }
    return canonical.dumps(envelope)


def elected_anew(registry: SimulatedRegistry, signer: Signer = OPERATOR) -> int:
    """Replace the newest decision in TOPIC by one of another rule, with other fields; its leaf."""
    registry.left_out |= set(indexes(registry, kinds.Decision))
    body = {"rule": "lines-v1", "topic": TOPIC, "epoch": 1, "lines": [{"line": "a", "speak": "b"}]}
    index = registry.force(newer_leaf(registry, "decision", body, signer))
    registry.tamper = with_leaf(registry, index)
    return index


@pytest.fixture
def decided() -> SimulatedRegistry:
    registry = with_echo()
    voted(registry)
    return registry


@pytest.mark.parametrize("saw_the_old_rule", [False, True])
async def test_a_protocol_is_fetched_whatever_rule_elects(
    decided: SimulatedRegistry, tmp_path: Path, saw_the_old_rule: bool
) -> None:
    if saw_the_old_rule:
        await seen(decided, tmp_path)
    elected_anew(decided)
    decided.now += 7200
    async with fetcher(decided, tmp_path) as agent:
        verified = await agent.fetch(uri_of(), fresh=True)
        assert verified.election is None
        assert any("in a way that this release does not know" in warning for warning in verified.warnings)
        with pytest.raises(VerificationFailed) as refused:
            await agent.topic(TOPIC)
        assert refused.value.code == "registry.newer"
        assert "newer release" in refused.value.fix


async def test_a_statement_of_an_unknown_type_is_passed_over(tmp_path: Path) -> None:
    registry = with_echo()
    index = registry.force(newer_leaf(registry, "pledge", {"to": "everybody", "amount": 3}, ALICE))
    registry.tamper = with_leaf(registry, index)
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of())).uri == uri_of()
        (view,) = await agent.topic(TOPIC)
        assert view.protocols


async def test_a_decision_of_a_newer_rule_is_the_operators_and_is_not_left_out_later(
    decided: SimulatedRegistry, tmp_path: Path
) -> None:
    before = decided.left_out.copy(), decided.tamper
    elected_anew(decided, ALICE)
    async with fetcher(decided, tmp_path) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
        assert (failure.value.step, failure.value.code) == (4, "statement.not-operator")
        assert not known_in(tmp_path)[1]
    decided.left_out, decided.tamper = before
    elected_anew(decided)
    async with fetcher(decided, tmp_path) as agent:
        await agent.fetch(uri_of(), fresh=True)
        known = known_in(tmp_path)
        decided.now += 7200
        decided.left_out, decided.tamper = before
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of(), fresh=True)
        assert (failure.value.step, failure.value.code) == (10, "memory.contradicted")
        assert known_in(tmp_path) == known


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("pledge", {"to": "everybody"}, "registry.newer"),
        ("status", {"uri": uri_of(), "state": "archived"}, "registry.newer"),
        ("decision", {"rule": "lines-v1", "topic": TOPIC}, "registry.newer"),
        ("parameters", {"rule": "lines-v1"}, "registry.newer"),
    ],
)
def test_what_only_a_newer_release_knows_is_read_and_never_written(kind: str, body: Mapping[str, object], code: str) -> None:
    leaf = newer_leaf(with_echo(), kind, body)
    with pytest.raises(Malformed) as refused:
        statement.parse(leaf)
    assert refused.value.code == code
    made = statement.read(leaf)
    assert (made.type, made.leaf) == (kind, leaf)
    assert isinstance(made.body, kinds.Newer)
    with pytest.raises(KeyError):
        statement.draft(made.body, log=ORIGIN, by=(OPERATOR.key_id,), issued=0)


@pytest.mark.parametrize("kind", ["publish", "decision"])
def test_a_known_type_that_is_wrong_is_refused_by_every_reader(kind: str) -> None:
    for read in (statement.parse, statement.read):
        with pytest.raises(Malformed) as refused:
            read(newer_leaf(with_echo(), kind, {"rule": kinds.RULE, "surprise": 1}))
        assert refused.value.code == "statement.form"


def test_a_watch_describes_what_it_does_not_know() -> None:
    registry = with_echo()
    pledge = event_of(7, newer_leaf(registry, "pledge", {"to": "everybody"}, ALICE))
    assert (pledge.kind, pledge.authors) == ("pledge", (ALICE.did,))
    assert "only a newer release understands" in pledge.sentence
    decision = event_of(8, newer_leaf(registry, "decision", {"rule": "lines-v1", "topic": TOPIC, "epoch": 4}))
    assert Subject("topic", TOPIC) in decision.subjects
