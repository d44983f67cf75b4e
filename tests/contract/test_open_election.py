"""An open electorate over HTTP, from its first leaf to a consensus: anchors, a newcomer they vouch for, and nobody to decide."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from http_api import post, problem, publish, say
from open_electorates import ANCHORS, anchor, write
from registries import TOPIC, Web, ballot, log, publication
from signers import NOW, ORIGIN, domain_signer, key_signer

from treaty_consensus import canonical, kinds
from treaty_consensus.audit import Replay
from treaty_consensus.errors import Refused
from treaty_consensus.statement import MAX_LEAF, parse
from treaty_registry.app import create_app
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings

PERIOD = 3600
VOTERS = [anchor(number) for number in range(6)]
NEWCOMER = domain_signer("newcomer.example")
CUSTOMER = domain_signer("newcomer.example:users:carol")
STRANGER = key_signer("stranger")


@dataclass
class Clock:
    """It stands still unless it is set."""

    seconds: int = NOW

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


async def test_from_the_first_leaf_to_a_consensus(tmp_path: Path, database: str, web: Web) -> None:
    web.serve(*VOTERS, NEWCOMER, CUSTOMER)
    clock = Clock()
    settings = Settings(tmp_path / "registry", new=True, origin=ORIGIN, database=database, parameters=write(tmp_path, PERIOD))
    async with Registry.open(settings, clock=clock, resolve=web.resolve) as registry:
        transport = httpx.ASGITransport(create_app(registry))  # type: ignore[arg-type]  # the two spell ASGI's types differently
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as api:
            statement = publication(VOTERS[0])
            document = statement.body.document.sha256
            await publish(api, VOTERS[0], statement)
            await say(api, VOTERS[0], kinds.Vouch(NEWCOMER.did, 0))
            for voter in VOTERS:
                await say(api, voter, ballot(registry, 0, document))
            for nobody in (CUSTOMER, STRANGER):
                refused = await post(api, nobody.statement(ballot(registry, 0, kinds.NONE)))
                problem(refused, 422, "electorate.no-principal")
            states = []
            for epoch in range(3):
                await report(registry, document, epoch)
                states.append(await closed(registry, api, clock, document))
            assert states == ["candidate", "provisional", "consensus"]
            answer = (await api.get("/log")).json()
            assert (answer["electorate"], answer["epoch"], answer["closes"]) == ("open", 3, clock.seconds + PERIOD)
            principals = await roll(api)
            assert set(principals) == {*ANCHORS[:6], "newcomer.example"}
            assert principals["newcomer.example"][1] == ANCHORS[0], "trust came from there alone"
            assert 0 < int(principals["newcomer.example"][3]) < int(principals[ANCHORS[0]][3])
        replay = Replay(registry.blobs.reader())
        leaves = await registry.leaves(range(registry.head.size))
        await asyncio.to_thread(lambda: [replay.append(leaves[index]) for index in range(registry.head.size)])
        assert replay.root() == registry.head.root


async def report(registry: Registry, document: str, epoch: int) -> None:
    """Each voter agrees with the next two, and the first one with the newcomer."""
    pairs = [(VOTERS[n], VOTERS[(n + step) % len(VOTERS)]) for n in range(len(VOTERS)) for step in (1, 2)]
    for first, second in [*pairs, (VOTERS[0], NEWCOMER)]:
        nid = canonical.hex_digest(f"{first.did} {second.did} {epoch}".encode())
        await log(registry, kinds.Report(TOPIC, nid, document, "agreed", epoch, registry.head.note.decode()), first, second)


async def closed(registry: Registry, api: httpx.AsyncClient, clock: Clock, document: str) -> str:
    """The document's state after the open epoch was closed by the clock alone."""
    before = (await api.get("/log")).json()
    with pytest.raises(Refused, match="closes by itself"):
        await registry.decide()
    clock.seconds = before["closes"]
    with suppress(Refused):  # the registry's own task may look at the clock at the same moment
        await registry.schedule.close_if_due()
    topic = (await api.get(f"/topics/{TOPIC}")).json()
    assert (topic["electorate"], topic["decision"]["epoch"]) == ("open", before["epoch"])
    (candidate,) = topic["candidates"]
    assert topic["decision"]["transcript"]["ballots"]["explicit"] == len(VOTERS)
    state: str = candidate["state"]
    assert candidate["hash"] == document
    return state


async def roll(api: httpx.AsyncClient) -> dict[str, list[str]]:
    """The newest roll: principal → its entry."""
    topic = (await api.get(f"/topics/{TOPIC}")).json()
    decision = parse(canonical.b64decode(topic["decision"]["leaf"], limit=MAX_LEAF)).body
    assert isinstance(decision, kinds.Decision)
    data = (await api.get(f"/blobs/sha256/{decision.roll.sha256}")).json()
    return {entry[0]: entry for entry in data["principals"]}
