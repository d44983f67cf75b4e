"""A mirror answers every read as its registry does, byte for byte, takes no writes, and follows."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from depth import FULL
from http_api import path_of, problem, serving
from mirrors import caught_up, crawl, differences, mirrored, served
from populated_catalogue import populate
from ports import free_port
from postgres_server import Postgres
from registries import Web, grant, log, operator_in, publication, publish
from signers import Signer, key_signer

from treaty_consensus import kinds
from treaty_registry.log.entry import Logged
from treaty_registry.mirroring.server import MirrorState
from treaty_registry.observation import metrics_served
from treaty_registry.registry import Registry
from treaty_registry.serving.views import Views
from treaty_registry.settings import MetricsAddress

WRITER = key_signer("writer")


@pytest.mark.deep
async def test_every_read_is_answered_byte_for_byte(registry: Registry, web: Web, postgres: Postgres, tmp_path: Path) -> None:
    await populate(registry, web)
    async with (
        postgres.fresh() as database,
        serving(registry, free_port(), period=0) as url,
        mirrored(tmp_path / "mirror", database, registry, url) as mirror,
        served(mirror) as copy,
    ):
        await caught_up(mirror, registry)
        targets = await crawl(url)
        assert len(targets) > 500
        assert await differences(url, copy, targets[:: 1 if FULL else 5]) == []
        await log(registry, grant(WRITER, 1), WRITER)
        await caught_up(mirror, registry)
        assert await differences(url, copy, targets[:20]) == []


async def test_writes_are_refused_with_the_address_of_the_registry(
    registry: Registry, postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        postgres.fresh() as database,
        serving(registry, free_port()) as url,
        mirrored(tmp_path / "mirror", database, registry, url) as mirror,
        served(mirror) as copy,
        httpx.AsyncClient(base_url=copy, trust_env=False) as client,
    ):
        for method, path in (
            ("POST", "/statements"),
            ("PUT", f"/blobs/sha256/{'ab' * 32}"),
            ("POST", "/identities/did:wba:alice.example"),
            ("POST", "/sigstore/api/v2/signingCert"),
            ("POST", "/sigstore/api/v1/timestamp"),
            ("POST", "/sigstore/api/v2/log/entries"),
        ):
            refused = problem(await client.request(method, path, content=b"{}"), 422, "mirror.read-only")
            assert registry.base_url in refused["fix"]
        assert mirror.head.size == registry.head.size
        assert (await client.get("/health/ready")).json() == {"status": "ready"}
        # Searches are no writes. Only the operator's key signs entries, and it is not here.
        assert (await client.post("/search", json={"query": {"text": "greeting"}})).json() == {"results": []}
        (entry,) = (await client.get("/.well-known/ai-catalog.json")).json()["entries"]
        assert entry["trustManifest"]["identity"] == registry.operator and "signature" not in entry["trustManifest"]


@pytest.mark.deep
async def test_withdrawn_bytes_are_withdrawn_here_too(
    registry: Registry, postgres: Postgres, tmp_path: Path, alice: Signer
) -> None:
    statement = publication(alice)
    await publish(registry, alice, statement)
    operator = operator_in(tmp_path / "registry")

    async def withdraw(digest: str) -> None:
        withdrawal = operator.state(kinds.Withdrawal(digest, "personal"), issued=registry.clock())
        (logged,) = await registry.submit([withdrawal.statement.leaf])
        assert isinstance(logged, Logged), logged

    async with postgres.fresh() as database, serving(registry, free_port(), period=0) as url:
        # Before the first copy: the registry refuses the bytes, and a later leaf says why.
        await withdraw(statement.body.document.sha256)
        async with mirrored(tmp_path / "mirror", database, registry, url) as mirror, served(mirror) as copy:
            path = path_of(statement.body.uri)
            paths = [f"/blobs/sha256/{statement.body.document.sha256}", path, f"{path}.md", f"{path}.bundle", "/protocols"]
            requests = [(path, accept) for path in paths for accept in ("application/json", "text/html")]
            assert await differences(url, copy, requests) == []
            assert (await mirror.blobs.get(statement.body.card.sha256)) == statement.card
            # After it: the mirror has the bytes, and deletes them.
            await withdraw(statement.body.card.sha256)
            await caught_up(mirror, registry)
            assert await differences(url, copy, requests) == []
            assert await mirror.blobs.get(statement.body.card.sha256) is None


async def test_a_restart_goes_on_where_the_replay_was_saved(registry: Registry, postgres: Postgres, tmp_path: Path) -> None:
    data = tmp_path / "mirror"
    async with postgres.fresh() as database, serving(registry, free_port(), period=0) as url:
        async with mirrored(data, database, registry, url) as mirror:
            assert mirror.resumed == 0
            await caught_up(mirror, registry)
        size = registry.head.size
        await log(registry, grant(WRITER, 1), WRITER)
        async with mirrored(data, database, registry, url) as mirror, served(mirror) as copy:
            assert mirror.resumed == size
            await caught_up(mirror, registry)
            assert await differences(url, copy, (await crawl(url))[:20]) == []
        # Leaves that the tables lack must be replayed, or they would never be stored.
        async with postgres.fresh() as empty, mirrored(data, empty, registry, url) as mirror, served(mirror) as copy:
            assert mirror.resumed == 0
            await caught_up(mirror, registry)
            assert await differences(url, copy, (await crawl(url))[:20]) == []


async def test_metrics_tell_that_the_registry_does_not_answer(registry: Registry, postgres: Postgres, tmp_path: Path) -> None:
    async with AsyncExitStack() as registry_served, postgres.fresh() as database:
        url = await registry_served.enter_async_context(serving(registry, free_port()))
        async with mirrored(tmp_path / "mirror", database, registry, url) as mirror:
            state, port = MirrorState(mirror, Views(mirror), asyncio.get_running_loop()), free_port()
            async with metrics_served(MetricsAddress("127.0.0.1", port), state), httpx.AsyncClient(trust_env=False) as client:

                async def shown(*lines: str) -> None:
                    lines_seen: set[str] = set()
                    async with asyncio.timeout(60):
                        while not lines_seen.issuperset(lines):
                            lines_seen = set((await client.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines())
                            await asyncio.sleep(0.05)

                await shown("treaty_mirror_failing 0.0", "treaty_mirror_stopped 0.0", "treaty_event_loop_answers 1.0")
                await registry_served.aclose()
                await shown("treaty_mirror_failing 1.0", "treaty_mirror_stopped 0.0")
