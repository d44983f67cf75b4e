"""Threat: the upstream of a mirror lies. It forks, breaks a rule, sends other bytes, or fills the disk. The mirror keeps what it
verified, says so, and never shows anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from http_api import problem, serving
from mirrors import caught_up, mirrored, served, until
from ports import free_port
from postgres_server import Postgres
from registries import Web, grant, log, open_registry, operator_in, publication, publish, settings_for
from signers import NOW, Signer, key_signer
from structlog.testing import capture_logs

from treaty_consensus.errors import TreatyError
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.merkle import Frontier, leaf_hash
from treaty_consensus.log.note import sign
from treaty_consensus.log.tiles import encode_bundle
from treaty_io.network.hosts import Network
from treaty_registry.mirroring.mirrored_log import MirroredLog
from treaty_registry.mirroring.promotion import promote
from treaty_registry.operator.newest_head import SignedHeads
from treaty_registry.registry import Registry
from treaty_registry.storage.space import FreeSpace

WRITER = key_signer("writer")


async def promotion_refused(data: Path, database: str, keys: Path, size: int) -> str:
    """The code by which a mirror is not promoted, although people confirm that it has everything. It stays a mirror."""
    settings = replace(settings_for(data, database), origin=None)
    with pytest.raises(TreatyError) as refused:
        await promote(settings, keys, SignedHeads(size=size), Network(), clock=lambda: datetime.fromtimestamp(NOW, UTC))
    assert (data / "mirror.json").exists() and not (data / "keys").exists() and not (data / "head").exists()
    return refused.value.code


@asynccontextmanager
async def proxied(url: str, answers: dict[str, bytes]) -> AsyncIterator[str]:
    """A proxy in front of a registry that gives its own answers at these paths."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            if path in answers:
                status, body = 200, answers[path]
            else:
                reply = await client.get(path)
                status, body = reply.status_code, reply.content
            head = f"HTTP/1.1 {status} OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


async def refusal(mirror: MirroredLog) -> dict[str, str]:
    """The reason why a mirror is not ready; what it verified is still served."""
    async with served(mirror) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        assert (await client.get("/checkpoint")).content == mirror.head.note
        answer = await client.get("/health/ready")
        return problem(answer, 503, answer.json()["code"])


async def not_ready(mirror: MirroredLog, code: str) -> None:
    async def says() -> bool:
        try:
            await mirror.check_ready()
        except Exception as error:
            return getattr(error, "code", "") == code
        return False

    await until(says)


@pytest.mark.threat(301)
async def test_a_fork_is_proved_and_stops_the_mirror(web: Web, postgres: Postgres, tmp_path: Path, registry: Registry) -> None:
    async with postgres.fresh() as database, serving(registry, free_port()) as url:
        answers: dict[str, bytes] = {}
        key = operator_in(tmp_path / "registry").log_key
        async with proxied(url, answers) as upstream:
            async with mirrored(tmp_path / "mirror", database, registry, upstream) as mirror:
                await log(registry, grant(WRITER, 0), WRITER)
                await caught_up(mirror, registry)
                honest = mirror.head
                with capture_logs() as logged:
                    answers["/checkpoint"] = sign(Checkpoint(key.name, honest.size, b"\7" * 32).format(), [key])
                    await not_ready(mirror, "mirror.stopped")
                assert any(entry["log_level"] == "critical" for entry in logged)
                error = await refusal(mirror)
                (file,) = (tmp_path / "mirror" / "evidence").iterdir()
                heads = Equivocation.parse(file.read_bytes()).verify()
                assert {head.root for head in heads} == {honest.root, b"\7" * 32}
                assert str(file) in error["fix"]
                # It follows no further, even if the upstream is honest again.
                answers.clear()
                await log(registry, grant(WRITER, 1), WRITER)
                await asyncio.sleep(1.5)
                assert mirror.head is honest
            # The proof outlives a restart.
            async with mirrored(tmp_path / "mirror", database, registry, upstream) as mirror:
                await not_ready(mirror, "mirror.stopped")
                assert mirror.head.size == honest.size


@pytest.mark.threat(301)
async def test_wrong_bytes_are_fetched_again(registry: Registry, postgres: Postgres, tmp_path: Path, alice: Signer) -> None:
    await publish(registry, alice, publication(alice))
    digest = publication(alice).body.document.sha256
    async with postgres.fresh() as database, serving(registry, free_port()) as url:
        answers = {f"/blobs/sha256/{digest}": b"other bytes"}
        async with proxied(url, answers) as upstream:
            with pytest.raises(Exception) as refused:
                async with mirrored(tmp_path / "mirror", database, registry, upstream):
                    pass
            assert getattr(refused.value, "code", "") == "mirror.behind"
            answers.clear()
            async with mirrored(tmp_path / "mirror", database, registry, upstream) as mirror:
                assert await mirror.blob(digest) == publication(alice).document
                size = registry.head.size
                answers[f"/tile/entries/000.p/{size + 1}"] = (3).to_bytes(2, "big") + b"abc"
                await log(registry, grant(WRITER, 0), WRITER)
                await asyncio.sleep(1.5)
                assert mirror.head.size == size
                answers.clear()
                await caught_up(mirror, registry)


