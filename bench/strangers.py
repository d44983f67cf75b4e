"""`python -m bench strangers`: what a stranger does to others at agents, an AIP gateway, a handoff endpoint and a broker.

For each server (`flooded`) and each kind of flood, an honest client in another network goes on all the time, each time on a new
connection. Its 99th percentiles before and during the flood are compared: `during / before`. The bar is 3. Server, flood and
client are three processes. The control, `beside`, is the same flood at another server of the same kind, on the same processors.
It shows how much of the delay is only that the processors are shared. The floods are

    silent     sockets that send nothing, opened again when they are closed
    asked      sockets that send one request, or the preface of HTTP/2, and rest
    body       requests whose bodies drip (handoff)
    junk       messages of 58,000 bytes in running sessions, as many as the sockets take (agents, broker)
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from treaty_agent import Agent, Identity, LocalProtocols
from treaty_anp import frame
from treaty_anp.frame import ProtocolType
from treaty_consensus.errors import TreatyError
from treaty_handoff import Kind, Message, build

from .flooded import BROKERED, HANDOFF, KINDS, PROTOCOL
from .servers import SceneFailed
from .sessions import Buyer, Crowd

BAR = 3
HONEST = "127.0.10.1"
FLOODS = {
    "agent": ("silent", "asked", "junk"),
    "coded": ("silent", "asked", "junk"),
    "gateway": ("silent", "asked"),
    "handoff": ("silent", "asked", "body"),
    "broker": ("silent", "asked", "junk"),
}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_POST = b"POST /handoffs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
_JUNK = frame.encode(ProtocolType.APPLICATION, b"[" + b"1," * 28_999 + b"1]")
_PAUSE = 0.02
"""Seconds between two honest requests."""
_PATIENCE = 5.0
"""Seconds after which an honest request counts as failed."""


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m bench strangers", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(KINDS), help="this server; may be repeated")
    parser.add_argument("--sockets", type=int, default=2_000, help="of each flood, without junk (default: 2000)")
    parser.add_argument("--sessions", type=int, default=64, help="that send junk (default: 64)")
    parser.add_argument("--seconds", type=float, default=8, help="how long a flood lasts (default: 8)")
    parser.add_argument("--addresses", type=int, default=1, help="of the stranger, in one /24 (default: 1, at most 254)")
    if arguments[:1] == ["flood"]:
        kind, server, port, count, seconds, addresses = arguments[1:]
        asyncio.run(_flood(kind, server, int(port), int(count), float(seconds), int(addresses)))
        return 0
    chosen = parser.parse_args(arguments)
    asyncio.run(_measure(chosen.only or sorted(KINDS), chosen.sockets, chosen.sessions, chosen.seconds, chosen.addresses))
    return 0


async def _measure(servers: list[str], sockets: int, sessions: int, seconds: float, addresses: int) -> None:
    columns = ("server", "flood", "before, p99 ms", "beside", "during", "during / before", "during / beside", "failed", "after")
    table = Table(*columns, box=None, title=f"{sockets} sockets or {sessions} sessions of {addresses} addresses")
    for server in servers:
        for kind in FLOODS[server]:
            count = sessions if kind == "junk" else sockets
            target, other = await _started("bench.flooded", server), await _started("bench.flooded", server)
            port, elsewhere = int(await _line(target)), int(await _line(other))
            async with _ASKING[server](port) as ask:
                before, _ = await _asked(ask, seconds)
                phases = []
                for flooded in (elsewhere, port):
                    command = ("flood", kind, server, str(flooded), str(count), str(seconds), str(addresses))
                    flood = await _started("bench", "strangers", *command)
                    await _line(flood)
                    phases.append(await _asked(ask, seconds - 1))
                    await flood.communicate()
                    after, _ = await _asked(ask, 2)
            (beside, _), (during, failed) = phases
            await other.communicate(b"\n")
            await target.communicate(b"\n")
            print(
                f"{server} {kind}: {before:.1f} ms before, {beside:.1f} beside, {during:.1f} during, {failed} failed, "
                f"{after:.1f} after",
                flush=True,
            )
            ratio = during / before
            shown = f"[{'green' if ratio <= BAR and not failed else 'red'}]{ratio:.1f}[/]"
            figures = [f"{before:.1f}", f"{beside:.1f}", f"{during:.1f}", shown, f"{during / beside:.1f}"]
            table.add_row(server, kind, *figures, str(failed), f"{after:.1f}")
    Console(highlight=False).print(table)


async def _started(module: str, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, stdin=pipe, stdout=pipe)


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


# The honest client

Ask: TypeAlias = Callable[[], Awaitable[None]]


async def _asked(ask: Ask, seconds: float) -> tuple[float, int]:
    """Ask for so long. Return the 99th percentile in milliseconds, and how many requests failed."""
    times, failed = list[float](), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(_PATIENCE):
                await ask()
        except (OSError, EOFError, TimeoutError, SceneFailed, TreatyError):
            failed += 1
        times.append(1000 * (time.perf_counter() - begun))
        await asyncio.sleep(_PAUSE)
    return sorted(times)[min(len(times) - 1, len(times) * 99 // 100)], failed


async def _session(port: int) -> None:
    crowd = Crowd(port, PROTOCOL, address=HONEST)
    await crowd.meet(0)
    crowd.buyers[0].close()


async def _exchange(port: int, request: bytes, end: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(HONEST, 0))
    try:
        writer.write(request)
        return await reader.readuntil(end)
    finally:
        writer.transport.abort()


async def _settings(port: int) -> None:
    await _exchange(port, PREFACE, b"\4")  # the kind of the first frame of a server: SETTINGS


async def _handed_off(port: int) -> None:
    if b" 200 " not in await _exchange(port, _POST % 2 + b"{}", b"\r\n\r\n"):
        raise SceneFailed("a handoff was refused")


@asynccontextmanager
async def _members(port: int) -> AsyncIterator[Ask]:
    """Two members of the broker. Each time a third one comes and goes, and the first hands off to the second."""
    arrived, numbers = asyncio.Event(), itertools.count()

    async def handOff(message: Message) -> dict[str, str]:  # noqa: N802 (the operation)
        arrived.set()
        return {"status": "COMPLETED"}

    async def escalate(message: Message, target: str) -> dict[str, str]:
        return {"status": "ACCEPTED"}

    async def fallBack(message: Message, target: str) -> dict[str, str]:  # noqa: N802
        return {"status": "COMPLETED"}

    def note(sender: str, recipient: str, **data: Any) -> Message:
        now = datetime.now(UTC)
        return build(Kind.NOTIFICATION, data, sender=sender, recipient=recipient, task="task", state="OPEN", now=now)

    async with AsyncExitStack() as stack:
        sessions = []
        for name in ("anna", "ben"):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            agent = Agent(Identity.create(f"{name}.example"), LocalProtocols([HANDOFF]), home=home)
            await stack.enter_async_context(agent)
            functions: list[Callable[..., Any]] = [handOff, escalate, fallBack]
            connecting = agent.connect(f"ws://127.0.0.1:{port}", protocols=[BROKERED], role="member", serving=functions)
            sessions.append(await stack.enter_async_context(connecting))
            await sessions[-1].call("handOff", message=note(name, "broker", event="JOIN", attributes={}))

        async def ask() -> None:
            third = Crowd(port, BROKERED, address=HONEST)
            await third.meet(next(numbers), calls=False)
            third.buyers[0].close()
            arrived.clear()
            await sessions[0].call("handOff", message=note("anna", "ben", event="LINE_RESTORED"))
            await arrived.wait()

        yield ask


def _each_alone(ask: Callable[[int], Awaitable[None]]) -> Callable[[int], AbstractAsyncContextManager[Ask]]:
    return lambda port: nullcontext(partial(ask, port))


_ASKING: dict[str, Callable[[int], AbstractAsyncContextManager[Ask]]] = {
    "agent": _each_alone(_session),
    "coded": _each_alone(_session),
    "gateway": _each_alone(_settings),
    "handoff": _each_alone(_handed_off),
    "broker": _members,
}


# The stranger


async def _flood(kind: str, server: str, port: int, count: int, seconds: float, addresses: int) -> None:
    asked = PREFACE if server == "gateway" else b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
    opening = {"silent": b"", "asked": asked, "body": _POST % 9_000 + b"{", "junk": b""}[kind]
    tasks = []
    for number in range(count):
        address = f"127.0.9.{1 + number % addresses}"
        work = _send_junk(port, server, address, number) if kind == "junk" else _rest(port, address, opening)
        tasks.append(asyncio.create_task(work))
    await asyncio.wait(tasks, timeout=1)
    print("open", flush=True)
    await asyncio.sleep(seconds)
    os._exit(0)  # with all sockets, as a stranger would


async def _rest(port: int, address: str, opening: bytes) -> None:
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            writer.write(opening)
            while await reader.read(1 << 16):
                pass
            writer.transport.abort()
        await asyncio.sleep(0.2)


async def _send_junk(port: int, server: str, address: str, number: int) -> None:
    while True:
        with suppress(OSError, SceneFailed):
            crowd = Crowd(port, BROKERED if server == "broker" else PROTOCOL, address=address)
            # Of another DID each: a member of a broker is there once.
            await crowd.meet(1_000_000 + number, calls=server != "broker")
            await _drain_into(crowd.buyers[0])
        await asyncio.sleep(0.2)


async def _drain_into(buyer: Buyer) -> None:
    while not buyer.lost:
        if buyer.waiting < 2 * len(_JUNK):
            buyer.send(_JUNK)
        await asyncio.sleep(0.005)
