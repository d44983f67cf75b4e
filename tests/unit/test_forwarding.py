"""The messages between nodes: only those of this log's nodes are taken, each once, and answers are the leader's own."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import msgspec
import pytest
from registries import Web, open_registry
from rejections import rejection

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_consensus.sigstore_leaf import CertificateLeaf
from treaty_io.network.exchange import BoundedClient
from treaty_registry.catalogue.handler_facts import HandlerFacts, PackageFacts
from treaty_registry.log.forwarding import HEADER, Forwarding
from treaty_registry.log.leadership import Leadership
from treaty_registry.log.proposals import LogPosition, Proposal
from treaty_registry.log.sequencer import Uncertain
from treaty_registry.registry import Registry

LEAF = CertificateLeaf(b"a certificate").encode()


@dataclass
class Between:
    """The network between a node and the leader, which a test may disturb. `sent`: the requests. `taken`: their proposals."""

    registry: Registry
    leader: Forwarding
    sent: list[tuple[bytes, str]]
    changed: bytes = b""
    endless: bool = False
    taken: list[Proposal] = field(default_factory=list)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        if self.endless:
            return httpx.Response(200, content=endless())
        body, code = await request.aread(), request.headers[HEADER]
        self.sent.append((body, code))
        try:
            proposals = self.leader.read(body, code)
        except TreatyError as error:
            return httpx.Response(503, content=whole(error.code.encode()))
        self.taken += proposals
        answer, own = self.leader.answer(await self.registry.sequencer.submit(proposals), code)
        return httpx.Response(200, content=whole(answer + self.changed), headers={HEADER: own})


async def whole(body: bytes) -> AsyncIterator[bytes]:
    """A body as it arrives from a socket."""
    yield body


async def endless() -> AsyncIterator[bytes]:
    """A body that is never whole."""
    while True:
        yield bytes(1 << 20)


@dataclass
class Both:
    """A node that follows, and the leader's end."""

    node: Forwarding
    leader: Forwarding
    between: Between
    found: list[Leadership | None]


@pytest.fixture
async def both(tmp_path: Path, database: str, web: Web) -> AsyncIterator[Both]:
    async with open_registry(tmp_path / "registry", database, web) as registry:
        text = (tmp_path / "registry" / "keys" / "log.key").read_text().strip()
        yield made(registry, SignerKey.parse(text))


def made(registry: Registry, key: SignerKey) -> Both:
    leaderships: list[Leadership | None] = [Leadership(registry.leader.term, "http://leader", 1, b"", b"", 0.0, True)]

    async def adopt(note: bytes) -> None:
        """The node is not served here."""

    def end(http: BoundedClient, leader: object) -> Forwarding:
        return Forwarding(
            keys=lambda: registry.keys,
            secret=lambda: key.seed,
            http=http,
            leader=leader,  # type: ignore[arg-type]
            found=lambda: leaderships[0],
            adopt=adopt,
        )

    leader = end(BoundedClient(), registry.leader)
    between = Between(registry, leader, [])
    follower = end(BoundedClient(transport=httpx.MockTransport(between.handle)), Follower())
    return Both(follower, leader, between, leaderships)


class Follower:
    """What a node knows of itself that does not lead."""

    leads = False
    term = 0


async def test_repeated_changed_and_foreign_requests_change_nothing(both: Both) -> None:
    registry = both.between.registry
    (outcome,) = await both.node.send([Proposal(LEAF)])
    assert isinstance(outcome, LogPosition)
    size = registry.head.size
    ((body, code),) = both.between.sent
    for changed, under, refused in (
        (body, code, "node.request: taken before"),
        (body + b"\0", code, "node.request: Only the nodes"),
        (body, hashlib.sha256(body).hexdigest(), "node.request: Only the nodes"),
        (body, "", "node.request: Only the nodes"),
    ):
        with pytest.raises(TreatyError) as error:
            both.leader.read(changed, under)
        assert rejection(error.value, refused) == refused
    other = made(registry, SignerKey("other.example", KeyType.ED25519, bytes(32)))
    with pytest.raises(TreatyError) as error:
        other.leader.read(body, code)
    assert error.value.code == "node.request"
    assert registry.head.size == size


class FormerFacts(msgspec.Struct, forbid_unknown_fields=True):
    """The facts of a handler as 0.1.0 reads them."""

    signer: str | None = None
    coverage: str | None = None


class FormerProposal(msgspec.Struct, array_like=True):
    """A proposal as 0.1.0 reads it."""

    leaf: bytes
    keys: tuple[bytes, ...] | None
    handler: FormerFacts | None


class FormerRequest(msgspec.Struct, array_like=True):
    """A request as 0.1.0 reads it."""

    term: int
    node: bytes
    number: int
    proposals: list[FormerProposal]


async def test_facts_of_a_wheel_reach_a_leader_and_pass_one_of_0_1_0(both: Both) -> None:
    facts = HandlerFacts("did", "all", PackageFacts("0" * 64, ">=3.11"))
    for handler in (facts, HandlerFacts("did", "all"), None):
        await both.node.send([Proposal(LEAF, handler=handler)])
        body, _ = both.between.sent[-1]
        (former,) = msgspec.msgpack.decode(body, type=FormerRequest).proposals
        assert former.handler == (FormerFacts("did", "all") if handler else None)
        assert both.between.taken[-1].handler == handler


async def test_a_leader_of_another_term_takes_nothing(both: Both) -> None:
    size = both.between.registry.head.size
    current = both.found[0]
    assert current is not None
    for leadership in (
        None,
        replace(current, led=False),
        replace(current, url=""),
        replace(current, term=current.term - 1),
    ):
        both.found[0] = leadership
        with pytest.raises(Unavailable) as refused:
            await both.node.send([Proposal(LEAF)])
        assert refused.value.code == "log.not-leading"
    assert both.between.registry.head.size == size


async def test_an_answer_that_is_not_the_leaders_confirms_nothing(both: Both) -> None:
    both.between.changed = b"\0"
    with pytest.raises(Uncertain):
        await both.node.send([Proposal(LEAF)])


async def test_an_answer_without_an_end_ends(both: Both) -> None:
    both.between.endless = True
    with pytest.raises(Uncertain):
        await both.node.send([Proposal(LEAF)])
