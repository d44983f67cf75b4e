"""The table of a document's states: whole, and without a dead end."""

from __future__ import annotations

from typing import get_args

import pytest

from treaty_consensus.election.states import CONDITIONS, FORMER, TRANSITIONS, DocumentEvent, follow
from treaty_consensus.kinds import State

STATES = get_args(State)


def test_every_state_and_every_event_is_in_the_table() -> None:
    assert {state for state, _ in TRANSITIONS} == set(STATES) == set(TRANSITIONS.values())
    assert {event for _, event in TRANSITIONS} == set(DocumentEvent) == set(CONDITIONS)


def test_a_challenger_has_two_outcomes_and_an_incumbent_five() -> None:
    for state in STATES:
        events = {event for before, event in TRANSITIONS if before == state}
        if state == "consensus":
            own = {DocumentEvent.REPLACED, DocumentEvent.REJECTED, DocumentEvent.NEGLECTED, DocumentEvent.KEPT}
            assert events == own | {DocumentEvent.TAKEN_BACK}
        else:
            assert DocumentEvent.LEFT in events
            assert (DocumentEvent.ENTERED if state == "published" else DocumentEvent.UNACCEPTABLE) in events


def test_the_consensus_is_reached_through_each_state_in_turn() -> None:
    assert (
        follow(follow(follow("published", DocumentEvent.ENTERED), DocumentEvent.ACCEPTABLE), DocumentEvent.ELECTED) == "consensus"
    )
    assert {
        before for (before, event), after in TRANSITIONS.items() if after == "consensus" and event is not DocumentEvent.KEPT
    } == {"provisional"}
    for state in FORMER:
        assert follow(state, DocumentEvent.ACCEPTABLE) == "provisional"


def test_an_event_that_cannot_happen_is_an_error_of_the_program() -> None:
    for state, event in (
        ("published", DocumentEvent.ELECTED),
        ("candidate", DocumentEvent.ELECTED),
        ("consensus", DocumentEvent.LEFT),
    ):
        with pytest.raises(KeyError):
            follow(state, event)  # type: ignore[arg-type]
