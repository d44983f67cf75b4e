"""Consensus protocols by their URIs, as the source describes them; how they are downloaded and elected, which it leaves open."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, kept_in, refused_at
from signers import domain_signer
from simulated_log import LogBuilder
from simulated_registry import TOPIC, match_of, uri_of, with_echo

from treaty_agent.discovery.client import candidates
from treaty_anp.discovery.parsing import AgentDescription, SupportedProtocol
from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError


def described(*uris: str) -> AgentDescription:
    return AgentDescription("https://shop.example/ad.json", "", "", "", (), tuple(map(SupportedProtocol, uris)))


async def test_000_62_and_66_each_version_has_its_uri_and_code(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.attach("2.0")
    async with fetcher(registry, tmp_path) as agent:
        first, second = [await agent.fetch(uri_of(version)) for version in ("1.0", "2.0")]
    for verified, uri in ((first, uri_of()), (second, uri_of("2.0"))):
        manifest = verified.package.manifest
        assert (verified.uri, manifest.protocol_uri, manifest.protocol_hash) == (uri, uri, verified.hash)
        assert hex_digest(registry.blobs[verified.hash]) == verified.hash
    assert first.hash != second.hash
    assert first.package.digest != second.package.digest


def test_000_62_a_uri_never_comes_to_mean_another_document() -> None:
    registry = with_echo()
    before = list(registry.leaves)
    with pytest.raises(TreatyError) as caught:
        registry.publish("1.0", document=b"# Another\n")
    assert caught.value.code == "publish.version-exists"
    assert registry.leaves == before


async def test_000_62_a_standard_made_by_people_has_its_own_uri_too(tmp_path: Path) -> None:
    registry = with_echo()
    name = "https://alice.example/specs/echo"
    publication = registry.publish("2.0", aliases=(name,), origin="standard")
    registry.attach("2.0")
    registry.aliases[name] = [match_of(publication)]
    async with fetcher(registry, tmp_path) as agent:
        assert (await agent.fetch(name)).uri == uri_of("2.0")


def test_000_62_and_66_reports_and_votes_elect_the_consensus() -> None:
    log = LogBuilder()
    agents = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie")]
    document = log.publish(agents[0], "product-info")
    states = []
    for _ in range(3):
        for first, second in ((0, 1), (1, 2), (0, 2)):
            log.report(agents[first], agents[second], document)
        for agent in agents:
            log.vote(agent, document)
        states += log.states(document)
    assert states == ["candidate", "provisional", "consensus"]


async def test_000_63_and_66_common_protocols_are_offered_first(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.publish("3.0")
    async with fetcher(registry, tmp_path) as agent:
        own = (await agent.candidates(TOPIC)).uris
    assert own == (uri_of("3.0"), uri_of("2.0"), uri_of())
    assert candidates(described("https://elsewhere.example/x", uri_of()), own) == (uri_of(), uri_of("3.0"), uri_of("2.0"))


@pytest.mark.threat(108)
async def test_000_65_and_66_a_listed_uri_is_neither_trusted_nor_there(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    listed = described(uri_of(), uri_of("2.0"), "https://stranger.example/protocols/stranger.example/echo/1.0")
    assert candidates(listed) == listed.uris
    await refused_at(1, registry, tmp_path, listed.uris[2])
    await refused_at(6, registry, tmp_path, listed.uris[1])
    await refused_at(6, registry, tmp_path, listed.uris[0], publishers=())
    assert "treaty.lock" not in kept_in(tmp_path)
    assert isinstance(registry.statements()[-1][1].body, kinds.Publish)
