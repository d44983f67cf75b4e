"""`python -m bench witness`: a witness of 40,000 logs that is asked a hundred times a second, each record synced to the disk.

The witness is a process of its own. First every log shows its first checkpoint, as fast as the witness answers. Then a hundred
requests a second arrive at fixed times, each from another log that has grown by a leaf; a late answer delays none of the others.
Memory is the proportional set size of the witness, read when all logs are known and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import Frontier, consistency_nodes, consistency_proof, leaf_hash, node_hash
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, sign
from treaty_consensus.log.witness import AddCheckpoint
from treaty_registry.listening import Listening
from treaty_registry.witness.server import serve

from . import RESULTS, report
from .servers import SceneFailed, free_port, listens, ready, running, workspace
from .sessions import Memory

LOGS, RATE, SECONDS = 40_000, 100, 60
GROWTH = 1.05
"""The bar for memory: at the end, of that when all logs are known."""
RESULT = RESULTS / "witness.json"
_AT_ONCE = 64


class Figure(msgspec.Struct, frozen=True):
    """What is kept. `first`: requests a second while every log was new; `processor`: milliseconds of
    the witness's processor for each of them; `asked`, `cosigned`: at the fixed rate; `median`, `p99`,
    `worst`: milliseconds from the time a request was due to its answer; `before`, `after`: MiB; `load`: of the machine, as a
    minute's average before the run."""

    logs: int
    rate: int
    seconds: int
    first: float
    processor: float
    asked: int
    cosigned: int
    answered_a_second: float
    median: float
    p99: float
    worst: float
    before: float
    after: float
    met: bool
    load: float
    machine: str
    measured: str


class Log:
    """A log that grows by a leaf at a time."""

    def __init__(self, number: int) -> None:
        """Make the keys of a log, always the same."""
        self._key = SignerKey(f"log-{number}.example", KeyType.ED25519, hashlib.sha256(b"%d" % number).digest())
        self._leaves: list[bytes] = []

    @property
    def key(self) -> VerifierKey:
        """Return the key that the witness knows it by."""
        return self._key.verifier

    def grown(self) -> bytes:
        """Add a leaf and return the request that shows it."""
        old = len(self._leaves)
        self._leaves.append(leaf_hash(b"leaf %d" % old))
        frontier = Frontier()
        for leaf in self._leaves:
            frontier.append(leaf)
        note = sign(Checkpoint(self._key.name, len(self._leaves), frontier.root()).format(), [self._key])
        return AddCheckpoint(old, _proof(self._leaves, old), note).format()


def _proof(leaves: Sequence[bytes], old: int) -> tuple[bytes, ...]:
    """Return the consistency proof from `old` leaves to all, RFC 6962 §2.1.2."""

    def hash_of(level: int, index: int) -> bytes:
        if level == 0:
            return leaves[index]
        return node_hash(hash_of(level - 1, 2 * index), hash_of(level - 1, 2 * index + 1))

    if not old:
        return ()
    hashes = {node: hash_of(*node) for node in consistency_nodes(old, len(leaves))}
    return tuple(consistency_proof(old, len(leaves), hashes))


async def measure(logs: int, rate: int, seconds: int, console: Console) -> Figure:
    """Run the witness and ask it."""
    load, made = round(os.getloadavg()[0], 1), [Log(number) for number in range(logs)]
    # Made before: signing takes the processor that the witness needs.
    firsts = [log.grown() for log in made]
    steady = [log.grown() for log in _in_turn(made, rate * seconds)]
    with workspace() as folder:
        (folder / "logs").write_text("\n".join(str(log.key) for log in made))
        port, printed = free_port(), folder / "witness.log"
        command = [sys.executable, "-m", "bench.witness", "--serve", str(folder / "witness"), str(port), str(folder / "logs")]
        with running(command, printed) as process:
            await ready(process, printed, lambda: listens(port))
            client = _Client(port)
            begun = time.monotonic()
            await _first(client, firsts)
            first, processor = logs / (time.monotonic() - begun), 1000 * _processor(process.pid) / logs
            console.print(f"{logs} logs known, {first:.0f} a second")
            memory = Memory(process.pid)
            memory.read()
            before = memory.peak[0]
            begun = time.monotonic()
            latencies = await _steadily(client, steady, rate)
            took = time.monotonic() - begun
            memory = Memory(process.pid)
            memory.read()
    ordered = sorted(latencies)
    after, answered = memory.peak[0], len(ordered) / took
    return Figure(
        logs=logs,
        rate=rate,
        seconds=seconds,
        first=round(first),
        processor=round(processor, 2),
        asked=rate * seconds,
        cosigned=len(ordered),
        answered_a_second=round(answered, 1),
        median=round(1000 * ordered[len(ordered) // 2], 1),
        p99=round(1000 * ordered[len(ordered) * 99 // 100], 1),
        worst=round(1000 * ordered[-1], 1),
        before=round(before / 1024, 1),
        after=round(after / 1024, 1),
        met=len(ordered) == rate * seconds and answered > 0.98 * rate and after <= GROWTH * before,
        load=load,
        machine=report.machine(),
        measured=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def _processor(process: int) -> float:
    """Return the seconds of a processor that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Client:
    """Connections to the witness that are kept. A library would take more of the processor than the witness."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, body: bytes) -> None:
        """Send a request. Raises `SceneFailed` unless it is answered by 200."""
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof():  # the witness closes connections that were idle
                break
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"POST /add-checkpoint HTTP/1.1\r\nHost: witness\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
        answer = await reader.readexactly(int(length.split(b":")[1]))
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SceneFailed(f"the witness refused: {answer!r}")
        self._free.append((reader, writer))


async def _first(client: _Client, requests: Sequence[bytes]) -> None:
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            await client.ask(request)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


async def _steadily(client: _Client, requests: Sequence[bytes], rate: int) -> list[float]:
    """Ask at fixed times, and return how long after its time each answer came."""
    latencies: list[float] = []
    begun = time.monotonic()

    async def one(request: bytes, due: float) -> None:
        await client.ask(request)
        latencies.append(time.monotonic() - due)

    async with asyncio.TaskGroup() as group:
        for number, request in enumerate(requests):
            due = begun + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(one(request, due))
    return latencies


def _in_turn(logs: Sequence[Log], number: int) -> list[Log]:
    """Return logs in no order, so that a log is asked for again after its answer."""
    mixed = list(logs)
    random.Random(1).shuffle(mixed)
    return (mixed * (number // len(mixed) + 1))[:number]


async def _serve(data: str, port: str, logs: str) -> None:
    keys = [VerifierKey.parse(line) for line in (await asyncio.to_thread(Path(logs).read_text)).splitlines()]
    await serve(Path(data), keys, "witness.example/w1", Listening("127.0.0.1", int(port)), lambda _cosigner, _copies: None)


def main(arguments: Sequence[str]) -> int:
    """Run, show the figures and keep them; the exit status."""
    if arguments[:1] == ["--serve"]:
        asyncio.run(_serve(*arguments[1:]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m bench witness", description=__doc__)
    parser.add_argument("--logs", type=int, default=LOGS)
    parser.add_argument("--rate", type=int, default=RATE, help="requests a second")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    chosen = parser.parse_args(arguments)
    console = Console(highlight=False)
    figure = asyncio.run(measure(chosen.logs, chosen.rate, chosen.seconds, console))
    data = msgspec.json.format(msgspec.json.encode(figure), indent=2) + b"\n"
    console.print(data.decode())
    if (chosen.logs, chosen.rate) == (LOGS, RATE):
        RESULT.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