@pytest.mark.threat(301)
async def test_a_full_disk_stops_nothing_but_the_copy(
    registry: Registry, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        postgres.fresh() as database,
        serving(registry, free_port()) as url,
        mirrored(tmp_path / "mirror", database, registry, url) as mirror,
    ):
        before = mirror.head
        room = FreeSpace.check

        def full(space: FreeSpace, needed: int = 0) -> None:
            room(space, 2**62 if space.purpose == "mirror" else needed)

        monkeypatch.setattr(FreeSpace, "check", full)
        await log(registry, grant(WRITER, 0), WRITER)
        await asyncio.sleep(2)
        assert mirror.head is before
        monkeypatch.undo()
        await caught_up(mirror, registry)


async def test_a_mirror_of_another_log_is_refused(web: Web, postgres: Postgres, tmp_path: Path, registry: Registry) -> None:
    async with postgres.fresh() as other_database, postgres.fresh() as database:
        async with serving(registry, free_port()) as url, mirrored(tmp_path / "mirror", database, registry, url):
            pass
        async with open_registry(tmp_path / "other", other_database, web) as other, serving(other, free_port()) as url:
            with pytest.raises(Exception) as refused:
                async with mirrored(tmp_path / "mirror", database, other, url):
                    pass
            assert getattr(refused.value, "code", "") == "settings.directory"


@pytest.mark.threat(302)
async def test_a_registry_never_signs_in_the_directory_of_a_mirror(
    web: Web, postgres: Postgres, tmp_path: Path, registry: Registry
) -> None:
    async with postgres.fresh() as database:
        async with serving(registry, free_port()) as url, mirrored(tmp_path / "mirror", database, registry, url):
            pass
        with pytest.raises(Exception) as refused:
            async with open_registry(tmp_path / "mirror", database, web):
                pass
        assert getattr(refused.value, "code", "") == "settings.directory"
        assert not (tmp_path / "mirror" / "keys").exists() and not (tmp_path / "mirror" / "head").exists()


@pytest.mark.threat(301)
async def test_a_log_that_breaks_a_rule_is_not_followed(registry: Registry, postgres: Postgres, tmp_path: Path) -> None:
    await log(registry, grant(WRITER, 0), WRITER)
    async with postgres.fresh() as database, serving(registry, free_port()) as url:
        answers: dict[str, bytes] = {}
        async with (
            proxied(url, answers) as upstream,
            mirrored(tmp_path / "mirror", database, registry, upstream) as mirror,
        ):
            before, operator = mirror.head, operator_in(tmp_path / "registry")
            by_index = await registry.leaves(range(registry.head.size))
            # The operator signs a log in which a statement is repeated.
            leaves = [*(by_index[index] for index in sorted(by_index)), by_index[1]]
            tree = Frontier()
            for leaf in leaves:
                tree.append(leaf_hash(leaf))
            text = Checkpoint(registry.origin, len(leaves), tree.root()).format()
            answers[f"/tile/entries/000.p/{len(leaves)}"] = encode_bundle(leaves)
            answers["/checkpoint"] = sign(text, [operator.log_key, operator.clock_key], time=NOW)
            await not_ready(mirror, "mirror.stopped")
            error = await refusal(mirror)
            assert "audit.leaf" in error["detail"] and mirror.head is before


@pytest.mark.threat(302)
async def test_a_mirror_of_a_signing_registry_is_not_promoted(registry: Registry, postgres: Postgres, tmp_path: Path) -> None:
    data, keys, answers = tmp_path / "mirror", tmp_path / "registry" / "keys", dict[str, bytes]()
    async with postgres.fresh() as database, serving(registry, free_port()) as url, proxied(url, answers) as between:
        await log(registry, grant(WRITER), WRITER)
        async with mirrored(data, database, registry, between) as mirror:
            size = mirror.head.size
        assert await promotion_refused(data, database, keys, size) == "mirror.alive"
        # The last that is left of it, in a cache: signed by the log, and without a time.
        operator = operator_in(tmp_path / "registry")
        fork = Checkpoint(registry.origin, 2, bytes(32))
        answers["/checkpoint"] = sign(fork.format(), [operator.log_key])
        assert await promotion_refused(data, database, keys, size) == "copy.other-history"
