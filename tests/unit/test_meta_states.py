"""The table of the Hello profile: whole, without dead ends, and the only way to change a state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from meta_peers import BUYER, GENERATED, HASH, SHOP, URI, buyer, destination_hello, shop, source_hello

from treaty_anp import hello_profile
from treaty_anp.hello_profile.actions import Ended, SendText, SwitchProfile
from treaty_anp.hello_profile.commands import CodeReady
from treaty_anp.hello_profile.hello import FLOW_PROFILE, REPORT_COSIGNATURE, TEST_CASES_NEGOTIATION
from treaty_anp.hello_profile.states import (
    FINAL,
    LIVE,
    MEANING,
    PHASES,
    TRANSITIONS,
    WAITS,
    Event,
    Guard,
    HelloState,
    Timeouts,
    Wait,
)
from treaty_anp.transitions import UndefinedTransition


def test_every_name_of_the_table_is_used() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert {transition.guard for transition in TRANSITIONS.values()} - {None} == set(Guard)
    assert {transition.wait for transition in TRANSITIONS.values()} - {None} == set(PHASES) - {Wait.HELLO}
    assert set(MEANING) == set(HelloState)
    assert set(WAITS) == set(Wait)
    assert all(hasattr(Timeouts(), rule.seconds) for rule in WAITS.values())


def test_live_states_can_be_reached_and_left() -> None:
    reached, before = {HelloState.HELLO}, set[HelloState]()
    while reached != before:
        before = set(reached)
        reached |= {to.target for (state, _), to in TRANSITIONS.items() if state in before}
    assert reached == set(HelloState)
    assert {state for state, _ in TRANSITIONS} == set(LIVE)
    for state in LIVE:
        for event in (Event.CLOSED, Event.FAILED, Event.LOST, Event.DEADLINE_PASSED):
            assert TRANSITIONS[state, event].target in FINAL


def test_only_final_states_wait_for_nothing() -> None:
    for key, transition in TRANSITIONS.items():
        assert (transition.wait is None) == (transition.target in FINAL), key


def test_an_event_that_the_table_does_not_have_changes_nothing() -> None:
    machine = buyer()
    for event in (Event.TESTS_PASSED, Event.CODES_READY, Event.TESTS_PROPOSED):
        assert not machine.allows(event)
        with pytest.raises(UndefinedTransition):
            machine.fire(event, 1.0)
        with pytest.raises(UndefinedTransition):
            machine.end(event, None)
        assert (machine.state, machine.error, machine.deadline) == (HelloState.HELLO, None, 10.0)


def test_the_state_is_set_by_fire_and_end_alone() -> None:
    """A transition outside of the table would be an assignment elsewhere."""
    folder = Path(hello_profile.__file__).parent
    counts = {
        path.name: len(re.findall(r"(?:self|core)\.state(?:, self\.error)? = ", path.read_text())) for path in folder.glob("*.py")
    }
    assert {name: count for name, count in counts.items() if count} == {"core.py": 2}


# The switch to the flow profile


def test_both_switch_if_only_the_flow_profile_is_common() -> None:
    buyers, shops = buyer(source_hello((), capabilities=(FLOW_PROFILE,)), negotiates=True), shop(capabilities=(FLOW_PROFILE,))
    answer, switched = shops.receive(buyers.own.format(), 0.0)
    assert isinstance(answer, SendText)
    assert switched == SwitchProfile()
    assert buyers.receive(answer.text, 0.0) == [SwitchProfile()]
    for machine in (buyers, shops):
        assert (machine.state, machine.error, machine.is_final) == (HelloState.SWITCHED, None, True)
        assert machine.deadline == float("inf")
        assert machine.receive(b"\x00{}", 1.0) == machine.tick(1e9) == machine.close() == machine.lost() == []
    assert (buyers.peer and buyers.peer.source_did, shops.peer and shops.peer.source_did) == (SHOP, BUYER)


@pytest.mark.parametrize(
    ("mine", "theirs"), [((FLOW_PROFILE,), ()), ((), (FLOW_PROFILE,)), ((FLOW_PROFILE,), (REPORT_COSIGNATURE,))]
)
def test_one_side_alone_does_not_switch(mine: tuple[str, ...], theirs: tuple[str, ...]) -> None:
    source = buyer(source_hello((), capabilities=mine))
    (ended,) = source.receive(destination_hello(capabilities=theirs).format(), 0.0)
    assert isinstance(ended, Ended)
    assert (source.state, ended.error and ended.error.code) == (HelloState.REJECTED, "session.no-common-protocol")


def test_a_protocol_in_common_goes_before_the_flow_profile() -> None:
    machine = shop(capabilities=(FLOW_PROFILE,))
    actions = machine.receive(source_hello(capabilities=(FLOW_PROFILE,)).format(), 0.0)
    assert machine.state is HelloState.AGREED
    assert SwitchProfile() not in actions


# Waits


def test_a_decision_of_this_side_about_tests_has_its_time() -> None:
    machine = buyer(source_hello(capabilities=(TEST_CASES_NEGOTIATION,)), wants_tests=True)
    machine.receive(destination_hello(selected=URI, used=HASH, capabilities=(TEST_CASES_NEGOTIATION,)).format(), 0.0)
    machine.apply(CodeReady(HASH), 1.0)
    machine.receive(GENERATED, 2.0)
    assert (machine.state, machine.deadline) == (HelloState.TESTING, 62.0)
    machine.tick(62.0)
    assert "This side came to no decision" in str(machine.error)
