"""Rings that report to each other for standing: one cluster earns nothing, several ever less, a liar rests, and nobody gets a
vote for it."""

from __future__ import annotations

from math import log as logarithm
from typing import Any

import msgspec
import pytest
from signers import Signer, domain_signer, key_signer
from simulated_log import ANCHORS, DOMAINS, TOPIC, LogBuilder, document_hash, open_log, suffix_blob

from treaty_consensus import kinds
from treaty_consensus.audit import Replay
from treaty_consensus.canonical import dumps, hex_digest, parse_json
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import Untrusted
from treaty_consensus.kinds import Blob, Credit

INVENTED = document_hash("a protocol that nobody speaks")
RING = tuple(domain_signer(f"ring-{number}.example") for number in range(4))
EIGHTH = ONE // 8


def newest_roll(log: LogBuilder) -> dict[str, Any]:
    value: dict[str, Any] = parse_json(log.rolls[max(log.rolls)], limit=2**20)
    return value


def standings(log: LogBuilder) -> dict[str, int]:
    return {principal: int(standing) for principal, *_, standing in newest_roll(log)["principals"]}


def ring_in_one_cluster() -> LogBuilder:
    """An open electorate whose first anchor is corrupt: it has vouched the ring in."""
    log = open_log(acquainted_epochs=1)
    corrupt = log.agents[0]
    document = log.publish(corrupt, "real")
    for member in RING:
        log.report(corrupt, member, document)
        log.vouch(corrupt, member)
    log.close()
    clusters = {principal: cluster for principal, cluster, *_ in newest_roll(log)["principals"]}
    assert {clusters[f"ring-{number}.example"] for number in range(4)} == {ANCHORS[0]}, "they all weigh something"
    assert newest_roll(log)["credits"] == []
    return log


@pytest.mark.threat(36)
def test_a_ring_in_one_cluster_earns_nothing() -> None:
    log = ring_in_one_cluster()
    for first, second in ((0, 1), (2, 3), (0, 2), (1, 3)):
        log.report(RING[first], RING[second], INVENTED)
    for member, honest in zip(RING, log.agents[1:5], strict=True):  # an open agent negotiates with anybody
        log.report(member, honest, INVENTED)
    log.close()
    assert newest_roll(log)["credits"] == []
    log.report(log.agents[8], log.agents[9], INVENTED)
    log.close()
    earned = {credit["principal"] for credit in newest_roll(log)["credits"]}
    assert {member.did.removeprefix("did:wba:") for member in RING} <= earned, "only somebody else's word makes it a fact"


@pytest.mark.threat(36)
def test_dids_of_one_principal_corroborate_nothing() -> None:
    log = open_log()
    helper, key, subdomain = key_signer("helper"), key_signer("key"), domain_signer(f"agents.{ANCHORS[1]}")
    log.identify(log.agents[0])
    log.add(kinds.Grant(ANCHORS[0], helper.did), log.agents[0])
    log.report(log.agents[2], log.agents[3], INVENTED)
    for first, second in ((helper, log.agents[0]), (key, log.agents[1]), (subdomain, key), (subdomain, log.agents[4])):
        log.report(first, second, INVENTED)
    log.close()
    assert newest_roll(log)["credits"] == []


def farmed(documents: int) -> LogBuilder:
    """Two pairs, in clusters of their own, that confirm each other's inventions, each in a topic of its own."""
    log = LogBuilder()
    first, second, third, fourth = log.agents[:4]
    for number in range(documents):
        invented, topic = document_hash(f"invented {number}"), f"farm/n{number}"
        log.report(first, second, invented, topic=topic)
        log.report(third, fourth, invented, topic=topic)
    log.close()
    return log


@pytest.mark.threat(36)
def test_a_ring_over_clusters_earns_logarithmically() -> None:
    few, many = (standings(farmed(documents))[f"did:wba:{DOMAINS[0]}"] for documents in (12, 48))
    assert many == sum(EIGHTH * 4 // (4 + shared) for shared in range(48))
    assert many <= EIGHTH * (1 + 4 * logarithm((4 + 47) / 4)) < 1.5 * ONE
    assert many < 2 * few, "four times the reports, not even twice the standing"


@pytest.mark.threat(36)
def test_an_equivocator_neither_has_nor_earns_standing() -> None:
    log = LogBuilder()
    liar, partner, third, fourth, fifth = log.agents
    log.report(liar, partner, document_hash("true"))
    log.report(third, fourth, document_hash("true"))
    log.close()
    assert standings(log)[liar.did] == standings(log)[third.did] == EIGHTH
    log.report(liar, third, INVENTED)  # an open claim, which lapses
    nid = log.report(liar, partner, document_hash("one"))
    log.report(liar, partner, document_hash("other"), nid=nid)
    log.report(fourth, fifth, INVENTED)
    log.close()
    assert newest_roll(log)["credits"] == []
    assert {liar.did, partner.did}.isdisjoint(standings(log))
    for _ in range(12):
        log.report(liar, third, INVENTED)
        log.report(fourth, fifth, INVENTED)
        log.close()
        assert newest_roll(log)["credits"] == []
    log.report(third, fourth, INVENTED)
    log.close()
    assert standings(log)[liar.did] < EIGHTH // 2, "it comes back, as faded as if nothing had been"


@pytest.mark.threat(37)
def test_standing_buys_no_vote() -> None:
    """The same statements under terms that make standing a hundred times dearer: every vote is the same."""
    transcripts = []
    for share in (1, 100):
        parameters = msgspec.structs.replace(development_parameters(), credit=Credit(report_share=share, epochs=8, pairs=4))
        log = LogBuilder(parameters)
        document = log.publish(log.agents[0], "real")
        for _ in range(3):
            log.report(log.agents[0], log.agents[1], document)
            log.report(log.agents[2], log.agents[3], document)
            log.report(log.agents[1], log.agents[4], document)
            log.everybody_votes(document)
            log.close()
        assert standings(log)[log.agents[0].did] >= ONE * 4 // 5, "it was elected"
        transcript = log.newest_transcript()
        transcripts.append({name: transcript[name] for name in ("total", "pairwise", "weights", "candidates", "voices", "order")})
    assert transcripts[0] == transcripts[1]


@pytest.mark.threat(37)
@pytest.mark.parametrize("forged", ["standing", "credit"])
def test_an_operator_that_hands_out_standing_is_found_out(forged: str) -> None:
    log = LogBuilder()
    agents: tuple[Signer, ...] = log.agents
    log.report(agents[0], agents[1], INVENTED)
    (due,) = log.replay.decide()
    roll = parse_json(due.roll, limit=2**20)
    assert isinstance(roll, dict)
    if forged == "standing":
        roll["principals"][0][-1] = str(ONE)
    else:
        about = {"topic": TOPIC, "document": INVENTED, "with": agents[1].did, "index": 5, "shared": 0, "earlier": 0}
        roll["credits"] = [{"principal": agents[0].did, "amount": str(ONE), "reason": "elected", **about}]
    data = dumps(roll)
    decision = msgspec.structs.replace(due.decision, roll=Blob(hex_digest(data), len(data)))
    before = log.replay.size, log.replay.root()
    with pytest.raises(Untrusted) as refusal:
        log.add(decision, log.operator)
    assert refusal.value.code == "audit.decision"
    assert "roll" in refusal.value.message
    assert (log.replay.size, log.replay.root()) == before
    log.close()
    auditor = Replay(suffix_blob)
    for leaf in log.leaves:
        auditor.append(leaf)
    auditor.check_checkpoint(log.head())
