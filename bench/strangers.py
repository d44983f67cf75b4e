"""`python -m bench strangers`: what a stranger does to others at agents, an AIP gateway and a handoff endpoint.

For each server (`flooded`) and each kind of flood, an honest client in another network goes on all the time, each time on a new
connection. Its 99th percentiles before and during the flood are compared: `during / before`. The bar is 3. Server, flood and
client are three processes. The control, `beside`, is the same flood at another server of the same kind, on the same processors.
It shows how much of the delay is only that the processors are shared. The floods are

    silent     sockets that send nothing, opened again when they are closed
    asked      sockets that send one request, or the preface of HTTP/2, and rest
    body       requests whose bodies drip (handoff)
    junk       messages of 58,000 bytes in running sessions, as many as the sockets take (agents)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rich.console import Console
from rich.table import Table

from treaty_anp import frame
from treaty_anp.frame import ProtocolType

from .flooded import KINDS, PROTOCOL
from .servers import SceneFailed
from .sessions import Buyer, Crowd

BAR = 3
HONEST = "127.0.10.1"
FLOODS = {
    "agent": ("silent", "asked", "junk"),
    "coded": ("silent", "asked", "junk"),
    "gateway": ("silent", "asked"),
    "handoff": ("silent", "asked", "body"),
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
            before, _ = await _asked(server, port, seconds)
            phases = []
            for flooded in (elsewhere, port):
                command = ("flood", kind, server, str(flooded), str(count), str(seconds), str(addresses))
                flood = await _started("bench", "strangers", *command)
                await _line(flood)
                phases.append(await _asked(server, port, seconds - 1))
                await flood.communicate()
                after, _ = await _asked(server, port, 2)
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


async def _asked(server: str, port: int, seconds: float) -> tuple[float, int]:
    """Ask for so long. Return the 99th percentile in milliseconds, and how many requests failed."""
    ask, times, failed = _ASKING[server], list[float](), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(_PATIENCE):
                await ask(port)
        except (OSError, EOFError, TimeoutError, SceneFailed):
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


_ASKING: dict[str, Callable[[int], Awaitable[None]]] = {
    "agent": _session,
    "coded": _session,
    "gateway": _settings,
    "handoff": _handed_off,
}


# The stranger


async def _flood(kind: str, server: str, port: int, count: int, seconds: float, addresses: int) -> None:
    asked = PREFACE if server == "gateway" else b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
    opening = {"silent": b"", "asked": asked, "body": _POST % 9_000 + b"{", "junk": b""}[kind]
    tasks = []
    for number in range(count):
        address = f"127.0.9.{1 + number % addresses}"
        tasks.append(asyncio.create_task(_send_junk(port, address) if kind == "junk" else _rest(port, address, opening)))
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


async def _send_junk(port: int, address: str) -> None:
    while True:
        with suppress(OSError, SceneFailed):
            crowd = Crowd(port, PROTOCOL, address=address)
            await crowd.meet(0)
            await _drain_into(crowd.buyers[0])
        await asyncio.sleep(0.2)


async def _drain_into(buyer: Buyer) -> None:
    while not buyer.lost:
        if buyer.waiting < 2 * len(_JUNK):
            buyer.send(_JUNK)
        await asyncio.sleep(0.005)
