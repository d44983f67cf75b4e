"""Closing an epoch: the decisions that the operator signs are the ones that every auditor recomputes."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from registries import TOPIC, Web, ballot, contents, log, operator_in, publication, publish
from signers import NOW, ORIGIN, Signer, domain_signer
from witnesses import WITNESSES

from treaty_consensus import kinds, statement
from treaty_consensus.audit import Replay
from treaty_consensus.canonical import dumps, loads
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import Unavailable
from treaty_consensus.kinds import MAX_TRANSCRIPT, Witnesses
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import sign
from treaty_consensus.stamped import MAX_STAMPED, Stamped, stamp
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network
from treaty_registry.admission import upload_room
from treaty_registry.log.entry import Logged
from treaty_registry.log.seen_checkpoints import SeenCheckpoints
from treaty_registry.log.witnesses import WitnessClient
from treaty_registry.operator.boxes import WitnessBoxes
from treaty_registry.operator.parameters import ParametersDraft
from treaty_registry.registry import Registry
from treaty_registry.settings import WitnessName
from treaty_registry.witness.cosigner import Cosigner
from treaty_registry.witness.records import WitnessStore

AGENTS = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie", "delta", "echo")]


async def report(registry: Registry, document: str, epoch: int, *, topic: str = TOPIC) -> None:
    """The five agents agree on a document in a ring."""
    for first, second in zip(AGENTS, AGENTS[1:] + AGENTS[:1], strict=True):
        nid = hashlib.sha256(f"{first.did} {second.did} {epoch} {topic}".encode()).hexdigest()
        body = kinds.Report(topic, nid, document, "agreed", epoch, registry.head.note.decode())
        await log(registry, body, first, second)


async def nominate(registry: Registry, topic: str) -> None:
    """Publish a document that becomes a candidate of the topic."""
    statement = publication(AGENTS[0], topic.replace("/", "-"), topic=topic)
    await publish(registry, AGENTS[0], statement)
    await report(registry, statement.body.document.sha256, 0, topic=topic)


async def replayed(registry: Registry) -> Replay:
    replay = Replay()
    leaves = await registry.leaves(range(registry.head.size))
    for index in range(registry.head.size):
        replay.append(leaves[index])
    assert replay.root() == registry.head.root
    return replay


async def test_nothing_is_decided_where_nobody_reported_or_voted(registry: Registry) -> None:
    before = await contents(registry)
    assert await registry.decide() == []
    assert await contents(registry) == before


async def test_epochs_close_until_there_is_a_consensus(registry: Registry, web: Web) -> None:
    web.serve(*AGENTS)
    protocol = publication(AGENTS[0])
    await publish(registry, AGENTS[0], protocol)
    document = protocol.body.document.sha256
    await report(registry, document, 0)
    for agent in AGENTS:
        await log(registry, ballot(registry, 0, document), agent)
    states = []
    for epoch in range(4):
        (decided,) = await registry.decide()
        assert (decided.decision.epoch, decided.index) == (epoch, registry.head.size - 1)
        states.append(dict(decided.decision.states)[document])
        transcript = await registry.blob(decided.decision.transcript.sha256)
        assert loads(transcript, limit=MAX_TRANSCRIPT)["epoch"] == epoch
        logged = statement.parse((await registry.leaves([decided.index]))[decided.index])
        assert (logged.id, logged.body, logged.author.text) == (decided.statement, decided.decision, registry.operator)
    assert states == ["candidate", "provisional", "consensus", "consensus"]
    await replayed(registry)


async def test_all_topics_of_an_epoch_are_decided_in_one_commit(registry: Registry, web: Web) -> None:
    web.serve(*AGENTS)
    for topic in ("b/second", "a/first", "c/third"):
        await nominate(registry, topic)

    async def write(voter: Signer) -> list[int]:
        places = []
        for seq in range(10):
            (outcome,) = await registry.submit([voter.statement(ballot(registry, seq, "cd" * 32)).leaf])
            assert isinstance(outcome, Logged)
            places.append(outcome.index)
        return places

    writing = [asyncio.create_task(write(agent)) for agent in AGENTS[1:]]
    first = await registry.decide()
    await asyncio.gather(*writing)
    second = await registry.decide()
    assert [decided.decision.topic for decided in first] == ["a/first", "b/second", "c/third"]
    assert [decided.index for decided in first] == list(range(first[0].index, first[0].index + len(first)))
    assert {decided.decision.input.size for decided in first} == {first[0].index}
    assert [(decided.decision.topic, decided.decision.epoch) for decided in second] == [
        (topic, 1) for topic in ("a/first", "b/second", "c/third")
    ]
    await replayed(registry)


async def test_uploads_that_wait_keep_no_epoch_open(registry: Registry, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.serve(*AGENTS)
    await log(registry, ballot(registry), AGENTS[0])
    monkeypatch.setattr(upload_room, "MAX_WAITING", 0)
    statement = publication(AGENTS[0])
    with pytest.raises(Unavailable) as refusal:
        await publish(registry, AGENTS[0], statement)
    assert refusal.value.code == "quota.sender"
    assert [decided.decision.topic for decided in await registry.decide()] == [TOPIC]


async def test_two_calls_close_two_epochs_one_after_the_other(registry: Registry, web: Web) -> None:
    web.serve(*AGENTS)
    await log(registry, ballot(registry), AGENTS[0])
    first, second = await asyncio.gather(registry.decide(), registry.decide())
    assert sorted(decided.decision.epoch for decided in [*first, *second]) == [0, 1]
    await replayed(registry)


async def test_two_replays_never_run_at_a_time(registry: Registry, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.serve(*AGENTS)
    await log(registry, ballot(registry), AGENTS[0])
    running, begun, most, go_on = 0, asyncio.Event(), 0, threading.Event()
    loop, append = asyncio.get_running_loop(), Replay.append

    def slowly(replay: Replay, leaf: bytes) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(10)
        append(replay, leaf)
        running -= 1

    monkeypatch.setattr(Replay, "append", slowly)
    impatient = asyncio.create_task(registry.decide())
    await begun.wait()
    impatient.cancel()
    second = asyncio.create_task(registry.decide())
    await asyncio.sleep(0.1)
    go_on.set()
    assert [decided.decision.epoch for decided in await second] == [1]
    assert most == 1
    await replayed(registry)


async def test_a_caller_who_goes_away_does_not_stop_it_half_way(registry: Registry, web: Web) -> None:
    web.serve(*AGENTS)
    await log(registry, ballot(registry), AGENTS[0])
    for pause in (0, 0.001, 0.005, 0.02):
        calling = asyncio.create_task(registry.decide())
        await asyncio.sleep(pause)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    await registry.decide()
    await log(registry, ballot(registry), AGENTS[1])
    replay = await replayed(registry)
    assert replay.size == registry.head.size


def page(following: int, *stamped: Stamped) -> bytes:
    return dumps({"next": following, "stamped": [loads(each.format(), limit=MAX_STAMPED) for each in stamped]})


EMPTY: Callable[[int], bytes] = page


class Witnessing(Network):
    """A network with one witness. `box`: what it shows of the statements that it stamped, from a number on; None for a fault."""

    def __init__(self, cosigner: Cosigner) -> None:
        super().__init__()
        self.box: Callable[[int], bytes] | None = EMPTY
        self._cosigner = cosigner
        self._transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(200, stream=httpx.ByteStream(self._cosigner.add_checkpoint(request.content)))
        page = self.box(int(request.url.params["from"])) if self.box else b""
        return httpx.Response(200 if self.box else 500, stream=httpx.ByteStream(page))

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        return BoundedClient(transport=self._transport)


def boxes_of(registry: Registry, name: WitnessName, network: Network) -> WitnessBoxes:
    seen = SeenCheckpoints(lambda: registry.keys, registry.reader, lambda: registry.head)
    return WitnessBoxes([name], ORIGIN, network, registry.leader, registry.reader, registry.intake.submissions, seen)


async def test_nothing_is_decided_without_required_witnesses(registry: Registry, web: Web, tmp_path: Path) -> None:
    web.serve(*AGENTS)
    for topic in (TOPIC, "another"):
        await nominate(registry, topic)
    witnesses = Witnesses((str(WITNESSES[0].verifier),), 1)
    await registry.announce(ParametersDraft(msgspec.structs.replace(development_parameters(), witnesses=witnesses)))
    assert {decided.decision.input.witnessed for decided in await registry.decide()} == {None}
    before = registry.head
    with pytest.raises(Unavailable) as refusal:
        await registry.decide()
    assert refusal.value.code == "witness.quorum"
    assert registry.head is before
    assert (await registry.parameters_status()).epoch == 1
    witness = Cosigner(WitnessStore(tmp_path / "witness"), WITNESSES[0], [registry.log_key], lambda: NOW)
    name = WitnessName("https://witness.example", WITNESSES[0].verifier)
    network = Witnessing(witness)
    client = WitnessClient([name], network, registry.leader, registry.reader)
    registry.decisions.witnesses = client
    registry.decisions.boxes = boxes_of(registry, name, network)
    # A witness cosigns no input before its box was read: the log could lack what it stamped.
    strange, endless = (lambda _: b'{"more":1,"next":0,"stamped":[]}'), (lambda start: page(start + 1))
    for box in (None, strange, endless):
        network.box = box
        with pytest.raises(Unavailable) as refusal:
            await registry.decide()
        assert refusal.value.code == "witness.quorum"
        assert registry.head is before
    network.box = EMPTY
    first, second = await registry.decide()
    await client.close()
    await registry.decisions.boxes.close()
    assert first.decision.input == second.decision.input
    assert first.decision.input.witnessed is not None
    witnesses.parsed.check(first.decision.input.witnessed.encode(), Checkpoint(ORIGIN, before.size, before.root))
    await replayed(registry)


@pytest.mark.threat(361)
async def test_what_a_witness_shows_is_logged_if_the_log_would_take_it(registry: Registry, web: Web, tmp_path: Path) -> None:
    web.serve(*AGENTS)
    for agent in AGENTS[:3]:
        await log(registry, ballot(registry), agent)
    other = Checkpoint(ORIGIN, 2, b"\1" * 32).format()
    fork = sign(other, [operator_in(tmp_path / "registry").log_key]).decode()
    good = AGENTS[0].statement(ballot(registry, 1, "cd" * 32))
    ballots = [
        good,
        AGENTS[0].statement(ballot(registry, 3)),
        AGENTS[0].statement(ballot(registry, 1), log="other.example"),
        domain_signer("unknown.example").statement(ballot(registry)),
        AGENTS[1].statement(kinds.Ballot(TOPIC, 1, (("none",),), "no checkpoint")),
        AGENTS[2].statement(kinds.Ballot(TOPIC, 1, (("none",),), fork)),
        Signer(AGENTS[1].did, AGENTS[1].key_id, AGENTS[2].private_key).statement(ballot(registry, 1)),
    ]
    network = Witnessing(Cosigner(WitnessStore(tmp_path / "witness"), WITNESSES[0], [registry.log_key], lambda: NOW))
    files = [stamp(ballot_leaf.leaf, WITNESSES[0], NOW) for ballot_leaf in ballots]
    network.box = lambda start: page(9) if start else page(9, *files)
    registry.decisions.boxes = boxes_of(registry, WitnessName("https://witness.example", WITNESSES[0].verifier), network)
    before = registry.head.size
    (decided,) = await registry.decide()
    leaves = await registry.leaves(range(before, registry.head.size))
    assert decided.decision.input.size == before + 1 and leaves[before] == good.leaf
    await registry.decisions.boxes.close()
    await replayed(registry)
