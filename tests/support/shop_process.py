"""A shop in a process of its own, for tests of two: real sockets, real sandboxes, simulated registry.

python tests/support/shop_process.py HOME PORT [CERTIFICATE_WITH_KEY]      prints its port once it serves

The products of `TROUBLE` stand for calls that are not answered.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from functools import partial
from pathlib import Path
from typing import Any

from meetings import (
    LAPTOP,
    MAX_AGE,
    REGISTRY,
    URI_2,
    SimulatedNames,
    SimulatedProtocols,
    SimulatedPublisher,
    did_document,
    identity,
)

from treaty_agent.agent import Agent
from treaty_agent.config import AgentConfig
from treaty_agent.sessions.interfaces import PeerSettings, Ports, SessionTimeouts
from treaty_agent.sessions.operation_errors import OperationError
from treaty_client.policy import Policy
from treaty_consensus.errors import Unavailable
from treaty_io.network.did_documents import DidResolver
from treaty_io.network.hosts import Network
from treaty_sandbox.runtime import SandboxRuntime

TROUBLE = ("HANG", "HANG-ONCE", "CRASH-ONCE")


def agent(
    domain: str,
    home: Path,
    network: Network | None = None,
    *,
    protocols: SimulatedProtocols | None = None,
    timeouts: SessionTimeouts | None = None,
    peers: PeerSettings | None = None,
    **options: Any,
) -> Agent:
    """An agent that runs handlers in sandboxes, and gets them from a simulated registry. `options`: those of the agent."""
    protocols = protocols or SimulatedProtocols()

    def no_log(origin: str) -> Any:
        raise Unavailable("registry.unreachable", f"{origin} is not simulated here.")

    ports = Ports(
        protocols,
        SandboxRuntime(home),
        no_log,
        SimulatedPublisher(protocols),
        DidResolver(did_document),
        partial(SimulatedNames, protocols),
    )
    policy = Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE)
    config = AgentConfig(policy, timeouts, peers=peers or PeerSettings(), home=home)
    return Agent(identity(domain), REGISTRY, config, network=network, ports=ports, **options)


async def trouble(home: Path, text: str) -> dict[str, Any]:
    """Print CALLED, and then never answer, or answer when all handlers of this agent are dead; of ONCE only the first time."""
    number = note(home / "calls", text)
    print("CALLED", flush=True)  # after the note: the test may kill this process now
    if number == 1 or not text.endswith("-ONCE"):
        if text.startswith("HANG"):
            await asyncio.get_running_loop().create_future()
        kill_children()
    return LAPTOP


def note(calls: Path, text: str) -> int:
    """Write a call down; return the number of these calls."""
    with calls.open("a") as file:
        file.write(text + "\n")
    return calls.read_text().count(text + "\n")


def kill_children() -> None:
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            os.kill(int(child), signal.SIGKILL)


async def serve(home: Path, port: int, certificate: Path | None) -> None:
    """Sell one laptop until terminated."""
    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
    async with agent("shop.example", home) as shop:

        @shop.provides(URI_2)
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            if productId in TROUBLE:
                return await trouble(home, productId)
            if productId != LAPTOP["productId"]:
                raise OperationError(404, "产品未找到")
            return LAPTOP

        async with shop.listen("127.0.0.1", port, tls=tls) as bound:
            print(bound, flush=True)
            await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None))
