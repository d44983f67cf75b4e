"""A real registry for tests, on a real PostgreSQL, and the agents around it; only the web of DID documents is simulated."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from signers import NOW, ORIGIN, Signer, signed

from treaty_consensus import did, kinds
from treaty_consensus.errors import NotFound, TreatyError
from treaty_consensus.protocol import Card
from treaty_consensus.statement import Statement
from treaty_io.network.did_documents import DidDocument, read_did_document
from treaty_registry.admission.fair_queue import FairQueue
from treaty_registry.keys import Operator, load_operator
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings, Share

TOPIC = "commerce/product-info"


@dataclass
class Web:
    """The DID documents that can be fetched: DID → bytes. `fetched` counts."""

    documents: dict[str, bytes] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)

    def serve(self, *agents: Signer, note: str = "") -> None:
        """Put up the document of each agent, in place of the one before."""
        for agent in agents:
            self.documents[agent.did] = did_document(agent, note)

    async def resolve(self, name: did.Did) -> DidDocument:
        self.fetched.append(name.text)
        if name.text not in self.documents:
            raise NotFound("egress.not-found", f"{name.document_url} is not there.")
        return read_did_document(name, self.documents[name.text])


def did_document(agent: Signer, note: str = "") -> bytes:
    """A minimal DID document. `note` makes it another one."""
    method = {"id": agent.key_id, "type": "Multikey", "controller": agent.did}
    method["publicKeyMultibase"] = did.encode_multikey(agent.public_key)
    return json.dumps({"id": agent.did, "verificationMethod": [method], "authentication": [agent.key_id], "note": note}).encode()


def settings_for(data: Path, database: str | None, origin: str | None = ORIGIN) -> Settings:
    """The settings of a log of this name, which is new where there is none yet."""
    return new_or_not(Settings(data=data, origin=origin, database=database))


def new_or_not(settings: Settings) -> Settings:
    """The same settings for another start: the log is new where there is none yet."""
    return replace(settings, new=not settings.keys.exists())


@asynccontextmanager
async def open_registry(data: Path, database: str | None, web: Web) -> AsyncIterator[Registry]:
    """The registry whose data directory is `data`, with a clock that stands still."""
    settings = settings_for(data, database)
    async with Registry.open(settings, clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve) as registry:
        yield registry


def ballot(registry: Registry, seq: int = 0, *tiers: str, topic: str = TOPIC) -> kinds.Ballot:
    """A ballot that has seen the registry's newest checkpoint; without tiers, for no protocol at all."""
    return kinds.Ballot(topic, seq, tuple((tier,) for tier in tiers or (kinds.NONE,)), registry.head.note.decode())


def grant(owner: Signer, number: int = 0) -> kinds.Grant:
    """A statement that anybody may make, a did:key too, and that names no blob; another one for each number."""
    return kinds.Grant(did.parse_did(owner.did).namespace, f"did:wba:friend-{number}.example")


def bucket(statements: int) -> Share:
    """A quota of so many statements at once, as long as no load was measured; it hardly refills."""
    seconds = 1_000_000
    return Share((statements + 0.5) / FairQueue(time.monotonic).capacity / seconds, seconds)  # half of one more: it is no integer


@dataclass(frozen=True)
class Publication:
    """A protocol version, and the bytes it names."""

    body: kinds.Publish
    document: bytes
    card: bytes

    @property
    def blobs(self) -> dict[str, bytes]:
        return {self.body.document.sha256: self.document, self.body.card.sha256: self.card}


def publication(agent: Signer, name: str = "product-info", version: str = "1.0", topic: str = TOPIC) -> Publication:
    """A protocol in the agent's own namespace."""
    document = f"# {name} {version}\n\nAsk for a product.\n".encode()
    card = Card(title=f"{name} {version}", summary="Ask for a product.", tags=("shop",), licence="Apache-2.0").encode()
    namespace = did.parse_did(agent.did).namespace
    uri = f"https://{ORIGIN}/protocols/{namespace}/{name}/{version}"
    return Publication(kinds.Publish(uri, topic, blob(document), blob(card), "negotiated"), document, card)


def blob(data: bytes) -> kinds.Blob:
    return kinds.Blob(hashlib.sha256(data).hexdigest(), len(data))


def operator_in(data: Path) -> Operator:
    """The keys of the log's operator, read from its data directory, for statements that only the operator makes."""
    return load_operator(settings_for(data, None).keys)


async def publish(registry: Registry, agent: Signer, publication: Publication) -> Logged | TreatyError:
    """Upload what a publication names, then log it."""
    leaf = agent.statement(publication.body).leaf
    for digest, data in publication.blobs.items():
        await registry.put_blob(digest, leaf, data)
    return (await registry.submit([leaf]))[0]


async def log(registry: Registry, body: kinds.Body, *signers: Signer) -> Logged:
    """Sign and log a statement that is expected to be accepted."""
    (outcome,) = await registry.submit([signed(body, *signers).leaf])
    assert isinstance(outcome, Logged), outcome
    return outcome


async def refuse(registry: Registry, statement: Statement | bytes) -> TreatyError:
    """Submit a statement that is expected to be refused, and check that the refusal changed nothing."""
    before = await contents(registry)
    (outcome,) = await registry.submit([statement if isinstance(statement, bytes) else statement.leaf])
    assert isinstance(outcome, TreatyError), outcome
    assert await contents(registry) == before
    return outcome


async def contents(registry: Registry) -> dict[str, object]:
    """Everything a refused statement must not change: the head, and every row of every table but that of the leader."""
    tables = await registry.pool.fetch(
        "select tablename from pg_tables where schemaname = 'public' and tablename <> 'leadership' order by tablename"
    )
    rows: dict[str, object] = {}
    for (table,) in tables:
        columns = "t.sha256" if table == "pending_blobs" else "t"  # asking for an upload lets it wait longer
        rows[table] = await registry.pool.fetch(f'select {columns}::text from "{table}" t order by 1')
    return rows | {"head of this process": (registry.head.size, registry.head.root)}
