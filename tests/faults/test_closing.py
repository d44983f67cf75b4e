"""Fault: the process ends while an epoch is being closed. What is left is an open epoch or a closed one, never a part of its
decisions; and whoever comes next goes on with the schedule."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from depth import SEED
from did_host import did_host
from open_electorates import anchor, write
from registries import Web, log, publication, publish, settings_for
from registry_process import Server, empty
from signers import NOW, Signer

from treaty_consensus import kinds, statement
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused
from treaty_registry import projection
from treaty_registry.admission.uploads import Uploads
from treaty_registry.log import tables as log_tables
from treaty_registry.log.checkpoints import CheckpointSigner
from treaty_registry.log.entry import Logged
from treaty_registry.log.fence import Fence
from treaty_registry.registry import Registry

PERIOD = 100
TOPICS = ("a/first", "b/second", "c/third")
KILLS = 12


class Crash(BaseException):
    """Not an Exception: nothing that recovers from errors may take part."""


async def crash(*arguments: Any) -> Any:
    raise Crash


def crash_now(*arguments: Any) -> Any:
    raise Crash


_hold = Uploads.hold_own


async def crash_after_holding(uploads: Uploads, sha256: str, data: bytes) -> None:
    await _hold(uploads, sha256, data)
    raise Crash


@asynccontextmanager
async def opened(folder: Path, database: str, web: Web, now: int) -> AsyncIterator[Registry]:
    """A registry with an open electorate, whose clock stands at `now`."""
    settings = replace(settings_for(folder / "registry", database), parameters=write(folder, PERIOD))
    async with Registry.open(settings, clock=lambda: datetime.fromtimestamp(now, UTC), resolve=web.resolve) as registry:
        yield registry


async def nominate(registry: Registry) -> None:
    """Let three anchors agree on a document in each topic, so that all topics are decided."""
    for topic in TOPICS:
        statement = publication(anchor(0), topic.replace("/", "-"), topic=topic)
        assert isinstance(await publish(registry, anchor(0), statement), Logged)
        for one, other in combinations(range(3), 2):
            nid = hex_digest(f"{topic} {one} {other}".encode())
            note = registry.head.note.decode()
            await log(
                registry, kinds.Report(topic, nid, statement.body.document.sha256, "agreed", 0, note), anchor(one), anchor(other)
            )


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("step", "committed"),
    [
        ((Uploads, "hold_own", crash), False),
        ((Uploads, "hold_own", crash_after_holding), False),
        ((log_tables, "look_up", crash), False),
        ((log_tables, "append", crash), False),
        ((log_tables, "_apply_blobs", crash), False),
        (("projection", "apply", crash), False),
        ((Fence, "advance", crash_now), True),
        ((CheckpointSigner, "sign", crash_now), True),
    ],
)
async def test_a_crash_at_each_step_of_a_closing(
    tmp_path: Path,
    database: str,
    web: Web,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[Any, str, Any],
    committed: bool,
) -> None:
    web.serve(*map(anchor, range(3)))
    async with opened(tmp_path, database, web, NOW) as registry:
        await nominate(registry)
        size = registry.head.size
    async with opened(tmp_path, database, web, NOW + PERIOD - 1) as registry:
        registry.clock = registry.decisions.clock = lambda: datetime.fromtimestamp(NOW + PERIOD, UTC)
        place, name, replacement = step
        if place == "projection":
            monkeypatch.setattr(projection, "apply", replacement)
        else:
            monkeypatch.setattr(place, name, replacement)
        with pytest.raises(Crash):
            await registry.decide()
        assert registry.head.size == size, "nobody was told"
        monkeypatch.undo()
        assert (await log_tables.read_head(registry.pool))[0] == size + (len(TOPICS) if committed else 0)
    async with opened(tmp_path, database, web, NOW + PERIOD) as registry:
        with suppress(Refused):  # the registry's own task may close it at this very moment, or have closed it
            await registry.decide()
        status = await registry.parameters_status()
        assert (status.epoch, status.closes, registry.head.size) == (1, NOW + 2 * PERIOD, size + len(TOPICS))
        assert not (await registry.rebuild()).differed


@pytest.mark.deep
async def test_a_server_killed_while_closing_closes_epochs_whole(data: Path, tmp_path: Path, web: Web) -> None:
    seed = SEED or secrets.token_hex(4)
    print(f"TREATY_SEED={seed}")
    choices = random.Random(seed)
    agents = [anchor(number) for number in range(3)]
    web.serve(*agents)
    began = datetime.now(UTC)
    settings = replace(settings_for(data / "registry", None), parameters=write(tmp_path, 1))
    async with Registry.open(settings, clock=lambda: began, resolve=web.resolve) as registry:
        await nominate(registry)
    with did_host(tmp_path, *agents) as options:
        async with empty(data / "registry", *options, f"--parameters={write(tmp_path, 1)}") as server:
            await server.start()
            assert await server.ready()
            for number in range(KILLS):
                await vote(server, agents[number % 3], number // 3)  # news: without it, one topic stands in for all
                await asyncio.sleep(-time.time() % 1 + choices.uniform(-0.02, 0.2))
                await server.kill()
                await server.start()
                assert await server.ready()
            logged = await later_decisions(server)
            assert await server.stop() == 0
            assert (await server.run("audit"))["findings"] == []
            rebuilt = await server.run("rebuild")
            assert isinstance(rebuilt["tables"], dict)
            assert not any(rebuilt["tables"].values())
    epochs = [[body for _, body in decided] for _, decided in groupby(logged, key=lambda item: item[1].epoch)]
    assert [decided[0].epoch for decided in epochs] == list(range(len(epochs)))
    for decided in epochs:
        assert [body.remaining for body in decided] == list(reversed(range(len(decided)))), "every epoch is whole"
        assert [body.topic for body in decided] in (list(TOPICS), [TOPICS[0]])
    assert sum(len(decided) == len(TOPICS) for decided in epochs) > 3
    print(f"{KILLS} kills, {len(epochs)} epochs")


async def later_decisions(server: Server) -> list[tuple[int, kinds.Decision]]:
    """All decisions, once the schedule has gone on."""
    before = await decisions(server)
    for _ in range(100):
        await asyncio.sleep(0.2)
        logged = await decisions(server)
        if len(logged) > len(before):
            return logged
    pytest.fail("No epoch closes any more.")


async def vote(server: Server, agent: Signer, seq: int) -> None:
    """One ballot in each topic, all of them in one request: an epoch of a second may close between two."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=20) as client:
        note = (await client.get("/checkpoint")).text
        ballots = [kinds.Ballot(topic, seq, ((kinds.NONE,),), note) for topic in TOPICS]
        leaves = [agent.statement(body, log=server.about["origin"], issued=int(time.time())).leaf for body in ballots]
        headers = {"Content-Type": "application/x-ndjson"}
        answer = await client.post("/statements", content=b"\n".join(leaves), headers=headers)
        assert all(json.loads(line)["status"] == 201 for line in answer.text.splitlines()), answer.text


async def decisions(server: Server) -> list[tuple[int, kinds.Decision]]:
    """The decisions in the log, with their leaves."""
    bodies = []
    for index, leaf in enumerate(await server.leaves()):
        body = statement.parse(leaf).body
        if isinstance(body, kinds.Decision):
            bodies.append((index, body))
    return bodies
