"""The actions of a member, and the states between which they flow.

    Flow({"<idle>": ["Write"], "Write": ["Review"], "Review": ["Write", "<idle>"]}, limit=5)

The state is the action that was last done; it is `<idle>` before the first and after the last. Where one action may follow, it
follows. Where several may, the member's application chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from treaty_handler import Value

from .message import is_name

IDLE = "<idle>"
MAX_ACTIONS = 64
MAX_STEPS = 100


class Flow:
    """The transitions of one member. `limit`: the most actions of one reaction; unless given, as many as there are actions."""

    def __init__(self, transitions: Mapping[str, Sequence[str]], limit: int = 0) -> None:
        """Raises `ValueError` for transitions with a fault of `flow_faults`."""
        faults = flow_faults(transitions)
        if faults:
            raise ValueError(faults[0])
        self.transitions = {state: tuple(following) for state, following in transitions.items()}
        self.limit = limit or len(self.actions)

    @property
    def actions(self) -> tuple[str, ...]:
        """Return the names of the actions."""
        return tuple(state for state in self.transitions if state != IDLE)

    def after(self, state: str) -> tuple[str, ...]:
        """Return the states that may follow."""
        return self.transitions[state]

    @classmethod
    def in_order(cls, *actions: str) -> Flow:
        """Return the flow of actions that are done one after the other."""
        states = (IDLE, *actions, IDLE)
        return cls({state: [following] for state, following in pairwise(states)})


def flow_faults(transitions: Value) -> list[str]:
    """Return the faults of transitions of any author, a sentence each."""
    if not isinstance(transitions, Mapping) or IDLE not in transitions or not 2 <= len(transitions) <= MAX_ACTIONS + 1:
        return [f"Transitions have {IDLE} and 1 to {MAX_ACTIONS} actions."]
    faults = [f"The action {state[:80]!r} has no name." for state in transitions if state != IDLE and not is_name(state)]
    for state, following in transitions.items():
        if not isinstance(following, Sequence) or isinstance(following, str) or not following:
            faults.append(f"A list of states follows {state[:80]!r}.")
        elif not all(isinstance(name, str) and name in transitions for name in following):
            faults.append(f"After {state[:80]!r} comes a state that has no transitions.")
        elif len(set(following)) < len(following) or (state == IDLE and IDLE in following):
            faults.append(f"After {state[:80]!r} a state comes twice, or nothing is done.")
    return faults
