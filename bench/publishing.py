"""What the registries of the scenes hold: protocols, many of them, votes, and a decision.

A did:key has no vote. The voters of a scene have domains, and the log knows them before it is served: fetching their documents is
no part of a vote, and no scene has thousands of web servers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from treaty_client.protocols.project import Project, load_project
from treaty_client.registries.api import MAX_BATCH, RegistryClient
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_client.statements.publish import Publisher
from treaty_consensus.canonical import dumps, hex_digest
from treaty_consensus.did import Did
from treaty_consensus.kinds import NONE, Ballot, Blob, Grant, Publish
from treaty_consensus.protocol import Card
from treaty_consensus.statement import Statement
from treaty_io.identity import Identity
from treaty_io.network.did_documents import DidDocument, read_did_document
from treaty_io.network.hosts import Network
from treaty_registry.operator.control import ask
from treaty_registry.outbound import Resolve
from treaty_registry.registry import Registry as RunningRegistry
from treaty_registry.settings import Settings

from .servers import REPOSITORY, Registry, SceneFailed

PRODUCT_INFO = REPOSITORY / "protocols" / "product-info"
TOPIC = "commerce/product-info"


@dataclass
class Voter:
    """A DID with a domain, and how often it has voted in each topic."""

    identity: Identity
    cast: Counter[str] = field(default_factory=Counter)


def make_voters(number: int) -> list[Voter]:
    """So many, each with a domain of its own."""
    return [Voter(Identity.create(f"voter-{index}.example")) for index in range(number)]


async def introduce(voters: Sequence[Voter], data: Path, origin: str) -> None:
    """Make the log `origin` in the empty directory `data`, and have it know the DIDs of these voters."""
    async with RunningRegistry.open(Settings(data, new=True, origin=origin), resolve=resolving(voters)) as opened:
        await acquaint(opened, voters)


def resolving(voters: Sequence[Voter]) -> Resolve:
    """Return the look-up of these voters' documents."""
    documents = {voter.identity.did: dumps(voter.identity.did_document()) for voter in voters}

    async def resolve(did: Did) -> DidDocument:
        return read_did_document(did, documents[did.text])

    return resolve


async def acquaint(opened: RunningRegistry, voters: Sequence[Voter]) -> None:
    """Have the log of a registry know the DIDs of these voters."""
    dids = [voter.identity.did for voter in voters]
    # A few at a time: a look-up waits three seconds for a connection to the database, and then fails.
    for first in range(0, len(dids), 64):
        await asyncio.gather(*map(opened.authentication_keys, dids[first : first + 64]))


@dataclass(frozen=True)
class Author:
    """Who publishes: a did:key at one registry. `voters`: who votes there."""

    registry: Registry
    identity: Identity
    client: RegistryClient
    publisher: Publisher
    voters: Sequence[Voter] = ()

    async def publish(self, version: str) -> str:
        """Publish that version of the first-party protocol, handler and attestation included; its URI."""
        return await self.publish_project(load_project(PRODUCT_INFO / version))

    async def publish_project(self, project: Project) -> str:
        """Publish a project, handler and attestation included; its URI. Its document may be another one than `treaty document`
        would write."""
        return [step async for step in self.publisher.publish(project, is_agreed=True)][-1].uri

    async def publish_many(self, number: int) -> list[str]:
        """Publish so many small protocols without handlers, all with the same document; their paths."""
        document = b"# A small protocol\n\nAsk, and it shall be answered.\n"
        card = Card("A small protocol", "One of many that fill the catalogue.", ("many",), "Apache-2.0").encode()
        paths = [f"/protocols/{self.identity.parsed.namespace}/small-{index}/1.0" for index in range(number)]
        uris = [f"https://{self.registry.origin}{path}" for path in paths]
        bodies = [Publish(uri, "many/small", _blob(document), _blob(card), "negotiated") for uri in uris]
        statements = [self.identity.statement(body, log=self.registry.origin, issued=_now()) for body in bodies]
        for data in (document, card):
            await self.client.put_blob(data, statements[0])
        await self.log(statements)
        return paths

    async def votes(self, number: int, choices: Sequence[str], topic: str = TOPIC) -> list[Statement]:
        """As many signed votes, each the next of another voter, that have seen the newest checkpoint; first choice first. All of
        them have to be logged before the next ones in this topic."""
        note = (await self.client.checkpoint()).decode()
        tiers = tuple((choice,) for choice in (*choices, NONE))
        votes = []
        for voter in self.voters[:number]:
            ballot = Ballot(topic, voter.cast[topic], tiers, note)
            votes.append(voter.identity.statement(ballot, log=self.registry.origin, issued=_now()))
            voter.cast[topic] += 1
        if len(votes) < number:
            raise SceneFailed(f"{number} votes of {len(votes)} voters were asked for")
        return votes

    def grants(self, number: int) -> list[Statement]:
        """As many statements that need nothing but a signature: each lets another DID publish in the author's namespace."""
        bodies = [Grant(self.identity.did, f"did:wba:agent-{index}.example") for index in range(number)]
        return [self.identity.statement(body, log=self.registry.origin, issued=_now()) for body in bodies]

    async def log(self, statements: Sequence[Statement]) -> None:
        """Log all of them. Raises `SceneFailed` when one is refused."""
        for start in range(0, len(statements), MAX_BATCH):
            for outcome in await self.client.submit_batch(statements[start : start + MAX_BATCH]):
                if not isinstance(outcome, bytes):
                    raise SceneFailed(str(outcome)) from outcome

    async def decide(self) -> None:
        """Close the open epoch."""
        await ask(self.registry.data / "run", "decide")


@asynccontextmanager
async def author(registry: Registry, home: Path, voters: Sequence[Voter] = ()) -> AsyncIterator[Author]:
    """A new author at a registry, whose trust is kept in `home`. `voters`: as they were introduced to it."""
    identity, network, registries = Identity.create(), Network(), TrustedRegistries(home)
    registries.add(parse_registry_name(registry.name))
    async with RegistryClient(registry.url, network) as client:
        yield Author(registry, identity, client, Publisher(identity, client, registries, registry.origin, network), voters)


def hashes() -> list[str]:
    """The protocol hashes of the first-party protocol, newest version first."""
    return [load_project(PRODUCT_INFO / version).protocol_hash for version in ("1.1", "1.0")]


def _blob(data: bytes) -> Blob:
    return Blob(hex_digest(data), len(data))


def _now() -> int:
    return int(time.time())
