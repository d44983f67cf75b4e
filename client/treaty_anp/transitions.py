"""Define state tables: (state, event) → transition. A machine changes its state only by its table, which is plain data.

    TRANSITIONS = {
        (State.HELLO, Event.PROTOCOL_SELECTED): StateTransition(State.AGREED, Wait.CODE),
        (State.RUNNING, Event.TESTS_PROPOSED): StateTransition(State.TESTING, Wait.DECISION, Guard.TESTS_MAY_COME),
    }

A transition leads to its `target` and begins its `wait`; without a `wait`, the earlier wait continues. A transition with a
`guard` exists only while the guard is true. `docs/generate` draws the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
W = TypeVar("W", bound=StrEnum)
G = TypeVar("G", bound=StrEnum)


@dataclass(frozen=True)
class StateTransition(Generic[S, W, G]):
    """One cell of a table."""

    target: S
    wait: W | None = None
    guard: G | None = None


class UndefinedTransition(RuntimeError):
    """The table has no transition for an event in this state. It is an error of the program; a peer cannot cause it."""


class StateTable(Generic[S, E, W, G]):
    """A table with the judge of its guards."""

    def __init__(self, transitions: Mapping[tuple[S, E], StateTransition[S, W, G]], is_met: Callable[[G], bool]) -> None:
        """`is_met`: return whether a guard is true now."""
        self._transitions, self._is_met = transitions, is_met

    def find(self, state: S, event: E) -> StateTransition[S, W, G] | None:
        """Return the transition that the event has now, or None."""
        transition = self._transitions.get((state, event))
        return transition if transition is None or transition.guard is None or self._is_met(transition.guard) else None

    def allows(self, state: S, event: E) -> bool:
        """Return whether the event has a transition now."""
        return self.find(state, event) is not None

    def follow(self, state: S, event: E) -> StateTransition[S, W, G]:
        """Return the event's transition. Raises `UndefinedTransition`."""
        transition = self.find(state, event)
        if transition is None:
            raise UndefinedTransition(f"{event} has no transition in state {state}.")
        return transition
