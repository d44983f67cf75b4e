"""Fault: the embedded PostgreSQL is killed, suspended, or loses its connections, under a running registry.

Meanwhile every request that needs it gets a prompt 503, whatever needs nothing of it is served, and the health check says why. It
is started again, and everything goes on: the registry is not restarted, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg
import httpx
import pytest
import pytest_asyncio
from postgres_process import another_process
from registries import grant
from registry_process import Server, empty
from signers import NOW, key_signer

from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.proof import Receipt
from treaty_registry.storage.embedded import embedded_postgres

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = 20.0
"""Seconds that no answer may take. Without bounds of its own a request waits for as long as PostgreSQL stands still."""
HEALTH = 5.0
"""Seconds for the health check, which gives PostgreSQL one."""


def processes(data: Path) -> list[int]:
    """All processes of the PostgreSQL of a data directory; the first of them first."""
    first = postmaster(data)
    pids = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and "postgres" in title(int(process.name)):
                pids += [int(process.name)] * (process / "cwd").samefile(data / "postgres")
    return sorted(pids, key=lambda pid: (pid != first, pid))


def title(pid: int) -> str:
    """What a process calls itself."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def postmaster(data: Path) -> int:
    try:
        return int((data / "postgres" / "postmaster.pid").read_text().split("\n")[0])
    except (FileNotFoundError, ValueError):
        return 0


