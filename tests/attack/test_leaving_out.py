"""A registry leaves leaves of a protocol or a DID out of its answers, or tells another story than before.

Every answer here passes steps 1 to 9 for an agent that never met the registry. An agent that did stops.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest
from fetching import ANY_CHANGE, fetcher, kept_in, refused_at
from lying import (
    LINE,
    as_new_machine,
    indexes,
    leave_out,
    retell,
    rotate,
    seen,
    stops,
    tell_another_first_identity,
    topic_stops,
)
from simulated_registry import ALICE, BOB, OPERATOR, TOPIC, blob_of, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.export import export, verify_directory
from treaty_client.protocols.store import Lockfile
from treaty_client.protocols.verification import completeness
from treaty_client.protocols.verification.contradiction import LeftOut
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.leaves import SeenLeaf
from treaty_client.registries.memory import SeenLeaves
from treaty_consensus import kinds
from treaty_consensus.did import encode_multikey

GUEST_URI = uri_of("3.0")


async def test_a_second_first_identity_deceives_a_first_contact(tmp_path: Path) -> None:
    """What makes the tests below tests: the lie is a bundle that proves everything it has to."""
    registry = with_echo()
    retell(registry, tell_another_first_identity(registry), document=b"# Another\n")
    async with fetcher(registry, tmp_path, tenures={ALICE.did: 1}) as agent:
        assert (await agent.fetch(uri_of())).package.version == "9"


# Identities


@pytest.mark.threat(17)
@pytest.mark.parametrize("tenures", [{}, {ALICE.did: 1}])
async def test_a_second_first_identity_of_a_publisher_stops(tmp_path: Path, tenures: dict[str, int]) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    retell(registry, tell_another_first_identity(registry))
    failure = await stops(registry, tmp_path, "memory.contradicted", tenures=tenures)
    assert isinstance(failure, LeftOut) and failure.contradiction is not None
    assert failure.contradiction.verify(), "two first identities exclude each other"


async def test_a_second_first_identity_is_recognised_elsewhere(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    forger = tell_another_first_identity(registry)
    leave_out(registry, kinds.Publish)
    leave_out(registry, kinds.Handler)
    registry.publish("2.0", signer=forger)
    registry.attach("2.0", signer=forger)
    await stops(registry, tmp_path, "memory.contradicted", uri_of("2.0"))
    await topic_stops(registry, tmp_path, "memory.contradicted")


@pytest.mark.threat(16)
async def test_a_key_that_was_rotated_out_does_not_come_back(tmp_path: Path) -> None:
    registry = with_echo()
    rotate(registry)
    await seen(registry, tmp_path)
    leave_out(registry, kinds.Identity, -1)
    registry.now += 60
    await stops(registry, tmp_path, "memory.contradicted")


@pytest.mark.threat(18)
async def test_a_lock_refuses_a_second_first_identity_elsewhere(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    as_new_machine(tmp_path)
    forger = tell_another_first_identity(registry)
    retell(registry, forger, document=b"# Echo 1.0\n\nWhat is sent comes back.\n")
    assert (await refused_at(10, registry, tmp_path)).code == "lock.contradicted"
    registry.publish("2.0", signer=forger)
    registry.attach("2.0", signer=forger)
    assert (await refused_at(10, registry, tmp_path, uri_of("2.0"))).code == "lock.contradicted"
    async with fetcher(registry, tmp_path) as agent:
        with pytest.raises(VerificationFailed, match="another history of its keys"):
            await agent.candidates(TOPIC)


async def test_a_lock_of_before_gains_what_it_lacks(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    whole = (tmp_path / "treaty.lock").read_text()
    value = json.loads(whole)
    del value["protocols"][LINE]["identity"]
    for name in ("published", "handler"):
        del value["protocols"][LINE]["versions"]["1.0"][name]
    (tmp_path / "treaty.lock").write_text(json.dumps(value))
    as_new_machine(tmp_path)
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
    assert {**json.loads(whole)["protocols"][LINE], "versions": None} == {
        **json.loads((tmp_path / "treaty.lock").read_text())["protocols"][LINE],
        "versions": None,
    }
    locked = Lockfile(tmp_path).read()[LINE]
    assert locked.identity is not None and locked.identity.keys == (encode_multikey(ALICE.public_key),)
    assert locked.versions["1.0"].published is not None and locked.versions["1.0"].handler is not None


# Handlers, documents, statuses


async def test_going_back_to_an_older_handler_stops(tmp_path: Path) -> None:
    registry = with_echo()
    registry.attach(release="2")
    await seen(registry, tmp_path)
    leave_out(registry, kinds.Handler, -1)
    failure = await stops(registry, tmp_path, "memory.contradicted")
    assert isinstance(failure, LeftOut) and failure.contradiction is not None
    assert not failure.contradiction.verify(), "what was left out proves nothing to others"


@pytest.mark.threat(16)
async def test_going_back_to_a_revoked_handler_stops(tmp_path: Path) -> None:
    registry = with_echo()
    first = next(statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler))
    registry.attach(release="2")
    registry.add(kinds.Status(uri_of(), "revoked", wheel=first.wheel.sha256), ALICE)
    await seen(registry, tmp_path)
    leave_out(registry, kinds.Handler, -1)
    leave_out(registry, kinds.Status)
    await stops(registry, tmp_path, "memory.contradicted")
    registry.left_out.clear()
    leave_out(registry, kinds.Status)
    await stops(registry, tmp_path, "memory.contradicted")


@pytest.mark.threat(16)
@pytest.mark.parametrize("state", ["revoked", "yanked"])
@pytest.mark.parametrize("learned_by", ["fetch", "document", "topic"])
async def test_what_was_refused_as_taken_back_stays_so(tmp_path: Path, state: str, learned_by: str) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    registry.add(kinds.Status(uri_of(), state), ALICE)  # type: ignore[arg-type]
    registry.now += 7200
    async with fetcher(registry, tmp_path) as agent:
        if learned_by == "topic":
            assert (await agent.candidates(TOPIC)).uris == ()
        else:
            with pytest.raises(VerificationFailed) as failure:
                await getattr(agent, learned_by)(uri_of())
            assert failure.value.code == f"status.{state}"
    leave_out(registry, kinds.Status)
    await stops(registry, tmp_path, "memory.contradicted")
    await topic_stops(registry, tmp_path, "memory.contradicted")


async def test_an_older_status_does_not_pass_for_the_newest(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
    registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
    await refused_at(9, registry, tmp_path)
    leave_out(registry, kinds.Status, -1)
    await stops(registry, tmp_path, "memory.contradicted")


@pytest.mark.threat(33)
async def test_a_revoked_handler_in_the_cache_is_not_run(tmp_path: Path) -> None:
    """Neither from memory nor from the disk, and whichever process came to know it; no request is made."""
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent, fetcher(registry, tmp_path) as other:
        verified = await agent.fetch(uri_of())
        assert agent.cached(verified.hash) is verified
        registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
        assert agent.cached(verified.hash) is verified, "nothing of it is known here yet"
        assert (await other.candidates(TOPIC)).uris == ()
        registry.requests.clear()
        assert (agent.cached(verified.hash), other.cached(verified.hash), registry.requests) == (None, None, [])
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
        assert (failure.value.step, failure.value.code) == (9, "status.revoked")


async def test_a_cached_version_reads_its_topic_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison runs on the event loop; what strangers publish in the topic must not cost it anything."""
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        verified = await agent.fetch(uri_of())
        for number in range(20):
            registry.publish(f"7.{number}", signer=BOB)
        await agent.topic(TOPIC)
        read, about = [], SeenLeaves.about

        def counted(memory: SeenLeaves, origin: str, subjects: Collection[str]) -> list[SeenLeaf]:
            leaves = about(memory, origin, subjects)
            read.extend(leaves)
            return leaves

        monkeypatch.setattr(SeenLeaves, "about", counted)
        assert agent.cached(verified.hash) is verified
        assert 0 < len(read) < 10


