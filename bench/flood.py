"""A stranger's flood, as a process of its own: `python flood.py PORT KIND COUNT SECONDS [ADDRESS [FILE]]`.

It opens COUNT connections from ADDRESS (or several, with commas between, in turn) to the loopback port, does on each what its
KIND says, opens each again that is closed (at most twice as many as COUNT in all), and ends after SECONDS. When all are open it
prints a line. The kind `post` sends the lines of FILE as statements, 64 a request, each request once.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

_GET = b"GET %b HTTP/1.1\r\nHost: registry.example\r\n\r\n"
_HEAD = b"HEAD %b HTTP/1.1\r\nHost: registry.example\r\n\r\n"
_POST = b"POST /statements HTTP/1.1\r\nHost: registry.example\r\nContent-Type: application/%b\r\nContent-Length: %d\r\n\r\n"

Kind = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Send nothing."""
    await reader.read()


def _drip(data: bytes) -> Kind:
    async def kind(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(2)

    return kind


def _unread(*requests: bytes) -> Kind:
    async def kind(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"".join(requests))
        await writer.drain()
        await asyncio.sleep(3_600)  # a socket that is not read does not say either that it was closed

    return kind


def _sipped(*requests: bytes) -> Kind:
    async def kind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(requests))
        while True:
            if not await reader.read(16):
                return
            await asyncio.sleep(1)

    return kind


def _read(*requests: bytes) -> Kind:
    async def kind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(requests))
        while await reader.read(1 << 18):
            pass

    return kind


async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask once, and keep the connection."""
    writer.write(_GET % b"/health/live")
    await reader.read()


KINDS: dict[str, Kind] = {
    "silent": silent,
    "head": _drip(b"GET /checkpoint HTTP/1.1\r\nHost: registry.example\r\nX-Long: " + b"a" * 1_000),
    "preface": _drip(b"PRI * HTTP/2.0\r\n\r\nSM\r\n"),
    "body": _drip(_POST % (b"json", 9_000) + b"{" * 9_000),
    "unread": _unread(*[_GET % b"/schema"] * 200),
    "various": _unread(*[_GET % path for path in (b"/log", b"/topics", b"/protocols?q=a", b"/schema", b"/nothing")] * 40),
    "small": _unread(*[_GET % b"/checkpoint"] * 200),
    "missing": _unread(*[_GET % b"/nothing"] * 200),
    "heads": _unread(*[_HEAD % b"/schema"] * 200),
    "posts": _unread(*[_POST % (b"json", 2) + b"{}"] * 200),
    "sipped": _sipped(*[_GET % b"/schema"] * 200),
    "read": _read(*[_GET % b"/schema"] * 200),
    "idle": idle,
}


def post(file: str) -> Kind:
    """Send the lines of a file, 64 a request; all connections together send each request once."""
    lines = Path(file).read_bytes().splitlines()
    batches = [b"\n".join(lines[begin : begin + 64]) for begin in range(0, len(lines), 64)]

    async def kind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while batches:
            batch = batches.pop()
            writer.write(_POST % (b"x-ndjson", len(batch)) + batch)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in answer.lower().splitlines() if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
        await asyncio.sleep(3_600)

    return kind


async def _hold(kind: Kind, port: int, address: str, opened: list[int], most: int) -> None:
    while opened[0] < most:
        opened[0] += 1
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            try:
                await kind(reader, writer)
            finally:
                writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.2)


async def main(port: int, kind: str, count: int, seconds: float, address: str = "127.0.0.1", file: str = "") -> None:
    """Flood, then end."""
    does = post(file) if file else KINDS[kind]
    opened, addresses = [0], address.split(",")
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(_hold(does, port, addresses[number % len(addresses)], opened, 2 * count)))
        if number % 200 == 199:
            await asyncio.sleep(0.01)
    print("open", flush=True)
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port, kind, count, seconds, *rest = sys.argv[1:]
    asyncio.run(main(int(port), kind, int(count), float(seconds), *rest))
