"""`python -m bench sessions`: thousands of live sessions in one agent process, and the memory that they take with their workers.

A shop as in the handshakes serves them all. This process plays the buyers, each with a DID and a connection of its own, over bare
sockets: a WebSocket handshake, the Hello, codeGeneration, one call of the protocol, and from then on an answer to every ping.
When all have been served, some of them call once more, to show that sessions live on without a worker. Memory is the proportional
set size (PSS) of the shop's process and of all below it, bubblewrap and workers included, read all the time; the largest counts.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from treaty_anp import frame
from treaty_anp.frame import ProtocolType
from treaty_anp.hello_profile import hello, messages
from treaty_handler import decode_json, encode_json

from . import RESULTS, report
from .counterpart import PRODUCT
from .publishing import author
from .servers import REPOSITORY, SceneFailed, free_port, listens, ready, registry, running, workspace

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the handler with code is the tests' own
from sandboxed import sandboxed_product_info

SESSIONS = 10_000
BAR = 500
"""MiB that ten thousand sessions may take."""
SECONDS = 45
"""In which they should all be served once."""
AT_ONCE = 4
"""Handshakes under way."""
AGAIN = 200
"""Sessions that call a second time."""
PATIENCE = 120
RESULT = RESULTS / "sessions.json"

_UPGRADE = (
    "GET / HTTP/1.1\r\nHost: shop\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: {}\r\n\r\n"
)
_TEXT, _BINARY, _PING, _PONG = 0x1, 0x2, 0x9, 0xA


class Figure(msgspec.Struct, frozen=True):
    """What is kept of a run. Memory in MiB, where it was most; `processes`: those of the workers then; `seconds`: from the first
    connection until all were served once; `processor`: milliseconds of the agent's own process for one of them meanwhile, which
    other work of the machine changes less. `soon`: the bar of `seconds`, for so many sessions."""

    sessions: int
    peak: float
    agent: float
    workers: float
    processes: int
    seconds: float
    processor: float
    bar: int
    soon: float
    met: bool
    machine: str
    measured: str


class Buyer(asyncio.Protocol):
    """One buyer's socket: as much of RFC 6455 as it takes, without masks that hide anything (a mask of zeros)."""

    def __init__(self) -> None:
        self.lost = False
        self._reason = ""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._upgraded = False
        self._messages: asyncio.Queue[str | bytes] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for a WebSocket."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_UPGRADE.format(base64.b64encode(os.urandom(16)).decode()).encode())

    def data_received(self, data: bytes) -> None:
        """Takes messages and answers pings; the shop sends no fragments."""
        self._buffer += data
        if not self._upgraded:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head:
                self._fail()
            self._upgraded, self._buffer = True, bytearray(rest)
            self._messages.put_nowait("open")
        while (size := self._whole_frame()) is not None:
            start, length = size
            opcode, payload = self._buffer[0] & 0x0F, bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            if opcode == _PING:
                self._write(_PONG, payload)
            elif opcode in (_TEXT, _BINARY):
                self._messages.put_nowait(payload.decode() if opcode == _TEXT else payload)
            elif opcode != _PONG:
                self._reason = payload[2:].decode()
                self._fail()

    def connection_lost(self, exc: Exception | None) -> None:
        """The shop is gone, or did not want this buyer."""
        self._fail()

    def send(self, message: str | bytes) -> None:
        """Send one message."""
        self._write(_TEXT if isinstance(message, str) else _BINARY, message.encode() if isinstance(message, str) else message)

    async def receive(self) -> str | bytes:
        """The next one. Raises `SceneFailed`."""
        async with asyncio.timeout(PATIENCE):
            message = await self._messages.get()
        if self.lost and not message:
            raise SceneFailed(f"the shop ended a session: {self._reason or 'without a word'}")
        return message

    @property
    def waiting(self) -> int:
        """The bytes that the shop has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _fail(self) -> None:
        self.lost = True
        self._messages.put_nowait("")

    def _whole_frame(self) -> tuple[int, int] | None:
        """Where the payload of the first frame begins, and its length, once all of it is here."""
        if len(self._buffer) < 4:
            return (2, 0) if len(self._buffer) >= 2 and self._buffer[1] == 0 else None
        start, length = 2, self._buffer[1]
        if length == 126:
            start, length = 4, int.from_bytes(self._buffer[2:4], "big")
        return (start, length) if len(self._buffer) >= start + length else None

    def _write(self, opcode: int, payload: bytes) -> None:
        size = bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0x80 | 126]) + len(payload).to_bytes(2, "big")
        assert self._transport is not None
        self._transport.write(bytes([0x80 | opcode]) + size + bytes(4) + payload)


@dataclass
class Crowd:
    """All buyers of one shop."""

    port: int
    protocol: str
    buyers: list[Buyer] = field(default_factory=list)
    address: str = ""
    """The one that they come from. "": four, in turn: 10,000 connections need more than one where ephemeral ports are few."""

    async def come(self, number: int, tell: Callable[[int], None]) -> None:
        """So many buyers, one after the other, a few at once; each speaks the protocol once."""
        numbers = iter(range(number))

        async def some() -> None:
            for count in numbers:
                await self.meet(count)
                tell(len(self.buyers))

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def call(self, buyer: Buyer) -> None:
        """One call. Raises `SceneFailed` when it is not answered as it should."""
        request = {
            "messageId": os.urandom(8).hex(),
            "type": "REQUEST",
            "action": "getProductInfo",
            "productId": PRODUCT["productId"],
        }
        buyer.send(frame.encode(ProtocolType.APPLICATION, encode_json(request)))
        answer = await buyer.receive()
        if not isinstance(answer, bytes) or PRODUCT["productId"] not in json.dumps(decode_json(answer[1:])):
            raise SceneFailed(f"a call brought {answer!r}")

    async def meet(self, number: int, *, calls: bool = True) -> None:
        """One more buyer, which speaks the protocol once. `calls`: or only agrees on it. Raises `SceneFailed`."""
        loop, address = asyncio.get_running_loop(), self.address or f"127.0.0.{1 + number % 4}"
        _, buyer = await loop.create_connection(Buyer, "127.0.0.1", self.port, local_addr=(address, 0))
        await buyer.receive()  # that it is open
        said = hello.Hello(
            type="sourceHello",
            message_id=os.urandom(8).hex(),
            session_id=os.urandom(8).hex(),
            source_did=f"did:wba:buyer-{number}.example",
            destination_did="",
            capabilities=(),
            random=os.urandom(16).hex(),
            candidate_protocols=(self.protocol,),
        )
        buyer.send(said.format())
        answer = await buyer.receive()
        if not isinstance(answer, str) or hello.parse(answer, "destinationHello").selected_protocol != self.protocol:
            raise SceneFailed(f"the Hello brought {answer!r}")
        generated = frame.encode(ProtocolType.META, messages.encode(messages.CodeGeneration("generated")))
        buyer.send(generated)
        if await buyer.receive() != generated:
            raise SceneFailed("the shop's code was not ready")
        if calls:
            await self.call(buyer)
        self.buyers.append(buyer)


async def measure(number: int, tell: Callable[[str], None]) -> Figure:
    """Have so many sessions at once. Raises `SceneFailed` unless all of them live to the end."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # here and in the shop
    if most < number + 1024:
        raise SceneFailed(f"{number} sessions take as many open files, and {most} are allowed: raise `ulimit -n`")
    async with AsyncExitStack() as stack:
        crowd, process = await stack.enter_async_context(_shop())
        memory = Memory(process)
        watching = asyncio.create_task(memory.watch())
        stack.callback(watching.cancel)
        begun, spent = time.monotonic(), _processor(process)
        await crowd.come(number, lambda count: tell(f"{count} sessions") if count % 100 == 0 else None)
        taken, spent = time.monotonic() - begun, _processor(process) - spent
        for buyer in random.sample(crowd.buyers, min(AGAIN, number)):
            await crowd.call(buyer)
        await asyncio.to_thread(memory.read)
        if any(buyer.lost for buyer in crowd.buyers):
            raise SceneFailed(f"{sum(buyer.lost for buyer in crowd.buyers)} sessions were lost")
        for buyer in crowd.buyers:
            buyer.close()
        where, today = report.machine(), time.strftime("%Y-%m-%d", time.gmtime())
        peak, agent, workers = (round(size / 1024, 1) for size in memory.peak[:3])
        soon = round(SECONDS * number / SESSIONS, 1)
        return Figure(
            sessions=number,
            peak=peak,
            agent=agent,
            workers=workers,
            processes=memory.peak[3],
            seconds=round(taken, 1),
            processor=round(1000 * spent / number, 2),
            bar=BAR,
            soon=soon,
            met=peak <= BAR and taken <= soon,
            machine=where,
            measured=today,
        )