@pytest.mark.threat(17)
async def test_a_version_does_not_change_its_document(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    retell(registry, ALICE, document=b"# Another\n")
    failure = await stops(registry, tmp_path, "memory.contradicted")
    assert isinstance(failure, LeftOut) and failure.contradiction is not None and failure.contradiction.verify()
    as_new_machine(tmp_path)
    assert (await refused_at(10, registry, tmp_path)).code == "lock.contradicted"
    async with fetcher(registry, tmp_path) as agent:
        for attempt in (
            agent.document(uri_of()),
            agent.fetch(uri_of(), accept=ANY_CHANGE),
            agent.candidates(TOPIC),
        ):
            with pytest.raises(VerificationFailed) as refused:
                await attempt
            assert refused.value.code == "lock.contradicted"


@pytest.mark.threat(16)
async def test_a_protocol_that_was_there_is_not_unknown(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    leave_out(registry, kinds.Publish)
    registry.now += 7200
    assert (await refused_at(10, registry, tmp_path)).code == "memory.contradicted"
    await topic_stops(registry, tmp_path, "memory.contradicted")


async def test_a_guests_publish_is_not_repeated_under_a_newer_grant(tmp_path: Path) -> None:
    """A newer grant replaces the one that was seen, but not the publish that rested on it."""
    registry = with_echo()
    registry.add(kinds.Grant("alice.example", BOB.did), ALICE)
    document, card = blob_of(b"# Guest\n"), registry.put(b'{"title":"Guest"}')
    registry.put(b"# Guest\n")
    registry.add(kinds.Publish(GUEST_URI, TOPIC, document, card, "negotiated"), BOB)
    async with fetcher(registry, tmp_path) as agent:
        await agent.candidates(TOPIC)
    leave_out(registry, kinds.Grant)
    leave_out(registry, kinds.Publish, -1)
    for fact in (f"grant/alice.example/{BOB.did}", f"protocol/{GUEST_URI}"):
        del registry.facts[fact]
    registry.now += 1
    registry.add(kinds.Grant("alice.example", BOB.did), ALICE)
    registry.add(kinds.Publish(GUEST_URI, TOPIC, document, card, "negotiated"), BOB)
    await topic_stops(registry, tmp_path, "memory.contradicted")


async def test_parameters_that_were_announced_are_not_taken_back(tmp_path: Path) -> None:
    registry = with_echo()
    parameters = next(statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Parameters))
    registry.add(msgspec.structs.replace(parameters, horizon_epochs=parameters.horizon_epochs + 1), OPERATOR)
    await seen(registry, tmp_path)
    leave_out(registry, kinds.Parameters, -1)
    await stops(registry, tmp_path, "memory.contradicted")


@pytest.mark.threat(18)
@pytest.mark.parametrize("what", ["status", "handler_status"])
async def test_a_lock_carries_a_withdrawn_version_to_another_machine(tmp_path: Path, what: str) -> None:
    registry = with_echo()
    wheel = next(
        statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler)
    ).wheel.sha256
    of = wheel if what == "handler_status" else None
    async with fetcher(registry, tmp_path) as agent:
        export(await agent.fetch(uri_of()), tmp_path / "out")
    registry.add(kinds.Status(uri_of(), "revoked", wheel=of), ALICE)
    registry.now += 7200
    async with fetcher(registry, tmp_path) as agent:
        with pytest.raises(VerificationFailed, match="revoked"):
            await agent.fetch(uri_of())
    status = getattr(Lockfile(tmp_path).read()[LINE].versions["1.0"], what)
    assert status is not None and (status.index, status.state) == (registry.size - 1, "revoked")
    as_new_machine(tmp_path)
    registry.trusted_in(tmp_path)
    leave_out(registry, kinds.Status)
    assert (await refused_at(10, registry, tmp_path)).code == "lock.contradicted"
    with pytest.raises(VerificationFailed) as failure:
        verify_directory(tmp_path / "out", registry.trusted_in(tmp_path), Policy([ALICE.did]))
    assert (failure.value.step, failure.value.code) == (10, "lock.contradicted")
    registry.left_out.clear()
    registry.add(kinds.Status(uri_of(), "active", wheel=of), ALICE)
    await seen(registry, tmp_path)
    status = getattr(Lockfile(tmp_path).read()[LINE].versions["1.0"], what)
    assert status is not None and (status.index, status.state) == (registry.size - 1, "active")


