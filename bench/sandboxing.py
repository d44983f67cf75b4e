"""What the sandbox costs once a handler runs in it: the same worker, the same handler, the same events, with and without it.

And the declarative handler of the same protocol, which needs neither sandbox nor worker, and the one in WebAssembly.

A round trip is a request that reaches the provider's handler and the operation it asks for, then the operation's result and the
answer to send: two events given to the worker, and two lists of effects judged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from treaty_client.protocols.project import Project, load_project
from treaty_consensus.handler import read_wheel
from treaty_handler import Invoke, Opened, Received, Result, Send, encode_json
from treaty_sandbox import Isolation, SandboxPool
from treaty_sandbox.interface import LoadedSession

from .contest import Group, Meter, Row, Sample
from .counterpart import PRODUCT
from .publishing import PRODUCT_INFO
from .servers import REPOSITORY, SceneFailed

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the handler with code is the tests' own
from sandboxed import sandboxed_product_info, wasm_product_info

ROUND_TRIPS = 300
PEER = "did:example:peer"
_PROTOCOL = "https://bench.example/protocols/bench.example/product-info"

ROWS = (
    Row("sandbox", "sandboxed handler round trips", "the same worker without a sandbox", "1/s", "bubblewrap", "none", 0.95),
    Row(
        "declarative",
        "round trips of a handler without code",
        "the same protocol in a sandbox",
        "1/s",
        "declarative",
        "bubblewrap",
        2,
    ),
    Row(
        "wasm",
        "round trips of a WebAssembly handler",
        "the same handler in Python, in a sandbox too",
        "1/s",
        "wasm",
        "bubblewrap",
        1,
    ),
)


@asynccontextmanager
async def scene() -> AsyncIterator[Mapping[str, Meter]]:
    """A session of the same handler in either isolation, and one of the declarative handler."""
    declared, coded, module = load_project(PRODUCT_INFO / "1.1"), sandboxed_product_info("1.1"), wasm_product_info("1.0")
    isolations: tuple[tuple[str, Isolation, Project], ...] = (
        ("bubblewrap", "bubblewrap", coded),
        ("none", "none", coded),
        ("declarative", "none", declared),
        ("wasm", "bubblewrap", module),
    )
    meters: dict[str, Meter] = {}
    async with AsyncExitStack() as stack:
        for name, isolation, project in isolations:
            package = read_wheel(*project.build_wheel(f"{_PROTOCOL}/{project.version}"))
            pool = await stack.enter_async_context(SandboxPool(size=0, isolation=isolation))
            worker = await pool.load(package, local="did:example:local", peers=[PEER])
            session = await worker.open("provider")
            await session.handle(Opened())
            meters[name] = _rate(session)
        yield meters


def _rate(session: LoadedSession) -> Meter:
    request = {"messageId": "m1", "type": "REQUEST", "action": "getProductInfo", "productId": PRODUCT["productId"]}
    received = Received(peer=PEER, data=encode_json(request))

    async def read() -> Sample:
        begun = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            (invoke,) = await session.handle(received)
            if not isinstance(invoke, Invoke):
                raise SceneFailed(f"the handler wants {invoke}")
            (send,) = await session.handle(Result(call=invoke.call, value=PRODUCT))
            if not isinstance(send, Send):
                raise SceneFailed(f"the handler wants {send}")
        return Sample(ROUND_TRIPS / (time.perf_counter() - begun))

    return read


GROUP = Group("sandboxing", ROWS, scene, turns=8)
