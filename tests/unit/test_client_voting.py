"""Voting: tiers from words, the next seq, and a receipt that is checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fetching import fetcher
from signers import ORIGIN
from simulated_registry import ALICE, BOB, NAME, TOPIC, SimulatedRegistry, uri_of, with_echo
from witnesses import WITNESSES

from treaty_client.protocols.stamping import StampedFolder, Stamping, StampingWitness, read_stamped
from treaty_client.statements.vote import Vote, parse_tiers, vote
from treaty_consensus import kinds
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.stamped import MARGIN, stamp
from treaty_io.identity import Identity
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network

VOTER = Identity(ALICE.did, ALICE.key_id, ALICE.private_key)


async def cast(
    registry: SimulatedRegistry, home: Path, *tiers: str, voter: Identity = VOTER, stamping: Stamping | None = None
) -> Vote:
    async with fetcher(registry, home) as agent:
        [topic] = await agent.topic(TOPIC)
        choices = parse_tiers(tiers, topic)
        client, head = agent.client(ORIGIN), agent.head(ORIGIN)
        return await vote(client, head, voter, TOPIC, choices, origin=ORIGIN, now=int(time.time()), stamping=stamping)


async def test_ballots_follow_each_other(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    first, second = (registry.document_of(uri_of(version)).sha256 for version in ("1.0", "2.0"))
    for seq, (tiers, expected) in enumerate(
        [
            ((uri_of(), "none"), ((first,), ("none",))),
            ((f"{first},{uri_of('2.0')}",), ((first, second),)),
            ((f"sha256:{second}", uri_of()), ((second,), (first,))),
            ((), ()),
        ]
    ):
        done = await cast(registry, tmp_path, *tiers)
        assert (done.ballot.seq, done.ballot.tiers, done.epoch) == (seq, expected, 0) and done.delivery.receipt is not None
        assert registry.leaves[done.delivery.receipt.index] == done.statement.leaf
        assert done.delivery.receipt.verify(done.statement.leaf, NAME.key).checkpoint.size == registry.size
    assert sum(isinstance(statement.body, kinds.Ballot) for _, statement in registry.statements()) == 4


async def test_a_ballot_is_a_witness(tmp_path: Path) -> None:
    registry = with_echo()
    before = registry.checkpoint()
    assert (await cast(registry, tmp_path, "none")).ballot.seen_checkpoint == before.decode()


@pytest.mark.parametrize("tiers", [("nonsense",), ("",), (uri_of("9.9"),), (uri_of() + ",",)])
async def test_an_impossible_choice_is_refused_before_sending(tmp_path: Path, tiers: tuple[str, ...]) -> None:
    registry = with_echo()
    with pytest.raises(NotFound, match="Vote for"):
        await cast(registry, tmp_path, *tiers)
    assert registry.requests == ["GET /topics/demo/echo.bundle"]


@pytest.mark.parametrize("by_hash", [False, True])
async def test_a_vote_for_a_withdrawn_protocol_is_not_sent(tmp_path: Path, by_hash: bool) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.add(kinds.Status(uri_of(), "revoked", successor=uri_of("2.0")), ALICE)
    choice = registry.document_of(uri_of()).sha256 if by_hash else uri_of()
    with pytest.raises(Refused, match=f"{uri_of()} was revoked by its publisher; its successor is {uri_of('2.0')}"):
        await cast(registry, tmp_path, uri_of("2.0"), choice)
    assert not any(request.startswith("POST") for request in registry.requests)


async def test_an_impossible_ballot_is_not_sent(tmp_path: Path) -> None:
    registry = with_echo()
    with pytest.raises(Malformed):
        await cast(registry, tmp_path, uri_of(), uri_of())
    assert not any(request.startswith("POST") for request in registry.requests)


async def test_a_stranger_is_refused_by_the_registry(tmp_path: Path) -> None:
    registry = with_echo()
    before = len(registry.leaves)
    with pytest.raises(TreatyError) as error:
        await cast(registry, tmp_path, "none", voter=Identity(BOB.did, f"{BOB.did}#other", BOB.private_key))
    assert error.value.code == "statement.unknown-key"
    assert len(registry.leaves) == before


async def test_a_receipt_of_something_else_is_noticed(tmp_path: Path) -> None:
    registry = with_echo()
    registry.tamper = lambda path, body: registry.receipt(0) if path == "/statements" else body
    with pytest.raises(Untrusted) as error:
        await cast(registry, tmp_path, "none")
    assert error.value.code == "log.inclusion"


class Stampers(Network):
    """A network of witnesses: host → its stamp of an envelope, or the status of its refusal."""

    def __init__(self, hosts: dict[str, Callable[[bytes], bytes] | int]) -> None:
        super().__init__()
        self.hosts = hosts

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        return BoundedClient(transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/add-statement")
        host = self.hosts[request.url.host]
        if isinstance(host, int):
            return httpx.Response(host, stream=httpx.ByteStream(b'{"code":"quota.sender"}'))
        return httpx.Response(200, stream=httpx.ByteStream(host(request.content)))


def stamping_by(home: Path, *hosts: Callable[[bytes], bytes] | int) -> Stamping:
    network = Stampers({key.name: host for key, host in zip(WITNESSES, hosts, strict=False)})
    names = [StampingWitness.parse(f"https://{key.name}#{key.verifier}") for key in WITNESSES[: len(hosts)]]
    return Stamping(names, network, StampedFolder(home / "stamped", ORIGIN))


def flipped(note: bytes, place: int) -> bytes:
    """Another letter of base64 at a place from the end."""
    return note[:place] + (b"B" if note[place : place + 1] == b"A" else b"A") + note[place + 1 :]


def stamps(number: int, *, after: float = 0.0) -> Callable[[bytes], bytes]:
    return lambda leaf: stamp(leaf, WITNESSES[number], int(time.time() + after)).stamp


@pytest.mark.threat(361)
async def test_a_ballot_is_stamped_before_the_registry_gets_it(tmp_path: Path) -> None:
    registry, stamping = with_echo(), stamping_by(tmp_path, stamps(0), 503, stamps(2))
    done = (await cast(registry, tmp_path, uri_of(), stamping=stamping)).delivery
    assert done.receipt is not None and list(done.stamps) == [WITNESSES[0].name, WITNESSES[2].name] and done.failure is None
    assert not stamping.kept.read(), "the log has it"

    def silent(path: str, body: bytes) -> bytes:
        if path == "/statements":
            raise Unavailable("quota.sender", "Your network sends too many statements.")
        return body

    registry.tamper = silent
    unheard = await cast(registry, tmp_path, "none", stamping=stamping)
    assert unheard.delivery.receipt is None and unheard.delivery.failure is not None
    assert unheard.delivery.failure.code == "quota.sender"
    ((path, kept),) = stamping.kept.read().items()
    assert kept.statement == unheard.statement and read_stamped(path) == [kept]
    # An hour later a receipt is no proof that no epoch closed without it.
    await replace(stamping, clock=lambda: time.time() + MARGIN).settle(kept)
    assert path.exists()
    await stamping.settle(kept)
    assert not path.exists()
    with pytest.raises(Unavailable):
        await cast(registry, tmp_path, "none")


@pytest.mark.parametrize(
    ("host", "code"),
    [
        (503, "quota.sender"),
        (stamps(1), "stamp.signature"),
        (stamps(0, after=1000), "stamp.signature"),
        (lambda leaf: stamps(0)(leaf).replace(b"treaty-stamp", b"x"), "stamp.form"),
        (lambda leaf: flipped(stamps(0)(leaf), -20), "note.signature"),
    ],
    ids=["refused", "another key", "the future", "another text", "a wrong signature"],
)
async def test_without_a_stamp_nothing_is_sent_or_kept(tmp_path: Path, host: Callable[[bytes], bytes] | int, code: str) -> None:
    registry, stamping = with_echo(), stamping_by(tmp_path, host)
    before = len(registry.leaves)
    with pytest.raises(TreatyError) as error:
        await cast(registry, tmp_path, uri_of(), stamping=stamping)
    assert error.value.code == code
    assert len(registry.leaves) == before and not (tmp_path / "stamped").exists()
