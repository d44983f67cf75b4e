"""`tools/verify_election.py` shares no code with Treaty. It must agree with every decision, roll and transcript, byte for byte.

A disagreement is a fault of the rule's text, of the product, or of the verifier.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import verify_election
from http_api import serving
from ports import free_port
from registries import TOPIC, Web, ballot, log, publication, publish
from signers import ORIGIN, Signer, domain_signer, identity_body, key_signer, signed
from simulated_log import ANCHORS, SUFFIXES, LogBuilder, document_hash, open_log, under
from varied_logs import VariedLog, blobs, suffix_list
from verify_election import Check, Finding, Missing, Verifier, verify
from witnesses import VKEYS, WITNESSES, cosigned

from treaty_consensus import did, kinds
from treaty_consensus.admit import TENURE_WAIT
from treaty_consensus.audit import Replay
from treaty_consensus.election.defaults import development_parameters, open_parameters
from treaty_consensus.kinds import NONE
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_consensus.statement import parse
from treaty_registry.registry import Registry

SCRIPT = Path(verify_election.__file__)
KEY = str(SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"log key").digest()).verifier)
Store = dict[str, bytes]


def served(log: LogBuilder) -> Store:
    """Return the blobs of a log by digest."""
    contents = [*log.transcripts.values(), *log.rolls.values(), SUFFIXES]
    return blobs() | {hashlib.sha256(data).hexdigest(): data for data in contents}


def reader(store: Store) -> Callable[[str, int], bytes]:
    """Return a getter of blobs."""

    def get(digest: str, most: int) -> bytes:
        if digest not in store:
            raise Missing("it is not there")
        assert len(store[digest]) <= most
        return store[digest]

    return get


def findings(log: LogBuilder, store: Store | None = None) -> list[Finding]:
    """Return the verifier's findings about a log."""
    return verify(log.leaves, reader(store or served(log)), KEY, log.replay.root())


def agree(log: LogBuilder) -> list[dict[str, Any]]:
    """Check that the verifier agrees with a whole log; return the transcripts in the order of the log."""
    reports = findings(log)
    assert [one.line() for one in reports if one.outcome != "ok"] == []
    assert len(reports) == len(log.transcripts) > 0
    return [json.loads(log.transcripts[leaf]) for leaf in sorted(log.transcripts)]


