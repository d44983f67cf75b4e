"""Which protocols to offer an agent whose description was read.

The destination picks the first candidate, in the source's order, that it provides and its policy admits; so the order here is the
source's preference, and an online description only tells which candidates have a chance. It is a claim and may be old: what one
side prefers and the other does not list is offered all the same, last. Whether a candidate is to be trusted is not decided here:
each is fetched and verified under the policy before a line of it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..meta.hello import MAX_CANDIDATES
from .reading import AgentDescription


def candidates(agent: AgentDescription, own: Sequence[str] = (), *, consensus: Collection[str] = ()) -> tuple[str, ...]:
    """URIs for a Hello, best first, at most as many as fit.

    `own`: what this side would speak, best first, such as a topic's protocols; without it, what the agent lists is taken, in the
    agent's order. `consensus`: those of `own` that are the consensus of their topic: they come first, whether listed or not.
    Then come those that both sides list, then the rest of `own`.
    """
    listed = frozenset(agent.uris)

    def rank(uri: str) -> int:
        return 0 if uri in consensus else 1 if uri in listed else 2

    return tuple(sorted(dict.fromkeys(own), key=rank)[:MAX_CANDIDATES]) if own else agent.uris[:MAX_CANDIDATES]
