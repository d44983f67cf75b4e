"""`python -m bench speaking`: messages per second of AIP, handoff and message routing.

    aip, handoff, routing    through the sandbox, against the same handler in this process: the same sessions and messages
    grpc                     `treaty_aip` from agent to agent and through a gateway, against a bare echo of grpcio

Each with a small text and with a large message: an image of 64 KiB in AIP, and the most that the bounds of the others take.
A turn begins when the one before is over, so a rate is the reciprocal of a message's time. All are read in turn, in short
samples, in the opposite order each time. Processor time is that of this process and of all workers. `dialogues` has the
messages, and `aip_calls` the calls.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
from rich.console import Console

from . import RESULTS, report
from .aip_calls import CALLS, calls
from .contest import Group, Meter, Row, Sample, hold
from .dialogues import SIZES, WAYS, dialogue
from .sessions import family

RESULT, TABLE = RESULTS / "speaking.json", RESULTS / "speaking.md"
SECONDS = 0.15
"""Of a sample. A worker may use a minute of processor time in its life, so a run has at most some hundred rounds."""
TITLES = {"aip": "AIP", "handoff": "handoff", "routing": "message routing"}


class Spent(NamedTuple):
    """Microseconds of one message: by the clock, and of the processor in this process and in the workers."""

    clock: float
    here: float
    workers: float


class Figures(msgspec.Struct, frozen=True):
    """What is kept of a run. `parts`: of a message through the sandbox in microseconds, by row."""

    lines: list[report.Line]
    parts: dict[str, dict[str, float]]


Spending = dict[str, list[Spent]]
"""By meter, a value for each sample."""


def _meter(name: str, turn: Callable[[], Awaitable[None]], count: Callable[[], int], spending: Spending) -> Meter:
    """Read a rate. `count`: the messages so far."""

    async def read() -> Sample:
        processes = [pid for pid in family(os.getpid()) if pid != os.getpid()]
        before, mine, theirs, begun = count(), time.process_time(), _used(processes), time.perf_counter()
        while (seconds := time.perf_counter() - begun) < SECONDS:
            await turn()
        here, workers, messages = time.process_time() - mine, _used(processes) - theirs, count() - before
        spent = Spent(*(1e6 * each / messages for each in (seconds, here, workers)))
        spending.setdefault(name, []).append(spent)
        return Sample(messages / seconds, cpu=(spent.here + spent.workers) / 1e3)

    return read


def _used(processes: list[int]) -> float:
    """Seconds of the processor. The first field of schedstat is in nanoseconds; `times` counts in hundredths of a second."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in processes) / 1e9


def groups(spending: Spending) -> list[Group]:
    """All rows. Each sample of a dialogue adds to `spending`."""
    made = [_dialogues(name, spending) for name in TITLES]
    rows = tuple(
        Row(f"{call} {place} {size}", f"treaty_aip, {call}, {place}, {size}", "a bare echo of grpcio", "1/s", *meters, 0)
        for call in CALLS
        for size in SIZES
        for place in ("direct", "gateway")
        for meters in [(f"{call} {place} {size}", f"{call} echo {size}")]
    )

    @asynccontextmanager
    async def scene() -> AsyncIterator[Mapping[str, Meter]]:
        async with calls() as turns:
            meters = {}
            for (call, place, size), turn in turns.items():
                counted = _Counted(turn)
                meters[f"{call} {place} {size}"] = _meter(f"{call} {place} {size}", counted, counted.messages, spending)
            yield meters

    return [*made, Group("grpc", rows, scene)]


class _Counted:
    """A turn of two messages that counts them."""

    def __init__(self, turn: Callable[[], Awaitable[None]]) -> None:
        self._turn, self._turns = turn, 0

    async def __call__(self) -> None:
        await self._turn()
        self._turns += 1

    def messages(self) -> int:
        return 2 * self._turns


