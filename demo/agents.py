"""The demo's agents, each a process of its own: a shop that serves, a buyer that asks.

    python agents.py shop  --home DIR --registry URL#KEY --publisher DID --port PORT --protocol URI…
    python agents.py buyer --home DIR --registry URL#KEY --publisher DID --url ws://… --call TOPIC OPERATION ARGUMENTS…

A buyer opens one session for each topic and makes the calls in it. It prints a JSON list with an object for each session: the
protocol, whether the agreement was a remembered one, the answers, and the timeline.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from treaty_agent.agent import Agent
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.sessions.session import Session
from treaty_client.policy import Policy
from treaty_io.identity import Identity
from treaty_io.network.hosts import Network

CATALOGUE = {
    "P12345": {
        "productId": "P12345",
        "productName": "Performance laptop",
        "productDescription": "A laptop with the latest processor and plenty of memory.",
        "price": 1299.99,
        "currency": "USD",
    }
}


PRICES = {"lamp": {"ask": 2000, "floor": 1500}}
"""Of each item for haggling: the first price, and the lowest one, in cents."""


def make_agent(arguments: argparse.Namespace) -> Agent:
    """The agent of a home: it runs the publisher's handlers, and reports what it negotiated."""
    return Agent(
        Identity.load(arguments.home / "identity.json"),
        arguments.registry,
        Policy(publishers=[arguments.publisher], report=True, report_delay=0),
        home=arguments.home,
        network=Network.from_environment(),
    )


async def shop(arguments: argparse.Namespace) -> None:
    """Serve the catalogue by every protocol that was named, until ended."""
    async with make_agent(arguments) as agent:
        for uri in arguments.protocol:
            agent.provides(uri)(quote if "/haggling/" in uri else getProductInfo)
        await agent.serve("127.0.0.1", arguments.port)


async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803 (the operation)
    """Find a product by its id, or by its name."""
    for product in CATALOGUE.values():
        if productId == product["productId"] or (not productId and productName == product["productName"]):
            return product
    raise OperationError(404, "There is no such product.")


async def quote(item: str) -> dict[str, int]:
    """Tell the handler, not the buyer, the prices of an item."""
    if item not in PRICES:
        raise OperationError(404, "There is no such item.")
    return PRICES[item]


async def buyer(arguments: argparse.Namespace) -> None:
    """Make the calls, topic by topic, then say what happened."""
    topics: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for topic, operation, values in arguments.call:
        topics.setdefault(topic, []).append((operation, json.loads(values)))
    async with make_agent(arguments) as agent:
        talks = [await talk(agent, arguments.url, topic, calls) for topic, calls in topics.items()]
    # Now, because the end of the agent waits for the reports of its sessions.
    print(json.dumps([outcome(session, answers) for session, answers in talks]))


async def talk(agent: Agent, url: str, topic: str, calls: list[tuple[str, dict[str, Any]]]) -> tuple[Session, list[Any]]:
    """Open a session for a topic, make the calls, and return it with the answers."""
    answers: list[Any] = []
    async with agent.connect(url, topic=topic) as session:
        for operation, values in calls:
            try:
                answers.append(await session.call(operation, **values))
            except OperationError as error:
                answers.append({"status": error.status, "message": error.message})
    return session, answers


def outcome(session: Session, answers: list[Any]) -> dict[str, Any]:
    """Describe a session that is over."""
    timeline = [[event.name, round(event.seconds, 4)] for event in session.timeline]
    value = {"protocol": session.protocol, "peer": session.peer.did, "resumed": session.resumed}
    return value | {"answers": answers, "timeline": timeline}


def main() -> None:
    """One agent, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["shop", "buyer"])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--registry", required=True)
    parser.add_argument("--publisher", required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--protocol", action="append", default=[])
    parser.add_argument("--url")
    parser.add_argument("--call", nargs=3, action="append", default=[], metavar=("TOPIC", "OPERATION", "ARGUMENTS"))
    arguments = parser.parse_args()
    asyncio.run({"shop": shop, "buyer": buyer}[arguments.part](arguments))


if __name__ == "__main__":
    main()
