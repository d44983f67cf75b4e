"""A registry rotates its Sigstore authority: restarts, a crash, a node without the keys, mirrors, a promotion, stock clients."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from http_api import serving
from ports import free_port
from postgres_server import Postgres
from registries import Web, contents, publication, publish, refuse, settings_for
from rotating_registry import ALICE, OVERLAP, Place, Time, agent, moved, shows

from treaty_client.audit.auditor import audit
from treaty_client.registries.trust import RegistryName, TrustedRegistries
from treaty_consensus import statement
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import NotFound, Refused, Unavailable, Untrusted
from treaty_consensus.kinds import Genesis
from treaty_consensus.log.note import sign
from treaty_consensus.rotation import Rotation, rotation_text
from treaty_io.network.hosts import Network
from treaty_registry.keys import load_operator
from treaty_registry.mirroring.mirrored_log import MirroredLog
from treaty_registry.mirroring.promotion import promote
from treaty_registry.operator.backup import copy_keys
from treaty_registry.operator.newest_head import SignedHeads
from treaty_registry.operator.rotations import AUTHORITY, ROLES, prepare
from treaty_registry.registry import Registry
from treaty_registry.sigstore_authority.keys import create_keys


@pytest.fixture
def place(tmp_path: Path, database: str, web: Web) -> Place:
    # The real time, because the certificates of an authority begin with it.
    return Place(tmp_path / "registry", database, web, Time(int(time.time())))


async def _pins_its_root(registry: Registry) -> None:
    genesis = statement.parse((await registry.leaves([0]))[0]).body
    assert isinstance(genesis, Genesis) and hex_digest(registry.trusted_root) == genesis.trusted_root


@pytest.mark.threat(324)
async def test_each_authority_step_survives_a_restart(place: Place) -> None:
    async with place.open() as registry:
        first, pinned = registry.authority.public, registry.trusted_root
    assert prepare(place.keys, [AUTHORITY])[0].startswith("authority ")
    async with place.open() as registry:  # killed after `prepare`
        assert registry.authority.public == first and registry.current_trusted_root == pinned
        with pytest.raises(NotFound, match="No rotation is to be ended"):
            await registry.retire_keys()
        done = await registry.rotate(OVERLAP)
        assert done == await registry.rotate(OVERLAP) and done.authority, "a repeated command changes nothing"
        root = registry.current_trusted_root
        assert root.count(b"certChain") == 4 and registry.authority.public == first
    async with place.open() as registry:  # killed after `rotate`
        assert registry.current_trusted_root == root and registry.authority.public == first
        place.time.now += OVERLAP - 1
        before = await contents(registry)
        assert registry.authority.public == first
        with pytest.raises(Refused, match="The old keys sign until"):
            await registry.retire_keys()
        assert await contents(registry) == before and not (place.keys / "trusted-root.json").exists()
        place.time.now += 1
        second = registry.authority.public
        assert second == load_operator(place.keys).next_authority.public != first  # type: ignore[union-attr]
        (retired,) = await registry.retire_keys()
        assert registry.authority.public == second, "without a restart"
    assert Path(retired).parent == place.keys / "retired" and not (place.keys / "next").exists()
    shutil.rmtree(place.keys / "retired")
    # Once more, killed between the two moves.
    prepare(place.keys, [*ROLES, AUTHORITY])
    async with place.open() as registry:
        assert registry.authority.public == second and registry.trusted_root == pinned
        await registry.rotate(0)
        third = registry.authority.public
        assert third != second
    (place.keys / AUTHORITY).rename(place.keys / "gone")
    async with place.open() as registry:
        assert registry.authority.public == third
        assert len(await registry.retire_keys()) == 2, "the third had been moved"
    async with place.open() as registry:
        await _pins_its_root(registry)
        assert registry.authority.public == third and registry.current_trusted_root.count(b"certChain") == 6
    (place.keys / "trusted-root.json").unlink()
    with pytest.raises(Untrusted, match=r"trusted-root\.json|genesis pins"):
        async with place.open():
            pass


@pytest.mark.threat(322)
async def test_an_authority_without_agreement_changes_nothing(place: Place, tmp_path: Path) -> None:
    async with place.open() as registry:
        operator, before = load_operator(place.keys), registry.keys.newest
        assert before.clock
        until, root = place.time.now + OVERLAP, registry.current_trusted_root
        elsewhere = create_keys(tmp_path / "elsewhere", origin="other.example", now=place.time.clock())
        own = create_keys(tmp_path / "own", origin=registry.origin, now=place.time.clock())
        text = rotation_text(before, before.log, before.clock, until, elsewhere.named())
        unproved = rotation_text(before, before.log, before.clock, until, own.named())
        for named, said, code in (
            (elsewhere.named(text), text, "rotation.keys"),
            (own.named("another text\n"), unproved, "rotation.proof"),
        ):
            proof = sign(said, [operator.log_key], time=place.time.now).decode()
            body = Rotation(str(before.log), str(before.clock), until, proof, named)
            refused = await refuse(registry, operator.state(body, issued=place.time.clock()).statement)
            assert refused.code == code
        assert registry.keys.newest == before and registry.current_trusted_root == root


@pytest.mark.threat(324)
async def test_a_node_without_the_next_authority_certifies_nothing(place: Place, tmp_path: Path) -> None:
    async with place.open():
        copy_keys(place.keys, tmp_path / "other" / "keys")
    prepare(place.keys, [AUTHORITY])
    async with place.open() as registry:
        await registry.rotate(OVERLAP)
    shutil.copy(place.data / "head", tmp_path / "other" / "head")
    shutil.copytree(place.data / "blobs", tmp_path / "other" / "blobs")
    async with place.open(tmp_path / "other") as registry:
        assert registry.authority
        place.time.now += OVERLAP
        with pytest.raises(Unavailable) as refused:
            _ = registry.authority
        assert refused.value.code == "keys.missing" and "keys/next" in refused.value.fix
        await moved(registry, 1)
        shutil.copytree(place.keys / "next", tmp_path / "other" / "keys" / "next")
        assert registry.authority.public == load_operator(tmp_path / "other" / "keys").next_authority.public  # type: ignore[union-attr]


PUBLIC = (
    "/sigstore/trusted-root.json",
    "/trust-config.json",
    "/sigstore/api/v2/trustBundle",
    "/sigstore/api/v1/timestamp/certchain",
)


@pytest.mark.deep
@pytest.mark.threat(302, 324)
async def test_a_mirror_follows_and_is_promoted_after_the_rotation(place: Place, postgres: Postgres, tmp_path: Path) -> None:
    place.web.serve(ALICE)
    statement, data = publication(ALICE), tmp_path / "mirror"
    async with postgres.fresh() as other:
        settings = settings_for(data, other, None)
        async with place.open() as registry, serving(registry, free_port()) as url:
            old = RegistryName(url, registry.log_key)
            await publish(registry, ALICE, statement)
            prepare(place.keys, [*ROLES, AUTHORITY])
            await registry.rotate(OVERLAP)
            # Started after the rotation: it finds the pinned root in what the registry serves.
            async with (
                MirroredLog.open(settings, old, clock=place.time.clock) as mirror,
                serving(mirror, free_port()) as copy,
                httpx.AsyncClient() as client,
            ):
                for path in PUBLIC:
                    ours, theirs = [(await client.get(base + path)).content for base in (url, copy)]
                    assert ours == theirs and len(ours) > 1_000, path
            report = await audit(
                old, tmp_path / "audited", tmp_path, Network(), progress=lambda *_: None, now=lambda: place.time.now
            )
            assert report.checkpoint.time == place.time.now
            place.time.now += OVERLAP
            await registry.retire_keys()
            await moved(registry, 1)
            name = RegistryName(url, registry.log_key)
            async with MirroredLog.open(settings, name, clock=place.time.clock) as mirror:
                await shows(mirror, registry)
                size, root, authority = mirror.head.size, mirror.current_trusted_root, registry.authority.public
                assert root == registry.current_trusted_root
        first = tmp_path / "first"
        copy_keys(place.keys, first)
        shutil.rmtree(first / AUTHORITY)
        create_keys(first / AUTHORITY, origin=registry.origin, now=place.time.clock())
        settings = replace(settings, origin=None)
        evidence = SignedHeads(record=str(place.data / "head"))
        with pytest.raises(Exception, match="newest keys"):
            await promote(settings, first, evidence, Network(), clock=place.time.clock)
        assert not (data / "keys").exists()
        done = await promote(settings, place.keys, evidence, Network(), clock=place.time.clock)
        assert done.size == size
        promoted = Place(data, other, place.web, place.time)
        async with promoted.open() as registry:
            await _pins_its_root(registry)
            assert registry.authority.public == authority and registry.current_trusted_root == root
            await moved(registry, 2)
            TrustedRegistries(tmp_path / "home").add(RegistryName(f"https://{registry.origin}", registry.log_key))
            async with agent(tmp_path / "home", registry, place.time) as reader:
                assert await reader.document(statement.body.uri) == statement.document