def moves(transcripts: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return all transitions of some transcripts."""
    return {(one["from"], one["to"]) for transcript in transcripts for one in transcript["transitions"]}


def ring(log: LogBuilder, document: str, step: int = 1, *, topic: str = TOPIC, outcome: Any = "agreed") -> None:
    """Let each agent of a log report a document with the agent so many steps further: other steps are other pairs."""
    for one, other in zip(log.agents, (*log.agents[step:], *log.agents[:step]), strict=True):
        log.report(one, other, document, topic=topic, outcome=outcome)


def pass_epochs(log: LogBuilder, epochs: int, *documents: str) -> None:
    """Close epochs in which the agents report some documents."""
    for _ in range(epochs):
        for step, document in enumerate(documents, 1):
            ring(log, document, step)
        log.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(60))
def test_of_everything_a_bit(seed: int) -> None:
    log = VariedLog(seed)
    log.fill(9, actions=34)
    agree(log)


@pytest.mark.parametrize("build", [LogBuilder, open_log], ids=["development", "open"])
def test_every_transition(build: Callable[[], LogBuilder]) -> None:
    """Elect a document, supersede it, repeal its successor, elect the first again and let it fall asleep."""
    log = build()
    first, second = (log.publish(log.agents[n], f"document-{n}") for n in range(2))
    rankings = (first, second), (second, NONE, first), (NONE, second, first), (first, second), (NONE, first, second)
    for tiers, epochs in zip(rankings, (5, 6, 4, 6, 2), strict=True):
        for agent in log.agents:
            log.vote(agent, *tiers)
        pass_epochs(log, epochs, first, second)
    for agent in log.agents[::2]:
        log.vote(agent, first)
    pass_epochs(log, 6)
    seen = agree(log)
    transitions = {("provisional", "consensus"), ("consensus", "superseded"), ("consensus", "repealed")}
    assert transitions <= moves(seen)
    assert any(one["suspect"] for transcript in seen for one in transcript["candidates"])


def test_a_repealed_incumbent_is_tied() -> None:
    """When the incumbent changes, ties are broken for the old one, in `order` and in the places under `missing`."""
    log = LogBuilder(msgspec.structs.replace(development_parameters(), sustain_epochs=1))
    first, second = (log.publish(log.agents[n], name) for n, name in enumerate(("first", "second")))
    log.everybody_votes(second)
    pass_epochs(log, 4, first, second)
    log.everybody_votes(NONE)
    log.close()
    transcript = log.newest_transcript()
    assert moves([transcript]) == {("consensus", "repealed")} and transcript["order"] == [NONE, second, first]
    agree(log)


def test_dormant_and_back() -> None:
    log = open_log(mature_epochs=1, counterparties=1)
    first = log.publish(log.agents[0], "first")
    log.everybody_votes(first)
    pass_epochs(log, 4, first)
    for agent in log.agents[:7]:
        log.vote(agent, NONE)
    for agent in log.agents[7:10]:
        log.vote(agent)
    pass_epochs(log, 6, first)
    log.everybody_votes(first)
    pass_epochs(log, 4, first)
    assert {("consensus", "dormant"), ("dormant", "provisional")} <= moves(agree(log))


@pytest.mark.parametrize(("principals", "credits"), [(400, 0), (400, 10**6), (10**6, 500), (0, 0)])
def test_a_roll_without_room_for_all(principals: int, credits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both say how many entries are left out of each list, also if it is none of one of them."""
    monkeypatch.setattr("treaty_consensus.election.roll.PRINCIPALS_SIZE", principals)
    monkeypatch.setattr("treaty_consensus.election.roll.CREDITS_SIZE", credits)
    monkeypatch.setattr(verify_election, "ROLL_PRINCIPALS", principals)
    monkeypatch.setattr(verify_election, "ROLL_CREDITS", credits)
    log = two_topics()
    agree(log)
    omitted = [json.loads(data)["omitted"] for data in log.rolls.values() if b'"omitted"' in data]
    assert omitted and all(entry.keys() == {"principals", "credits"} for entry in omitted)
    assert any(entry["principals"] for entry in omitted) == (principals < 10**6)
    assert any(entry["credits"] for entry in omitted) == (credits < 10**6)


def test_a_full_field_has_one_lost_comparison_for_each_candidate() -> None:
    """Of all choices that a candidate does not beat, the transcript names the one against which it lacks most."""
    log = LogBuilder()
    documents = [log.publish(log.agents[0], f"document-{number}") for number in range(6)]
    for document in documents:
        ring(log, document)
        log.close()
    for agent, document in zip(log.agents, documents, strict=False):
        log.vote(agent, document, documents[5])
    log.close()
    newest = agree(log)[-1]
    choices = [entry["hash"] for entry in newest["candidates"]] + [NONE]
    votes = [[int(cell) for cell in row] for row in newest["pairwise"]]
    lost = 0
    for own, entry in enumerate(newest["candidates"]):
        lacks = [votes[x][own] + (x < own) - votes[own][x] for x in range(len(choices)) if x != own]
        conditions = [one for one in entry["missing"] if one["condition"] == "unbeaten"]
        if entry["state"] != "consensus" and max(lacks) > 0:
            (only,) = conditions
            assert int(only["needs"]) - int(only["has"]) == max(lacks)
            lost += sum(lack > 0 for lack in lacks) > 1
        else:
            assert conditions == []
    assert lost, "some lose more than one"


def test_failures_warn() -> None:
    log = LogBuilder()
    first = log.candidate("first", topic=TOPIC)
    log.close()
    ring(log, first, outcome="failed")
    for _ in range(4):
        log.close()
    assert [one["candidates"][0]["suspect"] for one in agree(log)][:4] == [0, 2, 1, 0]


def test_a_tie() -> None:
    log = LogBuilder()
    documents = [log.publish(log.agents[0], f"document-{n}") for n in range(4)]
    for document in documents:
        pass_epochs(log, 1, document)
    for agent, document in zip(log.agents, documents, strict=False):
        log.vote(agent, document, NONE)
    log.vote(log.agents[4], tuple(documents))
    log.close()
    assert agree(log)[-1]["ties"]


def test_more_candidates_than_places_and_clones() -> None:
    """The order of the field decides, with an incumbent and without; shares of ballots do not divide evenly."""
    log = LogBuilder(msgspec.structs.replace(development_parameters(), max_candidates=3, over_none=(1, 1)))
    roots = log.agents
    log.agents = (*roots, domain_signer("foxtrot.example"), domain_signer("golf.example"))
    documents = [log.publish(roots[n % 5], f"document-{n}") for n in range(9)]
    for epoch in range(7):
        for step in (1, 2, 3):
            ring(log, documents[(3 * epoch + step) % 9], step)
        for n, agent in enumerate(log.agents):
            order = documents[:5] if n < 4 else documents[n : n + 2]
            log.vote(agent, order[0], tuple(order[1:3]), *order[3:], NONE, documents[0] if n >= 4 else documents[8])
        log.close()
    seen = agree(log)
    assert all(len(one["candidates"]) == 3 for one in seen[1:])
    assert any(lack["condition"] == "field" for one in seen for nominee in one["nominees"] for lack in nominee["missing"])
    assert any(one.get("consensus") for one in seen)


def test_ballots_fade_ripen_and_are_withdrawn() -> None:
    log = open_log(mature_epochs=2, horizon_epochs=1)
    first, second = (log.publish(log.agents[n], f"document-{n}") for n in range(2))
    one, two, three, four = log.agents[:4]
    log.vote(one, first)
    for epoch in range(12):
        pass_epochs(log, 1, first, second)
        log.vote(two, first, second) if epoch % 2 else log.vote(two, (second, first))
        log.vote(three, (first, second)) if epoch % 2 else log.vote(three, (second, first))
        log.vote(four, *([] if epoch in (3, 4) else [first]))
    seen = agree(log)
    age_of = {voice["principal"]: voice["held"] for voice in seen[9]["voices"]}
    assert (age_of[ANCHORS[1]], age_of[ANCHORS[2]]) == (0, 8)
    assert ANCHORS[0] not in {voice["principal"] for voice in seen[-1]["voices"] if not voice["implied"]}


def test_implied_ballots() -> None:
    """The newest report of a pair counts, and a silent agent stays with its document."""
    log = open_log(mature_epochs=1, acquainted_epochs=1)
    log.vote(log.agents[0], NONE, *(document_hash(f"document-{n}") for n in range(3)))  # no two documents are tied
    documents = [log.publish(log.agents[0], f"document-{n}") for n in range(3)]
    for n, agent in enumerate(log.agents):
        for step in (1, 2, 5):
            log.vouch(agent, log.agents[(n + step) % 16])
    pass_epochs(log, 2, documents[0])
    pass_epochs(log, 2, documents[1])
    for step in (2, 5):
        for n, agent in enumerate(log.agents):
            log.report(agent, log.agents[(n + step) % 16], documents[step % 3], topic=TOPIC)
        log.close()
    for n in (1, 2, 0):
        uri = f"https://{ORIGIN}/protocols/{ANCHORS[0]}/document-{n}/1.0"
        log.add(kinds.Status(uri, "deprecated"), log.agents[0])
        log.close()
    seen = agree(log)
    assert any(voice["implied"] and voice["held"] > 0 for one in seen for voice in one["voices"])


def test_withdrawn_documents_under_the_rule_before() -> None:
    log = LogBuilder(under(kinds.RULES[0], development_parameters()))
    first, second = (log.publish(log.agents[0], name) for name in ("first", "second"))
    again = log.publish(log.agents[1], "again", text="first")
    assert again == first
    pass_epochs(log, 2, first)
    log.report(log.agents[0], log.agents[2], second)
    for agent, name in ((0, "first"), (1, "again")):
        uri = f"https://{ORIGIN}/protocols/{log.agents[agent].did[8:]}/{name}/1.0"
        log.add(kinds.Status(uri, "deprecated"), log.agents[agent])
        log.close()
    approvals = [{c["hash"]: int(c["approval"]) for c in one["candidates"] + one["nominees"]} for one in agree(log)]
    assert approvals[3][first] < approvals[2][first] <= approvals[1][first]


def test_names_grants_and_several_dids() -> None:
    """IDN, wildcard and exception rules; web and wba of one domain; a did:key and a subdomain with grants."""
    base = open_parameters(ANCHORS, suffix_list(0), epoch_seconds=1)
    assert base.reputation
    rules = msgspec.structs.replace(base.reputation, counterparty_share=2**16, acquainted_epochs=1, max_vouches=8)
    parameters = msgspec.structs.replace(base, reputation=rules, candidate_pairs=1, horizon_epochs=3)
    log = LogBuilder(parameters, replay=Replay(lambda digest: blobs()[digest]))
    owner, guest, idn = domain_signer("anchor-00.example"), key_signer("guest 0"), domain_signer("xn--d1acufc.xn--80adxhks")
    web, sub = domain_signer("anchor-00.example", "web"), domain_signer("sub.anchor-03.example")
    log.identify(owner, web, idn, sub)
    for to in (guest, sub):
        log.add(kinds.Grant(did.parse_did(owner.did).namespace, to.did), owner)
    document = log.publish(owner, "first")
    others = [domain_signer(name) for name in (*ANCHORS[1:6], "city.wild.example", "b.a.wild.example", "co.example")]
    for _ in range(5):
        for speaker in (owner, web, guest, sub, idn):
            for other in others:
                log.report(speaker, other, document)
        log.report(owner, idn, document)
        for speaker in (owner, web, guest, sub):
            log.vote(speaker, document)
        log.vouch(web, idn)
        log.vouch(guest, others[5])
        log.close()
    agree(log)
    names = {entry[0] for entry in json.loads(log.rolls[4])["principals"]}
    assert idn.did[8:] in names
    assert not {"co.example", "a.wild.example", sub.did[8:]} & names


def test_grants_end() -> None:
    """One is taken back and made again, one ends with the tenure of its owner, one with that of the guest."""
    log = open_log(mature_epochs=1, counterparty_share=2**16, acquainted_epochs=1)
    owners, others = log.agents[:3], log.agents[3:8]
    guests = key_signer("guest 0"), key_signer("guest 1"), domain_signer("sub.guest.example")
    document = log.publish(owners[0], "first")
    log.identify(*owners, guests[2])
    for owner, guest in zip(owners, guests, strict=True):
        log.add(kinds.Grant(owner.did[8:], guest.did), owner)

    def epoch(*speakers: Signer) -> None:
        for speaker in speakers:
            for other in others:
                log.report(speaker, other, document)
            log.vote(speaker, document)
        log.close()

    def taken_over(agent: Signer) -> Signer:
        before = next(one for one in map(parse, reversed(log.leaves)) if getattr(one.body, "did", "") == agent.did)
        heir = Signer(agent.did, f"{agent.did}#heir", key_signer(f"heir of {agent.did}").private_key)
        log.add(identity_body(heir, tenure=2, previous=before.id, document=heir.key_id), log.operator)
        return heir

    epoch(*guests)
    log.add(kinds.Grant(owners[0].did[8:], guests[0].did, withdrawn=True), owners[0])
    taken_over(owners[1])
    heir = taken_over(guests[2])
    log.start += TENURE_WAIT
    log.identify(domain_signer("late.example"))  # time passes, and the heir may vote
    epoch(*guests[:2], heir)
    log.add(kinds.Grant(owners[0].did[8:], guests[0].did), owners[0])
    epoch(*guests[:2], heir)
    spoke = [{voice["principal"] for voice in one["voices"]} for one in agree(log)]
    names = [owner.did[8:] for owner in owners]
    assert [set(names) & one for one in spoke] == [set(names), set(), {names[0]}]


@pytest.mark.parametrize("seed", range(6))
def test_grants_and_tenures_in_any_order(seed: int) -> None:
    """Owners and guests change hands, and grants are made, taken back and renewed, between epochs in which the guests speak."""
    draw = random.Random(seed)
    log = open_log(mature_epochs=1, counterparty_share=2**16, acquainted_epochs=1)
    others = log.agents[3:8]
    holders = {one.did: one for one in (*log.agents[:3], domain_signer("sub.guest.example"))}
    tenures = dict.fromkeys(holders, 1)
    owners, guest = list(holders)[:3], list(holders)[3]
    keys = key_signer("guest 0"), key_signer("guest 1")
    document = log.publish(others[0], "first")
    log.identify(*holders.values())

    def take_over(did: str) -> None:
        before = next(one for one in map(parse, reversed(log.leaves)) if getattr(one.body, "did", "") == did)
        tenures[did] += 1
        heir = Signer(did, f"{did}#heir-{tenures[did]}", key_signer(f"heir {tenures[did]} of {did}").private_key)
        log.add(identity_body(heir, tenure=tenures[did], previous=before.id, document=heir.key_id), log.operator)
        holders[did] = heir

    for _ in range(6):
        for _ in range(draw.randrange(1, 5)):
            if draw.random() < 0.3:
                take_over(draw.choice(list(holders)))
            else:
                owner, to = draw.choice(owners), draw.choice([guest, *(key.did for key in keys)])
                log.add(kinds.Grant(owner[8:], to, withdrawn=draw.random() < 0.3), holders[owner])
        for speaker in (holders[guest], *keys):
            for other in others:
                log.report(speaker, other, document)
        log.close()
    agree(log)


def test_equivocation_bars_both() -> None:
    log = open_log(mature_epochs=1)
    first = log.publish(log.agents[0], "first")
    pass_epochs(log, 3, first)
    nid = log.report(log.agents[0], log.agents[1], first)
    log.report(log.agents[1], log.agents[0], document_hash("another"), topic="zoo", nid=nid, outcome="failed")
    pass_epochs(log, 15, first)
    agree(log)
    present = [{ANCHORS[0], ANCHORS[1]} <= {entry[0] for entry in json.loads(log.rolls[n])["principals"]} for n in range(18)]
    assert present == [True] * 3 + [False] * 13 + [True] * 2


def test_standing_over_epochs() -> None:
    log = LogBuilder(msgspec.structs.replace(development_parameters(), horizon_epochs=2))
    documents = [log.publish(log.agents[0], f"document-{n}") for n in range(2)]
    for epoch in range(22):
        ring(log, documents[epoch % 2], 1 + epoch % 4)
        log.everybody_votes(documents[0])
        log.close()
    agree(log)
    credits_ = [one for roll in log.rolls.values() for one in json.loads(roll)["credits"]]
    assert {one["reason"] for one in credits_} == {"reported", "elected"}
    assert any(one["shared"] for one in credits_) and any(one["earlier"] for one in credits_)


def test_topics_that_stand_in() -> None:
    """Only ballots and a few reports: one topic stands in, and keeps nothing."""
    log = LogBuilder()
    lonely = log.publish(log.agents[0], "lonely", topic="zoo")
    for topic in ("zoo", "ant"):
        log.vote(log.agents[0], lonely, topic=topic)
        log.report(log.agents[1], log.agents[2], lonely, topic=topic)
    log.vote(log.agents[3], lonely, topic="zoo")
    log.close()
    document = log.candidate("counted", topic="games/go")
    log.close()
    log.close()
    log.everybody_votes(document, topic="games/go")
    log.close()
    assert [one["topic"] for one in agree(log)] == ["zoo", "games/go", "games/go", "games/go"]


def test_an_epoch_with_nothing_to_decide_stays_open() -> None:
    log = LogBuilder()
    assert log.close() == []
    log.candidate("first", topic=TOPIC)
    log.close()
    assert len(agree(log)) == 1


def test_parameters_and_anchors_change() -> None:
    log = open_log(mature_epochs=3)
    first = log.publish(log.agents[0], "first")
    newcomers = [domain_signer(f"new-{n}.example") for n in range(4)]
    for epoch in range(8):
        for n, newcomer in enumerate(newcomers):
            log.report(log.agents[n], newcomer, first)
            log.vouch(log.agents[n], newcomer)
        if epoch == 4:
            assert log.parameters.reputation
            anchors = tuple(sorted((*ANCHORS[1:], "new-0.example")))
            rules = msgspec.structs.replace(
                log.parameters.reputation, anchors=anchors, suffix_list=log.parameters.reputation.suffix_list
            )
            log.add(msgspec.structs.replace(log.parameters, reputation=rules, sustain_epochs=1), log.operator)
        pass_epochs(log, 1, first)
    clusters = [{entry[0]: entry[1] for entry in json.loads(log.rolls[n])["principals"]} for n in (4, 5)]
    assert (clusters[0]["new-0.example"], clusters[1]["new-0.example"]) == (ANCHORS[0], "new-0.example")
    assert len({one["parameters"] for one in agree(log)}) == 2


def witnessed_log(signers: int) -> LogBuilder:
    """Return a log whose decisions carry the cosignatures of some witnesses, of which two are needed."""
    log = LogBuilder(msgspec.structs.replace(development_parameters(), witnesses=kinds.Witnesses(VKEYS, 2)))
    first = log.candidate("first", topic=TOPIC)
    for _ in range(2):
        for due in log.replay.decide():
            log.transcripts[len(log.leaves)], log.rolls[log.epoch] = due.transcript, due.roll
            note = cosigned(log.checkpoint().encode(), *WITNESSES[:signers]).decode()
            seen = msgspec.structs.replace(due.decision.input, witnessed=note)
            log.add(msgspec.structs.replace(due.decision, input=seen), log.operator)
        log.report(log.agents[0], log.agents[1], first)
    return log


def test_witnessed_inputs() -> None:
    agree(witnessed_log(2))
    log = witnessed_log(3)
    agree(log)
    weak = forged(log, len(log.leaves) - 2, lambda body: body["input"].update(witnessed=log.checkpoint()))
    (finding,) = [one for one in findings(log, weak) if one.outcome != "ok"]
    assert finding.details == [{"part": "statement", "path": "input.witnessed: is no checkpoint of the input"}]


def forged(log: LogBuilder, leaf: int, change: Callable[[dict[str, Any]], object], store: Store | None = None) -> Store:
    """Change one decision of a log and sign it again, and make every later decision anew so that the rest stays true."""
    store = store or served(log)
    check = Check(Verifier.read(KEY), reader(store))
    leaves, log.leaves = log.leaves, []
    log.replay = type(log.replay)(reader_of_suffixes)
    due: list[verify_election.Due] = []
    for index, old in enumerate(leaves):
        statement = verify_election.read_leaf(old, index)
        assert statement
        if statement.kind == "decision" and index >= leaf:
            due = due or copy.deepcopy(check).open_epoch()
            next_ = due.pop(0)
            body = next_.body | {"input": statement.body["input"] | next_.body["input"]}
            for data in (next_.transcript, next_.roll):
                store.setdefault(hashlib.sha256(data).hexdigest(), data)
            if index == leaf:
                body = json.loads(json.dumps(body))
                change(body)
            elif "witnessed" in body["input"]:
                body["input"]["witnessed"] = statement.body["input"]["witnessed"]
            leaves[index] = signed(msgspec.convert(body, kinds.Decision), log.operator, issued=statement.issued).leaf
        check.append(leaves[index])
        log.leaves.append(leaves[index])
    log.replay = Tree(check)  # type: ignore[assignment]
    return store


def reader_of_suffixes(digest: str) -> bytes:
    """Return a suffix list."""
    return (blobs() | {hashlib.sha256(SUFFIXES).hexdigest(): SUFFIXES})[digest]


class Tree:
    """The root of a forged log: no replay would take it."""

    def __init__(self, check: Check) -> None:
        self._tree = check.tree

    def root(self) -> bytes:
        """Return the root."""
        return self._tree.root()


def two_topics() -> LogBuilder:
    """Return an open log with two topics and six epochs."""
    log = open_log(mature_epochs=4)
    documents = {topic: log.publish(log.agents[0], topic[0], topic=topic) for topic in ("one", "two")}
    for _ in range(6):
        for topic, document in documents.items():
            ring(log, document, topic=topic)
            log.vote(log.agents[0], document, topic=topic)
        log.close()
    return log


def changed_blob(store: Store, body: dict[str, Any], part: str, change: Callable[[Any], object]) -> None:
    """Change a blob of a decision and let the decision name the new one."""
    value = json.loads(store[body[part]["sha256"]])
    change(value)
    data = verify_election.jcs(value)
    body[part] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    store[body[part]["sha256"]] = data


CHANGES: dict[str, tuple[str, str, Callable[[Store, dict[str, Any]], object]]] = {
    "transcript": (
        "transcript",
        "candidates[0].support",
        lambda store, body: changed_blob(store, body, "transcript", lambda t: t["candidates"][0].update(support="1")),
    ),
    "roll": (
        "roll",
        "principals[3][2]",
        lambda store, body: changed_blob(store, body, "roll", lambda r: r["principals"][3].__setitem__(2, "7")),
    ),
    "state": ("statement", "states[0][1]", lambda _, body: body["states"][0].__setitem__(1, "dormant")),
    "consensus": ("statement", "consensus", lambda _, body: body.update(consensus="0" * 64)),
    "input": ("statement", "input.root", lambda _, body: body["input"].update(root="0" * 64)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_decision_is_found_and_the_rest_is_checked(name: str) -> None:
    log = two_topics()
    store = served(log)
    leaf = sorted(log.transcripts)[6]  # the first of epoch 3
    before = len(log.leaves)
    part, path, change = CHANGES[name]
    forged(log, leaf, lambda body: change(store, body), store)
    reports = findings(log, store)
    assert len(log.leaves) == before and len(reports) == len(log.transcripts)
    (bad,) = [one for one in reports if one.outcome != "ok"]
    assert (bad.leaf, bad.topic, bad.epoch, bad.outcome) == (leaf, "one", 3, "different")
    assert (part, path) in [(detail["part"], detail["path"]) for detail in bad.details]
    at = next(detail for detail in bad.details if detail["path"] == path)
    assert at["logged"] != at["recomputed"]


def test_a_missing_blob_is_not_a_wrong_one() -> None:
    log = two_topics()
    store = served(log)
    leaves = sorted(log.transcripts)
    gone, wrong = (hashlib.sha256(log.transcripts[leaf]).hexdigest() for leaf in leaves[:2])
    del store[gone]
    store[wrong] += b" "
    reports = findings(log, store)
    assert [one.outcome for one in reports] == ["missing", "different"] + ["ok"] * (len(leaves) - 2)
    assert reports[1].details == [{"part": "transcript", "path": "the served bytes are not those that the decision names"}]


def test_without_the_suffix_list_nothing_is_counted() -> None:
    log = two_topics()
    store = served(log)
    del store[hashlib.sha256(SUFFIXES).hexdigest()]
    (finding,) = findings(log, store)
    assert finding.outcome == "unreadable" and "suffix list" in finding.line()


def test_more_voices_than_are_listed() -> None:
    log = LogBuilder()
    first = log.candidate("first", topic=TOPIC)
    for number in range(270):
        log.vote(domain_signer(f"voter-{number}.example"), first)
    log.close()
    (seen,) = agree(log)
    assert len(seen["voices"]) == 256 and seen["ballots"] == {"explicit": 270, "implied": 5}


def test_a_leaf_that_breaks_a_rule_counts_for_nothing() -> None:
    log = LogBuilder()
    first = log.candidate("first", topic=TOPIC)
    again = log.agents[0].statement(kinds.Ballot(TOPIC, 7, ((first,),), log.checkpoint()))
    check = Check(Verifier.read(KEY), reader({}))
    for leaf in log.leaves:
        check.append(leaf)
    before = copy.deepcopy(check).open_epoch()[0].body["transcript"]
    check.append(again.leaf)
    damaged = (
        log.agents[0].statement(kinds.Ballot(TOPIC, 0, ((first,),), log.checkpoint())).leaf.replace(b'"sig":"', b'"sig":"AA')
    )
    check.append(damaged)
    assert [one.outcome for one in check.findings] == ["broken", "broken"]
    ballots = json.loads(copy.deepcopy(check).open_epoch()[0].transcript)["ballots"]
    assert ballots == {"explicit": 0, "implied": 5} and before


def test_other_leaves_are_not_those_of_the_checkpoint() -> None:
    log = two_topics()
    with pytest.raises(verify_election.Unreadable, match="root"):
        verify(log.leaves[:-1], reader(served(log)), KEY, log.replay.root())


async def voted(registry: Registry, agents: list[Signer]) -> None:
    """Let agents elect a document."""
    statement = publication(agents[0])
    await publish(registry, agents[0], statement)
    document = statement.body.document.sha256
    for number, agent in enumerate(agents):
        await log(registry, ballot(registry, 0, document), agent)
        note = registry.head.note.decode()
        nid = document_hash(f"negotiation {number}")
        report = kinds.Report(TOPIC, nid, document, "agreed", 0, note)
        await log(registry, report, agent, agents[(number + 1) % len(agents)])
    for _ in range(3):
        await registry.decide()


async def test_the_command_reads_a_registry(registry: Registry, web: Web) -> None:
    agents = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie", "delta")]
    web.serve(*agents)
    await voted(registry, agents)
    async with serving(registry, free_port()) as url:
        code, lines = await command(url, str(registry.log_key))
        assert code == 0, lines
        assert [(one["topic"], one["epoch"], one["outcome"]) for one in lines] == [(TOPIC, epoch, "ok") for epoch in range(3)]
        assert lines[0]["consensus"] is None and lines[2]["consensus"]
        code, lines = await command(url, KEY)
        assert code == 2 and "signature" in lines[0]["unreadable"]
    code, lines = await command(url, str(registry.log_key))
    assert code == 2 and "checkpoint" in lines[0]["unreadable"]


async def command(url: str, key: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command in a process without Treaty on its path; return its exit status and its lines."""
    pipe = asyncio.subprocess.PIPE
    arguments = (sys.executable, "-E", str(SCRIPT), url, key, "--json")
    process = await asyncio.create_subprocess_exec(*arguments, stdout=pipe, stderr=pipe)
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in (output or errors).decode().splitlines()]


def test_it_imports_nothing_of_treaty() -> None:
    text = SCRIPT.read_text()
    assert "import treaty" not in text and "from treaty" not in text


def test_equal_ballots_share_one_summand() -> None:
    """Three ballots of 1/3 are worth a whole, though one of them ranks the incumbent and ⌊1/3⌋ + ⌊2/3⌋ is less."""
    log = LogBuilder(msgspec.structs.replace(development_parameters(), max_candidates=4))
    names = ("incumbent", "one", "two", "third", "lonely")
    incumbent, one, two, third, lonely = documents = [log.publish(log.agents[0], name) for name in names]
    for document in (incumbent, *documents):
        log.everybody_votes(incumbent)  # in each epoch: otherwise the use of another document replaces the ballot
        pass_epochs(log, 1, document)
    first, second, last, alone, against = log.agents
    for agent in (first, second):
        log.vote(agent, incumbent, (one, two, third))
    log.vote(last, (one, two, third))
    log.vote(alone, lonely)
    log.vote(against, NONE)
    log.close()
    transcript = agree(log)[-1]
    assert transcript["consensus"] == incumbent
    assert [one["hash"] for one in transcript["candidates"]] == [incumbent, one, two, third]
    assert [one["hash"] for one in transcript["nominees"]] == [lonely]


@pytest.mark.parametrize(("places", "incumbent", "opponents"), [(1, True, 3), (1, True, 4), (2, True, 3), (1, False, 3)])
def test_the_end_of_the_order_of_the_field(places: int, incumbent: bool, opponents: int) -> None:
    """Twice as many documents as there are places are chosen one by one; former consensuses take a part of them."""
    log = LogBuilder(
        msgspec.structs.replace(
            development_parameters(), max_candidates=places, sustain_epochs=1, candidate_pairs=1, dormant_epochs=60
        )
    )
    log.agents = tuple(domain_signer(f"voter-{n}.example") for n in range(10))
    first, second, elected, third, other = (log.publish(log.agents[0], name) for name in ("a", "b", "c", "d", "e"))
    for document in (first, second):
        everybody(log, document)
        pass_epochs(log, 3, document)
        everybody(log, NONE, document)
        pass_epochs(log, 1, document)
    everybody(log, elected if incumbent else NONE)
    pass_epochs(log, 3 if incumbent else 1, *((elected, third, other) if incumbent else (third, third, other)))
    above = (elected,) if incumbent else ()
    for agent in log.agents[:6]:
        log.vote(agent, (*above, first, second, third))
    for agent in log.agents[6 : 6 + opponents]:
        log.vote(agent, (*above, other))
    ring(log, first, 4)
    ring(log, second, 2)
    log.close()
    seen = agree(log)[-1]
    by_turn = {one["hash"]: lack["has"] for one in seen["nominees"] for lack in one["missing"] if lack["condition"] == "field"}
    assert (seen.get("consensus") == elected) is incumbent
    assert seen["nominees"][0]["hash"] == (other if opponents == 4 or places == 2 else third) and by_turn


def everybody(log: LogBuilder, *tiers: str) -> None:
    """Let all agents of a log cast the same ballot."""
    for agent in log.agents:
        log.vote(agent, *tiers)


def test_a_void_report_acquaints_nobody() -> None:
    log = open_log(mature_epochs=1, acquainted_epochs=1, horizon_epochs=1)
    first = log.publish(log.agents[0], "first")
    one, other, *rest = log.agents
    pass_epochs(log, 1, first)
    strangers = log.agents[2], log.agents[9]
    nid = log.report(*strangers, first)
    log.report(*strangers, document_hash("another"), nid=nid)
    log.vouch(*strangers)
    log.vouch(one, other)
    log.close()
    pass_epochs(log, 2, first)
    agree(log)
    trust = {entry[0]: int(entry[2]) for entry in json.loads(log.rolls[2])["principals"]}
    assert trust[ANCHORS[9]] == trust[ANCHORS[5]] < trust[ANCHORS[1]]
    assert len(rest) == 14


def test_the_voice_of_two_dids_is_that_of_the_elder_ballot() -> None:
    log = open_log(mature_epochs=1)
    wba, web = log.agents[0], domain_signer(ANCHORS[0], "web")
    first, second = (log.publish(log.agents[n], name) for n, name in enumerate(("first", "second")))
    log.vote(web, first)
    log.vote(wba, first)
    pass_epochs(log, 1, first, second)
    log.vote(wba, first)
    log.vote(web, second)
    pass_epochs(log, 1, first, second)
    log.vote(web, second)
    log.vote(wba, second)
    pass_epochs(log, 1, first, second)
    voices = [next(voice for voice in one["voices"] if voice["principal"] == ANCHORS[0]) for one in agree(log)]
    assert [voice["held"] for voice in voices] == [0, 0, 1]
    assert voices[0]["ballots"] == 2


def test_an_early_decision_is_no_decision() -> None:
    log = open_log(epoch_seconds=30)
    first = log.publish(log.agents[0], "first")
    pass_epochs(log, 1, first)
    ring(log, first)
    store = served(log)
    check = Check(Verifier.read(KEY), reader(store))
    for leaf in log.leaves:
        check.append(leaf)
    due = copy.deepcopy(check).open_epoch()[0]
    store |= {hashlib.sha256(data).hexdigest(): data for data in (due.transcript, due.roll)}
    body = msgspec.convert(due.body, kinds.Decision)
    for seconds, outcome in ((29, "broken"), (30, "ok")):
        later = Check(Verifier.read(KEY), reader(store))
        for leaf in (*log.leaves, signed(body, log.operator, issued=check.facts.opened + seconds).leaf):
            later.append(leaf)
        assert [one.outcome for one in later.findings] == ["ok", outcome]
