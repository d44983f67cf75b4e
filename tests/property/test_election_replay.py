"""Random elections in a signed log: whatever agents do, decisions follow the rule and a second replay recomputes them."""

from __future__ import annotations

from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_log import TOPIC, LogBuilder

from treaty_consensus.audit import Replay
from treaty_consensus.kinds import NONE, Decision, State

FIELD_STATES = {"candidate", "provisional", "consensus"}
STEPS: set[tuple[State, State]] = {
    ("published", "candidate"),
    ("candidate", "provisional"),
    ("candidate", "published"),
    ("provisional", "candidate"),
    ("provisional", "published"),
    ("provisional", "consensus"),
    ("consensus", "dormant"),
    ("consensus", "superseded"),
    ("consensus", "repealed"),
    ("dormant", "provisional"),
    ("superseded", "provisional"),
    ("repealed", "provisional"),
}

agents = st.integers(0, 4)
documents = st.integers(0, 2)
actions = st.one_of(
    st.tuples(st.just("report"), st.sampled_from(list(combinations(range(5), 2))), documents),
    st.tuples(st.just("vote"), agents, st.permutations([0, 1, 2, 3]), st.integers(0, 4)),
    st.tuples(st.just("everybody"), st.permutations([0, 1, 2, 3])),
    st.tuples(st.just("close")),
    st.tuples(st.just("close")),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(actions, max_size=30))
def test_decisions_follow_the_rule_and_are_recomputed(script: list[tuple[object, ...]]) -> None:
    log = LogBuilder()
    published = [log.publish(log.agents[n], f"protocol-{n}") for n in range(3)]
    choices = [*published, NONE]
    for document in published[:2]:
        log.everybody_reports(document)
        log.close()
    decisions: list[Decision] = []
    for action in script:
        match action:
            case ("report", (int(a), int(b)), int(which)):
                log.report(log.agents[a], log.agents[b], published[which])
            case ("vote", int(agent), list(order), int(kept)):
                log.vote(log.agents[agent], *(choices[c] for c in order[:kept]))
            case ("everybody", list(order)):
                log.everybody_votes(*(choices[c] for c in order))
            case ("close",):
                decisions += log.close()
    replay = Replay()
    for leaf in log.leaves:
        replay.append(leaf)
    replay.check_checkpoint(log.head())
    assert replay.decide() == log.replay.decide()
    check_history(decisions)


def check_history(decisions: list[Decision]) -> None:
    """One consensus at most, one step a document and epoch, and every step one that the rule knows."""
    known: dict[str, State] | None = None
    for decision in decisions:
        assert decision.topic == TOPIC
        states: dict[str, State] = dict(decision.states)
        consensus = [document for document, state in states.items() if state == "consensus"]
        assert consensus == ([decision.consensus] if decision.consensus else [])
        if known is not None:
            for document, state in states.items():
                before = known.get(document, "published")
                assert state == before or (before, state) in STEPS
            for document, state in known.items():
                assert document in states or state not in FIELD_STATES, "what leaves the field is named once more"
        known = (known or {}) | states