class Memory:
    """PSS of a process and of all below it, in KiB."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.peak = (0, 0, 0, 0)
        """All, the root alone, the rest, and of how many processes the rest is."""

    async def watch(self) -> None:
        """Read it until cancelled."""
        while True:
            await asyncio.to_thread(self.read)
            await asyncio.sleep(5)

    def read(self) -> None:
        """Read it once."""
        sizes = {pid: _pss(pid) for pid in family(self._root)}
        agent = sizes.pop(self._root)
        self.peak = max(self.peak, (agent + sum(sizes.values()), agent, sum(sizes.values()), len(sizes)))


def _pss(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it is gone
        return 0
    return next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def _processor(pid: int) -> float:
    """Return the processor seconds of a process, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


@asynccontextmanager
async def _shop() -> AsyncIterator[tuple[Crowd, int]]:
    """A shop's process, which provides one protocol and has all the time in the world."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(workspace())
        served = await stack.enter_async_context(registry(folder))
        async with author(served, folder) as writer:
            # With code, so that each session needs a worker once.
            project = sandboxed_product_info("1.1", name="product-info-coded")
            protocol, publisher = await writer.publish_project(project), writer.identity.did
        port, echo, log = free_port(), free_port(), folder / "shop.log"
        named = ["--home", str(folder / "shop"), "--registry", served.name, "--publisher", publisher, "--protocol", protocol]
        command = [sys.executable, "-m", "bench.counterpart", *named, "--port", str(port), "--echo", str(echo), "--idle", "86400"]
        process = stack.enter_context(running(command, log))
        await ready(process, log, lambda: listens(echo))
        yield Crowd(port, protocol), process.pid


def main(arguments: list[str]) -> int:
    """Run, show the figure and keep it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench sessions", description=__doc__)
    parser.add_argument("--number", type=int, default=SESSIONS, help=f"how many (default: {SESSIONS})")
    number = parser.parse_args(arguments).number
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every process that was started is ended
    console = Console(highlight=False, emoji=False)
    with console.status("the scene") as status:
        figure = asyncio.run(measure(number, status.update))
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figure), indent=2) + b"\n")
    verdict = "[green]met[/]" if figure.met else "[red]missed[/]"
    console.print(
        f"{figure.sessions:,} sessions in {figure.seconds:,} s (bar {figure.soon:,} s), {figure.peak:,} MiB at most "
        f"(bar {figure.bar:,} MiB): {verdict}"
    )
    console.print(f"{figure.processor} ms of the agent's process for a session")
    console.print(f"the agent {figure.agent:,} MiB, {figure.processes} processes of its workers {figure.workers:,} MiB")
    return 0
