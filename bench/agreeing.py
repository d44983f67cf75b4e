"""`python -m bench agreeing`: three ways to agree on one protocol, side by side: round trips, messages, bytes and time.

    by hash           the remembered agreement, confirmed: nothing is negotiated, fetched or verified
    by URI            a candidate of the Hello, whose handler is cached and verified already
    by negotiation    a draft, a counter-proposal, two handlers written and tried, test cases: everything that a language model
    does

The model is the tests' scripted one, an endpoint on loopback that answers at once; a real one thinks for seconds each time, so
`requests` says how often it is asked. Counted is all that passes between two agents over a WebSocket, from the sourceHello to the
first reply; a round trip is a turn from sending to receiving, as the side that connects sees it. Both agents live in this
process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from treaty_agent.agent import Agent
from treaty_agent.negotiators.model_negotiator import ModelNegotiators
from treaty_agent.negotiators.negotiator import Requirement
from treaty_agent.negotiators.openai import OpenAIModel
from treaty_agent.transport.connection import Connection
from treaty_client.policy import Policy
from treaty_io.identity import Identity

from . import RESULTS, report
from .counterpart import PRODUCT
from .publishing import author
from .servers import Registry, SceneFailed, registry, workspace

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))  # the scripted model is the tests' own
from scripted_model import KEY, ScriptedModel, scripted_model

REST = 0.4
"""Seconds after a session in which both sides start the next sandboxes."""
TOPIC = "commerce/product-info"
RESULT = RESULTS / "agreeing.md"
COLUMNS = ("round trips", "messages", "bytes sent", "bytes received", "model asked", "ms")


class Way(msgspec.Struct, frozen=True):
    """What one way takes, the median of its runs. `milliseconds`: from connecting to the first reply; `requests`: to the
    model."""

    way: str
    round_trips: int
    messages: int
    sent: int
    received: int
    requests: int
    milliseconds: float


@dataclass
class Tap:
    """A connection that counts what passes. `address` is the name by which the agent remembers it."""

    connection: Connection
    address: str
    sent: int = 0
    received: int = 0
    messages: int = 0
    round_trips: int = 0
    _sending: bool = False

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def backlog(self) -> int:
        return self.connection.backlog

    def watch(self, wake: Callable[[], None]) -> None:
        self.connection.watch(wake)

    def send(self, message: str | bytes) -> None:
        self.sent += _size(message)
        self.messages += 1
        self._sending = True
        self.connection.send(message)

    def receive(self) -> str | bytes | None:
        message = self.connection.receive()
        if message is None:
            return None
        self.received += _size(message)
        self.messages += 1
        self.round_trips += self._sending
        self._sending = False
        return message

    async def close(self, reason: str = "") -> None:
        await self.connection.close(reason)


@dataclass
class Scene:
    """A shop that provides a protocol and negotiates, and a buyer that knows the protocol."""

    registry: Registry
    folder: Path
    model: ScriptedModel
    shop: str
    protocol: str
    publisher: str
    buyer: Agent
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    async def by_hash(self) -> Way:
        return await self._meet("by hash", self.buyer, self.shop, resumed=True, protocols=[self.protocol])

    async def by_uri(self) -> Way:
        return await self._meet("by URI", self.buyer, self._elsewhere(), protocols=[self.protocol])

    async def by_negotiation(self) -> Way:
        plan = next(script for script in self.model.scripts if script.topic == TOPIC)
        with _negotiators(self.model) as negotiators:
            home = self.folder / f"negotiator-{next(self._numbers)}"
            made = Agent(Identity.create(), self.registry.name, Policy(), home=home, negotiators=negotiators)
            async with made as agent:
                return await self._meet("by negotiation", agent, self._elsewhere(), requirement=Requirement(plan.requirement))

    def _elsewhere(self) -> str:
        """An address that nobody remembers an agreement with."""
        return f"{self.shop}/{next(self._numbers)}"

    async def _meet(self, way: str, agent: Agent, url: str, *, resumed: bool = False, **wish: Any) -> Way:
        asked, begun = len(self.model.seen), time.perf_counter()
        tap = Tap(await agent.dial(url), url)
        async with agent.connect_over(tap, **wish) as session:
            reply = await session.call("getProductInfo", productId=PRODUCT["productId"])
            taken = time.perf_counter() - begun
            if reply != PRODUCT or session.resumed != resumed:
                raise SceneFailed(f"{way}: resumed={session.resumed}, {reply!r}")
            requests = len(self.model.seen) - asked
            found = Way(way, tap.round_trips, tap.messages, tap.sent, tap.received, requests, taken * 1000)
        await asyncio.sleep(REST)
        return found


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """A registry, a model, a shop and a buyer, all warm."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(workspace())
        model = stack.enter_context(scripted_model())
        served = await stack.enter_async_context(registry(folder))
        async with author(served, folder) as writer:
            protocol, publisher = await writer.publish("1.1"), writer.identity.did
        policy = Policy(publishers=[publisher])
        negotiators = stack.enter_context(_negotiators(model))
        shop = Agent(Identity.create(), served.name, policy, home=folder / "shop", negotiators=negotiators)
        await stack.enter_async_context(shop)

        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            """A product by its id or name."""
            return PRODUCT

        shop.provides(protocol)(getProductInfo)
        shop.offers(getProductInfo)
        port = await stack.enter_async_context(shop.listen("127.0.0.1", 0))
        buyer = await stack.enter_async_context(Agent(Identity.create(), served.name, policy, home=folder / "buyer"))
        made = Scene(served, folder, model, f"ws://127.0.0.1:{port}", protocol, publisher, buyer)
        await made._meet("first", buyer, made.shop, protocols=[protocol])  # fetched, verified, remembered
        yield made


@contextmanager
def _negotiators(model: ScriptedModel) -> Iterator[ModelNegotiators]:
    yield ModelNegotiators(OpenAIModel(model.url, "scripted", api_key=KEY))


def _size(message: str | bytes) -> int:
    return len(message.encode() if isinstance(message, str) else message)


async def measure(rounds: int) -> list[Way]:
    """Each way so many times, in turn; the medians."""
    async with scene() as made:
        runs = [[await way() for way in (made.by_hash, made.by_uri, made.by_negotiation)] for _ in range(rounds)]
    return [_median(list(of_a_way)) for of_a_way in zip(*runs, strict=True)]


def _median(runs: list[Way]) -> Way:
    counts = ("round_trips", "messages", "sent", "received", "requests")
    middle = {name: round(median(getattr(run, name) for run in runs)) for name in counts}
    return Way(runs[0].way, **middle, milliseconds=round(median(run.milliseconds for run in runs), 1))


def main(arguments: list[str]) -> int:
    """Run, show the table and keep it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench agreeing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way (default: 5)")
    rounds = parser.parse_args(arguments).rounds
    console = Console(highlight=False, emoji=False)
    with console.status("three ways to agree"):
        ways = asyncio.run(measure(rounds))
    rows = [(way.way, *(f"{number:,}" for number in msgspec.structs.astuple(way)[1:])) for way in ways]
    RESULT.write_text(_markdown(rows, rounds), encoding="utf-8")
    table = Table("", *COLUMNS)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return 0


def _markdown(rows: list[tuple[str, ...]], rounds: int) -> str:
    where = f"{report.machine()}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    lines = [("", *COLUMNS), ("---", *("---:" for _ in COLUMNS)), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"Medians of {rounds} runs by `python -m bench agreeing`; {where}.\n\n{table}\n"
