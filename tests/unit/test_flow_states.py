"""The tables of the flow profile: whole, without dead ends, and the only way to change a state."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from flow_peers import DELEGATION, SHARING, FlowWire, at, delegation, registry, sharing, unsent

from treaty_anp import flow_profile
from treaty_anp.flow_profile.actions import NegotiationEnded, Ready, RenegotiationFailed
from treaty_anp.flow_profile.commands import Renegotiate
from treaty_anp.flow_profile.payloads import Initialize, Payload, Proposed, ProtocolProposal
from treaty_anp.flow_profile.states import (
    FINAL,
    INITIATOR,
    INITIATOR_TRACK,
    LIVE,
    MEANING,
    RESPONDER,
    RESPONDER_TRACK,
    TRACK_MEANING,
    FlowEvent,
    FlowGuard,
    FlowState,
    FlowTimeouts,
    FlowWait,
    TrackEvent,
    TrackState,
    Transitions,
)
from treaty_anp.transitions import UndefinedTransition

BOTH = pytest.mark.parametrize("table", [INITIATOR, RESPONDER], ids=["initiator", "responder"])


def test_every_name_of_the_tables_is_used() -> None:
    assert {event for table in (INITIATOR, RESPONDER) for _, event in table} == set(FlowEvent)
    assert {to.guard for table in (INITIATOR, RESPONDER) for to in table.values()} - {None} == set(FlowGuard)
    assert {event for table in (INITIATOR_TRACK, RESPONDER_TRACK) for _, event in table} == set(TrackEvent)
    assert set(MEANING) == set(FlowState)
    assert set(TRACK_MEANING) == set(TrackState)
    assert all(hasattr(FlowTimeouts(), wait) for wait in FlowWait)


@BOTH
def test_live_states_can_be_reached_and_left(table: Transitions) -> None:
    reached, before = {FlowState.INITIATION}, set[FlowState]()
    while reached != before:
        before = set(reached)
        reached |= {to.target for (state, _), to in table.items() if state in before}
    assert reached == set(FlowState)
    assert {state for state, _ in table} == set(LIVE)
    for state in LIVE:
        for event in (FlowEvent.CLOSED, FlowEvent.FAILED, FlowEvent.LOST, FlowEvent.DEADLINE_PASSED, FlowEvent.NOT_AGREED):
            assert table[state, event].target in FINAL


@BOTH
def test_a_final_state_has_no_wait_and_every_new_state_has_one(table: Transitions) -> None:
    for (state, event), to in table.items():
        assert to.wait is None if to.target in FINAL else to.wait is not None or to.target is state, event


def test_an_event_outside_the_table_is_a_program_error() -> None:
    wire = FlowWire.join(registry(sharing()), registry(sharing()))
    with pytest.raises(UndefinedTransition):
        wire.initiator._fire(FlowEvent.EVALUATED, at(1))
    assert wire.initiator.state is FlowState.DISCOVERY


ENGINE = ("machine", "initiator", "responder", "track", "sessions")


def attributes_set(module: str) -> list[tuple[str, str]]:
    """The attributes that a module sets, each with the object that has it."""
    tree = ast.parse((Path(flow_profile.__file__).parent / f"{module}.py").read_text())
    return [
        (ast.unparse(node.value), node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]


def test_states_are_set_by_the_tables_alone() -> None:
    states = {module: [owner for owner, name in attributes_set(module) if name == "state"] for module in ENGINE}
    assert states == {"machine": ["self", "self"], "initiator": [], "responder": [], "track": ["self"], "sessions": []}


def test_each_class_of_the_engine_sets_its_own_attributes_alone() -> None:
    owners = {owner for module in ENGINE for owner, _ in attributes_set(module)}
    assert owners == {"self"}
    common = {name for _, name in attributes_set("machine")}
    for side in ("initiator", "responder"):
        assert not common & {name for _, name in attributes_set(side)}


# What a guard, a wait and a row of the tables mean


def inject(wire: FlowWire, payload: Payload) -> None:
    """A message to the responder that the initiator's machine would not send."""
    forged = unsent(wire.initiator, payload)
    wire.perform("responder", wire.responder.receive(replace(forged, timestamp=at(wire.now).unix), at(wire.now)))


def state_of(wire: FlowWire) -> FlowState:
    return wire.responder.state


def test_no_negotiation_begins_anew_while_a_session_runs() -> None:
    for wish in (True, False):
        wire = FlowWire.join(registry(sharing()), registry(sharing())).settle()
        assert wire.responder.state is FlowState.RUNNING
        inject(wire, Initialize(purpose="again", request_capabilities=wish))
        (ended,) = wire.of("responder", NegotiationEnded)
        assert ended.error.code == "flow.message"


def test_a_proposal_may_precede_the_evaluation() -> None:
    wire = FlowWire.join(registry(sharing()), registry(sharing()))
    while state_of(wire) is not FlowState.EVALUATION:
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    inject(wire, ProtocolProposal(proposed_protocol=Proposed(SHARING, "1.0")))
    assert state_of(wire) is FlowState.SELECTION
    assert list(wire.responder.tracks) == [SHARING]


def test_an_absent_protocol_leaves_a_running_session() -> None:
    both = registry(sharing(), delegation()), registry(sharing(), delegation())
    wire = FlowWire.join(*both, refuses={"responder": {DELEGATION}}).settle()
    (ready,) = wire.of("initiator", Ready)
    wire.now = 100.0
    wire.perform("initiator", wire.initiator.apply(Renegotiate(ready.session_id, protocol=DELEGATION), at(100)))
    wire.settle()
    assert wire.of("initiator", RenegotiationFailed)
    assert wire.responder.state is FlowState.RUNNING
    assert wire.responder.deadline == 100.0 + FlowTimeouts().idle
