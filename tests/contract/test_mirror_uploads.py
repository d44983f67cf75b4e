"""A registry uploads its log to mirrors of C2SP tlog-mirror, which are processes of their own, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from ports import free_port
from registries import Web, ballot, log, new_or_not, settings_for
from signers import NOW, Signer, domain_signer, signed
from structlog.testing import capture_logs
from witness_process import WitnessProcess

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.tiles import decode_bundle
from treaty_consensus.log.witness import Quorum
from treaty_registry.log import mirror_uploads
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings, WitnessName


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload soon, and try again soon."""
    monkeypatch.setattr(mirror_uploads, "_PERIOD", 0.1)
    monkeypatch.setattr(mirror_uploads, "_LONGEST_PAUSE", 0.2)


@pytest.fixture
async def voter(web: Web) -> Signer:
    signer = domain_signer("voter.example")
    web.serve(signer)
    return signer


@asynccontextmanager
async def mirror(data: Path, log_key: VerifierKey) -> AsyncIterator[WitnessProcess]:
    """A witness of one log that is also a mirror."""
    running = WitnessProcess(data, [log_key], "w.example/1", free_port(), options=("--mirror",))
    await running.start()
    try:
        yield running
    finally:
        await running.kill()


@dataclass
class BrokenMirror:
    """`asked`: how many uploads it has answered."""

    url: str = ""
    asked: int = 0


@contextmanager
def broken_mirror(witness: WitnessProcess, answers: Sequence[tuple[int, bytes]]) -> Iterator[BrokenMirror]:
    """A witness whose mirror gives these answers to uploads, again and again."""
    about = BrokenMirror()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.path == "/add-entries":
                about.asked += 1
                # The body has chunks; the last one is empty.
                while size := int(self.rfile.readline(), 16):
                    self.rfile.read(size + 2)
                status, body = answers[(about.asked - 1) % len(answers)]
                self._answer(status, "text/x.tlog.mirror-info", body)
                return
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            answer = httpx.post(witness.about["url"] + self.path, content=asked, trust_env=False)
            self._answer(answer.status_code, answer.headers["content-type"], answer.content)

        def _answer(self, status: int, media_type: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    about.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield about
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@asynccontextmanager
async def opened(settings: Settings, web: Web) -> AsyncIterator[Registry]:
    async with Registry.open(
        new_or_not(settings), clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve
    ) as registry:
        yield registry


async def key_of(settings: Settings, web: Web) -> VerifierKey:
    async with opened(settings, web) as registry:
        return registry.log_key


def uploading(settings: Settings, *mirrors: WitnessProcess) -> Settings:
    names = tuple(running.at for running in mirrors)
    return replace(settings, witnesses=names, tlog_mirrors=tuple(name.url for name in names))


async def check_copy(of: WitnessProcess, registry: Registry) -> None:
    """Wait until the copy is the log: its checkpoint is cosigned by the mirror, and its entries are the leaves."""
    head, path = registry.head, f"/mirror/{hex_digest(registry.origin.encode())}"
    async with asyncio.timeout(30):
        while True:
            answer = await of.ask(b"", "GET", f"{path}/checkpoint")
            if answer.status_code == 200:
                signed = open_checkpoint(answer.content, registry.log_key)
                if signed.checkpoint == head.signed.checkpoint:
                    break
            await asyncio.sleep(0.05)
    for key in map(VerifierKey.parse, of.about["mirror"]["keys"]):
        Quorum((key,), 1).check(answer.content, head.signed.checkpoint)
    page: list[bytes] = []
    while len(page) < head.size:
        width = min(256, head.size - len(page))
        name = f"/tile/entries/{len(page) // 256:03}" + ("" if width == 256 else f".p/{width}")
        page += decode_bundle((await of.ask(b"", "GET", path + name)).content, width)
    leaves = await registry.leaves(range(head.size))
    assert page == [leaves[index] for index in range(head.size)]


@pytest.mark.deep
async def test_a_copy_follows_the_log_and_goes_on_after_restarts(tmp_path: Path, database: str, web: Web, voter: Signer) -> None:
    settings = settings_for(tmp_path / "registry", database)
    async with mirror(tmp_path / "w", await key_of(settings, web)) as witness:
        settings = uploading(settings, witness)
        async with opened(settings, web) as registry:
            for sequence in range(3):
                await log(registry, ballot(registry, sequence, "ab" * 32), voter)
            await check_copy(witness, registry)
            await log(registry, ballot(registry, 3, "cd" * 32), voter)
            await check_copy(witness, registry)
            await witness.kill()
            await log(registry, ballot(registry, 4, "ab" * 32), voter)
            await witness.start()
            await check_copy(witness, registry)
        async with opened(settings, web) as registry:
            await log(registry, ballot(registry, 5, "cd" * 32), voter)
            await check_copy(witness, registry)


@pytest.mark.deep
async def test_a_copy_that_is_far_behind_takes_several_requests(
    tmp_path: Path, database: str, web: Web, voter: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treaty_consensus.log.upload.MAX_PACKAGES", 1)
    settings = settings_for(tmp_path / "registry", database)
    async with opened(settings, web) as registry:
        leafs = [signed(ballot(registry, 0, "ab" * 32, topic=f"many/t-{number}"), voter).leaf for number in range(520)]
        assert all(isinstance(outcome, Logged) for outcome in await registry.submit(leafs))
        key = registry.log_key
    async with mirror(tmp_path / "w", key) as witness, opened(uploading(settings, witness), web) as registry:
        await check_copy(witness, registry)


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "answers",
    [
        [(500, b"")],
        [(404, b"")],
        [(202, b"no state")],
        [(202, b"1\n0\n\n")],
        [(409, b"3\n99999\n\n")],
        [(409, b"3\n0\n\n")],
        [(202, b"9" * 70_000)],
        [(409, b"2\n0\n\n"), (202, b"2\n1\n\n")],
    ],
    ids=[
        "an error",
        "no mirror",
        "no state",
        "no progress",
        "more than there is",
        "the same for ever",
        "an endless answer",
        "a mirror that forgets",
    ],
)
async def test_a_broken_mirror_stops_nothing(
    answers: list[tuple[int, bytes]],
    tmp_path: Path,
    database: str,
    web: Web,
    voter: Signer,
) -> None:
    settings = settings_for(tmp_path / "registry", database)
    async with mirror(tmp_path / "w", await key_of(settings, web)) as witness:
        with broken_mirror(witness, answers) as broken, capture_logs() as logged:
            name = WitnessName(broken.url, witness.key)
            async with opened(replace(settings, witnesses=(name,), tlog_mirrors=(broken.url,)), web) as registry:
                async with asyncio.timeout(30):
                    while broken.asked < 6:  # noqa: ASYNC110 (the server has threads)
                        await asyncio.sleep(0.05)
                await log(registry, ballot(registry, 0, "ab" * 32), voter)
                assert not registry.failing_witnesses
                assert "not uploaded" in {line["event"] for line in logged}


def test_a_mirror_is_one_of_the_witnesses(tmp_path: Path) -> None:
    with pytest.raises(Malformed) as refusal:
        Settings(tmp_path, tlog_mirrors=("https://mirror.example",))
    assert refusal.value.code == "settings.value"
    assert "--witness" in str(refusal.value)
