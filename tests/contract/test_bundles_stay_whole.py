"""What the registry puts into its bundles is what clients hold it to: an honest log may grow as it likes, and no client stops.

The rule of clients (`treaty_client.protocols.verification.completeness`) and the registry's queries are written twice. They meet
here.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from http_api import attach, publish, say
from registries import TOPIC, Publication, Web, ballot, log, publication
from signers import Signer, domain_signer

from treaty_client.protocols.verification import completeness
from treaty_client.protocols.verification.completeness import RegistryAnswer, left_out
from treaty_client.protocols.verification.ten_steps import examine
from treaty_client.protocols.verification.topic import view_topic
from treaty_client.registries import bundle as bundles
from treaty_client.registries.bundle import Bundle, parse_bundle
from treaty_client.registries.leaves import SeenLeaf
from treaty_client.registries.memory import SeenLeaves
from treaty_client.registries.trust import RegistryName, TrustedRegistry
from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.kinds import Decision, Handler, Publish
from treaty_registry.admission import statements
from treaty_registry.catalogue import queries
from treaty_registry.registry import Registry
from treaty_registry.serving import bundles as serving

PATH = "/protocols/alice.example/product-info/1.0.bundle"
BY_TOPIC = f"/topics/{TOPIC}.bundle"


class Reader:
    """An agent that remembers all that it is shown, and says what a later answer lacks."""

    def __init__(self, api: httpx.AsyncClient, registry: Registry, home: Path) -> None:
        self._api, self._seen = api, SeenLeaves(home)
        name = RegistryName(f"https://{registry.origin}", registry.log_key)
        self.trusted, self.origin = TrustedRegistry(name, None), registry.origin

    async def read(self, path: str) -> Bundle:
        """Read a bundle, which lacks nothing, and remember it."""
        bundle = parse_bundle((await self._api.get(path)).content)
        evidence = examine(bundle, self.trusted, now=None, max_age=0)
        answer = RegistryAnswer(evidence, bundle.uri, bundle.topic)

        def check(seen: list[SeenLeaf]) -> None:
            assert [(leaf.index, leaf.statement.type) for leaf in left_out(answer, seen)] == []

        leaves = [SeenLeaf(leaf.index, leaf.leaf, leaf.proof, bundle.checkpoint) for leaf in bundle.leaves]
        self._seen.learn(self.origin, leaves, answer.subjects, check=check)
        return bundle

    async def lacks(self, path: str, *indexes: int) -> list[int]:
        """What a bundle is found to lack when leaves are taken out of it."""
        bundle = parse_bundle((await self._api.get(path)).content)
        leaves = tuple(leaf for leaf in bundle.leaves if leaf.index not in indexes)
        rest = Bundle(bundle.checkpoint, leaves, bundle.blobs, bundle.uri, bundle.topic)
        answer = RegistryAnswer(examine(rest, self.trusted, now=None, max_age=0), rest.uri, rest.topic)
        return [leaf.index for leaf in left_out(answer, self._seen.about(self.origin, answer.subjects))]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lists that are full soon, on both sides."""
    for module, name in (
        (queries, "MAX_HANDLERS"),
        (completeness, "MAX_HANDLERS"),
        (serving, "MAX_TOPIC_PROTOCOLS"),
        (completeness, "MAX_TOPIC_PROTOCOLS"),
    ):
        monkeypatch.setattr(module, name, 6)
    return 6


def of_kind(bundle: Bundle, kind: type[kinds.Body]) -> list[int]:
    return [leaf.index for leaf in bundle.leaves if isinstance(SeenLeaf(leaf.index, leaf.leaf, (), b"").statement.body, kind)]


def test_both_count_to_the_same_number() -> None:
    assert (bundles.MAX_HANDLERS, bundles.MAX_TOPIC_PROTOCOLS) == (queries.MAX_HANDLERS, serving.MAX_TOPIC_PROTOCOLS)


