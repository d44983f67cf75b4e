"""Admission of decisions under parameters that name witnesses."""

from __future__ import annotations

from dataclasses import replace as changed

import msgspec
import pytest
from signers import NOW, ORIGIN, key_signer, signed
from witnesses import LOG, VKEYS, WITNESSES, cosigned, witness_key

from treaty_consensus import statement
from treaty_consensus.admit import admit
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.facts import LOG as LOG_FACT
from treaty_consensus.facts import Fact, LogFact, ParametersFact, find
from treaty_consensus.kinds import RULE, Blob, Body, Decision, Input, Witnesses
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import sign

OPERATOR = key_signer("operator")
IN_FORCE = "a" * 64
HEAD = Checkpoint(ORIGIN, 100, b"\7" * 32)
NOTE = sign(HEAD.format(), [WITNESSES[0]], time=NOW)
TWO_OF_THREE = Witnesses(VKEYS, 2)


def admitted(body: Body, witnesses: Witnesses | None, *, has_parameters: bool = True) -> dict[str, Fact]:
    facts: dict[str, Fact] = {LOG_FACT: LogFact(ORIGIN, OPERATOR.did, NOW, 0, parameters=IN_FORCE, epoch=4)}
    if has_parameters:
        facts[f"parameters/{IN_FORCE}"] = ParametersFact(witnesses=witnesses)
    before = dict(facts)
    try:
        return admit(facts, statement.verify(signed(body, OPERATOR), {OPERATOR.key_id: OPERATOR.public_key}), 100)
    finally:
        assert facts == before


def decision(witnessed: bytes | None, head: Checkpoint = HEAD) -> Decision:
    seen = Input(head.size, head.root.hex(), None if witnessed is None else witnessed.decode())
    return Decision("m", 4, RULE, "development", IN_FORCE, seen, 0, Blob("1" * 64, 9), Blob("2" * 64, 9), ())


def note_of(head: Checkpoint, *witnesses: object) -> bytes:
    return cosigned(sign(head.format(), [LOG]), *witnesses)  # type: ignore[arg-type]


def test_a_quorum_of_the_witnesses_is_enough() -> None:
    for present in (WITNESSES[:2], WITNESSES[1:], WITNESSES):
        assert find(admitted(decision(note_of(HEAD, *present)), TWO_OF_THREE), LOG_FACT, LogFact) is not None


@pytest.mark.threat(14)
@pytest.mark.parametrize(
    "witnessed",
    [
        None,
        sign(HEAD.format(), [LOG]),
        note_of(HEAD, WITNESSES[0]),
        note_of(HEAD, WITNESSES[0], witness_key("stranger.example")),
        note_of(changed(HEAD, size=99), *WITNESSES),
        note_of(changed(HEAD, size=101), *WITNESSES),
        note_of(changed(HEAD, root=b"\x08" * 32), *WITNESSES),
        note_of(changed(HEAD, origin="other.example"), *WITNESSES),
        note_of(changed(HEAD, extensions=("more",)), *WITNESSES),
        note_of(HEAD, *WITNESSES).replace(b"cosignature", b"x").replace(b"\n100\n", b"\n101\n"),
        b"no note",
    ],
)
def test_anything_less_is_refused(witnessed: bytes | None) -> None:
    with pytest.raises(Refused) as refusal:
        admitted(decision(witnessed), TWO_OF_THREE)
    assert refusal.value.code == "decision.rule"


def test_without_witnesses_there_is_one_spelling() -> None:
    assert admitted(decision(None), None)
    with pytest.raises(Refused) as refusal:
        admitted(decision(note_of(HEAD, *WITNESSES)), None)
    assert refusal.value.code == "decision.rule"


def test_absent_parameters_do_not_mean_no_witnesses() -> None:
    with pytest.raises(Refused) as refusal:
        admitted(decision(None), None, has_parameters=False)
    assert refusal.value.code == "decision.rule"


def test_parameters_carry_their_witnesses_to_their_decisions() -> None:
    body = msgspec.structs.replace(development_parameters(), witnesses=TWO_OF_THREE)
    facts = admitted(body, None)
    assert find(facts, f"parameters/{signed(body, OPERATOR).id}", ParametersFact) == ParametersFact(witnesses=TWO_OF_THREE)


@pytest.mark.parametrize("name", [ORIGIN, f"{ORIGIN}/clock", f"{ORIGIN}/w1"])
def test_a_log_does_not_witness_itself(name: str) -> None:
    itself = Witnesses((str(witness_key(name).verifier),), 1)
    with pytest.raises(Refused) as refusal:
        admitted(msgspec.structs.replace(development_parameters(), witnesses=itself), None)
    assert refusal.value.code == "parameters.amendment"
    sibling = Witnesses((str(witness_key(f"{ORIGIN}.witness").verifier),), 1)
    assert admitted(msgspec.structs.replace(development_parameters(), witnesses=sibling), None)


@pytest.mark.parametrize("witnesses", [Witnesses(VKEYS, 4), Witnesses((VKEYS[0],) * 2, 1), Witnesses(("w1",), 1)])
def test_witnesses_that_cannot_be_are_malformed(witnesses: Witnesses) -> None:
    with pytest.raises(Malformed):
        msgspec.structs.replace(development_parameters(), witnesses=witnesses).check()


def test_the_note_is_capped_before_it_is_read() -> None:
    long = Input(100, "0" * 64, "x" * 4097)
    with pytest.raises(TreatyError):
        statement.parse(signed(msgspec.structs.replace(decision(None), input=long), OPERATOR).leaf)
