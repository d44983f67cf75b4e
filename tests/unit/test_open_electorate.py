"""An open electorate, from a signed log to its decisions: who counts, for how much, and who does not."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from signers import Signer, domain_signer, key_signer
from simulated_log import ANCHORS, SUFFIX_LIST, TOPIC, LogBuilder, open_log, suffix_blob

from treaty_consensus import kinds
from treaty_consensus.audit import Replay
from treaty_consensus.canonical import dumps, parse_json
from treaty_consensus.election.arithmetic import ONE, conviction, decay, part
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.errors import NotFound, TreatyError, Untrusted
from treaty_consensus.kinds import NONE

MATURE = ONE // 52
"""What a full voice weighs in its first epoch."""
NEWCOMER = domain_signer("newcomer.example")


def roll(log: LogBuilder) -> dict[str, list[Any]]:
    """The newest roll: principal → cluster, trust, weight, age, standing."""
    value = parse_json(log.rolls[max(log.rolls)], limit=2**20)
    return {principal: rest for principal, *rest in value["principals"]}


def replayed(log: LogBuilder) -> Replay:
    replay = Replay(suffix_blob)
    for leaf in log.leaves:
        replay.append(leaf)
    return replay


def mixed(log: LogBuilder, document: str, agents: tuple[Signer, ...] = ()) -> None:
    """Every agent agrees with its next three."""
    agents = agents or log.agents
    for step in (1, 2, 3):
        for number, agent in enumerate(agents):
            log.report(agent, agents[(number + step) % len(agents)], document)


def test_anchors_elect_and_an_auditor_finds_the_same_bytes() -> None:
    log = open_log()
    document = log.publish(log.agents[0], "one")
    states = []
    for _ in range(4):
        mixed(log, document)
        if log.epoch == 0:
            log.everybody_votes(document)
        states += log.states(document)
    assert states == ["candidate", "provisional", "consensus", "consensus"]
    replayed(log).check_checkpoint(log.head())
    transcript = log.newest_transcript()
    weight = part(part(4 * ONE // 52, decay(3, 13)), conviction(3))
    assert transcript["total"] == str(16 * weight)
    assert transcript["suffixes"] == SUFFIX_LIST.sha256


def test_the_weights_of_a_first_epoch() -> None:
    log = open_log()
    document = log.publish(log.agents[0], "one")
    mixed(log, document)
    log.vote(log.agents[0], document)
    log.close()
    share = ONE // 16
    assert roll(log) == {name: [name, str(share - share // 2), str(MATURE), 1, str(ONE // 8)] for name in ANCHORS}
    transcript = log.newest_transcript()
    assert transcript["ballots"] == {"explicit": 1, "implied": 0}, "nobody vouches for anybody, so reports imply nothing"
    assert transcript["total"] == str(part(MATURE, ONE // 2)), "a ballot of this epoch has half its weight"


def test_who_has_few_counterparties_in_a_topic_weighs_less_there() -> None:
    log = open_log(mature_epochs=1)
    document = log.publish(log.agents[0], "one")
    first, second, third, fourth, *_ = log.agents
    for other in (second, third, fourth):
        log.report(first, other, document)
    log.report(second, third, document)
    log.everybody_votes(document)
    log.close()
    voices = log.newest_transcript()["voices"]
    assert isinstance(voices, list)
    weights = {voice["principal"]: int(voice["weight"]) for voice in voices}
    assert weights == {ANCHORS[0]: ONE, ANCHORS[1]: ONE * 2 // 3, ANCHORS[2]: ONE * 2 // 3, ANCHORS[3]: ONE // 3}


def test_a_vouch_counts_after_three_epochs_of_acquaintance() -> None:
    log = open_log()
    document = log.publish(log.agents[0], "one")
    log.vouch(log.agents[0], NEWCOMER)
    listed = []
    for _ in range(4):
        log.report(log.agents[0], NEWCOMER, document)
        log.vote(log.agents[1], document)
        log.close()
        listed.append("newcomer.example" in roll(log))
    assert listed == [False, False, True, True]
    cluster, trust, weight, age, _ = roll(log)["newcomer.example"]
    assert (cluster, age) == (ANCHORS[0], 4) and 0 < int(weight) < ONE
    assert 0 < int(trust) <= ONE // 16 // 2 // 2 // 4, "an eighth of what its voucher has: half of it, over four vouches"
    log.vouch(log.agents[0], NEWCOMER, withdrawn=True)
    log.vote(log.agents[1], NONE)
    log.close()
    assert "newcomer.example" not in roll(log)
    replayed(log).check_checkpoint(log.head())


@pytest.mark.parametrize(
    ("rule", "cap", "lent"), [("schulze-margins-v2", 25057747, 2424831), ("schulze-margins-v3", 25065712, 2349162)]
)
def test_loans_and_the_cap_follow_the_rule_of_the_log(rule: kinds.Rule, cap: int, lent: int) -> None:
    """Fourteen anchors vouch for the same three domains, and these for three others: the second cap is below the first."""
    log = open_log(rule, acquainted_epochs=1)
    rich = [domain_signer(f"rich-{number}.example") for number in range(3)]
    friends = [domain_signer(f"friend-{number}.example") for number in range(3)]
    document = log.publish(log.agents[0], "one")
    log.everybody_votes(document)
    for vouchers, vouched in ((log.agents[:14], rich), (rich, friends)):
        for voucher, other in product(vouchers, vouched):
            log.report(voucher, other, document)
            log.vouch(voucher, other)
    log.close()
    assert parse_json(log.rolls[max(log.rolls)], limit=2**20)["cap"] == str(cap)
    assert roll(log)["friend-0.example"][1] == str(lent)


def test_a_roll_has_room_for_the_heaviest_and_everybody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    document = log.publish(log.agents[0], "one")
    log.vote(log.agents[1], document)
    log.close()
    older = roll(log)
    mixed(log, document)
    log.publish(NEWCOMER, "two")
    size = len(dumps([ANCHORS[0], *older[ANCHORS[0]]])) + 1
    monkeypatch.setattr("treaty_consensus.election.roll.PRINCIPALS_SIZE", 3 * (size + 12))
    monkeypatch.setattr("treaty_consensus.election.roll.CREDITS_SIZE", 0)
    log.close()
    value = parse_json(log.rolls[max(log.rolls)], limit=2**20)
    assert list(roll(log)) == sorted(roll(log)) == [ANCHORS[0], ANCHORS[1], ANCHORS[2]], "0 and 1 are an epoch older"
    assert value["credits"] == [] and value["omitted"] == {"principals": 13, "credits": 16}
    assert log.newest_transcript()["ballots"] == {"explicit": 1, "implied": 0}
    replayed(log).check_checkpoint(log.head())


def test_unvouched_keys_and_domains_weigh_nothing() -> None:
    log = open_log()
    document, other = log.publish(log.agents[0], "one"), log.publish(log.agents[1], "two")
    mixed(log, document)
    log.everybody_votes(document)
    nobodies = (
        *(key_signer(f"key {number}") for number in range(4)),
        *(domain_signer(f"sub-{number}.{ANCHORS[number]}") for number in range(4)),
        *(domain_signer(f"customer-{number}.hosting.example") for number in range(4)),
        *(domain_signer(f"stranger-{number}.example") for number in range(4)),
        domain_signer(f"{ANCHORS[0]}:users:mallory"),
        domain_signer(f"{ANCHORS[0]}%3A8443"),
    )
    mixed(log, other, nobodies)
    for nobody in nobodies:
        log.vote(nobody, other)
    for agent in log.agents:
        log.report(agent, nobodies[0], other)
    (decision,) = log.close()
    assert decision.states == ((document, "candidate"),)
    transcript = log.newest_transcript()
    assert transcript["total"] == str(16 * part(MATURE, ONE // 2))
    assert roll(log).keys() == set(ANCHORS)


def test_a_granted_did_shares_the_weight_of_its_domain() -> None:
    log = open_log(mature_epochs=1)
    document, other = log.publish(log.agents[0], "one"), log.publish(log.agents[1], "two")
    mixed(log, document)
    helper = key_signer("helper")
    log.vote(log.agents[0], document)
    log.vote(helper, other)
    log.add(kinds.Grant(ANCHORS[0], helper.did), log.agents[0])
    log.close()
    transcript: dict[str, Any] = log.newest_transcript()
    assert transcript["ballots"] == {"explicit": 2, "implied": 0}
    (voice,) = transcript["voices"]
    assert (voice["principal"], voice["ballots"], voice["counts"]) == (ANCHORS[0], 2, str(ONE // 2))


def test_silent_principals_count_by_their_vouchees() -> None:
    log = open_log(acquainted_epochs=1)
    document, other = log.publish(log.agents[0], "one"), log.publish(log.agents[1], "two")
    for agent, friend in zip(log.agents, (*log.agents[1:], log.agents[0]), strict=True):
        log.vouch(agent, friend)
    mixed(log, document)
    strangers = [domain_signer(f"stranger-{number}.example") for number in range(8)]
    for stranger in strangers:
        for agent in log.agents:
            log.report(agent, stranger, other)
    log.close()
    transcript: dict[str, Any] = log.newest_transcript()
    assert transcript["ballots"] == {"explicit": 0, "implied": 16}
    (candidate,) = transcript["candidates"]
    assert candidate["hash"] == document and candidate["approval"] == transcript["total"] != "0"


def test_a_replay_needs_the_suffix_list_and_checks_it() -> None:
    log = open_log()
    log.publish(log.agents[0], "one")
    log.vote(log.agents[0], NONE)
    until = len(log.leaves)
    log.close()
    for blob, code in ((None, "blob.missing"), (lambda _: b"// ===BEGIN ICANN DOMAINS===\n", "audit.blob")):
        replay = Replay(blob) if blob else Replay()
        for leaf in log.leaves[:until]:
            replay.append(leaf)
        before = replay.root(), dict(replay.facts)
        with pytest.raises((NotFound, Untrusted)) as refused:
            replay.append(log.leaves[until])
        assert refused.value.code == code
        assert (replay.root(), replay.facts) == before


def test_from_a_development_electorate_to_an_open_one() -> None:
    log = LogBuilder(replay=Replay(suffix_blob))
    log.agents = tuple(map(domain_signer, ANCHORS))
    document = log.publish(log.agents[0], "one")
    mixed(log, document)
    statement = log.add(open_parameters(ANCHORS, SUFFIX_LIST, epoch_seconds=1), log.operator)
    first, second = (log.close()[0] for _ in range(2))
    assert (first.electorate, second.electorate, second.parameters) == ("development", "open", statement.id)
    replayed(log).check_checkpoint(log.head())


def test_decisions_keep_to_the_schedule() -> None:
    log = open_log(epoch_seconds=5)
    log.vote(log.agents[0], NONE, topic=TOPIC)
    log.identify(*log.agents[:4])  # five seconds pass
    log.close()
    log.vote(log.agents[0], NONE, topic=TOPIC)
    before = log.replay.root()
    with pytest.raises(TreatyError) as refused:
        log.close()
    assert isinstance(refused.value.__cause__, TreatyError) and refused.value.__cause__.code == "decision.early"
    assert log.replay.root() == before


def test_a_wrong_roll_is_found() -> None:
    log = open_log()
    log.publish(log.agents[0], "one")
    log.vote(log.agents[0], NONE)
    (due,) = log.replay.decide()
    wrong = msgspec.structs.replace(due.decision, roll=kinds.Blob("0" * 64, due.decision.roll.size))
    before = log.replay.root()
    with pytest.raises(Untrusted, match=r"body\.roll\.sha256"):
        log.add(wrong, log.operator)
    assert log.replay.root() == before
