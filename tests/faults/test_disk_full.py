"""Fault: a disk is full, each of those that a registry writes to on its own, and all of them together.

Every write gets a prompt 503, reads go on, the health check says why, and with room again everything goes on by itself: no
restart, and nothing that was acknowledged is lost. The disks are small file systems in memory, which only root may mount.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import httpx
import pytest
from registries import TOPIC, Web, blob, contents, grant, log, open_registry, publication, settings_for
from registry_process import Server, empty
from signers import NOW, Signer, key_signer

from treaty_consensus import canonical, kinds
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.proof import Receipt
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry
from treaty_registry.storage.blobs import BlobStore
from treaty_registry.storage.embedded import embedded_postgres
from treaty_registry.storage.postgres import connect, migrate

WRITER = key_signer("writer")
PROMPT = 10.0
"""Seconds. What used to wait for PostgreSQL or for ever takes 30 or more, a refusal some milliseconds."""


@contextmanager
def disk(path: Path, megabytes: int, files: int = 0) -> Iterator[Path]:
    """A file system of its own at `path`, with inodes for that many `files`, or for as many as there is room for."""
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,nr_inodes={files},mode=0755", "treaty-test", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED, a full disk needs a file system of its own: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(folder: Path) -> Path:
    """A file that leaves no byte free."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024 * 1024))
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
    return path


async def until(registry: Registry, ready: bool) -> None:
    async with asyncio.timeout(30):
        while await registry.is_ready() != ready:  # noqa: ASYNC110 (no event says that a disk has room again)
            await asyncio.sleep(0.05)