@contextmanager
def suspended(data: Path) -> Iterator[None]:
    """The whole PostgreSQL stands still."""
    pids = processes(data)
    assert len(pids) > 3
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Client:
    """Writes, reads, and remembers what was acknowledged."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=PROMPT, trust_env=False)
        self.acknowledged: list[tuple[bytes, bytes]] = []
        self._numbers = 0

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        return (self.server.data.parent / f"{self.server.data.name}.log").read_text()

    async def write(self) -> httpx.Response:
        self._numbers += 1
        writer = key_signer("writer")
        leaf = writer.statement(grant(writer, self._numbers), log=self.server.about["origin"], issued=NOW).leaf
        answer = await self.http.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
        if answer.status_code == 201:
            self.acknowledged.append((leaf, answer.content))
        return answer

    async def ready(self) -> httpx.Response:
        return await self.http.get("/health/ready", timeout=HEALTH)

    async def recovered(self) -> None:
        """Wait until it is ready, and make sure that it writes, and that nothing is lost."""
        async with asyncio.timeout(60):
            while (await self.ready()).status_code != 200:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)
        assert (await self.write()).status_code == 201
        leaves, key = await self.server.leaves(), VerifierKey.parse(self.server.about["key"])
        for leaf, receipt in self.acknowledged:
            proof = Receipt.parse(receipt)
            proof.verify(leaf, key)
            assert leaves[proof.index] == leaf

    async def unavailable(self) -> None:
        """It writes nothing now, says so soon, and serves what it has in memory."""
        for answer in await asyncio.gather(self.write(), self.http.get("/protocols?q=x"), self.ready()):
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] in ("database.unreachable", "registry.not-ready", "log.unavailable", "registry.busy")
        for path in ("/health/live", "/checkpoint"):
            assert (await self.http.get(path, timeout=HEALTH)).status_code == 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[Client]:
    """Of one registry for all: whatever happens to its PostgreSQL, it is as good as new afterwards."""
    with tempfile.TemporaryDirectory(prefix="treaty-") as folder:
        async with empty(Path(folder) / "registry") as server:
            await server.start()
            assert await server.ready()
            client = Client(server)
            assert (await client.write()).status_code == 201
            yield client
            await client.http.aclose()


@pytest.mark.deep
@pytest.mark.threat(61)
async def test_a_killed_server_is_started_again_and_again(client: Client) -> None:
    registry = client.server.data
    for pids in (processes(registry)[:1], processes(registry), processes(registry)[::-1]):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert (await client.write()).status_code in (503, 201)  # it may be back already
        await client.recovered()
    # A child that is suspended does not notice, and keeps another server from starting.
    child = processes(registry)[-1]
    os.kill(child, signal.SIGSTOP)
    os.kill(postmaster(registry), signal.SIGKILL)
    await client.recovered()
    assert child not in processes(registry)
    # Killed as soon as it is there.
    for _ in range(2):
        before = postmaster(registry)
        os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(30):
            while postmaster(registry) in (0, before):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.002)
        os.kill(postmaster(registry), signal.SIGKILL)
    await client.recovered()


@pytest.mark.deep
async def test_one_that_cannot_be_started_is_tried_again_until_it_can(client: Client) -> None:
    folder = client.server.data / "postgres"
    settings, right = folder / "postgresql.conf", (folder / "postgresql.conf").read_text()
    lines = (folder / "postmaster.pid").read_text().split("\n")
    settings.write_text(f"{right}\nnonsense = 1\n")
    try:
        os.kill(postmaster(client.server.data), signal.SIGKILL)
        await client.unavailable()
        async with asyncio.timeout(30):
            while "does not start" not in client.log:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)
        await client.unavailable()
        # Nor does a lock file that names a process of somebody else keep it from starting.
        (folder / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lines[1:]]))
    finally:
        settings.write_text(right)
    await client.recovered()
    assert "was started again" in client.log


@pytest.mark.deep
async def test_connections_that_are_cut_are_made_again(client: Client) -> None:
    for _ in range(3):
        for pid in processes(client.server.data):
            if "postgres postgres [local]" in title(pid):
                os.kill(pid, signal.SIGTERM)  # as pg_terminate_backend does
        await client.recovered()


@pytest.mark.threat(61)
async def test_while_it_is_suspended_nothing_waits_for_long(client: Client) -> None:
    await client.recovered()
    with suspended(client.server.data):
        began = time.monotonic()
        assert (await client.ready()).status_code == 503
        assert time.monotonic() - began < HEALTH
        many = (client.http.get(f"/protocols?q={n}") for n in range(60))
        answers = await asyncio.gather(*many, client.unavailable())
        assert {answer.status_code for answer in answers if answer is not None} == {503}
    await client.recovered()


@pytest.mark.deep
@pytest.mark.threat(61)
async def test_a_stop_waits_for_no_suspended_or_dead_server(client: Client) -> None:
    registry = client.server.data
    with suspended(registry):
        asking = [asyncio.create_task(client.write()) for _ in range(3)]
        await asyncio.sleep(0.2)
        began = time.monotonic()
        assert await client.server.stop() == 0
        assert time.monotonic() - began < PROMPT
        await asyncio.gather(*asking, return_exceptions=True)
    await client.server.start()
    assert await client.server.ready()
    await client.recovered()
    os.kill(postmaster(registry), signal.SIGKILL)
    began = time.monotonic()
    assert await client.server.stop() == 0
    assert time.monotonic() - began < PROMPT
    assert not processes(registry)
    await client.server.start()
    assert await client.server.ready()
    await client.recovered()


@pytest.mark.deep
async def test_of_several_that_use_it_one_starts_it_again(data: Path) -> None:
    others = [await another_process(data) for _ in range(2)]
    async with embedded_postgres(data) as url:
        for _ in range(2):
            before = postmaster(data)
            os.kill(before, signal.SIGKILL)
            async with asyncio.timeout(60):
                while True:
                    with suppress(OSError, asyncpg.PostgresError):
                        connection = await asyncpg.connect(url, timeout=5)
                        break
                    await asyncio.sleep(0.05)
            assert await connection.fetchval("select 1") == 1
            await connection.close()
            assert postmaster(data) != before
        await others[0].communicate(b"")
        others[1].kill()
        await others[1].wait()
        assert processes(data), "this one still uses it"
    assert not processes(data)
