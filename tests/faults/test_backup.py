"""Drill: a registry is lost, and comes back from a backup. A backup that is too old brings nothing back, so it forks nothing."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from fault_oracle import Seen, check_acknowledged, check_history
from http_api import publish
from registries import publication
from registry_process import PROGRAM, Server, empty
from signers import ORIGIN, key_signer
from steady_writers import steady_writers
from witness_process import WitnessProcess, witness_process

from treaty_consensus.log.note import VerifierKey

AUTHOR = key_signer("author")


async def command(*arguments: object) -> dict[str, Any]:
    """What a command of `treaty-registry` prints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(PROGRAM, *map(str, arguments), "--json", stdout=pipe)
    output, _ = await process.communicate()
    value: dict[str, Any] = json.loads(output)
    assert (process.returncode == 0) == ("error" not in value)
    return value


async def refused(*arguments: object) -> str:
    return str((await command(*arguments))["error"]["code"])


@dataclass
class Place:
    """A witnessed registry with three protocols, its witness, and how to start it somewhere else."""

    server: Server
    witness: WitnessProcess
    folder: Path
    size: int = 2

    @property
    def evidence(self) -> tuple[str, str]:
        return "--witness", f"{self.witness.about['url']}#{self.witness.key}"

    async def write(self, *versions: str) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.server.port}", trust_env=False) as api:
            for version in versions:
                await publish(api, AUTHOR, publication(AUTHOR, version=version))
        self.size += len(versions)

    async def witnessed(self) -> list[bytes]:
        """Wait until the witness has cosigned every leaf. Returns them."""
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.server.port}", trust_env=False) as api,
            asyncio.timeout(60),
        ):
            while True:
                note = (await api.get("/checkpoint")).text
                if "w1.example" in note and int(note.split("\n")[1]) >= self.size:
                    return await self.server.leaves()
                await asyncio.sleep(0.1)

    async def start(self) -> list[bytes]:
        await self.server.start()
        assert await self.server.ready()
        return await self.server.leaves()


