"""The sandboxed runtime: a worker for each session while it needs one, and one in waiting for whoever comes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from handler_packages import LOCAL, PEER, package
from sandboxed import sandboxed_package
from sandboxes import descendants, open_descriptors

from treaty_consensus.errors import Refused, TreatyError
from treaty_handler import Call, Effect, Invoke, Opened, Received, Result, Return, Send, Timer, encode_json
from treaty_sandbox import Isolation, runtime
from treaty_sandbox.interface import RunningHandler
from treaty_sandbox.passivation import Passivation, PassiveHandler
from treaty_sandbox.runtime import MAX_SPARES, SandboxRuntime

PROBE = package()


@pytest.fixture
async def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxRuntime]:
    monkeypatch.setattr(runtime, "PAUSE", 0)
    sandbox_runtime = SandboxRuntime(tmp_path)
    yield sandbox_runtime
    await sandbox_runtime.close()


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


async def spares(sandbox: SandboxRuntime) -> list[runtime._Sandboxed]:
    """The sessions in waiting, once they are ready and those that were dismissed are gone."""
    await asyncio.gather(*sandbox._leaving)
    return list(await asyncio.gather(*sandbox._spares.values()))


def in_worker(handler: RunningHandler) -> object:
    """The session that stands behind it, if it has a worker now."""
    assert isinstance(handler, PassiveHandler)
    return handler._session if handler._has_worker else None


@pytest.mark.threat(57)
async def test_sessions_of_a_peer_share_no_interpreter(sandbox: SandboxRuntime) -> None:
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
    assert in_worker(await sandbox.open(PROBE, "client", local=LOCAL, peer=PEER)) is spare
    assert sandbox.waiting_for == []


async def test_a_waiting_worker_is_for_one_handler_role_and_pair(sandbox: SandboxRuntime) -> None:
    await (await session(sandbox)).close()
    (spare,) = await spares(sandbox)
    assert in_worker(await sandbox.open(PROBE, "client", local=LOCAL, peer="did:wba:stranger.example")) is not spare
    assert in_worker(await sandbox.open(PROBE, "server", local=LOCAL, peer=PEER)) is not spare


async def test_a_waiting_worker_that_died_is_replaced(sandbox: SandboxRuntime) -> None:
    await (await session(sandbox)).close()
    (spare,) = await spares(sandbox)
    spare._worker.kill()
    handler = await session(sandbox)
    assert in_worker(handler) is not spare
    assert await count(handler) == 1


async def test_one_that_is_not_ready_yet_is_not_waited_for(sandbox: SandboxRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "PAUSE", 3600)
    await (await session(sandbox)).close()
    assert await count(await session(sandbox)) == 1
    assert sandbox.waiting_for == []


async def test_only_a_few_wait(sandbox: SandboxRuntime) -> None:
    for number in range(MAX_SPARES + 1):
        await (await session(sandbox, f"did:wba:peer{number}.example")).close()
    assert sandbox.waiting_for == [f"did:wba:peer{number}.example" for number in range(1, MAX_SPARES + 1)]
    await spares(sandbox)
    assert sandbox.workers == MAX_SPARES


async def test_nothing_runs_on_after_the_close(sandbox: SandboxRuntime) -> None:
    running = await session(sandbox)
    await (await session(sandbox)).close()
    await sandbox.close()
    assert sandbox.workers == 0
    with pytest.raises(TreatyError):
        await running.handle(Call(call="1", operation="ask", arguments={"code": ""}))
    with pytest.raises(TreatyError):
        await session(sandbox)


async def test_a_role_that_is_none_leaves_nothing_running(sandbox: SandboxRuntime) -> None:
    with pytest.raises(Refused):
        await session(sandbox, role="courier")
    assert sandbox.workers == 0


async def rest(*handlers: RunningHandler) -> None:
    """Have sessions give their workers up."""
    for handler in handlers:
        assert isinstance(handler, PassiveHandler)
        await handler.rest()
        assert in_worker(handler) is None


async def remember(handler: RunningHandler, number: int) -> Any:
    """Tell a session something; what it knows then: everything it was told, and its seed."""
    code = f"session.kept.setdefault('told', []).append({number}); value = [session.kept['told'], session.parameters['seed']]"
    (effect,) = await handler.handle(Call(call=str(number), operation="ask", arguments={"code": code}))
    assert isinstance(effect, Return)
    return effect.value


@pytest.mark.sample(1)
@pytest.mark.parametrize("isolation", ["bubblewrap", "process", "none"])
async def test_a_session_moves_unchanged_to_another_sandbox(tmp_path: Path, isolation: Isolation) -> None:
    sandbox = SandboxRuntime(tmp_path, (isolation,), Passivation(max_workers=2))
    try:
        first, second, third = [await session(sandbox, f"did:wba:peer{number}.example") for number in range(3)]
        seeds = set()
        for round in range(1, 4):
            for handler in (first, second, third):  # each time in the place of the one that is asked next
                numbers, seed = await remember(handler, round)
                assert numbers == list(range(1, round + 1))
                seeds.add(seed)
        assert len(seeds) == 3
        assert sandbox.workers == 2
    finally:
        await sandbox.close()


async def run(handler: RunningHandler, code: str) -> Any:
    """The `value` of this code in the handler."""
    effects = list(await handler.handle(Call(call="1", operation="ask", arguments={"code": code})))
    assert isinstance(effects[-1], Return)
    return effects[-1].value


async def test_what_is_pending_outlives_the_worker(sandbox: SandboxRuntime) -> None:
    handler = await session(sandbox)
    timer = "effects = [SetTimer(name='t', seconds=5), Persist(key='k', value=b'1')]; session.kept['seen'] = [event.call]"
    await run(handler, timer)
    await rest(handler)
    assert await handler.handle(Timer(name="t")) == []
    await rest(handler)
    assert await run(handler, "value = session.kept['seen']") == ["1"]
    with pytest.raises(TreatyError) as failure:  # what is stored counts still
        await run(handler, "effects = [Persist(key=str(n), value=b'1') for n in range(1024)]")
    assert failure.value.code == "handler.failed"


async def test_the_numbers_of_workers_tell_those_that_failed(sandbox: SandboxRuntime) -> None:
    good, bad = [await session(sandbox, f"did:wba:{name}.example") for name in ("good", "bad")]
    assert (sandbox.metrics().running, sandbox.metrics().failed) == (2, 0)
    with pytest.raises(TreatyError):
        await run(bad, "raise RuntimeError")
    for handler in (bad, good):
        await handler.close()
    await spares(sandbox)
    samples = sandbox.metrics()
    assert (samples.failed, samples.waiting, samples.started) == (1, 0, 2 + samples.running)


SNAPSHOTLESS = {
    "too large": "session.kept = 'x' * 70_000",
    "larger than a reply": "session.kept = 'x' * 5_000_000",
    "no JSON": "session.kept = {'a': object()}",
    "raises": "session.snapshot = lambda: 1 / 0",
}


@pytest.mark.parametrize("code", SNAPSHOTLESS.values(), ids=SNAPSHOTLESS.keys())
async def test_a_session_without_snapshot_stays_in_its_worker(tmp_path: Path, code: str) -> None:
    sandbox = SandboxRuntime(tmp_path, passivation=Passivation(max_workers=1))
    try:
        handler = await session(sandbox)
        assert await run(handler, f"{code}; session.told = 7") is None
        assert isinstance(handler, PassiveHandler)
        await handler.rest()
        assert await run(handler, "value = session.told") == 7
        other = await session(sandbox, "did:wba:other.example")
        assert await count(other) == 1
        with pytest.raises(TreatyError) as failure:
            await run(handler, "value = 1")
        assert failure.value.code == "session.no-worker"
        assert sandbox.workers == 1
    finally:
        await sandbox.close()


async def test_a_session_whose_snapshot_hangs_lies_or_is_none_is_over(sandbox: SandboxRuntime) -> None:
    hanging, lying, wrong = [await session(sandbox) for _ in range(3)]
    await run(wrong, "session.snapshot = lambda: 'text'")
    await run(hanging, "session.snapshot = lambda: exec('while True: pass')")
    reply = "import struct, os; os.write(0, struct.pack('>I', 70015) + bytes([0x92, 0xA5]) + b'bytes' + bytes([0xC6])"
    await run(lying, f"session.snapshot = lambda: exec(\"{reply} + struct.pack('>I', 70003) + bytes(70003)); os._exit(0)\")")
    for handler, code in ((hanging, "sandbox.limit"), (lying, "handler.failed"), (wrong, "handler.failed")):
        await rest(handler)
        with pytest.raises(TreatyError) as failure:
            await run(handler, "value = 1")
        assert failure.value.code == code
    assert sandbox.workers == 0


async def test_the_shop_answers_the_same_with_and_without_rest(sandbox: SandboxRuntime) -> None:
    shop = sandboxed_package("1.1")
    request = {"type": "REQUEST", "action": "getProductInfo", "productId": "P12345"}
    laptop = {"productId": "P12345", "productName": "Laptop", "productDescription": "", "price": 1299.99, "currency": "USD"}

    async def replies(*, resting: bool) -> list[bytes]:
        handler = await sandbox.open(shop, "provider", local=LOCAL, peer=PEER)
        await handler.handle(Opened())
        messages = []
        for number in range(3):
            (invoke,) = await handler.handle(Received(peer=PEER, data=encode_json({**request, "messageId": f"m{number}"})))
            assert isinstance(invoke, Invoke)
            if resting:
                await rest(handler)  # also between a question and its answer
            (send,) = await handler.handle(Result(call=invoke.call, value=laptop))
            assert isinstance(send, Send)
            messages.append(send.data)
        await handler.close()
        return messages

    assert await replies(resting=True) == await replies(resting=False)


async def test_passive_sessions_leave_no_processes_or_descriptors(tmp_path: Path) -> None:
    before = descendants(), open_descriptors()
    sandbox = SandboxRuntime(tmp_path, passivation=Passivation(max_workers=2))
    handlers = [await session(sandbox, f"did:wba:peer{number}.example") for number in range(4)]
    await rest(*[handler for handler in handlers if in_worker(handler) is not None])
    assert await spares(sandbox) == []
    assert sandbox.workers == 0
    for handler in handlers:
        await handler.close()
    assert sandbox.waiting_for == []
    await sandbox.close()
    assert (descendants(), open_descriptors()) == before
