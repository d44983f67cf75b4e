"""A network that moved to another document elects it soon; neither reports of the past nor a crowd of clones keep it out."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec
import pytest
from signers import Signer, domain_signer
from simulated_log import TOPIC, LogBuilder, open_log, suffix_blob

from treaty_consensus import kinds
from treaty_consensus.audit import Replay
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.kinds import NONE

MEMBERS = 20


def network(log: LogBuilder) -> list[tuple[Signer, Signer]]:
    """Twenty members, each in touch with four others."""
    log.agents = tuple(domain_signer(f"member-{number:02}.example") for number in range(MEMBERS))
    return [(log.agents[n], log.agents[(n + step) % MEMBERS]) for n in range(MEMBERS) for step in (1, 2)]


def consensus_of(log: LogBuilder) -> str | None:
    return next((decision.consensus for decision in log.close() if decision.topic == TOPIC), None)


def uri_of(log: LogBuilder, name: str) -> str:
    return f"https://{log.checkpoint().splitlines()[0]}/protocols/{log.agents[0].did.split(':', 2)[2]}/{name}/1.0"


@pytest.mark.threat(75)
@pytest.mark.parametrize(("rate", "epochs"), [(1.0, 3), (0.7, 3), (0.5, 4)])
def test_a_network_that_moved_elects_what_it_speaks(rate: float, epochs: int) -> None:
    """`rate`: the part of the pairs that meet in an epoch; the others last met over the former document."""
    log, random = LogBuilder(), Random(7)
    pairs = network(log)
    first, second = (log.publish(log.agents[0], name) for name in ("first", "second"))
    elected = []
    for document in [first] * 5 + [second] * epochs:
        for one, other in pairs:
            if random.random() < rate:
                log.report(one, other, document)
        elected.append(consensus_of(log))
    assert elected[4] == first and elected[-1] == second


def test_a_minority_that_moved_alone_elects_nothing() -> None:
    log = LogBuilder()
    pairs = network(log)
    first, second = (log.publish(log.agents[0], name) for name in ("first", "second"))
    for _ in range(3):
        for one, other in pairs:
            log.report(one, other, first)
        log.close()
    movers = set(log.agents[:6])
    for _ in range(6):
        for one, other in pairs:
            log.report(one, other, second if {one, other} <= movers else first)
        assert consensus_of(log) == first


@pytest.mark.parametrize("state", ["deprecated", "revoked"])
@pytest.mark.parametrize("is_named", [True, False])
def test_only_a_named_successor_inherits_the_votes_of_the_silent(state: Literal["deprecated", "revoked"], is_named: bool) -> None:
    log = LogBuilder()
    pairs = network(log)
    first, second = (log.publish(log.agents[0], name) for name in ("first", "second"))
    for _ in range(3):
        for place, (one, other) in enumerate(pairs):
            log.report(one, other, second if place < 8 else first)  # four members of twenty speak the second one
        log.close()
    assert consensus_of(log) == first
    successor = uri_of(log, "second") if is_named else None
    log.add(kinds.Status(uri_of(log, "first"), state, successor=successor), log.agents[0])
    expected_consensus = first if state == "deprecated" else None
    assert [consensus_of(log) for _ in range(3)][-1] == (second if is_named else expected_consensus), (
        "nobody reported anything new"
    )


def test_a_publisher_alone_ends_no_consensus() -> None:
    log = LogBuilder()
    pairs = network(log)
    document = log.publish(log.agents[0], "only")
    for one, other in pairs:
        log.report(one, other, document)
    for _ in range(3):
        log.close()
    log.add(kinds.Status(uri_of(log, "only"), "deprecated"), log.agents[0])
    assert [consensus_of(log) for _ in range(5)] == [document] * 5


@pytest.mark.threat(75)
def test_a_crowd_of_clones_keeps_no_newcomer_out() -> None:
    """Four of twenty members fill all places but one. A newcomer that a single pair more speaks has all other conditions."""
    parameters = msgspec.structs.replace(development_parameters(), max_candidates=8)
    log = LogBuilder(parameters)
    pairs = network(log)
    bloc = log.agents[:4]
    incumbent = log.publish(log.agents[5], "incumbent")
    for one, other in pairs:
        log.report(one, other, incumbent)
    clones = [log.publish(bloc[0], f"clone-{number}") for number in range(10)]
    for clone in clones:
        for one, other in ((bloc[0], bloc[1]), (bloc[1], bloc[2]), (bloc[2], bloc[3])):
            log.report(one, other, clone)
        log.close()  # one report of a pair counts in an epoch
    for agent in bloc:
        log.vote(agent, tuple(clones), NONE)
    newcomer = log.publish(log.agents[10], "newcomer")
    for one, other in zip(log.agents[10:13], log.agents[11:14], strict=True):
        log.report(one, other, newcomer)
    log.vote(log.agents[10], newcomer, incumbent)
    (decision,) = log.close()
    states = dict(decision.states)
    assert states[newcomer] == "candidate" and states[incumbent] == "consensus"
    assert len([clone for clone in clones if states.get(clone) == "candidate"]) == 6


def test_dust_has_no_standing_of_a_full_voice() -> None:
    """A principal with almost no trust earns what others earn, and its standing is as small as its trust."""
    log = open_log(acquainted_epochs=1)
    guest, other = domain_signer("guest.example"), domain_signer("second.example")
    document = log.publish(log.agents[0], "one")
    log.report(log.agents[0], guest, document, topic="elsewhere")
    log.vouch(log.agents[0], guest)
    log.vouch(log.agents[0], other)
    log.close()
    for pair in ((guest, log.agents[1]), (log.agents[2], log.agents[3]), (log.agents[4], log.agents[5])):
        log.report(*pair, document)
    log.close()
    roll = log.newest_roll()
    standings = {row[0]: (int(row[2]), int(row[5])) for row in roll["principals"]}
    (trust, standing), (whole, full) = standings["guest.example"], standings[log.agents[2].did.split(":")[2]]
    cap = int(roll["cap"])
    assert trust < cap <= whole and full == ONE // 8
    assert standing == trust * ONE // cap * (ONE // 8) // ONE < full


def test_an_equivocation_undoes_acquaintance() -> None:
    """Both reports of a pair are void, so a vouch does not count by them."""
    log = open_log(acquainted_epochs=1)
    guest = domain_signer("guest.example")
    document = log.publish(log.agents[0], "one")
    nid = log.report(log.agents[0], guest, document)
    log.vouch(log.agents[0], guest)
    for one, other in zip(log.agents[2:8], log.agents[3:9], strict=True):
        log.report(one, other, document)
    log.close()
    assert "guest.example" in {row[0] for row in log.newest_roll()["principals"]}
    log.report(log.agents[0], guest, log.publish(log.agents[0], "two"), nid=nid)
    for _ in range(log.parameters.horizon_epochs + 1):  # barred first, and then without trust
        log.close()
        assert "guest.example" not in {row[0] for row in log.newest_roll()["principals"]}
    replay = Replay(suffix_blob)
    for leaf in log.leaves:
        replay.append(leaf)
    replay.check_checkpoint(log.head())