@pytest.mark.threat(18)
async def test_a_folder_is_compared_with_the_lock(tmp_path: Path) -> None:
    registry, home, other = with_echo(), tmp_path / "home", tmp_path / "other"
    await seen(registry, home)
    retell(registry, ALICE, document=b"# Another\n")
    async with fetcher(registry, other) as agent:
        export(await agent.fetch(uri_of()), tmp_path / "out")
    as_new_machine(home)
    before = kept_in(home)
    with pytest.raises(VerificationFailed) as failure:
        verify_directory(tmp_path / "out", registry.trusted_in(home), Policy([ALICE.did]))
    assert (failure.value.step, failure.value.code) == (10, "lock.contradicted")
    assert {**kept_in(home), "registries.json": b""} == {**before, "registries.json": b""}


async def test_a_folder_older_than_the_rotation_is_no_contradiction(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        export(await agent.fetch(uri_of()), tmp_path / "out")
        rotate(registry)
        await agent.fetch(uri_of(), fresh=True)
    as_new_machine(tmp_path)
    assert verify_directory(tmp_path / "out", registry.trusted_in(tmp_path), Policy([ALICE.did])).uri == uri_of()


async def test_accepting_a_publisher_leaves_other_versions_pinned(tmp_path: Path) -> None:
    registry = with_echo()
    await seen(registry, tmp_path)
    registry.publish("2.0")
    registry.attach("2.0", signer=BOB)
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        await agent.fetch(uri_of("2.0"), accept=ANY_CHANGE)
    locked = Lockfile(tmp_path).read()[LINE]
    assert (locked.publisher, set(locked.versions), locked.versions["1.0"].handler) == (BOB.did, {"1.0", "2.0"}, None)
    as_new_machine(tmp_path)
    retell(registry, ALICE, document=b"# Another\n")
    registry.attach(signer=BOB)
    assert (await refused_at(10, registry, tmp_path, publishers=(BOB,))).code == "lock.contradicted"


# Going back without a lie


async def test_a_newer_handler_outside_a_full_list_is_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BOB's second handler falls out of ALICE's list as she attaches more; his first one is still in it."""
    monkeypatch.setattr(completeness, "MAX_HANDLERS", 3)
    registry = with_echo()
    registry.attach(signer=BOB)
    registry.attach(signer=BOB, release="2")
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        assert (await agent.fetch(uri_of())).package.version == "2"
    registry.attach(release="3")
    registry.left_out.add(indexes(registry, kinds.Handler, lambda statement: statement.author.text == BOB.did)[-1])
    registry.now += 7200
    failure = await refused_at(10, registry, tmp_path, publishers=(BOB,))
    assert failure.code == "lock.contradicted" and "--allow-older-handler" in failure.fix
    async with fetcher(registry, tmp_path, publishers=(BOB,)) as agent:
        assert (await agent.fetch(uri_of(), accept=ANY_CHANGE)).package.version == "1"


async def test_a_lock_knows_the_newer_handler_on_another_machine(tmp_path: Path) -> None:
    registry = with_echo()
    registry.attach(release="2")
    await seen(registry, tmp_path)
    as_new_machine(tmp_path)
    leave_out(registry, kinds.Handler, -1)
    assert (await refused_at(10, registry, tmp_path)).code == "lock.contradicted"
