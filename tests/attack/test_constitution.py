"""An operator that bends the rule of the elections: by short epochs, by anchors of its own, by dates in the future."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lying import voted
from msgspec.structs import replace
from served_log import Wire, served
from signers import NOW, domain_signer
from simulated_log import ANCHORS, SUFFIXES, LogBuilder, open_log
from simulated_registry import ALICE, NAME, OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo
from treaty_process import treaty_here
from witnesses import VKEYS, WITNESSES, cosigned

from treaty_client.audit.auditor import AuditReport, audit
from treaty_client.audit.snapshot import Snapshots
from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_consensus.amendment import constitution_of
from treaty_consensus.audit import Replay
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import Untrusted
from treaty_consensus.kinds import Parameters, Witnesses

WEEK = 7 * 24 * 3600


def silent(*progress: object) -> None:
    """Who does not listen."""


async def audited(registry: SimulatedRegistry, folder: Path, now: float | None = None) -> AuditReport:
    at = registry.now if now is None else now
    key = folder.parent / "audit.key"
    return await audit(NAME, folder, folder.parent / "evidence", registry.network(), progress=silent, own_key=key, now=lambda: at)


def weekly() -> LogBuilder:
    base = replace(open_log().parameters, rule="schulze-margins-v3", epoch_seconds=WEEK)
    return LogBuilder(base, replay=Replay(lambda _: SUFFIXES))


def swapped(base: Parameters) -> Parameters:
    assert base.reputation is not None
    own = tuple(f"own-{number:02}.example" for number in range(len(ANCHORS)))
    return replace(base, reputation=replace(base.reputation, anchors=own))


@pytest.mark.threat(351)
@pytest.mark.parametrize("bend", ["accelerate", "swap", "both"])
def test_an_operator_can_neither_hurry_epochs_nor_swap_anchors(bend: str) -> None:
    log = weekly()
    target = log.parameters if bend == "swap" else replace(log.parameters, epoch_seconds=1)
    target = target if bend == "accelerate" else swapped(target)
    facts, root = dict(log.replay.facts), log.replay.root()
    with pytest.raises(Untrusted) as refused:
        log.add(target, log.operator)
    assert refused.value.code == "audit.leaf" and "An amendment has bounds" in refused.value.message
    assert (dict(log.replay.facts), log.replay.root()) == (facts, root)


@pytest.mark.threat(351)
async def test_epochs_closed_by_future_dates_are_detected(tmp_path: Path) -> None:
    registry = with_echo()
    honest = registry.now
    voted(registry)
    await audited(registry, tmp_path / "mirror")
    for _ in range(20):
        registry.now += WEEK // 2
        voted(registry)
    # The head is cosigned today: the clock's key signs no time that agents would refuse.
    registry.cosigned = honest
    with pytest.raises(Untrusted) as refused:
        await audited(registry, tmp_path / "mirror", now=honest)
    assert refused.value.code == "audit.leaf" and f"{10 * WEEK} seconds ahead" in refused.value.message
    # Nothing of it is kept: the next audit begins where the last good one ended.
    snapshot = Snapshots(tmp_path / "mirror", tmp_path / "audit.key").find(NAME.origin)
    assert snapshot is None or snapshot.size < registry.size
    # A clock's cosignature of that future is one that this machine has not reached.
    registry.cosigned = None
    with pytest.raises(Untrusted) as refused:
        await audited(registry, tmp_path / "other", now=honest)
    assert refused.value.code == "checkpoint.future"


@pytest.mark.threat(351)
async def test_a_decision_dated_after_its_proof_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    honest = registry.now
    registry.now += WEEK
    voted(registry)
    registry.cosigned = honest + 1
    async with Fetcher(tmp_path, Policy([ALICE.did]), registry.network(), clock=lambda: honest + 2) as agent:
        registry.trusted_in(tmp_path)
        with pytest.raises(VerificationFailed) as refused:
            await agent.topic(TOPIC)
        assert refused.value.code == "decision.rule"
        # The proof of a protocol needs no election.
        registry.cosigned = honest + 2
        assert (await agent.fetch(uri_of(), fresh=True)).uri == uri_of()


async def test_a_log_is_on_time_up_to_the_stated_bound(tmp_path: Path) -> None:
    registry = with_echo()
    registry.now += 300
    voted(registry)
    registry.cosigned = registry.now - 300
    await audited(registry, tmp_path / "mirror")
    registry.cosigned -= 1
    with pytest.raises(Untrusted) as refused:
        await audited(registry, tmp_path / "other")
    assert refused.value.code == "audit.leaf"


@pytest.mark.threat(351)
def test_the_log_and_the_machine_see_the_time_of_witnesses() -> None:
    """Under the later rule each decision is at most five minutes ahead of the quorum that cosigned its input."""
    base = replace(open_log().parameters, rule="schulze-margins-v3", witnesses=Witnesses(VKEYS, 2))
    for times, is_refused in (((NOW, NOW, NOW), False), ((NOW, NOW, NOW - WEEK), False), ((NOW, NOW - WEEK, NOW - WEEK), True)):
        log = LogBuilder(base, replay=Replay(lambda _: SUFFIXES))
        log.agents = tuple(map(domain_signer, ANCHORS))
        log.everybody_votes("none")
        (due,) = log.replay.decide()
        note = log.checkpoint().encode()
        for witness, time in zip(WITNESSES, times, strict=True):
            note = cosigned(note, witness, time=time)
        body = replace(due.decision, input=replace(due.decision.input, witnessed=note.decode()))
        facts = dict(log.replay.facts)
        if not is_refused:
            log.add(body, log.operator)
            continue
        with pytest.raises(Untrusted) as refused:
            log.add(body, log.operator)
        assert refused.value.__cause__ is not None and "ahead of the witnesses" in str(refused.value.__cause__)
        assert dict(log.replay.facts) == facts


def test_an_audit_shows_each_change_and_the_times_of_the_epochs(tmp_path: Path) -> None:
    registry = with_echo()
    base = development_parameters()
    voted(registry)
    first = registry.statements()[1][1]
    dropped = registry.add(replace(base, cluster_share=9), OPERATOR)
    announced = registry.add(replace(base, quorum_share=5), OPERATOR)
    voted(registry)
    voted(registry)
    pending = registry.add(replace(base, over_none=(3, 2)), OPERATOR)
    with served(Wire(registry)) as name:
        TrustedRegistries(tmp_path).add(parse_registry_name(name))
        status, out, _ = treaty_here("audit", "--json", "--home", str(tmp_path))
        value: dict[str, Any] = json.loads(out)
        status, text, _ = treaty_here("audit", "--home", str(tmp_path))
    assert status == 0
    assert value["constitution"] == constitution_of(replace(base, quorum_share=5))
    states = [(one["statement"], one["state"], one["epoch"]) for one in value["amendments"]]
    assert states == [
        (first.id, "ended", 0),
        (dropped.id, "dropped", None),
        (announced.id, "in force", 2),
        (pending.id, "pending", None),
    ]
    assert value["amendments"][2]["changes"] == [{"constant": "quorum_share", "before": 4, "after": 5}]
    assert [(one["number"], one["parameters"]) for one in value["epochs"]] == [(0, first.id), (1, first.id), (2, announced.id)]
    assert all(one["opened"] <= one["closed"] for one in value["epochs"])
    # From the saved replay the same.
    for part in (
        "quorum_share: 4 → 5",
        "over_none: 2 : 1 → 3 : 2",
        "taken back or replaced",
        "in force from epoch 2",
        "next epoch",
    ):
        assert part in text, part