def _dialogues(name: str, spending: Spending) -> Group:
    rows = tuple(
        Row(f"{name} {size}{mark}", f"{TITLES[name]}, {size}, {way}", against, "1/s", f"{size} {way}", f"{size} {against}", 0)
        for size in SIZES
        for mark, way, against in (
            ("", "sandbox", "in process"),
            (" worker", "sandbox", "plain worker"),
            (" checks", "in process", "bare"),
        )
    )

    @asynccontextmanager
    async def scene() -> AsyncIterator[Mapping[str, Meter]]:
        async with AsyncExitStack() as stack:
            meters = {}
            for size in SIZES:
                for way in WAYS:
                    wiring, turn = await stack.enter_async_context(dialogue(name, size, way))
                    count = lambda wiring=wiring: wiring.messages  # noqa: E731
                    meters[f"{size} {way}"] = _meter(f"{name} {size} {way}", turn, count, spending)
            yield meters

    return Group(name, rows, scene)


def parts(spending: Spending) -> dict[str, dict[str, float]]:
    """Split the time of a message through the sandbox: the handler; the checks, which are made in this process too; the two ends
    of the pipe, which are the rest of either side's processor time; and the time in which neither side works."""
    found = {}
    for row in (f"{name} {size}" for name in TITLES for size in SIZES):
        handler, local = (median(each.here for each in spending[f"{row} {way}"]) for way in ("bare", "in process"))
        sandboxed = spending[f"{row} sandbox"]
        clock, here, workers = (median(each) for each in zip(*sandboxed, strict=True))
        checks = local - handler
        split = (handler, checks, here - checks, workers - handler, clock - here - workers, clock)
        names = ("handler", "checks", "this end", "worker's end", "waiting", "all")
        found[row] = {name: round(part, 1) for name, part in zip(names, split, strict=True)}
    return found


async def _measure(rounds: int, console: Console) -> Figures:
    spending: Spending = {}
    lines, where = [], report.machine()
    for group in groups(spending):
        with console.status(group.name):
            results = await hold(group, group.rows, rounds, lambda name: None)
        lines += [report.line_of(result, where) for result in results]
    return Figures(lines, parts(spending))


def markdown(figures: Figures) -> str:
    """The tables, and the profile."""
    head = "<!-- Made by `python -m bench speaking`; see README.md, section Messages of three protocols. -->\n\n"
    head += "# Messages of three protocols\n\n"
    names = next(iter(figures.parts.values()))
    rows = [f"| microseconds | {' | '.join(names)} |", f"|---{'|--:' * len(names)}|"]
    rows += [f"| `{row}` | {' | '.join(f'{part:.0f}' for part in split.values())} |" for row, split in figures.parts.items()]
    return "\n".join([head + report.markdown(figures.lines), "## Where the time goes", "", profile(figures), "", *rows, ""])


def profile(figures: Figures) -> str:
    """Say where the time of the sandbox goes, by the smallest message of AIP."""
    handler, checks, here, there, waiting, everything = (f"{part:.0f} µs" for part in figures.parts["aip text"].values())
    with_walls, without = next(line.cpu for line in figures.lines if line.name == "aip text worker")
    walls = with_walls / without
    return " ".join(
        (
            f"A small message of AIP takes {everything} through the sandbox. The handler works for {handler} of them.",
            f"The checks of events and effects, which a handler in this process has too, take {checks}. This end of the",
            f"pipe takes {here}: for each event it encodes, writes, sets a timer, turns the event loop twice, reads and",
            f"decodes. The worker's end takes {there}, to read, decode, encode and write the same. The rest, {waiting}, is",
            "waking the other side, and other work of the machine. So the price is that of a second process. The sandbox",
            f"around it costs little: with it, a message has {walls:.2f} times the processor time of the same worker without.",
            "Each event is one turn of the pipe, and a message has two to three of them: the call or the message, and the",
            "result of the function that it invokes. A large message is copied, encoded and decoded at each turn, as",
            "MessagePack and, where the protocol has JSON, as JSON. The parts are differences of medians, so one that is",
            "small may be below zero.",
        )
    )


def main(arguments: list[str]) -> int:
    """Run, show the table and keep it; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m bench speaking", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each side of a row (default: 15)")
    rounds = parser.parse_args(arguments).rounds
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every process that was started is ended
    console = Console(highlight=False, emoji=False)
    figures = asyncio.run(_measure(rounds, console))
    console.print(report.table(figures.lines))
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    TABLE.write_text(markdown(figures), encoding="utf-8")
    return 0
