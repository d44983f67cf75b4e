"""A registry in memory that really signs: the real rules, the real log, the real Sigstore services, behind an HTTP transport.

`with_echo()` gives a fresh copy of one in which ALICE has published the protocol `echo` with a handler. A test changes it, lies
with it (`tamper`, `rewritten`, `force`, `served`, `cosigned`), and reaches it through `network()`, as a client through the wire.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

import httpx
from signers import ORIGIN, Signer, domain_signer, identity_body, key_signer, signed
from simulated_sigstore import Authority, serving

from treaty_client.protocols.attestation import Binding, attest, identity_token
from treaty_client.registries.bundle import Bundle, BundledLeaf
from treaty_client.registries.trust import RegistryName, TrustedRegistries
from treaty_consensus import canonical, kinds, statement
from treaty_consensus.admit import admit, reads
from treaty_consensus.audit import Replay
from treaty_consensus.did import parse_did
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import NotFound, TreatyError
from treaty_consensus.facts import Fact, LogFact, keys_of
from treaty_consensus.handler import HandlerMetadata, build_wheel
from treaty_consensus.log import merkle, tiles
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.durability import Durability
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_consensus.log.note import sign as sign_note
from treaty_consensus.log.proof import Receipt
from treaty_consensus.protocol import Card, parse_protocol_uri
from treaty_consensus.statement import Draft, Statement
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network
from treaty_registry.sigstore_authority import trust
from treaty_registry.sigstore_authority.ca import CertificateAuthority
from treaty_registry.sigstore_authority.keys import AuthorityKeys, create_keys
from treaty_registry.sigstore_authority.ports import LoggedLeaf
from treaty_registry.sigstore_authority.rekor import EntryLog
from treaty_registry.sigstore_authority.timestamps import TimestampAuthority

OPERATOR, ALICE, BOB = key_signer("operator"), domain_signer("alice.example"), domain_signer("bob.example")
_OPERATOR = parse_did(OPERATOR.did)
BASE_URL = f"https://{ORIGIN}"
TOPIC = "demo/echo"
LOG_KEY = SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"log key").digest())
CLOCK_KEY = SignerKey(f"{ORIGIN}/clock", KeyType.COSIGNATURE, hashlib.sha256(b"clock key").digest())
NAME = RegistryName(BASE_URL, LOG_KEY.verifier)


def uri_of(version: str = "1.0", *, name: str = "echo", signer: Signer = ALICE) -> str:
    """The URI of a protocol in a signer's own namespace."""
    return f"{BASE_URL}/protocols/{parse_did(signer.did).namespace}/{name}/{version}"


def blob_of(data: bytes) -> kinds.Blob:
    """A blob's name."""
    return kinds.Blob(canonical.hex_digest(data), len(data))


