"""Blobs, tiles and the record of the newest head in an object store, with conditional writes, and what its failures do."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import go_programs
import obstore
import pytest
from go_programs import needs_go
from node_processes import WITHIN, Clients, cluster, get, leaf, post, until_size
from object_server import BUCKET, ENVIRONMENT, object_server, objects
from obstore.store import S3Store
from postgres_server import Postgres
from registry_process import PROGRAM
from signers import ORIGIN

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, decode_bundle
from treaty_registry.data_directory import record_at
from treaty_registry.log.clock import SignedTime
from treaty_registry.log.stored_fence import StoredFence

HEAD = "s3://treaty/log/head"
STORES = ("--blobs", "s3://treaty/blobs", "--head", HEAD, "--tiles", "s3://treaty/tiles")


@pytest.fixture(
    params=["moto", pytest.param("versitygw", marks=[pytest.mark.deep, needs_go("VersityGW, a second object store")])]
)
def store(request: pytest.FixtureRequest, data: Path) -> Iterator[None]:
    (data / "store").mkdir()
    is_moto = request.param == "moto"
    versitygw = None if is_moto else go_programs.build("s3", request.config.cache.mkdir("go")) / "versitygw"
    with object_server(data / "store", versitygw):
        yield


def root(number: int) -> bytes:
    return bytes([number]) * 32


def code(work: object, *arguments: object) -> str:
    with pytest.raises(TreatyError) as refused:
        work(*arguments)  # type: ignore[operator]
    return refused.value.code


def test_of_two_nodes_that_advance_the_record_one_is_refused(store: None) -> None:
    StoredFence.create(HEAD, ORIGIN)
    one, other = StoredFence(HEAD, ORIGIN), StoredFence(HEAD, ORIGIN)
    one.advance(3, root(3), SignedTime(100))
    assert code(other.advance, 3, root(3), SignedTime(101)) == "log.not-leading"
    assert code(other.advance, 4, root(4), SignedTime(101)) == "log.not-leading"
    other.reread()
    assert (other.record.size, other.signed) == (3, SignedTime(100))
    other.advance(4, root(4), SignedTime(102))
    # The first one does not know, and is refused in turn.
    assert code(one.advance, 5, root(5)) == "log.not-leading"
    one.reread()
    assert code(one.advance, 3, root(3)) == "log.damaged"
    assert code(one.advance, 4, root(5)) == "log.damaged"
    assert StoredFence(HEAD, ORIGIN).record.size == 4


def test_a_record_is_made_once_and_is_of_one_log(store: None) -> None:
    assert code(StoredFence, HEAD, ORIGIN) == "fence.damaged"
    StoredFence.create(HEAD, ORIGIN)
    StoredFence.create(HEAD, ORIGIN)  # after a crash before the keys were made
    assert objects().keys() == {"log/head"}
    StoredFence(HEAD, ORIGIN).advance(1, root(1))
    assert code(StoredFence.create, HEAD, ORIGIN) == "keys.missing"
    assert code(StoredFence, HEAD, "other.example") == "fence.damaged"


def test_the_record_of_a_restored_log_never_replaces_a_later_one(store: None) -> None:
    brought = Checkpoint(ORIGIN, 3, root(3), (SignedTime(100).format(),))
    for _ in range(2):
        StoredFence.restore(HEAD, brought)
        assert record_at(HEAD, ORIGIN) == brought
    StoredFence(HEAD, ORIGIN).advance(4, root(4))
    assert code(StoredFence.restore, HEAD, brought) == "log.damaged"
    assert StoredFence(HEAD, ORIGIN).record.size == 4


@pytest.mark.deep
async def test_a_registry_of_one_machine_becomes_nodes_by_a_backup(store: None, data: Path, postgres: Postgres) -> None:
    async def run(*arguments: object) -> dict[str, object]:
        process = await asyncio.create_subprocess_exec(PROGRAM, *map(str, arguments), "--json", stdout=-1)
        output, _ = await process.communicate()
        value: dict[str, object] = json.loads(output)
        return value

    async with postgres.fresh() as one, postgres.fresh() as shared:
        old, new = ("--data", data / "old", "--database", one), ("--data", data / "new", "--database", shared, *STORES[:4])
        assert (await run("init", "--origin", ORIGIN, *old))["size"] == 2
        assert (await run("backup", data / "backup", *old))["size"] == 2
        assert "error" in await run("restore", data / "backup", *new, "--record", HEAD)
        assert not (data / "new").exists() and not objects()
        done = await run("restore", data / "backup", *new, "--record", data / "old" / "head")
        assert (done["size"], done["missing"]) == (2, [])
        # The record of the nodes is in the store, and a backup of theirs reads it there.
        assert not (data / "new" / "head").exists() and record_at(HEAD, ORIGIN).size == 2
        assert (await run("backup", data / "backup", *new))["leaves"] == 0


class Careless(BaseHTTPRequestHandler):
    """A store that takes every write, whatever its condition."""

    kept: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_store_that_ignores_conditions_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}.items():
        monkeypatch.setenv(name, value)
    try:
        with pytest.raises(Refused) as refused:
            StoredFence.create(HEAD, ORIGIN)
        assert refused.value.code == "settings.value"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.deep
async def test_nodes_share_blobs_head_and_tiles_in_the_store(store: None, data: Path) -> None:
    async with cluster(data, 2, options=STORES) as servers:
        for number in range(300):
            if number % 50 == 0:
                answers = await asyncio.gather(*(post(servers.nodes[n % 2].port, leaf(number + n)) for n in range(50)))
                assert {answer.status_code for answer in answers} == {201}
        node = servers.nodes[1]
        await until_size(node.port, 302)
        size = int(objects()["log/head"].split(b"\n")[1])
        assert size == 302
        async with asyncio.timeout(WITHIN):
            while b"\n302\n" not in objects().get("tiles/checkpoint", b""):  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.2)
        stored_tiles = {
            path.removeprefix("tiles/"): content for path, content in objects().items() if path.startswith("tiles/tile/")
        }
        # Everything below the checkpoint is there, byte for byte as a node serves it, and no partial tile beside its full one.
        assert {
            "tile/0/000",
            "tile/entries/000",
            "tile/1/000.p/1",
            "tile/0/001.p/46",
            "tile/entries/001.p/46",
        } <= stored_tiles.keys()
        assert not [path for path in stored_tiles if path.startswith(("tile/0/000.p", "tile/entries/000.p"))]
        for path, content in stored_tiles.items():
            assert (await get(node.port, f"/{path}")).content == content
        assert decode_bundle(stored_tiles[Bundle(0).path[1:]], TILE_WIDTH)[0].startswith(b'{"payload"')
        # The static site beside them has the headers of a registry's answers.
        async with asyncio.timeout(WITHIN):
            while b'"size":302' not in objects().get("tiles/site.json", b""):  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.2)
        attributes = obstore.get(S3Store(BUCKET), "tiles/log").attributes
        answer = await get(node.port, "/log")
        assert (attributes["Content-Type"], attributes["Cache-Control"]) == (
            answer.headers["content-type"],
            answer.headers["cache-control"],
        )
        # Another leader continues where the first one stopped.
        leader = await servers.leader()
        await leader.kill()
        (rest,) = [other for other in servers.nodes if other is not leader]
        async with asyncio.timeout(WITHIN):
            while (await post(rest.port, leaf(1000))).status_code not in (200, 201):  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.1)
            while b"\n303\n" not in objects()["tiles/checkpoint"]:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.2)
            while b'"size":303' not in objects()["tiles/site.json"]:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.2)


@pytest.mark.deep
async def test_without_its_store_a_registry_reads_but_signs_nothing(data: Path) -> None:
    (data / "store").mkdir()
    with object_server(data / "store") as environment:
        async with cluster(data, 2, options=STORES) as servers:
            assert (await post(servers.nodes[1].port, leaf(0))).status_code == 201
            await until_size(servers.nodes[0].port, 3)
            port = environment["AWS_ENDPOINT_URL"].rpartition(":")[2]
            (server,) = [pid for pid in _processes() if f"-p\0{port}\0" in pid[1]]
            os.kill(server[0], signal.SIGSTOP)
            try:
                answer = await post(servers.nodes[1].port, leaf(1))
                assert answer.status_code == 503, answer.text
                for node in servers.nodes:
                    checkpoint = await get(node.port, "/checkpoint")
                    assert (checkpoint.status_code, checkpoint.text.split("\n")[1]) == (200, "3")
            finally:
                os.kill(server[0], signal.SIGCONT)
            async with asyncio.timeout(WITHIN):
                while (await post(servers.nodes[1].port, leaf(1))).status_code not in (200, 201):  # noqa: ASYNC110 (other processes)
                    await asyncio.sleep(0.1)
            clients = Clients(servers, random.Random(1))
            async with clients.at_work(2):
                await asyncio.sleep(1)
            await clients.check()


def _processes() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                yield int(folder.name), (folder / "cmdline").read_text()
            except OSError:
                continue