@asynccontextmanager
async def place_in(data: Path) -> AsyncIterator[Place]:
    key = (await command("init", "--data", data / "registry", "--origin", ORIGIN))["key"]
    async with (
        witness_process(data / "witness", VerifierKey.parse(key), name="w1.example") as witness,
        empty(data / "registry", "--witness", f"{witness.about['url']}#{witness.key}") as server,
    ):
        server.options += ("--base-url", f"http://127.0.0.1:{server.port}")
        place = Place(server, witness, data)
        await place.start()
        await place.write("1.0", "1.1", "1.2")
        yield place


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The URL of a folder of tiles and blobs: a mirror, as any web server makes it."""

    class Mirror(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return super().translate_path(re.sub(r"^(/blobs/sha256/)(..)", r"\1\2/\2", path))

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Mirror, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.deep
async def test_an_old_backup_forks_nothing_and_a_mirror_completes_it(data: Path) -> None:
    async with place_in(data) as place:
        old, new, lost = data / "old", data / "new", data / "lost"
        assert (await command("backup", old, "--data", place.server.data))["leaves"] == 5
        await place.write("1.3", "1.4")
        before = await place.witnessed()
        assert (await command("backup", new, "--data", place.server.data))["size"] == len(before)
        await place.server.stop()
        place.server.data.rename(lost)

        target = ("--data", place.server.data)
        assert await refused("restore", old, *target) == "copy.unproven"
        assert await refused("restore", old, *target, *place.evidence) == "copy.behind"
        assert await refused("restore", old, *target, "--record", lost / "head") == "copy.behind"
        assert not (place.server.data / "keys").exists() and not (place.server.data / "head").exists()

        with serving(new) as mirror:
            done = await command("restore", old, *target, *place.evidence, "--mirror", mirror)
        assert (done["size"], done["fetched"], done["missing"]) == (len(before), 2, [])
        assert await refused("restore", old, *target, *place.evidence) == "log.exists"
        assert await place.start() == before
        await place.write("1.5")
        # The witness compares: it has cosigned the leaves from before the loss.
        assert (await place.witnessed())[: len(before)] == before
        assert await place.server.stop() == 0
        assert (await command("audit", *target))["findings"] == []


@pytest.mark.deep
async def test_the_newest_backup_and_the_record_bring_everything_back(data: Path) -> None:
    async with place_in(data) as place:
        folder, lost, target = data / "backup", data / "lost", ("--data", place.server.data)
        await command("backup", folder, *target)
        shutil.copy(place.server.data / "head", data / "old head")
        await place.write("1.3")
        before = await place.witnessed()
        await place.server.stop()
        done = await command("backup", folder, *target)
        assert (done["size"], done["leaves"], done["blobs"]) == (len(before), 1, 2)
        assert (folder.stat().st_mode & 0o777, (folder / "keys" / "log.key").stat().st_mode & 0o777) == (0o700, 0o600)
        place.server.data.rename(lost)

        entries = next((folder / "tile" / "entries").rglob(f"{len(before)}"))
        whole = entries.read_bytes()
        entries.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        assert await refused("restore", folder, *target, "--record", lost / "head") == "log.damaged"
        assert not (place.server.data / "keys").exists()
        entries.write_bytes(whole)

        # An older copy of the record, and a witness that has not seen the log, prove nothing.
        assert await refused("restore", folder, *target, "--record", data / "old head") == "copy.unproven"
        async with witness_process(data / "idle", place.witness.logs[0], name="idle.example") as idle:
            named = f"{idle.about['url']}#{idle.key}"
            assert await refused("restore", folder, *target, "--witness", named, "--accept-size", 5) == "copy.unproven"
        assert not (place.server.data / "head").exists() and not (place.server.data / "keys").exists()

        assert (await command("restore", folder, *target, "--record", lost / "head"))["fetched"] == 0
        assert await place.start() == before
        await place.write("1.4")
        await place.witnessed()


@pytest.mark.deep
async def test_a_backup_does_not_replace_another_history(data: Path) -> None:
    async with place_in(data) as place:
        folder, target = data / "backup", ("--data", place.server.data)
        await command("backup", folder, *target)
        await place.server.stop()
        other = data / "other"
        await command("init", "--data", other, "--origin", ORIGIN)
        checkpoint = (folder / "checkpoint").read_bytes()
        assert await refused("backup", folder, "--data", other) == "backup.none"
        assert (folder / "checkpoint").read_bytes() == checkpoint
        assert await refused("restore", data / "nothing", "--data", data / "third", *place.evidence) == "backup.none"


@pytest.mark.deep
@pytest.mark.parametrize("keep", ["keys"])
async def test_a_folder_without_a_checkpoint_is_no_backup(data: Path, keep: str) -> None:
    folder = data / "registry"
    await command("init", "--data", folder, "--origin", ORIGIN)
    await command("backup", data / "backup", "--data", folder)
    (data / "backup" / "checkpoint").unlink()
    assert await refused("restore", data / "backup", "--data", data / "new", "--record", folder / "head") == "backup.none"


async def ready(server: Server) -> bool:
    await server.start()
    return await server.ready()


@pytest.mark.parametrize("rate", [20, pytest.param(60, marks=pytest.mark.deep)])
async def test_copies_keep_all_acknowledged_leaves_of_a_lost_disk(data: Path, rate: int) -> None:
    elsewhere = data / "elsewhere"
    stores = ("--blobs", f"file://{elsewhere}/blobs", "--head", f"file://{elsewhere}/head")
    copies = ("--tiles", f"file://{elsewhere}/tiles", "--copies", "1")
    place = ("--data", data / "registry", *stores)
    await command("init", *place, "--origin", ORIGIN)
    async with empty(data / "registry", *stores, *copies) as server:
        # The address is that of the lost process, which a restored one asks first.
        server.options += ("--base-url", f"http://127.0.0.1:{server.port}")
        assert await ready(server)
        seen = Seen()
        async with steady_writers(server, seen, "before", rate):
            await asyncio.sleep(1)
            await command("backup", data / "backup", *place)
            await asyncio.sleep(1)
            await server.kill()
        shutil.rmtree(server.data)
        acknowledged, began = len(seen.acknowledged), time.monotonic()
        with serving(elsewhere / "tiles") as mirror:
            # The checkpoint of the copy is older than receipts that were given.
            assert await refused("restore", data / "backup", *place) in ("copy.behind", "copy.unproven")
            done = await command("restore", data / "backup", *place, "--mirror", mirror)
        assert done["fetched"] > 0
        assert not done["missing"]
        async with steady_writers(server, seen, "after", 10):
            assert await ready(server)
            while len(seen.acknowledged) == acknowledged:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)
        print(f"{acknowledged} acknowledged, then again after {time.monotonic() - began:.1f} s")
        await check_acknowledged(server, seen)
        await check_history(server, seen)
        if rate > 20:
            assert (await command("audit", *place))["findings"] == []
