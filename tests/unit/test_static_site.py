"""The read side as files: what an agent fetches from a plain static server while no process of the registry runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from http_api import ENTRY_POINT
from registries import Web, blob, grant, log, publication, publish, settings_for
from rotating_registry import Time
from signers import NOW, ORIGIN, domain_signer, key_signer
from simulated_registry import echo_wheel
from static_folder import StaticFolders

from treaty_client.policy import load_policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.trust import RegistryName, TrustedRegistries
from treaty_consensus import canonical, kinds
from treaty_consensus.errors import Untrusted
from treaty_consensus.kinds import Blob
from treaty_consensus.protocol import parse_protocol_uri
from treaty_registry.log.entry import Logged
from treaty_registry.pages.pages import Pages
from treaty_registry.registry import Registry
from treaty_registry.serving.views import Views
from treaty_registry.static_site import ROUND, StaticSite
from treaty_registry.storage.own_wheels import OwnWheels

ALICE, WRITER = domain_signer("alice.example"), key_signer("writer")
PROTOCOL = publication(ALICE)
PATH = PROTOCOL.body.uri.removeprefix(f"https://{ORIGIN}")
TOPIC = PROTOCOL.body.topic
MIRROR = "static.example"
_GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "several-nodes.md").read_text()
(MIRRORS,) = re.findall(r"^```toml\n(.*?)^```", _GUIDE, re.DOTALL | re.MULTILINE)


@dataclass
class Site:
    """A registry with a static site in a folder, and the clock of both."""

    registry: Registry
    folder: Path
    time: Time

    def __post_init__(self) -> None:
        self.site = self.another_leader()

    def another_leader(self) -> StaticSite:
        return StaticSite(self.registry, self.registry.tiles.copies[0], Pages(Views(self.registry)))

    async def copy(self) -> None:
        """Copy the newest head, then what it changes."""
        head = self.registry.head.published
        await self.registry.tiles.copies[0].publish(head)
        await self.site.renew(head)

    async def grow(self, first: int, last: int) -> None:
        leaves = [WRITER.statement(grant(WRITER, number)).leaf for number in range(first, last)]
        assert all(isinstance(outcome, Logged) for outcome in await self.registry.submit(leaves))

    def size_of(self, name: str) -> int:
        """The size of the log at which an object was made."""
        return int(json.loads((self.folder / name).read_bytes())["checkpoint"].split("\n")[1])


@pytest.fixture
async def site(tmp_path: Path, database: str, web: Web) -> AsyncIterator[Site]:
    web.serve(ALICE)
    time, folder = Time(), tmp_path / "site"
    filename, wheel = echo_wheel(PROTOCOL.body.uri, PROTOCOL.body.document.sha256, "9")
    (tmp_path / filename).write_bytes(wheel)
    own = OwnWheels.read(tmp_path)
    settings = replace(settings_for(tmp_path / "data", database), tiles=(f"file://{folder}",), wheels=own)
    async with Registry.open(settings, clock=time.clock, resolve=web.resolve) as registry:
        await publish(registry, ALICE, PROTOCOL)
        yield Site(registry, folder, time)


@asynccontextmanager
async def agent(home: Path, site: Site, folder: Path, now: int = NOW) -> AsyncIterator[tuple[Fetcher, StaticFolders]]:
    """An agent to which the registry is dead, and a static server over the folder is its mirror."""
    TrustedRegistries(home).add(RegistryName(f"https://{ORIGIN}", site.registry.log_key))
    network = StaticFolders(folders={MIRROR: folder})
    # That of the guide, for the name of this log.
    (home / "policy.toml").write_text(MIRRORS)
    policy = replace(load_policy(home / "policy.toml"), publishers=[ALICE.did])
    assert policy.mirrors == {ORIGIN: (f"https://{MIRROR}",)}
    async with Fetcher(home, policy, network, clock=lambda: now) as fetcher:
        yield fetcher, network


async def test_an_agent_fetches_from_files_while_no_registry_runs(site: Site, tmp_path: Path) -> None:
    filename, wheel = echo_wheel(PROTOCOL.body.uri, PROTOCOL.body.document.sha256)
    attestation = canonical.dumps({"attested-by": ALICE.did})
    handler = ALICE.statement(
        kinds.Handler(PROTOCOL.body.uri, PROTOCOL.body.document.sha256, filename, blob(wheel), ENTRY_POINT, blob(attestation))
    )
    for data in (wheel, attestation):
        await site.registry.put_blob(canonical.hex_digest(data), handler.leaf, data)
    await site.registry.submit([handler.leaf])
    await site.copy()
    async with agent(tmp_path / "home", site, site.folder) as (fetcher, network):
        assert await fetcher.document(PROTOCOL.body.uri) == PROTOCOL.document
        (view,) = await fetcher.topic(TOPIC)
        assert [protocol.uri for protocol in view.protocols] == [PROTOCOL.body.uri]
        client = fetcher.client(ORIGIN)
        assert await client.blob(Blob(canonical.hex_digest(wheel), len(wheel))) == wheel
        assert (await client.log()).origin == ORIGIN
        assert (await client.topics()).topics[0].topic == TOPIC
        assert (await client.record(parse_protocol_uri(PROTOCOL.body.uri)))["uri"] == PROTOCOL.body.uri
        assert (await client.topic(TOPIC))["topic"] == TOPIC
        assert (await fetcher.head(ORIGIN).refresh()).checkpoint.size == site.registry.head.size
        assert not network.missed
    digest, index = canonical.hex_digest(wheel), site.folder / "index" / "alice.example"
    assert (index / "files" / digest / filename).read_bytes() == wheel
    assert b"Name: treaty-handler-echo" in (index / "files" / digest / f"{filename}.metadata").read_bytes()
    assert b"treaty-handler-echo" in (index / "simple" / "index.html").read_bytes()
    assert digest.encode() in (index / "simple" / "treaty-handler-echo" / "index.html").read_bytes()
    for page in ("", f"{PATH}/", f"/topics/{TOPIC}/", PATH.rpartition("/")[0] + "/", "/topics/"):
        assert (site.folder / f"{page.strip('/')}/index.html".lstrip("/")).read_bytes().startswith(b"<!doctype html>")
    assert (site.folder / f"{PATH[1:]}.md").read_bytes() == PROTOCOL.document
    (own,) = site.registry.wheels.wheels
    assert (site.folder / "index" / "treaty" / "files" / own.digest / own.filename).read_bytes() == own.data
    for listed in ("", "treaty-handler-echo/"):
        assert (site.folder / f"index/treaty/simple/{listed}index.html").read_bytes().startswith(b"<!DOCTYPE html>")
    await site.registry.withdrawals.withdraw([digest], "illegal")
    await site.copy()
    assert not [*(index / "files" / digest).iterdir()]
    assert digest.encode() not in (index / "simple" / "treaty-handler-echo" / "index.html").read_bytes()
    # For as long as the policy allows, and then it says why.
    async with agent(tmp_path / "one", site, site.folder, NOW + 3600) as (fetcher, _):
        assert await fetcher.document(PROTOCOL.body.uri) == PROTOCOL.document
    async with agent(tmp_path / "other", site, site.folder, NOW + 3700) as (fetcher, _):
        with pytest.raises(VerificationFailed) as refused:
            await fetcher.document(PROTOCOL.body.uri)
    assert refused.value.code == "checkpoint.stale"
    assert "3700 seconds old; the policy allows 3600" in refused.value.message and "stopped" in refused.value.fix


async def test_proofs_of_any_age_follow_from_the_folders_tiles(site: Site, tmp_path: Path) -> None:
    await site.copy()
    early = tmp_path / "early"
    shutil.copytree(site.folder, early)
    await site.grow(0, 40)
    site.time.now += ROUND
    await site.copy()
    renewed = site.registry.head.size
    await site.grow(40, 256)
    await site.copy()
    # No leaf has changed the bundle. The tile is full by now, so the partial one of the bundle's head is gone.
    assert site.size_of(f"{PATH[1:]}.bundle") == renewed
    assert not [*(site.folder / "tile" / "0" / "000.p").iterdir()]
    home = tmp_path / "home"
    async with agent(home, site, early) as (fetcher, network):
        await fetcher.document(PROTOCOL.body.uri)
        assert not network.missed
    async with agent(home, site, site.folder, site.time.now) as (fetcher, network):
        await fetcher.document(PROTOCOL.body.uri)
        assert network.missed == [f"/tile/0/000.p/{renewed}"]
    # A round renews it, so that its proof does not become too old.
    site.time.now += ROUND
    await site.copy()
    assert site.size_of(f"{PATH[1:]}.bundle") == site.registry.head.size > 256
    async with agent(home, site, site.folder, site.time.now + 2000) as (fetcher, _):
        await fetcher.document(PROTOCOL.body.uri)
        assert TrustedRegistries(home).get(ORIGIN).newest == await fetcher.head(ORIGIN).refresh()


async def test_an_agent_continues_with_a_copy_after_the_registry(site: Site, tmp_path: Path) -> None:
    await site.copy()
    early, home = tmp_path / "early", tmp_path / "home"
    shutil.copytree(site.folder, early)
    site.time.now += ROUND
    await site.registry.leader.renew()
    await site.copy()
    # As from the registry itself, a round later than the bundle of the copy.
    async with agent(home, site, site.folder, site.time.now) as (fetcher, _):
        await fetcher.document(PROTOCOL.body.uri)
    async with agent(home, site, early, site.time.now + 10) as (fetcher, _):
        (view,) = await fetcher.topic(TOPIC)
        assert [protocol.uri for protocol in view.protocols] == [PROTOCOL.body.uri]


async def test_an_older_answer_of_another_cache_is_no_alarm(site: Site, tmp_path: Path) -> None:
    await site.copy()
    bundle, checkpoint = f"{PATH[1:]}.bundle", "checkpoint"
    older = {name: (site.folder / name).read_bytes() for name in (bundle, checkpoint)}
    await site.grow(0, 256)
    site.time.now += ROUND
    await site.copy()
    home = tmp_path / "home"
    async with agent(home, site, site.folder, site.time.now) as (fetcher, _):
        await fetcher.document(PROTOCOL.body.uri)
        newest = await fetcher.head(ORIGIN).refresh()
    # Another cache has the bundle and the checkpoint of before, and lets the immutable tiles through.
    cache = tmp_path / "cache"
    shutil.copytree(site.folder, cache)
    for name, data in older.items():
        (cache / name).write_bytes(data)
    async with agent(home, site, cache, site.time.now) as (fetcher, _):
        assert await fetcher.document(PROTOCOL.body.uri) == PROTOCOL.document
        assert (await fetcher.head(ORIGIN).refresh()).checkpoint.size < newest.checkpoint.size
        assert TrustedRegistries(home).get(ORIGIN).newest == newest
    assert not [*(home / "evidence").glob("*")]
    # It stays an error that the tiles do not prove it.
    for file in (cache / "tile" / "0").rglob("*"):
        if file.is_file():
            file.write_bytes(bytes(len(file.read_bytes())))
    async with agent(home, site, cache, site.time.now) as (fetcher, _):
        with pytest.raises(VerificationFailed) as refused:
            await fetcher.document(PROTOCOL.body.uri)
        assert refused.value.step == 2
        assert TrustedRegistries(home).get(ORIGIN).newest == newest


async def test_a_withdrawal_deletes_the_bytes_in_the_store(site: Site) -> None:
    await site.copy()
    digest, document = PROTOCOL.body.document.sha256, PROTOCOL.document
    names = (f"blobs/sha256/{digest}", f"{PATH[1:]}.md")
    assert all((site.folder / name).read_bytes() == document for name in names)
    await site.registry.withdrawals.withdraw([digest], "personal")
    await site.copy()
    assert not any((site.folder / name).exists() for name in names)
    encoded = canonical.b64encode(document).encode()[:24]
    assert encoded not in (site.folder / f"{PATH[1:]}.bundle").read_bytes()
    assert not [file for file in site.folder.rglob("*") if file.is_file() and (document in file.read_bytes())]
    # A leader that was replaced writes them once more: the next round deletes them again.
    for name in names:
        (site.folder / name).write_bytes(document)
    site.time.now += ROUND
    await site.copy()
    assert not any((site.folder / name).exists() for name in names)


async def test_a_leaf_renews_its_pages_and_another_leader_goes_on(site: Site) -> None:
    await site.copy()
    before = {file: file.stat().st_mtime_ns for file in site.folder.rglob("*.bundle")}
    site.site = site.another_leader()
    await site.copy()
    assert before == {file: file.stat().st_mtime_ns for file in site.folder.rglob("*.bundle")}
    other = publication(ALICE, "other", topic="other/topic")
    await publish(site.registry, ALICE, other)
    site.site = site.another_leader()
    await site.copy()
    assert (site.folder / f"{other.body.uri.removeprefix(f'https://{ORIGIN}/')}.bundle").is_file()
    assert (site.folder / "topics/other/topic.bundle").is_file()
    # What it changed, and nothing else.
    assert before == {file: file.stat().st_mtime_ns for file in before}
    await log(site.registry, kinds.Status(PROTOCOL.body.uri, "yanked"), ALICE)
    await site.copy()
    assert json.loads((site.folder / f"{PATH[1:]}.json").read_bytes())["status"] == "yanked"
    assert site.size_of(f"{PATH[1:]}.bundle") == site.registry.head.size
    (site.folder / "site.json").write_text('{"origin":"other.example"}')
    content = {file: file.read_bytes() for file in site.folder.rglob("*") if file.is_file()}
    with pytest.raises(Untrusted) as refused:
        await site.another_leader().renew(site.registry.head)
    assert refused.value.code == "log.other"
    assert content == {file: file.read_bytes() for file in site.folder.rglob("*") if file.is_file()}
