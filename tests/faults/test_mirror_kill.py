"""Fault: a mirror is killed at random moments, again and again, while its registry grows, and in the end its registry is gone.

It never serves a checkpoint without its leaves, it goes on where it stopped, and people can promote it. The seed is printed;
`TREATY_SEED` repeats it.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from depth import FULL, SEED
from mirrors import PROGRAM, MirrorProcess, differences, mirror_process, until
from registries import blob, publication
from registry_process import Server, empty
from signers import key_signer

from treaty_consensus import canonical, kinds
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import text_of

KILLS = 12 if FULL else 2
WRITER = key_signer("a writer of a mirrored log")


async def grow(server: Server, stopping: asyncio.Event) -> None:
    """Publish one protocol after the other."""
    number = 0
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        while not stopping.is_set():
            number += 1
            statement = publication(WRITER, version=f"{number}.0")
            uri = statement.body.uri.replace("registry.example", server.about["origin"])
            body = kinds.Publish(uri, statement.body.topic, blob(statement.document), blob(statement.card), "negotiated")
            leaf = WRITER.statement(body, log=server.about["origin"]).leaf
            for data in (statement.document, statement.card):
                headers = {"Treaty-Statement": canonical.b64encode(leaf), "Content-Type": "application/octet-stream"}
                await client.put(f"/blobs/sha256/{canonical.hex_digest(data)}", content=data, headers=headers)
            answer = await client.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
            # 404: the quota refused a blob.
            assert answer.status_code in (200, 201, 404, 429, 503), answer.text
            await asyncio.sleep(0.2)


def size_of(note: bytes) -> int:
    return Checkpoint.parse(text_of(note)).size


async def served(mirror: MirrorProcess) -> int:
    """Read all leaves of the served checkpoint, whatever the moment of the last kill; their number."""
    async with httpx.AsyncClient(base_url=mirror.url, trust_env=False) as client:
        size = size_of((await client.get("/checkpoint")).content)
        for index in range(-(-size // 256)):
            width = min(256, size - 256 * index)
            path = f"/tile/entries/{index:03}" + (f".p/{width}" if width < 256 else "")
            assert (await client.get(path)).status_code == 200
    return size


async def promote(mirror: MirrorProcess, *options: str) -> dict[str, object]:
    arguments = ["promote", "--data", str(mirror.data), "--json", *options]
    process = await asyncio.create_subprocess_exec(PROGRAM, *arguments, stdout=-1)
    output, _ = await process.communicate()
    value: dict[str, object] = json.loads(output)
    return value


@pytest.mark.deep
@pytest.mark.threat(302)
async def test_a_mirror_is_killed_and_promoted(data: Path) -> None:
    choices = random.Random(seed := int(SEED or secrets.randbits(32)))
    print(f"TREATY_SEED={seed}")
    async with empty(data / "registry") as server:
        await server.start()
        assert await server.ready()
        name, url = server.about["name"], f"http://127.0.0.1:{server.port}"
        async with mirror_process(data / "mirror", name) as mirror:
            stopping = asyncio.Event()
            growing = asyncio.create_task(grow(server, stopping))
            seen = 0
            for _ in range(KILLS):
                await mirror.start()
                # Sometimes before it listens at all.
                with suppress(TimeoutError):
                    await asyncio.wait_for(mirror.ready(), choices.choice((1.5, 20, 20)))
                    size = await served(mirror)
                    assert size >= seen
                    seen = size
                    await asyncio.sleep(choices.random())
                await mirror.kill()
            stopping.set()
            await growing
            await mirror.start()
            assert await mirror.ready()

            async def caught_up() -> bool:
                async with httpx.AsyncClient(trust_env=False) as client:
                    return await mirror.note() == (await client.get(f"{url}/checkpoint")).content

            await until(caught_up)
            paths = ["/checkpoint", "/log", "/protocols", f"/protocols/{WRITER.did.removeprefix('did:')}/product-info", "/"]
            assert await differences(url, mirror.url, [(path, "application/json") for path in paths]) == []
            assert await mirror.health() == (200, "")
            # The registry is gone for good; a copy of its keys, and of its record, are left.
            await server.stop()
            size = await served(mirror)
            assert await mirror.stop() == 0
            shutil.copytree(data / "registry" / "keys", data / "backup")
            refused = await promote(mirror, "--keys", str(data / "backup"))
            assert refused["error"]["code"] == "copy.unproven"  # type: ignore[index]
            assert (mirror.data / "mirror.json").exists() and not (mirror.data / "keys").exists()
            refused = await promote(mirror, "--keys", str(data / "backup"), "--accept-size", str(size - 1))
            assert refused["error"]["code"] == "copy.unproven"  # type: ignore[index]
            promotion = await promote(mirror, "--keys", str(data / "backup"), "--record", str(data / "registry" / "head"))
            assert (promotion["origin"], promotion["size"]) == (server.about["origin"], size), promotion
            promoted = Server(mirror.data, server.port)
            try:
                await promoted.start()
                assert await promoted.ready()
                assert promoted.about["name"] == name, "agents see the same registry"
                more = asyncio.Event()
                growing = asyncio.create_task(grow(promoted, more))

                async def grew() -> bool:
                    return len(await promoted.leaves()) > size

                await until(grew)
                more.set()
                await growing
            finally:
                await promoted.stop()
