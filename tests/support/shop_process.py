"""A shop in a process of its own, for tests of two: real sockets, real sandboxes, simulated registry.

python tests/support/shop_process.py HOME PORT [CERTIFICATE_WITH_KEY]      prints its port once it serves
"""

from __future__ import annotations

import asyncio
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

from treaty_client.agent import Agent
from treaty_client.network.did_documents import DidResolver
from treaty_client.network.hosts import Network
from treaty_client.policy import Policy
from treaty_client.sandbox.runtime import SandboxRuntime
from treaty_client.sessions.context import Ports
from treaty_client.sessions.operations import OperationError
from treaty_consensus.errors import Unavailable


def agent(domain: str, home: Path, network: Network | None = None) -> Agent:
    """An agent that runs handlers in sandboxes, and gets them from a simulated registry."""
    protocols = SimulatedProtocols()

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
    return Agent(identity(domain), REGISTRY, policy, home=home, network=network, ports=ports)


async def serve(home: Path, port: int, certificate: Path | None) -> None:
    """Sell one laptop until terminated."""
    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
    async with agent("shop.example", home) as shop:

        @shop.provides(URI_2)
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            if productId != LAPTOP["productId"]:
                raise OperationError(404, "产品未找到")
            return LAPTOP

        async with shop.listen("127.0.0.1", port, tls=tls) as bound:
            print(bound, flush=True)
            await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None))