@dataclass
class SimulatedRegistry:
    """`now`: Unix seconds, for everything the registry signs; a real time, for the stock Sigstore client has a clock of its own.
    `requests`: what was asked of it, as `METHOD PATH`. `services`: where its Sigstore services are said to be. `left_out`: leaves
    that its bundles do not hold, as if they were not in the log. `durability`: what its checkpoints promise."""

    keys: AuthorityKeys
    now: int
    leaves: list[bytes] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    aliases: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    served: int | None = None
    cosigned: int | None = None
    services: str = BASE_URL
    left_out: set[int] = field(default_factory=set)
    durability: Durability = field(default_factory=Durability)
    tamper: Callable[[str, bytes], bytes] = lambda path, body: body
    nodes: dict[merkle.Node, bytes] = field(default_factory=dict)
    recommended: str = "0.1.0"
    """The release of agents that it recommends."""
    meant: dict[int, Statement] = field(default_factory=dict)
    """What this registry, as one of a newer release, reads in leaves that are `Newer` here."""
    _frontier: merkle.Frontier = field(default_factory=merkle.Frontier)

    def __post_init__(self) -> None:
        log_key = LOG_KEY.verifier.public
        self.trusted_root = trust.trusted_root(self.keys, origin=ORIGIN, log_key=log_key)
        self.ca = CertificateAuthority(
            self.keys,
            origin=ORIGIN,
            append=self.log_sigstore_leaf,
            authentication_keys=self.authentication_keys,
            spend=self.spend,
            clock=self.clock,
        )
        self.tsa = TimestampAuthority(self.keys, clock=self.clock)
        self.rekor = EntryLog(self.keys, log_key=lambda: LOG_KEY.verifier, append=self.log_sigstore_leaf, clock=self.clock)
        if not self.leaves:
            root = self.put(self.trusted_root).sha256
            genesis = kinds.Genesis(ORIGIN, str(LOG_KEY.verifier), str(CLOCK_KEY.verifier), OPERATOR.did, root)
            self.add(genesis, OPERATOR)
            self.add(development_parameters(), OPERATOR)
            for signer in (ALICE, BOB):
                self.submit(remade(signed(identity_body(signer), OPERATOR, issued=self.now), {"grease.note": True}, OPERATOR))
        for leaf in self.leaves[self._frontier.size :]:
            self._grow(leaf)

    def copy(self, *, leaves: list[bytes] | None = None) -> SimulatedRegistry:
        """An independent registry of the same state; `leaves`: with another history."""
        return SimulatedRegistry(
            self.keys,
            self.now,
            list(leaves or self.leaves),
            dict(self.facts),
            dict(self.blobs),
            set(self.withdrawn),
            dict(self.aliases),
        )

    def rewritten(self, index: int, leaf: bytes) -> SimulatedRegistry:
        """A fork: the same log with another leaf `index`."""
        return self.copy(leaves=[*self.leaves[:index], leaf, *self.leaves[index + 1 :]])

    # Writing

    def add(self, body: kinds.Body, *signers: Signer) -> Statement:
        """Sign a statement and log it as any registry would; refused are those that break a rule."""
        statement = signed(body, *signers, issued=self.now)
        self.submit(statement.leaf)
        return statement

    def submit(self, leaf: bytes) -> int:
        """Admit and log a leaf; its index. Raises what admission raises."""
        if leaf in self.leaves:
            return self.leaves.index(leaf)
        record = statement.read(leaf)
        for blob in kinds.blobs_of(record.body):
            if blob.sha256 not in self.blobs and not isinstance(record.body, kinds.Identity):
                raise NotFound("blob.missing", f"The blob {blob.sha256} was not uploaded.")
        keys = {key_id: key for did in record.authors for key_id, key in keys_of(self.facts, did).items()}
        looked_at = {key: self.facts[key] for key in reads(record) if key in self.facts}
        self.facts |= admit(looked_at, statement.verify(record, keys), len(self.leaves))
        return self.force(leaf)

    def force(self, leaf: bytes) -> int:
        """Log a leaf against all rules; its index."""
        self.leaves.append(leaf)
        self._grow(leaf)
        return len(self.leaves) - 1

    def put(self, data: bytes) -> kinds.Blob:
        """Keep a blob."""
        blob = blob_of(data)
        self.blobs[blob.sha256] = data
        return blob

    def publish(
        self, version: str = "1.0", *, signer: Signer = ALICE, document: bytes | None = None, aliases: tuple[str, ...] = (),
        origin: Any = "negotiated",
    ) -> Statement:  # fmt: skip
        """Publish a version of the signer's `echo`."""
        document = document or f"# Echo {version}\n\nWhat is sent comes back.\n".encode()
        card = Card(f"Echo {version}", "Comes back.").encode()
        body = kinds.Publish(uri_of(version, signer=signer), TOPIC, self.put(document), self.put(card), origin, aliases=aliases)
        return self.add(body, signer)

    def attach(
        self, version: str = "1.0", *, signer: Signer = ALICE, release: str = "1", of: Signer = ALICE,
        attested: Mapping[str, str] | None = None, attested_by: Signer | None = None,
    ) -> Statement:  # fmt: skip
        """Build, attest and attach a handler for a version of the `echo` of `of`; `attested`: what to falsify in the binding."""
        uri = uri_of(version, signer=of)
        document = self.document_of(uri)
        filename, wheel = echo_wheel(uri, document.sha256, release)
        entry_point = "treaty_handler_echo:handler"
        binding = {"wheel": canonical.hex_digest(wheel), "uri": uri, "protocol_hash": document.sha256, "entry_point": entry_point}
        bundle = self.attest(Binding(**(binding | dict(attested or {}))), filename, attested_by or signer)
        body = kinds.Handler(uri, document.sha256, filename, self.put(wheel), entry_point, self.put(bundle))
        return self.add(body, signer)

    def attest(self, binding: Binding, filename: str, signer: Signer) -> bytes:
        """A Sigstore bundle through the registry's own services, over HTTP."""

        def token(digest: str) -> str:
            return identity_token(
                signer.key_id, signer.sign, origin=ORIGIN, now=self.now, jti=f"{len(self.leaves):016}", csr_key_digest=digest
            )

        with serving(cast(Authority, self)) as base_url:
            config = trust.trust_config(self.trusted_root, origin=ORIGIN, base_url=base_url)
            return attest(binding, filename, trust_config=config, token=token)

    def decide(self) -> list[kinds.Decision]:
        """Close the open epoch."""
        replay = Replay()
        for leaf in self.leaves:
            replay.append(leaf)
        due = replay.decide()
        for item in due:
            self.put(item.transcript)
            self.put(item.roll)
            self.add(item.decision, OPERATOR)
        return [item.decision for item in due]

    # Reading

    @property
    def size(self) -> int:
        """The size of the log as it is served."""
        return len(self.leaves) if self.served is None else self.served

    def root(self) -> bytes:
        """The root at `size`."""
        return merkle.root(self.size, self.nodes)

    def checkpoint(self) -> bytes:
        """The checkpoint that is served."""
        text = Checkpoint(ORIGIN, self.size, self.root(), self.durability.extensions).format()
        return sign_note(text, [LOG_KEY, CLOCK_KEY], time=self.now if self.cosigned is None else self.cosigned)

    def statements(self) -> list[tuple[int, Statement]]:
        """All statements below `size` that parse."""
        numbered = []
        for index, leaf in enumerate(self.leaves[: self.size]):
            if leaf.startswith(b'{"payload":'):
                numbered.append((index, self.meant.get(index) or statement.read(leaf)))
        return numbered

    def shown(self) -> list[tuple[int, Statement]]:
        """The statements that bundles are made from."""
        return [(index, statement) for index, statement in self.statements() if index not in self.left_out]

    def document_of(self, uri: str) -> kinds.Blob:
        """The document that is published under a URI."""
        for _, entry in self.shown():
            if isinstance(entry.body, kinds.Publish) and entry.body.uri == uri:
                return entry.body.document
        raise NotFound("protocol.unknown", f"{uri} is not published here.")

    def bundle(self, uri: str, since: int | None = None) -> bytes:
        """The bundle of a protocol."""
        self.document_of(uri)
        rest_of = [
            (index, statement)
            for index, statement in self.shown()
            if isinstance(statement.body, kinds.Publish | kinds.Handler | kinds.Status) and statement.body.uri == uri
        ]
        body = next(statement.body for _, statement in rest_of if isinstance(statement.body, kinds.Publish))
        bases: list[tuple[int, Statement]] = []
        published = {s.body.uri: (i, s, s.body.base) for i, s in self.shown() if isinstance(s.body, kinds.Publish)}
        base = body.base
        while base is not None:
            index, statement, base = published[base.uri]
            bases.append((index, statement))
        return self._bundle({"uri": uri}, sorted([*rest_of, *bases], key=lambda entry: entry[0]), body.topic, since)

    def topic_bundle(self, topic: str, since: int | None = None) -> bytes:
        """The bundle of a topic."""
        about = kinds.Publish | kinds.Handler | kinds.Status
        listed = [(index, statement, statement.body) for index, statement in self.shown() if isinstance(statement.body, about)]
        uris = {body.uri for _, _, body in listed if isinstance(body, kinds.Publish) and body.topic == topic}
        matching = [(index, statement) for index, statement, body in listed if body.uri in uris]
        if not matching:
            raise NotFound("topic.unknown", f"Nothing is published in {topic}.")
        return self._bundle({"topic": topic}, matching, topic, since)

    def network(self, **options: Any) -> SimulatedNetwork:
        """The wire to this registry."""
        return SimulatedNetwork(self, **options)

    def trusted_in(self, home: Path) -> TrustedRegistries:
        """The registries of a home, this one among them."""
        registries = TrustedRegistries(home)
        registries.add(NAME)
        return registries

    # The ports of the Sigstore services

    def clock(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    async def log_sigstore_leaf(self, leaf: bytes) -> LoggedLeaf:
        index = self.force(leaf)
        proof = merkle.inclusion_proof(index, self.size, self.nodes)
        return LoggedLeaf(index, self.size, proof, self.root(), self.checkpoint().decode())

    async def authentication_keys(self, did: str) -> Mapping[str, bytes]:
        return keys_of(self.facts, parse_did(did))

    async def spend(self, token: str, until: datetime) -> bool:
        return True

    # Inside

    def _grow(self, leaf: bytes) -> None:
        index = self._frontier.size
        for level, completed in enumerate(self._frontier.append(merkle.leaf_hash(leaf))):
            self.nodes[merkle.Node(level, index >> level)] = completed

    def _bundle(self, name: dict[str, str], entries: list[tuple[int, Statement]], topic: str, since: int | None) -> bytes:
        statements = self.shown()
        dids = {did.text for _, entry in entries for did in entry.authors}
        grants = [
            entry
            for index, entry in statements
            if isinstance(entry.body, kinds.Grant) and self._rests_on(index, entry.body, entries)
        ]
        dids |= {entry.author.text for entry in grants}
        parameters = [index for index, entry in statements if isinstance(entry.body, kinds.Parameters)]
        indexes = {0, 1, *parameters[-1:]} | {index for index, _ in entries}
        for index, entry in statements:
            body = entry.body
            if (isinstance(body, kinds.Identity) and body.did in dids) or entry in grants:
                indexes.add(index)
        decisions = [
            (index, entry.body)
            for index, entry in statements
            if isinstance(entry.body, kinds.Decision) and entry.body.topic == topic
        ]
        indexes |= {index for index, _ in decisions[-1:]}
        if any(
            isinstance(entry.body, kinds.Identity) and entry.body.did in dids and entry.body.tenure > 1 for _, entry in statements
        ):
            indexes.add(self.time_index(max(index for index, _ in entries)))
        leaves = tuple(BundledLeaf(index, self.leaves[index], self.inclusion(index)) for index in sorted(indexes))
        digests = {blob.sha256 for _, entry in entries for blob in _bundled_blobs(entry.body)}
        digests |= {decision.transcript.sha256 for _, decision in decisions[-1:]} | {canonical.hex_digest(self.trusted_root)}
        blobs = {digest: self.blobs[digest] for digest in sorted(digests - self.withdrawn)}
        consistency = None if since is None else self._consistency(since)
        return Bundle(self.checkpoint(), leaves, blobs, name.get("uri", ""), name.get("topic", ""), consistency).encode()

    def _rests_on(self, index: int, grant: kinds.Grant, entries: list[tuple[int, Statement]]) -> bool:
        """Whether it is the newest grant of its pair, in the log or before a publish by the guest."""
        pair = [
            place
            for place, statement in self.shown()
            if isinstance(statement.body, kinds.Grant)
            and (statement.body.namespace, statement.body.to) == (grant.namespace, grant.to)
        ]
        guests = [
            place
            for place, statement in entries
            if isinstance(statement.body, kinds.Publish)
            and statement.author.text == grant.to
            and parse_protocol_uri(statement.body.uri).namespace == grant.namespace
        ]
        return bool(guests) and any(index == max((p for p in pair if p < end), default=-1) for end in (*guests, self.size))

    def time_index(self, before: int) -> int:
        """The leaf that set the log's clock last."""
        by_operator = [
            (statement.issued, -index)
            for index, statement in self.statements()
            if statement.author == _OPERATOR and index < before
        ]
        return -max(by_operator)[1]

    def inclusion(self, index: int) -> tuple[bytes, ...]:
        return tuple(merkle.inclusion_proof(index, self.size, self.nodes))

    def _consistency(self, since: int) -> tuple[bytes, ...]:
        return tuple(merkle.consistency_proof(since, self.size, self.nodes)) if since <= self.size else ()

    def tile(self, path: str) -> bytes:
        tile = tiles.parse_path(path)
        if isinstance(tile, tiles.Bundle):
            first = tile.index * tiles.TILE_WIDTH
            return tiles.encode_bundle(self.leaves[first : min(first + tile.width, self.size)])
        edge, changed = tiles.TreeEdge().appended(merkle.leaf_hash(leaf) for leaf in self.leaves)
        everything = {**edge.tiles, **changed}
        for stored_tile, content in everything.items():
            if (stored_tile.level, stored_tile.index) == (tile.level, tile.index):
                return tiles.truncated(tile, content)
        raise NotFound("log.form", f"There is no {path}.")

    def answer(self, request: httpx.Request) -> tuple[int, bytes]:
        """Status and body for a request."""
        path, query = request.url.path, {k: v[0] for k, v in parse_qs(request.url.query.decode()).items()}
        since = int(query["since"]) if "since" in query else None
        match request.method, path.strip("/").split("/"):
            case "GET", ["checkpoint"]:
                return 200, self.checkpoint()
            case "GET", ["tile", *_]:
                return 200, self.tile(path)
            case "GET", ["protocols", *_] if path.endswith(".bundle"):
                return 200, self.bundle(str(parse_protocol_uri(BASE_URL + path.removesuffix(".bundle"))), since)
            case "GET", ["protocols", namespace, name]:
                return 200, json.dumps({"versions": self._versions(namespace, name.removesuffix(".json"))}).encode()
            case "GET", ["topics", *_] if path.endswith(".bundle"):
                return 200, self.topic_bundle(path.removeprefix("/topics/").removesuffix(".bundle"), since)
            case "GET", ["blobs", "sha256", digest]:
                return (410, _problem("blob.withdrawn")) if digest in self.withdrawn else (200, self._blob(digest))
            case "PUT", ["blobs", "sha256", digest]:
                assert canonical.hex_digest(request.content) == digest
                self.put(request.content)
                return 201, b""
            case "GET", [("statements" | "proofs") as kind, digest]:
                index = self._index_of(digest)
                return 200, self.leaves[index] if kind == "statements" else self.receipt(index)
            case "POST", ["statements"]:
                return 201, self.receipt(self.submit(request.content))
            case "GET", ["resolve"]:
                return 200, json.dumps({"uri": query["uri"], "matches": self._matches(query["uri"])}).encode()
            case "GET", ["ballots"]:
                return 200, json.dumps(self._position(query["topic"], query["did"])).encode()
            case "GET", ["log"]:
                log = self.facts["log"]
                assert isinstance(log, LogFact)
                values = {
                    "origin": ORIGIN,
                    "key": str(LOG_KEY.verifier),
                    "clock_key": str(CLOCK_KEY.verifier),
                    "opened": log.opened,
                }
                values |= {"operator": OPERATOR.did, "electorate": "development", "epoch": log.epoch, "size": self.size}
                return 200, json.dumps(values | {"clients": {"least": "0.1.0", "recommended": self.recommended}}).encode()
            case "GET", ["vouches"]:
                return 200, json.dumps(self._vouches(query["did"])).encode()
            case "GET", ["trust-config.json"]:
                return 200, trust.trust_config(self.trusted_root, origin=ORIGIN, base_url=self.services)
        raise NotFound("http.not-found", f"Nothing is served at {path}.")

    def _blob(self, digest: str) -> bytes:
        if digest not in self.blobs:
            raise NotFound("blob.unknown", f"There is no blob {digest}.")
        return self.blobs[digest]

    def _index_of(self, digest: str) -> int:
        for index, entry in self.shown():
            if entry.id == digest:
                return index
        raise NotFound("statement.unknown", f"There is no statement {digest}.")

    def receipt(self, index: int) -> bytes:
        return Receipt(index, self.inclusion(index), self.checkpoint()).format()

    def _matches(self, name: str) -> list[dict[str, object]]:
        matches = list(self.aliases.get(name, []))
        for _, entry in self.statements():
            if isinstance(entry.body, kinds.Publish) and entry.body.document.sha256 == name.removeprefix("sha256:"):
                matches.append(match_of(entry, by="hash"))
        return matches

    def _versions(self, namespace: str, name: str) -> list[dict[str, object]]:
        by_uri = {}
        for _, entry in self.statements():
            if isinstance(entry.body, kinds.Publish) and entry.body.uri.split("/")[-3:-1] == [namespace, name]:
                by_uri[entry.body.uri] = match_of(entry, by="uri") | {
                    "topic": entry.body.topic,
                    "title": name,
                    "status": "active",
                }
            if isinstance(entry.body, kinds.Status) and entry.body.uri in by_uri:
                by_uri[entry.body.uri]["status"] = entry.body.state
        if not by_uri:
            raise NotFound("protocol.unknown", f"There is no {name}.")
        return [*by_uri.values()]

    def _position(self, topic: str, did: str) -> dict[str, int]:
        log = self.facts["log"]
        assert isinstance(log, LogFact)
        cast_before = [m for _, m in self.statements() if isinstance(m.body, kinds.Ballot) and m.body.topic == topic]
        return {"seq": sum(ballot_entry.author.text == did for ballot_entry in cast_before), "epoch": log.epoch}

    def _vouches(self, did: str) -> dict[str, object]:
        log = self.facts["log"]
        assert isinstance(log, LogFact)
        own = [(i, m, m.body) for i, m in self.statements() if isinstance(m.body, kinds.Vouch) and m.author.text == did]
        newest = {body.to: (index, entry, body) for index, entry, body in own}
        rows = [
            {"to": body.to, "epoch": log.epoch, "statement": entry.id, "index": index}
            for index, entry, body in reversed(newest.values())
            if not body.withdrawn
        ]
        return {"seq": len(own), "epoch": log.epoch, "vouches": rows}


@dataclass(frozen=True)
class SimulatedNetwork(Network):
    """A network on which there is one registry, or nobody (`down`)."""

    registry: SimulatedRegistry | None = None
    down: bool = False

    def __init__(self, registry: SimulatedRegistry, *, down: bool = False) -> None:
        super().__init__()
        object.__setattr__(self, "registry", registry)
        object.__setattr__(self, "down", down)

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        local = httpx.AsyncHTTPTransport(verify=False)  # the registry's signing authority is a real server of the test
        return BoundedClient(transport=httpx.MockTransport(self._answer), mounts={"http://127.0.0.1": local})

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        registry = self.registry
        assert registry is not None and request.url.host == ORIGIN
        registry.requests.append(f"{request.method} {request.url.path}")
        await asyncio.sleep(0)
        if self.down:
            raise httpx.ConnectError("nobody listens", request=request)
        try:
            status, body = registry.answer(request)
        except TreatyError as error:
            status = 404 if isinstance(error, NotFound) else 422
            return httpx.Response(status, stream=httpx.ByteStream(_problem(error.code, error.message)))
        return httpx.Response(status, stream=httpx.ByteStream(registry.tamper(request.url.path, body)))


def match_of(statement: Statement, *, by: str = "alias", verified: bool = True) -> dict[str, object]:
    """What `/resolve` says of a published protocol."""
    assert isinstance(statement.body, kinds.Publish)
    return {
        "uri": statement.body.uri,
        "hash": statement.body.document.sha256,
        "by": by,
        "verified": verified,
        "publisher": statement.author.text,
    }


def echo_wheel(uri: str, document: str, release: str = "1") -> tuple[str, bytes]:
    """A handler package for `echo`: file name and bytes."""
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}
    operation = {"arguments": text, "result": text, "errors": {}, "idempotent": True, "timeout": 15}
    caller = {"peer": "provider", "calls": ["echo"], "invokes": []}
    provider = {"peer": "requester", "calls": [], "invokes": ["echo"]}
    metadata = HandlerMetadata(
        name="echo",
        version=release,
        summary="Echo.",
        licence="Apache-2.0",
        entry_point="treaty_handler_echo:handler",
        protocol_uri=uri,
        protocol_hash=document,
        manifest={"operations": {"echo": operation}, "roles": {"requester": caller, "provider": provider}},
    )
    return build_wheel({"__init__.py": b"handler = None\n"}, metadata)


