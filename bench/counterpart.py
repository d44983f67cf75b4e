"""The other side of the handshakes, a process of its own: a shop that provides the protocol, and a bare WebSocket echo.

python -m bench.counterpart --home DIR --registry URL#KEY --publisher DID --protocol URI… --port PORT --echo PORT [--idle SECONDS]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from treaty_agent import Agent, AgentConfig, Capacity, Identity, Policy, SessionTimeouts

PRODUCT: dict[str, Any] = {
    "productId": "P12345",
    "productName": "Performance laptop",
    "productDescription": "A laptop with the latest processor and plenty of memory.",
    "price": 1299.99,
    "currency": "USD",
}


async def keep_shop(arguments: argparse.Namespace) -> None:
    """Serve both until terminated; the echo's port opens last."""
    timeouts = SessionTimeouts(idle=arguments.idle)
    # Of one network an agent takes half of its connections, and `bench sessions` comes from one.
    capacity = Capacity(sessions=2 * Capacity().sessions + 200)
    config = AgentConfig(Policy(publishers=[arguments.publisher]), timeouts, capacity=capacity, home=arguments.home)
    async with Agent(Identity.create(), arguments.registry, config) as shop:
        for uri in arguments.protocol:

            @shop.provides(uri)
            async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803 (the operation)
                return PRODUCT

        # As docs/guides/serving.md says for a process that does nothing else.
        gc.set_threshold(5_000)
        async with shop.listen("127.0.0.1", arguments.port), serve(_echo, "127.0.0.1", arguments.echo, compression=None):
            gc.collect()
            gc.freeze()
            await asyncio.get_running_loop().create_future()


async def _echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


def main() -> None:
    """Run until terminated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--registry", required=True)
    parser.add_argument("--publisher", required=True)
    parser.add_argument("--protocol", action="append", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--echo", type=int, required=True)
    parser.add_argument("--idle", type=float, default=SessionTimeouts().idle)
    asyncio.run(keep_shop(parser.parse_args()))


if __name__ == "__main__":
    main()
