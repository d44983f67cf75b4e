"""A registry rotates its keys under readers: an agent that follows, one that was away, a mirror, an audit, a witness, a node."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_api import serving
from ports import free_port
from postgres_server import Postgres
from registries import Web, contents, publication, publish, refuse, settings_for
from rotating_registry import ALICE, OVERLAP, Place, agent, moved, shows
from signers import NOW, ORIGIN
from witnesses import witness_key

from treaty_client.audit.auditor import audit
from treaty_client.policy import Policy
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.trust import RegistryName, TrustedRegistries
from treaty_client.watching.tail import LogTail
from treaty_consensus import statement
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Conflict, NotFound, Refused, TreatyError, Untrusted
from treaty_consensus.kinds import Genesis
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, sign, signers_of
from treaty_consensus.log.witness import AddCheckpoint
from treaty_consensus.rotation import Rotation, rotation_text
from treaty_consensus.trusted_root import without_rotations
from treaty_io.network.hosts import Network
from treaty_registry.keys import load_operator
from treaty_registry.log.checkpoints import CheckpointSigner
from treaty_registry.mirroring.mirrored_log import MirroredLog
from treaty_registry.operator.backup import back_up
from treaty_registry.operator.rotations import ROLES, prepare
from treaty_registry.registry import Registry
from treaty_registry.storage.blobs import BlobStore
from treaty_registry.storage.postgres import connect
from treaty_registry.witness.cosigner import Cosigner
from treaty_registry.witness.records import WitnessStore


@pytest.fixture
def place(tmp_path: Path, database: str, web: Web) -> Place:
    return Place(tmp_path / "registry", database, web)


@pytest.mark.threat(314, 316, 317)
async def test_an_agent_follows_and_one_that_was_away_is_told(place: Place, tmp_path: Path) -> None:
    place.web.serve(ALICE)
    statement = publication(ALICE)
    async with place.open() as registry:
        await publish(registry, ALICE, statement)
        old = RegistryName(f"https://{ORIGIN}", registry.log_key)
        for home in ("follows", "away", "reads later"):
            TrustedRegistries(tmp_path / home).add(old)
        async with agent(tmp_path / "follows", registry, place.time) as reader:
            assert await reader.document(statement.body.uri) == statement.document
        before = registry.head.note
        root = registry.current_trusted_root
        new = prepare(place.keys, [*ROLES])
        # Prepared keys sign nothing.
        await moved(registry, 1)
        assert len(signers_of(registry.head.note)) == 2
        done = await registry.rotate(OVERLAP)
        assert [done.log_key, done.clock_key] == new and done.index == registry.head.size - 1
        assert await registry.rotate(OVERLAP) == done, "a repeated command changes nothing"
        signed = registry.head.note
        # Either key alone: a foreign client with one vkey still verifies.
        assert open_checkpoint(signed, old.key).checkpoint == open_checkpoint(signed, registry.log_key).checkpoint
        assert len(signers_of(signed)) == 4
        assert without_rotations(registry.current_trusted_root) == root != registry.current_trusted_root
        for home in ("follows", "reads later"):
            async with agent(tmp_path / home, registry, place.time) as reader:
                assert await reader.document(statement.body.uri) == statement.document
                assert reader.registries.get(ORIGIN).name.key == registry.log_key
                # The name that people published still names this log.
                reader.registries.add(old)
                assert reader.registries.get(ORIGIN).keys == registry.keys
        # A server that shows an old head, dated by the old clock: refused as soon as the overlap is over.
        keys = TrustedRegistries(tmp_path / "follows").get(ORIGIN).keys
        assert keys.open(before).checkpoint.size < done.index
        place.time.now += OVERLAP
        await moved(registry, 2)
        assert len(signers_of(registry.head.note)) == 2
        async with agent(tmp_path / "follows", registry, place.time) as reader:
            assert await reader.document(statement.body.uri) == statement.document
        content = (tmp_path / "away" / "registries.json").read_bytes()
        async with agent(tmp_path / "away", registry, place.time) as reader:
            with pytest.raises(VerificationFailed) as refused:
                await reader.document(statement.body.uri)
        assert (refused.value.step, refused.value.code) == (2, "note.signature")
        assert f"treaty trust remove {ORIGIN}" in refused.value.fix
        assert (tmp_path / "away" / "registries.json").read_bytes() == content
        # What people do then.
        registries = TrustedRegistries(tmp_path / "away")
        registries.remove(ORIGIN)
        registries.add(RegistryName(f"https://{ORIGIN}", registry.log_key))
        async with agent(tmp_path / "away", registry, place.time) as reader:
            assert await reader.document(statement.body.uri) == statement.document


async def test_each_key_step_survives_a_restart(place: Place, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"origin|no log|There is no"):
        prepare(place.keys, [*ROLES])
    async with place.open() as registry:
        with pytest.raises(NotFound, match="No rotation is prepared"):
            await registry.rotate(0)
        first = registry.keys
    prepare(place.keys, ["log"])
    with pytest.raises(Conflict, match="keys of a rotation"):
        prepare(place.keys, ["log"])
    async with place.open() as registry:  # killed after `prepare`
        assert registry.keys == first
        with pytest.raises(NotFound, match="No rotation is to be ended"):
            await registry.retire_keys()
        await registry.rotate(OVERLAP)
        second = registry.keys
        assert second.newest.clock == first.newest.clock and second.newest.log != first.newest.log
    async with place.open() as registry:  # killed after `rotate`
        assert registry.keys == second and len(signers_of(registry.head.note)) == 3
        with pytest.raises(Refused, match="The old keys sign until"):
            await registry.retire_keys()
        before = await contents(registry)
        place.time.now += OVERLAP
        (retired,) = await registry.retire_keys()
        assert await contents(registry) == before
        with pytest.raises(NotFound):
            await registry.retire_keys()
    assert load_operator(place.keys).log_key.verifier == second.newest.log
    assert Path(retired).parent == place.keys / "retired" and not (place.keys / "next").exists()
    async with place.open() as registry:
        await moved(registry, 1)
        assert registry.keys == second and len(signers_of(registry.head.note)) == 2
        genesis = statement.parse((await registry.leaves([0]))[0]).body
        assert isinstance(genesis, Genesis) and hex_digest(registry.trusted_root) == genesis.trusted_root


@pytest.mark.threat(318)
async def test_a_node_with_the_old_keys_alone_signs_nothing(place: Place, tmp_path: Path) -> None:
    async with place.open():
        shutil.copytree(place.data, tmp_path / "other", ignore=shutil.ignore_patterns("run", "postgres"))
    async with place.rotated() as registry:
        size, note = registry.head.size, registry.head.note
    shutil.copy(place.data / "head", tmp_path / "other" / "head")
    with pytest.raises(Untrusted) as refused:
        async with place.open(tmp_path / "other"):
            pass
    assert refused.value.code == "keys.missing" and "keys/next" in refused.value.fix
    shutil.copytree(place.keys / "next", tmp_path / "other" / "keys" / "next")
    async with place.open(tmp_path / "other") as registry:
        assert registry.head.size == size and signers_of(registry.head.note) == signers_of(note)


@pytest.mark.threat(311)
async def test_a_rotation_that_not_all_keys_signed_changes_nothing(place: Place) -> None:
    async with place.open() as registry:
        prepare(place.keys, [*ROLES])
        operator, before = load_operator(place.keys), registry.keys.newest
        log_key, clock_key = sorted(operator.next, key=lambda key: key.type)
        text = rotation_text(before, log_key.verifier, clock_key.verifier, NOW + OVERLAP)
        for signers in ([operator.log_key, operator.clock_key], [log_key, clock_key]):
            proof = sign(text, signers, time=NOW).decode()
            body = Rotation(str(log_key.verifier), str(clock_key.verifier), NOW + OVERLAP, proof)
            refused = await refuse(registry, operator.state(body, issued=place.time.clock()).statement)
            assert refused.code == "rotation.proof"
        assert registry.keys.newest == before and len(signers_of(registry.head.note)) == 2
        await registry.rotate(OVERLAP)


class _Crash(BaseException):
    """The end of a process."""


async def test_a_crash_before_the_signature_leaves_a_working_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise _Crash

    async with place.open() as registry:
        size = registry.head.size
        prepare(place.keys, [*ROLES])
        monkeypatch.setattr(CheckpointSigner, "sign", crash)
        rotating = asyncio.create_task(registry.rotate(OVERLAP))
        (worker,) = [task for task in asyncio.all_tasks() if task.get_name() == "sequencer"]
        await asyncio.wait([worker])
        assert isinstance(worker.exception(), _Crash)
        rotating.cancel()
        monkeypatch.undo()
    async with place.open() as registry:
        assert registry.head.size == size + 1 and len(signers_of(registry.head.note)) == 4
        assert (await registry.rotate(OVERLAP)).index == size, "the repeated command finds it done"
        await moved(registry, 1)


async def test_a_node_that_follows_learns_the_keys_and_signs_with_them(place: Place, tmp_path: Path) -> None:
    async with place.open():
        """The log begins."""
    shutil.copytree(place.data, tmp_path / "other", ignore=shutil.ignore_patterns("run"))

    def node(data: Path, number: int) -> Any:
        settings = settings_for(data, place.database)
        shared = replace(
            settings, head=f"file://{place.data}/head", blobs=f"file://{tmp_path}/blobs", node=f"http://127.0.0.1:{number}"
        )
        return Registry.open(shared, clock=place.time.clock, resolve=place.web.resolve)

    async with AsyncExitStack() as first:
        leader = await first.enter_async_context(node(place.data, 1))
        async with node(tmp_path / "other", 2) as follower:
            prepare(place.keys, [*ROLES])
            await leader.rotate(OVERLAP)
            async with asyncio.timeout(20):
                while follower.keys != leader.keys:  # noqa: ASYNC110 (the node tells nobody)
                    await asyncio.sleep(0.02)
            # Messages between nodes have a key that follows from the newest one. Without it this node cannot lead either.
            shutil.copytree(place.keys / "next", tmp_path / "other" / "keys" / "next")
            await first.aclose()
            async with asyncio.timeout(20):
                while not follower.leader.leads:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await moved(follower, 1)
            assert len(signers_of(follower.head.note)) == 4


async def test_a_mirror_an_audit_and_a_watch_follow(place: Place, postgres: Postgres, tmp_path: Path) -> None:
    place.web.serve(ALICE)
    async with place.open() as registry, postgres.fresh() as other, serving(registry, free_port()) as url:
        old = RegistryName(url, registry.log_key)
        await publish(registry, ALICE, publication(ALICE))
        settings = settings_for(tmp_path / "mirror", other, None)
        async with MirroredLog.open(settings, old, clock=place.time.clock) as mirror:
            prepare(place.keys, [*ROLES])
            await registry.rotate(OVERLAP)
            await shows(mirror, registry)
            assert mirror.keys == registry.keys and mirror.current_trusted_root == registry.current_trusted_root
        registries = TrustedRegistries(tmp_path / "home")
        registries.add(old)
        async with agent(tmp_path / "home", registry, place.time) as reader:
            tail = LogTail(reader.client(ORIGIN), registries, ORIGIN, Policy(), lambda: place.time.now)
            await tail.head()
            assert registries.get(ORIGIN).keys == registry.keys
        name = RegistryName(url, registry.log_key)
        key_of_another = SignerKey(ORIGIN, KeyType.ED25519, bytes(32)).verifier
        for each in (old, name):  # in the overlap by the old name, and by the new one
            report = await audit(
                each, tmp_path / str(each.key.id.hex()), tmp_path, Network(), progress=lambda *_: None, now=lambda: place.time.now
            )
            assert report.checkpoint.time == place.time.now
        place.time.now += OVERLAP
        await moved(registry, 1)
        # It was started under the old name, and knows the rotation.
        for each in (old, name):
            async with MirroredLog.open(settings, each, clock=place.time.clock) as mirror:
                await shows(mirror, registry)
        with pytest.raises(Conflict, match="is a mirror of"):
            async with MirroredLog.open(settings, RegistryName(url, key_of_another), clock=place.time.clock):
                pass
        await audit(name, tmp_path / "anew", tmp_path, Network(), progress=lambda *_: None, now=lambda: place.time.now)
        with pytest.raises(TreatyError, match="another key"):
            await audit(old, tmp_path / "late", tmp_path, Network(), progress=lambda *_: None, now=lambda: place.time.now)


async def test_a_witness_gets_the_new_key_during_the_overlap(place: Place, tmp_path: Path) -> None:
    async with place.open() as registry:
        old = registry.log_key
        first = registry.head
        prepare(place.keys, ["log"])
        await registry.rotate(OVERLAP)
        store, key = WitnessStore(tmp_path), witness_key("w1.example")
        before = Cosigner(store, key, [old], lambda: place.time.now)
        before.add_checkpoint(AddCheckpoint(0, (), first.note).format())
        proof = tuple(await registry.consistency(first.size))
        assert before.add_checkpoint(AddCheckpoint(first.size, proof, registry.head.note).format())
        size = registry.head.size
        place.time.now += OVERLAP
        await moved(registry, 1)
        request = AddCheckpoint(size, tuple(await registry.consistency(size)), registry.head.note).format()
        with pytest.raises(TreatyError) as refused:
            before.add_checkpoint(request)
        assert refused.value.code == "witness.signature"
        after = Cosigner(store, key, [old, registry.log_key], lambda: place.time.now)
        assert after.add_checkpoint(request)
        latest = Cosigner(store, key, [registry.log_key], lambda: place.time.now).latest(ORIGIN)
        assert latest is not None and latest.checkpoint.size == registry.head.size


async def test_a_backup_gets_the_new_keys(place: Place, tmp_path: Path) -> None:
    async def copy(registry: Registry) -> None:
        blobs = BlobStore.open(place.data / "blobs", None)
        head = open_checkpoint(registry.head.note, registry.keys).checkpoint
        async with connect(place.database) as connection:
            await back_up(connection, blobs, load_operator(place.keys), place.keys, head, tmp_path / "backup")

    async with place.open() as registry:
        await copy(registry)
    async with place.rotated() as registry:
        await copy(registry)
        assert load_operator(tmp_path / "backup" / "keys").next == load_operator(place.keys).next != ()
        place.time.now += OVERLAP
        await registry.retire_keys()
        await moved(registry, 1)
        await copy(registry)
        note = (tmp_path / "backup" / "checkpoint").read_bytes()
        assert open_checkpoint(note, load_operator(tmp_path / "backup" / "keys").log_key.verifier)
