"""An upgrade under load: the next release brings a migration, and clients that send again lose nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import httpx
from postgres_server import Postgres
from registries import publication
from registry_process import empty
from signers import ORIGIN, Signer, key_signer

import treaty_registry
from treaty_consensus import canonical
from treaty_consensus.log.proof import Receipt

WRITERS = 4
MIGRATION = """
alter table leaves add column noted text not null default 'earlier';
create index leaves_noted on leaves (noted);
"""
"""It locks the table that every write needs."""


def next_release(folder: Path) -> Path:
    """Return the program of a release that is this one, with a migration more."""
    package = folder / "treaty_registry"
    shutil.copytree(Path(treaty_registry.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "storage" / "migrations" / "9999_next.sql").write_text(MIGRATION)
    program = folder / "treaty-registry"
    path = os.pathsep.join((str(folder), *filter(None, sys.path)))
    script = f"import sys; sys.path[:0] = {path.split(os.pathsep)!r}; from treaty_registry.cli import main; main()"
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    return program


class Writer:
    """Publishes one version after the other; sends each until it is acknowledged."""

    def __init__(self, agent: Signer, base_url: str) -> None:
        self.agent = agent
        self.base_url = base_url
        self.acknowledged: list[tuple[bytes, Receipt]] = []
        self.stopping = False

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self.base_url, timeout=30, trust_env=False) as api:
            while not self.stopping:
                statement = publication(self.agent, version=f"{len(self.acknowledged)}.0")
                leaf = self.agent.statement(statement.body).leaf
                for digest, data in statement.blobs.items():
                    headers = {"Treaty-Statement": canonical.b64encode(leaf), "Content-Type": "application/octet-stream"}
                    await self.send(api, "PUT", f"/blobs/sha256/{digest}", data, headers)
                answer = await self.send(api, "POST", "/statements", leaf, {"Content-Type": "application/json"})
                self.acknowledged.append((leaf, Receipt.parse(answer.content)))

    async def send(self, api: httpx.AsyncClient, method: str, path: str, data: bytes, headers: dict[str, str]) -> httpx.Response:
        while True:
            with suppress(httpx.TransportError):
                answer = await api.request(method, path, content=data, headers=headers)
                # Nothing else may be refused: an upgrade is no fault of a client's.
                if answer.status_code not in (429, 503):
                    assert answer.status_code < 300, answer.text
                    return answer
            await asyncio.sleep(0.2)  # less takes the processor from the server that starts


async def test_nothing_acknowledged_is_lost(data: Path, postgres: Postgres) -> None:
    program = next_release(data / "next")
    async with (
        postgres.fresh() as database,
        empty(data / "registry", "--database", database, "--origin", ORIGIN) as server,
        asyncio.timeout(240),
    ):
        server.options += ("--base-url", f"http://127.0.0.1:{server.port}")
        await server.start()
        assert await server.ready()
        writers = [Writer(key_signer(f"writer {number}"), f"http://127.0.0.1:{server.port}") for number in range(WRITERS)]
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run())

            async def written(more: int) -> None:
                before = [len(writer.acknowledged) for writer in writers]
                while any(len(w.acknowledged) < count + more for w, count in zip(writers, before, strict=True)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

            await written(3)
            server.program = program
            # The tables change below the running release, which goes on.
            assert (await server.run("migrate"))["applied"] == ["9999_next.sql"]
            await written(3)
            assert await server.stop() == 0
            await server.start()
            assert await server.ready()
            await written(3)
            for writer in writers:
                writer.stopping = True
        leaves = await server.leaves()
        for leaf, receipt in (item for writer in writers for item in writer.acknowledged):
            assert leaves[receipt.index] == leaf
        assert len(leaves) == 2 + sum(len(writer.acknowledged) for writer in writers)
        assert await server.stop() == 0
