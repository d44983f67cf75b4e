"""The log and the database of every earlier release stay readable: they are updated, checked, and go on."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import releases
from http_api import publish
from postgres_server import Postgres
from registries import publication
from registry_process import Server, empty
from releases import AUTHORS

from treaty_consensus import statement
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.proof import Receipt
from treaty_consensus.log.tiles import TreeEdge
from treaty_registry.keys import load_operator
from treaty_registry.storage.postgres import connect

AUTHOR = AUTHORS[0]

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in releases.FOLDER.glob("*.tar.xz"))


def test_there_are_some() -> None:
    assert len(NAMES) >= 2


@pytest.mark.sample(1)  # the oldest, with all migrations since
@pytest.mark.parametrize("name", NAMES)
async def test_a_release_is_updated_and_goes_on(name: str, data: Path, postgres: Postgres) -> None:
    releases.unpack(name, data)
    registry, (notes, receipts) = data / "registry", releases.seen(data)
    async with postgres.fresh("template1") as database:
        async with connect(database) as connection:
            await releases.load(connection, data)
        async with empty(registry, "--database", database) as server:
            server.options += ("--base-url", f"http://127.0.0.1:{server.port}")
            await server.start()
            assert await server.ready()
            await look(server, notes, receipts)
            # Tables that a later release added are filled beside the running server.
            await server.run("rebuild")
            assert await server.stop() == 0
        assert (await server.run("audit"))["findings"] == []


async def look(server: Server, notes: list[bytes], receipts: list[bytes]) -> None:
    """Everything that readers of the release got is a part of what they get now, and the log grows."""
    key = load_operator(server.data / "keys").log_key.verifier
    leaves = await server.leaves()
    heads = [open_checkpoint(note, key).checkpoint for note in notes]
    assert [head.root for head in heads] == [TreeEdge().appended(map(leaf_hash, leaves[: head.size]))[0].root() for head in heads]
    for receipt in map(Receipt.parse, receipts):
        receipt.verify(leaves[receipt.index], key)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, trust_env=False) as api:
        for leaf in leaves:
            statement_id = statement.parse(leaf).id
            assert (await api.get(f"/statements/{statement_id}")).content == leaf
        await publish(api, AUTHOR, publication(AUTHOR, version="2.0"))
    assert (await server.leaves())[: len(leaves)] == leaves
