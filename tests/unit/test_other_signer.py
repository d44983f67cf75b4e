"""Another process signs the log: a copy that was started waits for a person, and a registry that was replaced stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from postgres_server import Postgres
from registries import Web, contents, grant, log, settings_for
from signers import NOW, key_signer

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Unavailable
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_io.network.hosts import Network
from treaty_registry.log.checkpoints import RENEWAL
from treaty_registry.operator.backup import back_up_log
from treaty_registry.operator.newest_head import SignedHeads
from treaty_registry.operator.restore import restore
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings, WitnessName

WRITER = key_signer("writer")


@dataclass
class Places:
    """A web server with the notes that the base URL and the witnesses show: path → note. `now`: the time of all processes."""

    url: str
    shown: dict[str, bytes]
    now: int = NOW

    def open(self, settings: Settings, web: Web) -> AbstractAsyncContextManager[Registry]:
        return Registry.open(settings, clock=lambda: datetime.fromtimestamp(self.now, UTC), resolve=web.resolve)


@pytest.fixture
def places() -> Iterator[Places]:
    notes: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            note = notes.get(self.path)
            self.send_response(200 if note else 404)
            self.end_headers()
            self.wfile.write(note or b"")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Places(f"http://127.0.0.1:{server.server_port}", notes)
        server.shutdown()


@pytest.fixture
async def first(tmp_path: Path, database: str, web: Web, places: Places) -> AsyncIterator[Registry]:
    settings = replace(settings_for(tmp_path / "first", database), base_url=places.url)
    async with places.open(settings, web) as registry:
        await log(registry, grant(WRITER, 0), WRITER)
        yield registry


@asynccontextmanager
async def copied(
    first: Registry, tmp_path: Path, postgres: Postgres, places: Places, *, record: bool = True
) -> AsyncIterator[Settings]:
    """The settings of a restored copy of a living registry. Without its `record` people confirmed the number of leaves."""
    backup = tmp_path / "backup"
    of_first = replace(settings_for(tmp_path / "first", first.database), base_url=places.url)
    await back_up_log(of_first, first.database, backup)
    async with postgres.fresh() as database:
        settings = Settings(tmp_path / "second", database=database, base_url=places.url)
        evidence = SignedHeads(str(tmp_path / "first" / "head")) if record else SignedHeads(size=first.head.size)
        await restore(backup, settings, evidence, None, Network())
        yield settings


async def code(registry: Registry) -> str:
    """The reason for which nothing is signed. Every way to sign is refused by it, and nothing changes."""
    before = await contents(registry)
    with pytest.raises(Unavailable) as unready:
        await registry.check_ready()
    for attempt in (registry.submit([WRITER.statement(grant(WRITER, 99)).leaf]), registry.leader.renew()):
        with pytest.raises(Unavailable) as refused:
            await attempt
        assert refused.value.code == unready.value.code
    assert await contents(registry) == before
    return unready.value.code


@pytest.mark.threat(331)
@pytest.mark.sample(1)
@pytest.mark.parametrize("record", [False, True])
async def test_a_restored_copy_waits_for_the_living_registry(
    first: Registry, tmp_path: Path, web: Web, postgres: Postgres, places: Places, record: bool
) -> None:
    async with copied(first, tmp_path, postgres, places, record=record) as settings:
        places.shown["/checkpoint"] = first.head.note
        async with places.open(settings, web) as second:
            assert await code(second) == "log.signed-elsewhere"
            assert (second.head.size, second.head.root) == (first.head.size, first.head.root), "it serves reads"
            with pytest.raises(Unavailable) as alive:
                await second.other_signer.resume()
            assert "resume-signing" in alive.value.fix
        # A second start, and a person who decides after the registry has ended.
        async with places.open(settings, web) as second:
            assert await code(second) == "log.signed-elsewhere"
            places.now += 2 * RENEWAL
            await second.other_signer.resume()
            await log(second, grant(WRITER, 1), WRITER)
            assert await second.is_ready()
        # From then on it has a record of its own.
        places.shown["/checkpoint"] = second.head.note
        async with places.open(settings, web) as second:
            assert await second.is_ready()


@pytest.mark.threat(331)
async def test_a_replaced_registry_stops_and_forks_are_refused(
    first: Registry, tmp_path: Path, web: Web, postgres: Postgres, places: Places
) -> None:
    async with copied(first, tmp_path, postgres, places) as settings, places.open(settings, web) as second:
        await log(second, grant(WRITER, 1), WRITER)
        await first.other_signer.begin()
        assert await first.is_ready(), "no place answers"
        places.shown["/checkpoint"] = second.head.note
        await first.other_signer.begin()
        assert await code(first) == "log.signed-elsewhere"
        with pytest.raises(Unavailable) as ahead:
            await first.other_signer.resume()
        assert "the log forks" in ahead.value.fix
        # The other history, of the same size.
        await second.other_signer.begin()
        assert await second.is_ready()


@pytest.mark.threat(331)
async def test_two_histories_of_one_size_are_seen_on_both_sides(
    first: Registry, tmp_path: Path, web: Web, postgres: Postgres, places: Places
) -> None:
    async with copied(first, tmp_path, postgres, places) as settings, places.open(settings, web) as second:
        await log(second, grant(WRITER, 1), WRITER)
        await log(first, grant(WRITER, 2), WRITER)
        for registry, other in ((first, second), (second, first)):
            places.shown["/checkpoint"] = other.head.note
            await registry.other_signer.begin()
            assert await code(registry) == "log.signed-elsewhere"


@pytest.mark.threat(331)
async def test_a_start_with_an_old_head_asks_the_witnesses(
    first: Registry, tmp_path: Path, web: Web, postgres: Postgres, places: Places
) -> None:
    """The disk of yesterday: record and database are of one moment, so the record alone shows nothing."""
    async with copied(first, tmp_path, postgres, places) as restored:
        restored.restored.unlink()
        witness = SignerKey("w1.example", KeyType.COSIGNATURE, bytes(32)).verifier
        settings = replace(restored, witnesses=(WitnessName(places.url, witness),))
        checkpoint_path, older = f"/{hex_digest(first.origin.encode())}/checkpoint", first.head.note
        await log(first, grant(WRITER, 1), WRITER)
        places.shown[checkpoint_path] = first.head.note
        async with places.open(settings, web) as second:
            assert await code(second) == "log.signed-elsewhere"
            assert second.head.size == first.head.size - 1
            with pytest.raises(Unavailable) as behind:
                await second.check_ready()
            assert "4 leaves of this log, and 3 were signed here" in behind.value.message
        # A head of its own record at the witness, and at the base URL a note that this log did not sign.
        places.shown |= {checkpoint_path: older, "/checkpoint": older.replace(b"\n3\n", b"\n9\n")}
        async with places.open(settings, web) as second:
            assert await second.is_ready()
