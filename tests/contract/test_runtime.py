"""The sandboxed runtime: a worker for each session, and one in waiting for whoever comes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from handler_packages import LOCAL, PEER, package

from treaty_client.session import runtime
from treaty_client.session.ports import RunningHandler
from treaty_client.session.runtime import MAX_SPARES, SandboxRuntime
from treaty_consensus.errors import Refused, TreatyError
from treaty_handler import Call, Effect, Opened, Return

PROBE = package()


@pytest.fixture
async def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxRuntime]:
    monkeypatch.setattr(runtime, "PAUSE", 0)
    made = SandboxRuntime(tmp_path)
    yield made
    await made.close()


async def session(sandbox: SandboxRuntime, peer: str = PEER, role: str = "client") -> RunningHandler:
    handler = await sandbox.open(PROBE, role, local=LOCAL, peer=peer)
    await handler.handle(Opened())
    return handler


async def count(handler: RunningHandler) -> object:
    """How often this was asked of the interpreter that this handler runs in."""
    code = "import sys; sys.asked = getattr(sys, 'asked', 0) + 1; value = sys.asked"
    effects: list[Effect] = list(await handler.handle(Call(call="1", operation="ask", arguments={"code": code})))
    assert isinstance(effects[0], Return)
    return effects[0].value


async def spares(sandbox: SandboxRuntime) -> list[object]:
    """The sessions in waiting, once they are ready."""
    return list(await asyncio.gather(*sandbox._spares.values()))


async def test_sessions_of_one_peer_share_no_interpreter_not_even_one_after_the_other(sandbox: SandboxRuntime) -> None:
    first, second = await session(sandbox), await session(sandbox)
    assert [await count(first), await count(first), await count(second)] == [1, 2, 1]
    await first.close()
    await spares(sandbox)
    third = await session(sandbox)
    assert await count(third) == 1
    for handler in (second, third):
        await handler.close()


async def test_whoever_comes_again_need_not_wait_for_a_worker(sandbox: SandboxRuntime) -> None:
    await (await session(sandbox)).close()
    (spare,) = await spares(sandbox)
    assert await sandbox.open(PROBE, "client", local=LOCAL, peer=PEER) is spare
    assert sandbox._spares == {}


async def test_a_waiting_worker_is_for_one_handler_role_and_pair(sandbox: SandboxRuntime) -> None:
    await (await session(sandbox)).close()
    (spare,) = await spares(sandbox)
    assert await sandbox.open(PROBE, "client", local=LOCAL, peer="did:wba:stranger.example") is not spare
    assert await sandbox.open(PROBE, "server", local=LOCAL, peer=PEER) is not spare


async def test_a_waiting_worker_that_died_is_replaced(sandbox: SandboxRuntime) -> None:
    await (await session(sandbox)).close()
    (spare,) = await spares(sandbox)
    assert isinstance(spare, runtime._Sandboxed)
    spare._worker.kill()
    handler = await session(sandbox)
    assert handler is not spare
    assert await count(handler) == 1


async def test_one_that_is_not_ready_yet_is_not_waited_for(sandbox: SandboxRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "PAUSE", 3600)
    await (await session(sandbox)).close()
    assert await count(await session(sandbox)) == 1
    assert sandbox._spares == {}


async def test_only_a_few_wait(sandbox: SandboxRuntime) -> None:
    for number in range(MAX_SPARES + 1):
        await (await session(sandbox, f"did:wba:peer{number}.example")).close()
    assert [key.peer for key in sandbox._spares] == [f"did:wba:peer{number}.example" for number in range(1, MAX_SPARES + 1)]
    await asyncio.gather(*sandbox._leaving)
    await spares(sandbox)
    assert len(sandbox._pool._workers) == MAX_SPARES


async def test_nothing_runs_on_after_the_close(sandbox: SandboxRuntime) -> None:
    running = await session(sandbox)
    await (await session(sandbox)).close()
    await sandbox.close()
    assert not sandbox._pool._workers
    with pytest.raises(TreatyError):
        await running.handle(Call(call="1", operation="ask", arguments={"code": ""}))
    with pytest.raises(TreatyError):
        await session(sandbox)


async def test_a_role_that_is_none_leaves_nothing_running(sandbox: SandboxRuntime) -> None:
    with pytest.raises(Refused):
        await session(sandbox, role="courier")
    assert not sandbox._pool._workers
