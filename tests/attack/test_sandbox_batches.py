"""A package is imported and its session opened at one request: every lie and failure has the outcome that it has one by one."""

from __future__ import annotations

import marshal
import re
from pathlib import Path

import pytest
from handler_packages import LOCAL, PEER, PROBE, package
from sandboxes import LEVELS, gone, sandboxed

from treaty_consensus.errors import TreatyError
from treaty_handler import Call, Opened
from treaty_sandbox import CodeCache, SandboxLimits, SandboxPool
from treaty_sandbox.handler_session import HandlerSession

pytestmark = [pytest.mark.usefixtures("level"), pytest.mark.parametrize("level", LEVELS, indirect=True)]
LIMITS = SandboxLimits(load=2, event=2)
FORGE = "import os, sys\nframing = sys.modules['worker.framing']\n"
HANG = "while True: pass\n"
_OPEN = 'def open(self, role, parameters, snapshot=b""):'

IMPORTS = {
    "raises": PROBE + "raise KeyError('x')\n",
    "exits": PROBE + "import os\nos._exit(1)\n",
    "hangs": PROBE + HANG,
    "memory": PROBE + "x = bytearray(1 << 30)\n",
    "no handler": PROBE.replace("handler = Handler()", ""),
    "another form": PROBE + FORGE + "os.write(0, framing.encode_frame('batch', 7))\n" + HANG,
    "too few": PROBE + FORGE + "os.write(0, framing.encode_frame('batch'))\n" + HANG,
    "of another kind": PROBE + FORGE + "os.write(0, framing.encode_frame('effects', []))\n" + HANG,
    "one of another kind": PROBE + FORGE + "os.write(0, framing.encode_frame('batch', ('done',), ('effects', [])))\n" + HANG,
    "one of no kind": PROBE + FORGE + "os.write(0, framing.encode_frame('batch', ('done',), 7))\n" + HANG,
    "no frame": PROBE + FORGE + "os.write(0, b'\\0\\0\\0\\1\\xc0')\n" + HANG,
    "too long": PROBE + FORGE + "os.write(0, b'\\x7f\\xff\\xff\\xff')\n" + HANG,
}
EXPECTED = {
    "raises": "handler.failed: The handler raised",
    "no handler": "handler.failed",
    "exits": "sandbox.died",
    "hangs": "sandbox.limit: .* longer than",
    "memory": "sandbox.limit: .* memory",
}
OPENS = {
    "raises": PROBE.replace(_OPEN, _OPEN + "\n        raise KeyError('x')"),
    "exits": PROBE.replace(_OPEN, _OPEN + "\n        __import__('os')._exit(1)"),
    "hangs": PROBE.replace(_OPEN, _OPEN + "\n        while True: pass"),
    "memory": PROBE.replace(_OPEN, _OPEN + "\n        bytearray(1 << 30)"),
}


async def opened(source: str, *, at_once: bool) -> str:
    """The code and the message of the error with which a first session cannot be had, or ""."""
    async with SandboxPool(size=0, limits=LIMITS) as pool:
        probe = package(source)
        try:
            if at_once:
                worker, session = await pool.open_code(probe, "client", local=LOCAL, peer=PEER)
            else:
                worker = await pool.load_code(probe, local=LOCAL, peers=[PEER])
                session = await worker.open("client")
            await session.handle(Opened())
        except TreatyError as error:
            if "worker" in locals():
                assert not worker.alive
                await worker.close()
            assert gone(sandboxed())
            return f"{error.code}: {error.message}"
        await worker.close()
        return ""


@pytest.mark.sample(1)
@pytest.mark.threat(54)
@pytest.mark.parametrize("name", OPENS)
async def test_a_failed_opening_fails_at_once_with_its_error(name: str) -> None:
    assert await opened(OPENS[name], at_once=True) == await opened(OPENS[name], at_once=False) != ""


@pytest.mark.sample(3)
@pytest.mark.threat(54)
@pytest.mark.parametrize("name", IMPORTS)
async def test_what_fails_or_lies_at_the_import_ends_the_worker(name: str) -> None:
    assert re.match(EXPECTED.get(name, "handler.failed"), await opened(IMPORTS[name], at_once=True))


@pytest.mark.threat(54)
async def test_a_forged_double_answer_ends_the_worker() -> None:
    forged = FORGE + "os.write(0, framing.encode_frame('batch', ('done',), ('done',)))\n"
    assert re.match("handler.failed|sandbox.died", await opened(PROBE + forged, at_once=True))


@pytest.mark.threat(56)
async def test_importing_a_handler_changes_no_later_code(tmp_path: Path) -> None:
    forged = PROBE + FORGE + "os.write(0, framing.encode_frame('code', b'another'))\n"
    honest, cache = CodeCache(tmp_path / "honest"), CodeCache(tmp_path / "code")
    async with SandboxPool(size=0) as pool:
        await _compiled(pool, PROBE, honest)
        with pytest.raises(TreatyError):
            await _compiled(pool, forged, cache)
    code = cache.get(package(forged).digest)
    assert code is not None
    assert code != b"another"
    assert list(marshal.loads(code)) == list(marshal.loads(honest.get(package(PROBE).digest) or b""))  # our own


async def test_a_session_opened_at_once_is_like_any_other() -> None:
    async with SandboxPool(size=0) as pool:
        worker, session = await pool.open_code(package(), "client", local=LOCAL, peer=PEER)
        other = await worker.open("client")
        for one in (session, other):
            await one.handle(Opened())
            await one.handle(Call(call="1", operation="ask", arguments={"code": "session.kept['is'] = id(session)"}))
        snapshots = [await one.rest() for one in (session, other)]
        assert snapshots[0] != snapshots[1]
        await session.resume(worker, snapshots[0])
        assert isinstance(session, HandlerSession)
        with pytest.raises(TreatyError) as refusal:
            await pool.open_code(package(), "nobody", local=LOCAL, peer=PEER)
        assert refusal.value.code == "session.role"


async def _compiled(pool: SandboxPool, source: str, cache: CodeCache) -> None:
    worker, session = await pool.open_code(package(source), "client", local=LOCAL, peer=PEER, code_cache=cache)
    await session.handle(Opened())
    await worker.close()