@cache
def _echo() -> SimulatedRegistry:
    with tempfile.TemporaryDirectory() as directory:
        now = datetime.now(UTC)
        keys = create_keys(Path(directory) / "sigstore", origin=ORIGIN, now=now - timedelta(hours=1))
    registry = SimulatedRegistry(keys, int(now.timestamp()))
    registry.publish()
    registry.attach()
    return registry


def with_echo() -> SimulatedRegistry:
    """A registry with ALICE's `echo` 1.0 and its handler, as of now: a copy of its own for whoever asks."""
    registry = _echo().copy()
    registry.now = int(datetime.now(UTC).timestamp())
    return registry


def remade(entry: Statement, members: Mapping[str, object], *signers: Signer, critical: Sequence[str] = ()) -> bytes:
    """The leaf of a statement with further members, as only a newer release can make it."""
    value = canonical.loads(entry.payload, limit=statement.MAX_PAYLOAD)
    assert isinstance(value, dict)
    value["body"] |= members
    draft = Draft(canonical.dumps(value | ({"critical": list(critical)} if critical else {})), entry.by)
    return statement.leaf_of(draft.payload, [signer.sign(draft.signing_input) for signer in signers])


def flipped(data: bytes, at: int, mask: int = 1) -> bytes:
    """The same bytes but for one."""
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def _bundled_blobs(body: kinds.Body) -> Iterable[kinds.Blob]:
    match body:
        case kinds.Publish():
            return body.document, body.card
        case kinds.Handler():
            return (body.bundle,)
    return ()


def _problem(code: str, detail: str = "It is gone.") -> bytes:
    return json.dumps({"type": f"urn:treaty:problem:{code}", "code": code, "detail": detail}).encode()


def elected() -> SimulatedRegistry:
    """A log with votes and two decided epochs."""
    registry = with_echo()
    for signer in (ALICE, BOB):
        ballot = kinds.Ballot(TOPIC, 0, ((registry.document_of(uri_of()).sha256,),), registry.checkpoint().decode())
        registry.add(ballot, signer)
    registry.decide()
    registry.decide()
    return registry