async def test_a_protocol_with_more_handlers_than_a_bundle_holds(
    api: httpx.AsyncClient,
    registry: Registry,
    alice: Signer,
    bob: Signer,
    tmp_path: Path,
    few: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader(api, registry, tmp_path)
    statement = publication(alice)
    await publish(api, alice, statement)
    for release in range(3):
        theirs = await attach(api, bob, statement, f"9.{release}")
        await reader.read(PATH)
    assert isinstance(theirs.body, Handler)
    await say(api, bob, kinds.Status(statement.body.uri, "yanked", wheel=theirs.body.wheel.sha256))
    for release in range(few + 2):
        await attach(api, alice, statement, str(release))
        bundle = await reader.read(PATH)
    handlers = of_kind(bundle, Handler)
    assert len(handlers) == few
    for index in handlers:
        assert index in await reader.lacks(PATH, index)
    monkeypatch.setattr(completeness, "MAX_HANDLERS", few - 1)  # as if the list were full without it
    assert handlers[-1] in await reader.lacks(PATH, handlers[-1]) and handlers[0] not in await reader.lacks(PATH, handlers[0])


@pytest.mark.deep
async def test_a_topic_with_more_protocols_than_a_bundle_holds(
    api: httpx.AsyncClient,
    registry: Registry,
    web: Web,
    alice: Signer,
    bob: Signer,
    tmp_path: Path,
    few: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader(api, registry, tmp_path)
    early = [publication(alice, f"early-{number}") for number in range(3)]
    for statement in early:
        await publish(api, alice, statement)
    await publish(api, bob, publication(bob, "first"))
    await say(api, alice, kinds.Status(early[1].body.uri, "deprecated"))
    await reader.read(BY_TOPIC)
    elected = early[0].body.document.sha256
    agents = tuple(domain_signer(f"{name}.example") for name in ("charlie", "delta", "echo", "foxtrot", "golf"))
    web.serve(alice, bob, *agents)
    for agent in agents:
        await say(api, agent, ballot(registry, 0, elected))
    for epoch in range(2):
        await report(registry, elected, epoch, agents)
        await registry.decide()
        for number in range(few):
            await publish(api, bob, publication(bob, f"later-{epoch}-{number}"))
            bundle = await reader.read(BY_TOPIC)
    listed = of_kind(bundle, Publish)
    assert len(listed) == few and len(of_kind(bundle, Decision)) == 1
    assert named_in(bundle) == {elected} and await reader.lacks(BY_TOPIC) == []
    for index in (*listed, *of_kind(bundle, Decision)):
        assert index in await reader.lacks(BY_TOPIC, index)
    monkeypatch.setattr(completeness, "MAX_TOPIC_PROTOCOLS", few - 1)
    assert listed[0] in await reader.lacks(BY_TOPIC, listed[0]), "it is named"
    assert listed[1] not in await reader.lacks(BY_TOPIC, listed[1]) and listed[-1] in await reader.lacks(BY_TOPIC, listed[-1])
    monkeypatch.setattr(completeness, "MAX_TOPIC_PROTOCOLS", few)
    await publish(api, alice, based_on(early[0], publication(alice, "change")))
    await reader.read(BY_TOPIC)
    await reader.read("/protocols/alice.example/change/1.0.bundle")


@pytest.mark.deep
async def test_a_topic_of_versions_that_are_based_on_those_before(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle holds the whole chain; the newest are the list, whatever is based on them."""
    monkeypatch.setattr(statements, "MAX_BASES", 100)  # an earlier release admitted longer chains
    reader, indexes = Reader(api, registry, tmp_path), {}
    chain = [publication(alice, "version-0")]
    await publish(api, alice, chain[0])
    for number in range(1, 2 * few):
        chain.append(based_on(chain[-1], publication(alice, f"version-{number}")))
        await publish(api, alice, chain[-1])
        statement = await say(api, alice, kinds.Status(chain[-1].body.uri, "deprecated"))
        bundle = await reader.read(BY_TOPIC)
        indexes[number] = next(leaf.index for leaf in bundle.leaves if leaf.leaf == statement.leaf)
    published = of_kind(bundle, Publish)
    assert len(published) == len(chain), "every one is the base of another, or the newest"
    assert of_kind(bundle, kinds.Status) == [indexes[number] for number in range(few, 2 * few)]
    for number in range(few, 2 * few):
        assert await reader.lacks(BY_TOPIC, indexes[number]) == [indexes[number]], "being a base takes nothing out of the list"
    evidence = examine(bundle, reader.trusted, now=None, max_age=0)
    assert {protocol.uri for protocol in view_topic(bundle, TOPIC, evidence).protocols} == {
        statement.body.uri for statement in chain[few:]
    }, "those without statuses are not offered"
    chain.append(based_on(chain[-1], publication(alice, "newest")))
    await publish(api, alice, chain[-1])
    newest = of_kind(await reader.read(BY_TOPIC), Publish)[-1]
    assert newest in await reader.lacks(BY_TOPIC, newest)


async def report(registry: Registry, document: str, epoch: int, agents: tuple[Signer, ...]) -> None:
    """Five agents report in a ring that they agreed on a document."""
    for number, (one, other) in enumerate(zip(agents, (*agents[1:], agents[0]), strict=True)):
        nid = hex_digest(f"negotiation {epoch} {number}".encode())
        seen = ballot(registry).seen_checkpoint
        await log(registry, kinds.Report(TOPIC, nid, document, "agreed", epoch, seen), one, other)


def named_in(bundle: Bundle) -> set[str]:
    """The documents that the bundle's decision names."""
    bodies = [SeenLeaf(leaf.index, leaf.leaf, (), b"").statement.body for leaf in bundle.leaves]
    return {d for body in bodies if isinstance(body, Decision) for d, state in body.states if state != "published"}


@pytest.mark.threat(20)
async def test_everything_else_that_may_happen(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, bob: Signer, tmp_path: Path
) -> None:
    reader = Reader(api, registry, tmp_path)
    statement = publication(alice)
    await publish(api, alice, statement)

    async def both() -> None:
        await reader.read(PATH)
        await reader.read(BY_TOPIC)

    await both()
    await say(api, alice, kinds.Grant("alice.example", bob.did))
    await say(api, alice, kinds.Grant("alice.example", alice.did))
    await publish(api, bob, publication(alice, "guest"))
    await both()
    first = await attach(api, alice, statement)
    assert isinstance(first.body, Handler)
    for state in ("deprecated", "yanked", "active"):
        await say(api, alice, kinds.Status(statement.body.uri, state))
        await say(api, alice, kinds.Status(statement.body.uri, state, wheel=first.body.wheel.sha256))
        await both()
    renamed = Signer(alice.did, f"{alice.did}#key-2", alice.private_key)  # the same key, so the same tenure
    web.serve(renamed)
    await attach(api, renamed, statement, "2")
    await both()
    for seq in range(2):
        await log(registry, ballot(registry, seq, statement.body.document.sha256), renamed)
        await registry.decide()
        await both()


def based_on(base: Publication, publication: Publication) -> Publication:
    pinned = kinds.Base(base.body.uri, base.body.document.sha256)
    body = kinds.Publish(
        publication.body.uri, publication.body.topic, publication.body.document, publication.body.card, "negotiated", base=pinned
    )
    return Publication(body, publication.document, publication.card)