class Writer:
    """Writes to a registry over HTTP, and keeps what was acknowledged."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=PROMPT, trust_env=False)
        self.acknowledged: list[tuple[bytes, bytes]] = []
        self._writes = 0

    async def write(self) -> httpx.Response:
        self._writes += 1
        leaf = self.signed(WRITER, grant(WRITER, self._writes))
        answer = await self.http.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
        if answer.status_code == 201:
            self.acknowledged.append((leaf, answer.content))
        return answer

    async def upload(self, name: str) -> httpx.Response:
        publisher = key_signer(name)
        statement = publication(publisher)
        uri = statement.body.uri.replace("registry.example", self.server.about["origin"])
        body = kinds.Publish(uri, TOPIC, blob(statement.document), blob(statement.card), "negotiated")
        headers = {
            "Treaty-Statement": canonical.b64encode(self.signed(publisher, body)),
            "Content-Type": "application/octet-stream",
        }
        digest = hashlib.sha256(statement.document).hexdigest()
        return await self.http.put(f"/blobs/sha256/{digest}", content=statement.document, headers=headers)

    def signed(self, signer: Signer, body: kinds.Body) -> bytes:
        return signer.statement(body, log=self.server.about["origin"], issued=NOW).leaf

    async def check(self) -> None:
        """Everything acknowledged is where its receipt says."""
        leaves, key = await self.server.leaves(), VerifierKey.parse(self.server.about["key"])
        for leaf, receipt in self.acknowledged:
            proof = Receipt.parse(receipt)
            proof.verify(leaf, key)
            assert leaves[proof.index] == leaf


@pytest.fixture
async def server(data: Path) -> AsyncIterator[Server]:
    """On a disk with everything on it: database, blobs, fence, and the file that its own log goes to."""
    with disk(data / "disk", 150):
        async with empty(data / "disk" / "registry") as server:
            await server.start()
            assert await server.ready()
            yield server


@pytest.mark.threat(60)
async def test_with_no_disk_left_at_all_it_refuses_and_then_goes_on(server: Server) -> None:
    writer = Writer(server)
    assert (await writer.write()).status_code == 201
    filler = fill(server.data.parent)
    for number in range(6):
        for answer in (await writer.write(), await writer.upload(f"publisher {number}"), await writer.http.get("/health/ready")):
            assert (answer.status_code, answer.json()["code"]) == (503, "disk.full"), answer.text
            assert answer.json()["fix"] and answer.headers["retry-after"]
    for path in ("/checkpoint", "/log", "/protocols", "/tile/entries/000.p/1", "/health/live"):
        assert (await writer.http.get(path)).status_code == 200, path
    filler.unlink()
    assert (await writer.write()).status_code == 201
    assert (await writer.upload("publisher 0")).status_code == 201
    assert (await writer.http.get("/health/ready")).status_code == 200
    await writer.check()
    filler = fill(server.data.parent)
    began = time.monotonic()
    assert await server.stop() == 0
    assert time.monotonic() - began < 15
    filler.unlink()
    await server.start()
    assert await server.ready()
    assert (await writer.write()).status_code == 201
    await writer.check()


@pytest.mark.threat(60)
async def test_without_room_for_blobs_alone_every_write_is_refused(data: Path, database: str, web: Web) -> None:
    publisher = key_signer("publisher")
    statement = publication(publisher)
    leaf = publisher.statement(statement.body).leaf
    with disk(data / "blobs", 4) as folder:
        settings = replace(settings_for(data / "registry", database), blobs=f"file://{folder}")
        async with Registry.open(settings, clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve) as registry:
            digest, card = statement.body.document.sha256, statement.body.card.sha256
            assert await registry.put_blob(digest, leaf, statement.document)
            filler = fill(folder)
            before, stored = await contents(registry), sorted(folder.rglob("*"))
            for write in (
                registry.put_blob(card, leaf, statement.card),
                registry.submit([leaf]),
                registry.decide(),
                registry.check_ready(),
                registry.blobs.put(card, statement.card),
            ):
                with pytest.raises(Unavailable) as refused:
                    await write
                assert refused.value.code == "disk.full" and "blobs" in refused.value.message and refused.value.fix
            assert (await contents(registry), sorted(folder.rglob("*"))) == (before, stored)
            assert await registry.blobs.get(digest) == statement.document
            filler.unlink()
            await registry.put_blob(card, leaf, statement.card)
            assert isinstance((await registry.submit([leaf]))[0], Logged)
            assert await registry.blob(card) == statement.card
            await registry.check_ready()


@pytest.mark.deep
async def test_a_file_system_without_inodes_is_full_too(data: Path) -> None:
    with disk(data / "blobs", 4, files=8) as folder:
        store = BlobStore.open(data, f"file://{folder}")
        with suppress(OSError):
            for number in range(16):
                (folder / str(number)).touch()
        with pytest.raises(Unavailable) as refused:
            await store.put("ab" * 32, b"y")
        assert refused.value.code == "disk.full"


@pytest.fixture
async def far_database(data: Path) -> AsyncIterator[tuple[Path, str]]:
    """A PostgreSQL on a small disk that the registry knows nothing of: only what it says tells that it is full."""
    with disk(data / "far", 130) as folder:
        async with embedded_postgres(folder) as url:
            async with connect(url) as connection:
                await migrate(connection)
            yield folder, url


def another(number: int) -> bytes:
    return WRITER.statement(grant(WRITER, number)).leaf


async def outcome_of(registry: Registry, leaf: bytes) -> Logged | TreatyError:
    async with asyncio.timeout(PROMPT):
        try:
            return (await registry.submit([leaf]))[0]
        except TreatyError as error:
            return error


@pytest.mark.deep
@pytest.mark.threat(60)
async def test_when_only_the_database_has_no_disk_left(data: Path, far_database: tuple[Path, str], web: Web) -> None:
    folder, url = far_database
    async with open_registry(data / "registry", url, web) as registry:
        logged = await log(registry, grant(WRITER, -1), WRITER)
        filler = fill(folder)
        number, refused = 0, 0
        while refused < 5:  # what fits into the pages that it has is written, and acknowledged
            number += 1
            outcome = await outcome_of(registry, another(number))
            if not isinstance(outcome, Logged):
                assert isinstance(outcome, Unavailable) and outcome.fix, outcome
                refused += 1
        for _ in range(20):  # also after it has taken the lead again
            with pytest.raises(Unavailable):
                await registry.check_ready()
            await asyncio.sleep(0.1)
        size = registry.head.size
        assert await registry.receipt(logged.id)
        # It falls over: it cannot make the next segment of its own log.
        with pytest.raises(asyncpg.ConnectionDoesNotExistError, match="pg_wal"):
            async with connect(url) as connection:
                for _ in range(4):
                    await connection.execute("select pg_logical_emit_message(true, 'test', repeat('x', 8000000))")
        for again in range(3):
            assert isinstance(await outcome_of(registry, another(1000 + again)), Unavailable)
        filler.unlink()
        await until(registry, ready=True)
        assert isinstance(await outcome_of(registry, another(2000)), Logged)
        assert registry.head.size > size and await registry.receipt(logged.id)
        assert not (await registry.rebuild()).differed


async def test_an_unwritable_record_stops_writes_alone(
    tmp_path: Path, database: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that copies on write, overwriting the fence needs room as well."""
    async with open_registry(tmp_path / "registry", database, web) as registry:
        logged = await log(registry, grant(WRITER, -1), WRITER)
        fence = (tmp_path / "registry" / "head").stat().st_ino
        write = os.pwrite

        def full(descriptor: int, content: bytes, offset: int) -> int:
            if os.fstat(descriptor).st_ino == fence:
                raise OSError(28, "No space left on device")
            return write(descriptor, content, offset)

        monkeypatch.setattr(os, "pwrite", full)
        leaf = another(0)
        for refused in (leaf, another(1), another(2)):
            assert isinstance(await outcome_of(registry, refused), Unavailable)
            with pytest.raises(Unavailable):
                await registry.check_ready()
        assert await registry.receipt(logged.id)
        monkeypatch.undo()
        await until(registry, ready=True)
        again = await outcome_of(registry, leaf)
        assert isinstance(again, Logged) and not again.new, "it was committed, though nobody was told"
