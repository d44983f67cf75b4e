"""The servers of `bench strangers`, each as a process of its own.

`python -m bench.flooded KIND` prints its port, and ends at a line of input. `agent` speaks a protocol without code, `coded` one
with code; `gateway` is one of AIP, `handoff` an endpoint over HTTP; `broker` is an agent at which others meet in one session, to
hand off to each other.

What stands behind an endpoint is not measured here: the registry of the agents is simulated, and the journal of handoffs is a
stand-in.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from treaty_agent import Agent, Identity, LocalProtocols, Session
from treaty_aip import Gateway
from treaty_consensus.handler import read_wheel
from treaty_handoff.http import listen
from treaty_handoff.messages import MAX_MESSAGE
from treaty_handoff.processing import Processed
from treaty_handoff.work import Status
from treaty_io.pauses import shorten_pauses
from treaty_sandbox.runtime import SandboxRuntime

from .servers import REPOSITORY

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the simulated registry is the tests' own
from meetings import URI_2, Published, SimulatedProtocols, shop
from sandboxed import sandboxed_product_info

PROTOCOL = URI_2
"""The one that both agents speak."""
HANDOFF = REPOSITORY / "protocols" / "handoff" / "1.0"
(BROKERED,) = LocalProtocols([HANDOFF]).uris
"""The one that is spoken at a broker."""


@asynccontextmanager
async def _agent(protocols: SimulatedProtocols) -> AsyncIterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        seller = shop(Path(folder), URI_2, protocols=protocols, sandbox=SandboxRuntime(Path(folder)))
        async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
            yield port


def _without_code() -> AbstractAsyncContextManager[int]:
    return _agent(SimulatedProtocols())


def _with_code() -> AbstractAsyncContextManager[int]:
    project = sandboxed_product_info("1.1")
    package = read_wheel(*project.build_wheel(URI_2))
    published = Published(URI_2, project.protocol_hash, project.topic, package, 0, project.document)
    return _agent(SimulatedProtocols(published={URI_2: published}))


@asynccontextmanager
async def _gateway() -> AsyncIterator[int]:
    gateway = await Gateway("127.0.0.1:0").start()
    try:
        yield int(gateway.address.rpartition(":")[2])
    finally:
        await gateway.stop()


class _Done:
    """An agent whose work is always done."""

    max_message = MAX_MESSAGE

    async def receive(self, _body: bytes) -> Processed:
        return Processed(Status.COMPLETED)


def _handoff() -> AbstractAsyncContextManager[int]:
    return listen(_Done(), "127.0.0.1", 0)  # type: ignore[arg-type]


@asynccontextmanager
async def _broker() -> AsyncIterator[int]:
    async def nothing(_session: Session) -> None:
        """The handler does the work of a broker."""

    with tempfile.TemporaryDirectory() as home:
        broker = Agent(Identity.create("broker.example"), LocalProtocols([HANDOFF]), home=Path(home))
        broker.on_session(BROKERED, role="broker")(nothing)
        async with broker, broker.listen("127.0.0.1", 0) as port:
            yield port


KINDS: dict[str, Callable[[], AbstractAsyncContextManager[int]]] = {
    "agent": _without_code,
    "coded": _with_code,
    "gateway": _gateway,
    "handoff": _handoff,
    "broker": _broker,
}


async def main(kind: str) -> None:
    """Serve until a line of input."""
    async with KINDS[kind]() as port:
        shorten_pauses()  # as the guide says, and `Agent.serve` does
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
