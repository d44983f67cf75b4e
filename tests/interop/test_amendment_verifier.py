"""`tools/verify_election.py` and the product take the same amendments, and hold the same parameters in every epoch."""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any

import msgspec
import pytest
import verify_election
from msgspec.structs import replace
from signers import NOW, ORIGIN, domain_signer, signed
from simulated_log import ANCHORS, SUFFIXES, LogBuilder, open_log
from varied_logs import moved_parameters
from verify_election import BrokenRule, Finding, Missing, verify
from witnesses import VKEYS, witness_key

from treaty_consensus.amendment import check_amendment
from treaty_consensus.audit import Replay
from treaty_consensus.errors import Malformed, TreatyError, Untrusted
from treaty_consensus.kinds import Parameters, Witnesses
from treaty_consensus.log.note import KeyType, SignerKey

KEY = str(SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"log key").digest()).verifier)
AFTER = "schulze-margins-v3"
STRANGERS = tuple(str(witness_key(f"stranger-{number}.example").verifier) for number in range(3))


def moved(random: Random, before: Parameters) -> Parameters | None:
    """Return other parameters, also of the earlier rule and with other witnesses; None if their form is wrong."""
    try:
        raw = msgspec.to_builtins(moved_parameters(random, before))
        if random.random() < 0.5:
            keys = random.sample([*VKEYS, *STRANGERS], random.randint(1, 4))
            raw["witnesses"] = {"keys": keys, "quorum": random.randint(1, len(keys))}
        elif random.random() < 0.2:
            raw.pop("witnesses", None)
        if random.random() < 0.1:
            raw["rule"] = "schulze-margins-v2"
            del raw["memory_horizons"]
        after = msgspec.convert(raw, Parameters)
        after.check()
    except (msgspec.ValidationError, Malformed):
        return None
    return after


def test_both_have_the_same_bounds() -> None:
    random = Random(1)
    base = replace(open_log().parameters, rule=AFTER, witnesses=Witnesses(VKEYS, 2))
    assert base.reputation is not None
    anchors = tuple(f"many-{number}.example" for number in range(10, 40))
    base = replace(base, max_candidates=8, reputation=replace(base.reputation, anchors=anchors, rounds=8, cap_share=6))
    changes = 0
    for _ in range(3000):
        before = replace(base, epoch_seconds=random.choice((1, 86_400, 604_800)))
        after = moved(random, before)
        if after is None:
            continue
        plain = [msgspec.json.decode(msgspec.json.encode(one)) for one in (before, after)]
        try:
            verify_election.check_amendment(*plain)
        except BrokenRule as broken:
            with pytest.raises(TreatyError):
                check_amendment(before, after)
            assert str(broken)
        else:
            check_amendment(before, after)
            changes += before != after
    assert 100 < changes < 2900, "both sides of the bounds were met"


def bounded_log() -> LogBuilder:
    """A log of an open electorate under the later rule, with epochs of two seconds and a document in each."""
    base = replace(open_log().parameters, rule=AFTER, epoch_seconds=2)
    log = LogBuilder(base, replay=Replay(lambda _: SUFFIXES))
    log.agents = tuple(map(domain_signer, ANCHORS))
    log.identify(*log.agents)
    log.publish(log.agents[0], "first")
    return log


def pass_epochs(log: LogBuilder, epochs: int) -> None:
    for _ in range(epochs):
        for agent in log.agents[:4]:
            log.vote(agent, "none")
        log.close()


def findings(log: LogBuilder, leaves: list[bytes] | None = None) -> list[Finding]:
    store = {hashlib.sha256(data).hexdigest(): data for data in (*log.transcripts.values(), *log.rolls.values(), SUFFIXES)}

    def get(name: str, _: int) -> bytes:
        if name not in store:
            raise Missing("it is not there")
        return store[name]

    return verify(leaves or log.leaves, get, KEY)


def in_force(log: LogBuilder) -> list[tuple[int, str]]:
    """Return the epochs and the parameters of their decisions."""
    parameters_of: list[tuple[int, str]] = []
    for leaf in log.leaves:
        body: Any = verify_election.read_leaf(leaf, 0)
        if body.kind == "decision":
            parameters_of.append((body.body["epoch"], body.body["parameters"]))
    return parameters_of


def test_both_hold_announced_parameters_from_the_same_epoch() -> None:
    log = bounded_log()
    base = log.parameters
    replaced = log.add(replace(base, quorum_share=5), log.operator)
    pass_epochs(log, 2)
    announced = log.add(replace(base, epoch_seconds=4), log.operator)
    pass_epochs(log, 8)
    withdrawn = log.add(replace(base, epoch_seconds=4, quorum_share=3), log.operator)
    log.add(replace(base, epoch_seconds=4), log.operator)
    pass_epochs(log, 8)
    assert [one.line() for one in findings(log) if one.outcome != "ok"] == []
    used = [parameters for _, parameters in in_force(log)]
    assert announced.id in used and not {replaced.id, withdrawn.id} & set(used)


@pytest.mark.parametrize(
    "changes",
    [{"epoch_seconds": 1}, {"quorum_share": 8}, {"rule": "schulze-margins-v2", "memory_horizons": None}, {"over_none": (1, 3)}],
    ids=str,
)
def test_both_refuse_what_bends_the_constitution(changes: dict[str, Any]) -> None:
    log = bounded_log()
    pass_epochs(log, 1)
    bent = signed(replace(log.parameters, **changes), log.operator, issued=NOW + len(log.leaves))
    root, facts = log.replay.root(), dict(log.replay.facts)
    with pytest.raises(Untrusted) as refusal:
        log.replay.append(bent.leaf)
    assert refusal.value.code == "audit.leaf"
    assert (log.replay.root(), dict(log.replay.facts)) == (root, facts)
    broken = findings(log, [*log.leaves, bent.leaf])
    assert broken[-1].outcome == "broken" and broken[-1].leaf == len(log.leaves)
