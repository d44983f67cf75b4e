"""A registry of a newer release logs what this one does not know: protocols are fetched as before, elections are not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fetching import fetcher, known_in
from lying import indexes, seen, voted, with_leaf
from signers import ORIGIN, Signer, signed
from simulated_registry import ALICE, BOB, NAME, OPERATOR, TOPIC, SimulatedRegistry, remade, uri_of, with_echo

from treaty_client.audit.auditor import audit
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import canonical, kinds, statement
from treaty_consensus.audit import Replay
from treaty_consensus.errors import Malformed
from treaty_consensus.events import Subject, event_of


def newer_leaf(
    registry: SimulatedRegistry, kind: str, body: Mapping[str, object], signer: Signer = OPERATOR, critical: Sequence[str] = ()
) -> bytes:
    """A statement as only a newer release can make it."""
    some = statement.parse_draft(
        statement.draft(kinds.Withdrawal("0" * 64, "illegal"), log=ORIGIN, by=(signer.key_id,), issued=1).payload
    )
    value = {"type": kind, "log": ORIGIN, "by": [signer.key_id], "issued": registry.now, "body": body}
    return remade(replace(some, payload=canonical.dumps(value)), {}, signer, critical=critical)


def newer(
    registry: SimulatedRegistry, index: int, members: Mapping[str, object], critical: Sequence[str] = ()
) -> SimulatedRegistry:
    """The registry with further members in a leaf, which it understands."""
    record = statement.read(registry.leaves[index])
    signers = [next(one for one in (OPERATOR, ALICE, BOB) if one.key_id == key_id) for key_id in record.by]
    copy = registry.rewritten(index, remade(record, members, *signers, critical=critical))
    copy.meant[index] = record
    return copy


def elected_anew(registry: SimulatedRegistry, signer: Signer = OPERATOR) -> int:
    """Replace the newest decision in TOPIC by one of another rule, with other fields; its leaf."""
    registry.left_out |= set(indexes(registry, kinds.Decision))
    body = {"rule": "lines-v1", "topic": TOPIC, "epoch": 1, "lines": [{"line": "a", "speak": "b"}]}
    index = registry.force(newer_leaf(registry, "decision", body, signer))
    registry.tamper = with_leaf(registry, index)
    return index


@pytest.fixture
def decided() -> SimulatedRegistry:
    registry = with_echo()
    voted(registry)
    return registry


@pytest.mark.parametrize("saw_the_old_rule", [False, True])
async def test_a_protocol_is_fetched_whatever_rule_elects(
    decided: SimulatedRegistry, tmp_path: Path, saw_the_old_rule: bool
) -> None:
    if saw_the_old_rule:
        await seen(decided, tmp_path)
    elected_anew(decided)
    decided.now += 7200
    async with fetcher(decided, tmp_path) as agent:
        verified = await agent.fetch(uri_of(), fresh=True)
        assert verified.election is None
        assert any("in a way that this release does not know" in warning for warning in verified.warnings)
        with pytest.raises(VerificationFailed) as refused:
            await agent.topic(TOPIC)
        assert refused.value.code == "registry.newer"
        assert "newer release" in refused.value.fix


async def test_a_statement_of_an_unknown_type_is_passed_over(tmp_path: Path) -> None:
    registry = with_echo()
    index = registry.force(newer_leaf(registry, "pledge", {"to": "everybody", "amount": 3}, ALICE))
    registry.tamper = with_leaf(registry, index)
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(uri_of())).uri == uri_of()
        (view,) = await agent.topic(TOPIC)
        assert view.protocols


async def test_a_newer_rules_decision_is_not_left_out_later(decided: SimulatedRegistry, tmp_path: Path) -> None:
    before = decided.left_out.copy(), decided.tamper
    elected_anew(decided, ALICE)
    async with fetcher(decided, tmp_path) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
        assert (failure.value.step, failure.value.code) == (4, "statement.not-operator")
        assert not known_in(tmp_path)[1]
    decided.left_out, decided.tamper = before
    elected_anew(decided)
    async with fetcher(decided, tmp_path) as agent:
        await agent.fetch(uri_of(), fresh=True)
        names = known_in(tmp_path)
        decided.now += 7200
        decided.left_out, decided.tamper = before
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of(), fresh=True)
        assert (failure.value.step, failure.value.code) == (10, "memory.contradicted")
        assert known_in(tmp_path) == names


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("pledge", {"to": "everybody"}, "registry.newer"),
        ("status", {"uri": uri_of(), "state": "archived"}, "registry.newer"),
        ("decision", {"rule": "lines-v1", "topic": TOPIC}, "registry.newer"),
        ("parameters", {"rule": "lines-v1"}, "registry.newer"),
    ],
)
def test_members_of_newer_releases_are_read_and_never_written(kind: str, body: Mapping[str, object], code: str) -> None:
    leaf = newer_leaf(with_echo(), kind, body)
    with pytest.raises(Malformed) as refused:
        statement.parse(leaf)
    assert refused.value.code == code
    record = statement.read(leaf)
    assert (record.type, record.leaf) == (kind, leaf)
    assert isinstance(record.body, kinds.Newer)
    with pytest.raises(KeyError):
        statement.draft(record.body, log=ORIGIN, by=(OPERATOR.key_id,), issued=0)


WRONG: list[tuple[str, dict[str, object], tuple[str, ...]]] = [
    ("publish", {}, ()),
    ("status", {"uri": uri_of(), "state": 5}, ()),
    ("status", {"uri": uri_of(), "state": "active", "wheel": None}, ()),
    # `critical` has one spelling, and nothing that this release knows is critical.
    ("status", {"uri": uri_of(), "state": "active"}, ("until",)),
    ("status", {"uri": uri_of(), "state": "active", "a": 1, "b": 2}, ("b", "a")),
    ("pledge", {"a": 1}, ("a", "a")),
]


@pytest.mark.parametrize(("kind", "body", "critical"), WRONG)
def test_a_statement_of_no_release_is_refused_by_every_reader(
    kind: str, body: Mapping[str, object], critical: Sequence[str]
) -> None:
    for read in (statement.parse, statement.read, statement.understand):
        with pytest.raises(Malformed) as refused:
            read(newer_leaf(with_echo(), kind, body, critical=critical))
        assert refused.value.code == "statement.form"


def test_writers_refuse_each_member_that_they_do_not_know() -> None:
    body = {"uri": uri_of(), "state": "active", "note": "x"}
    leaf = newer_leaf(with_echo(), "status", body, ALICE)
    with pytest.raises(Malformed) as refused:
        statement.parse(leaf)
    assert refused.value.code == "statement.form"
    assert statement.read(leaf).body == statement.understand(leaf).body == kinds.Status(uri_of(), "active")
    marked = newer_leaf(with_echo(), "status", {"uri": uri_of(), "state": "active"}, ALICE, critical=["state"])
    with pytest.raises(Malformed) as refused:
        statement.parse(marked)
    assert refused.value.code == "statement.form"
    assert statement.read(marked).body == kinds.Status(uri_of(), "active")


async def outcome(registry: SimulatedRegistry, home: Path) -> tuple[str, set[str]]:
    """The step and the code with which a fetch ends, or "", and the protocols of the topic."""
    async with fetcher(registry, home) as agent:
        try:
            await agent.fetch(uri_of(), fresh=True)
            text = ""
        except VerificationFailed as failure:
            text = f"{failure.step.value} {failure.code}"
        (view,) = await agent.topic(TOPIC)
        return text, {protocol.uri for protocol in view.protocols}


BOBS = uri_of(signer=BOB)
BOTH = {uri_of(), BOBS}
NEWER: list[tuple[type[kinds.Body], dict[str, object], tuple[str, ...], str, set[str]]] = [
    (kinds.Publish, {"licence": "MIT"}, (), "", BOTH),
    (kinds.Publish, {"until": 9}, ("until",), "4 registry.newer", {BOBS}),
    (kinds.Handler, {"speed": 9}, (), "", BOTH),
    (kinds.Handler, {"runtime": "wasm"}, ("runtime",), "6 registry.newer", BOTH),
    (kinds.Identity, {"note": "x"}, (), "", BOTH),
    (kinds.Identity, {"from": 9}, ("from",), "4 registry.newer", {BOBS}),
    (kinds.Parameters, {"mood": 9}, ("mood",), "", BOTH),
    (kinds.Status, {"note": "x"}, (), "", BOTH),
    (kinds.Status, {"state": "archived"}, (), "9 registry.newer", {BOBS}),
    (kinds.Status, {"after": 9}, ("after",), "9 registry.newer", {BOBS}),
]


@pytest.mark.threat(400)
@pytest.mark.sample(4)
@pytest.mark.parametrize(("kind", "members", "critical", "reason", "listed"), NEWER)
async def test_a_statement_without_use_disables_its_subject_alone(
    kind: type[kinds.Body], members: dict[str, object], critical: tuple[str, ...], reason: str, listed: set[str], tmp_path: Path
) -> None:
    registry = with_echo()
    registry.publish(signer=BOB)
    registry.add(kinds.Status(uri_of(), "active"), ALICE)
    changed = newer(registry, indexes(registry, kind)[0], members, critical)
    assert await outcome(changed, tmp_path) == (reason, listed)
    replay = Replay(lambda digest: changed.blobs[digest])
    if not critical and "state" not in members:
        for leaf in changed.leaves:
            replay.append(leaf)
        assert replay.root() == changed.root()
        return
    # An auditor counts each leaf: it stops, accuses nobody, and has counted what is before.
    index = indexes(registry, kind)[0]
    with pytest.raises(Malformed) as stopped:
        for leaf in changed.leaves:
            replay.append(leaf)
    assert (stopped.value.code, replay.size) == ("registry.newer", index)
    assert f"Leaf {index}" in stopped.value.message


@pytest.mark.threat(400)
async def test_an_unknown_status_of_a_handler_takes_the_handler_back(tmp_path: Path) -> None:
    registry = with_echo()
    (attached,) = (statement.body for _, statement in registry.shown() if isinstance(statement.body, kinds.Handler))
    registry.add(kinds.Status(uri_of(), "active", wheel=attached.wheel.sha256), ALICE)
    changed = newer(registry, indexes(registry, kinds.Status)[0], {"state": "archived"})
    assert await outcome(changed, tmp_path) == ("9 registry.newer", {uri_of()})


@pytest.mark.threat(400)
@pytest.mark.parametrize(
    ("body", "reason", "listed"), [({"uri": uri_of()}, "4 registry.newer", {BOBS}), ({"uri": BOBS}, "", {uri_of()})]
)
async def test_a_critical_type_stands_for_its_subject(
    body: Mapping[str, object], reason: str, listed: set[str], tmp_path: Path
) -> None:
    registry = with_echo()
    registry.publish(signer=BOB)
    index = registry.force(newer_leaf(registry, "recall", body, critical=["type"]))
    registry.tamper = with_leaf(registry, index)
    assert await outcome(registry, tmp_path) == (reason, listed)


@pytest.mark.threat(400)
async def test_a_critical_type_without_a_subject_stands_for_all(tmp_path: Path) -> None:
    registry = with_echo()
    registry.tamper = with_leaf(registry, registry.force(newer_leaf(registry, "recall", {"all": True}, critical=["type"])))
    async with fetcher(registry, tmp_path) as agent:
        for ask in (agent.fetch(uri_of()), agent.topic(TOPIC)):
            with pytest.raises(VerificationFailed) as failure:
                await ask
            assert (failure.value.step, failure.value.code) == (4, "registry.newer")
        assert not known_in(tmp_path)[1]


@pytest.mark.parametrize(
    ("recommended", "fix"), [("9.1", "Upgrade to 9.1,"), ("0.0.1", "Install a newer release."), ("9\x1b[2J", "Install a newer")]
)
async def test_the_error_names_the_recommended_release(recommended: str, fix: str, tmp_path: Path) -> None:
    registry = with_echo()
    registry.recommended = recommended
    registry.tamper = with_leaf(registry, registry.force(newer_leaf(registry, "recall", {"uri": uri_of()}, critical=["type"])))
    elected = newer_leaf(registry, "recall", {"topic": TOPIC}, critical=["type"])
    async with fetcher(registry, tmp_path) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
        assert failure.value.code == "registry.newer" and failure.value.fix.startswith(fix)
        registry.tamper = with_leaf(registry, registry.force(elected))
        with pytest.raises(VerificationFailed) as failure:
            await agent.topic(TOPIC)
        assert failure.value.code == "registry.newer" and failure.value.fix.startswith(fix)
    registry.tamper = SimulatedRegistry.tamper
    with pytest.raises(Malformed) as audited:
        await audit(NAME, tmp_path / "log", tmp_path, registry.network(), progress=lambda *_: None)
    assert audited.value.code == "registry.newer"
    assert ("Upgrade to" in audited.value.fix) == (recommended == "9.1")


async def test_what_rests_on_an_unknown_grant_is_unknown(tmp_path: Path) -> None:
    registry = with_echo()
    grant = kinds.Grant("alice.example", BOB.did)
    registry.add(grant, ALICE)
    guests = uri_of("3.0")
    blobs = registry.put(b"# Guest\n"), registry.put(b'{"summary":"Hi.","title":"Guest"}')
    registry.add(kinds.Publish(guests, TOPIC, *blobs, "negotiated"), BOB)
    assert await outcome(registry, tmp_path / "before") == ("", {uri_of(), guests})
    changed = newer(registry, indexes(registry, kinds.Grant)[0], {"until": 9}, ["until"])
    assert await outcome(changed, tmp_path / "after") == ("", {uri_of()})


async def test_a_status_that_is_unknown_is_not_hidden_later(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    statement = signed(kinds.Status(uri_of(), "active"), ALICE, issued=registry.now)
    index = registry.force(remade(statement, {"state": "archived"}, ALICE))
    registry.meant[index] = statement
    async with fetcher(registry, tmp_path) as agent:
        await agent.topic(TOPIC)
        # What the memory learned ends the stored proof, although that is young enough.
        assert agent.cached(registry.document_of(uri_of()).sha256) is None
        registry.left_out.add(index)
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of(), fresh=True)
        assert (failure.value.step, failure.value.code) == (10, "memory.contradicted")
        registry.left_out.clear()
        registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
        assert (await agent.fetch(uri_of(), fresh=True)).uri == uri_of()


def test_a_watch_describes_what_it_does_not_know() -> None:
    registry = with_echo()
    pledge = event_of(7, newer_leaf(registry, "pledge", {"to": "everybody"}, ALICE))
    assert (pledge.kind, pledge.authors) == ("pledge", (ALICE.did,))
    assert "only a newer release understands" in pledge.sentence
    decision = event_of(8, newer_leaf(registry, "decision", {"rule": "lines-v1", "topic": TOPIC, "epoch": 4}))
    assert Subject("topic", TOPIC) in decision.subjects
