"""What the sandbox costs once a handler runs in it: the same worker, the same handler, the same events, at each level.

And the declarative handler of the same protocol, which needs neither sandbox nor worker; and the start of a worker from a running
template, until its handler has had its first event.

A round trip is a request that reaches the provider's handler and the operation it asks for, then the operation's result and the
answer to send: two events given to the worker, and two lists of effects judged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from treaty_client.protocols.project import Project, load_project
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_handler import Invoke, Opened, Received, Result, Send, encode_json
from treaty_sandbox import CodeCache, Isolation, SandboxPool
from treaty_sandbox.interface import LoadedSession

from .contest import Group, Meter, Row, Sample
from .counterpart import PRODUCT
from .publishing import PRODUCT_INFO
from .servers import REPOSITORY, SceneFailed

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the handler with code is the tests' own
from sandboxed import sandboxed_product_info

ROUND_TRIPS = 300
STARTS = 10
PEER = "did:example:peer"
_PROTOCOL = "https://bench.example/protocols/bench.example/product-info"

ROWS = (
    Row("sandbox", "sandboxed handler round trips", "the same worker without a sandbox", "1/s", "bubblewrap", "none", 0.95),
    Row("process", "round trips at the level `process`", "in bubblewrap", "1/s", "process", "bubblewrap", 0.83),
    Row("process start", "start at the level `process`", "in bubblewrap", "ms", "process start", "bubblewrap start", 1.2),
    Row(
        "declarative",
        "round trips of a handler without code",
        "the same protocol in a sandbox",
        "1/s",
        "declarative",
        "bubblewrap",
        2,
    ),
)


@asynccontextmanager
async def scene() -> AsyncIterator[Mapping[str, Meter]]:
    """A session of the same handler at each level, starts of workers, and a session of the declarative handler."""
    declared, coded = load_project(PRODUCT_INFO / "1.1"), sandboxed_product_info("1.1")
    isolations: tuple[tuple[str, Isolation, Project], ...] = (
        ("bubblewrap", "bubblewrap", coded),
        ("process", "process", coded),
        ("none", "none", coded),
        ("declarative", "none", declared),
    )
    meters: dict[str, Meter] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for name, isolation, project in isolations:
            package = read_wheel(*project.build_wheel(f"{_PROTOCOL}/{project.version}"))
            pool = await stack.enter_async_context(SandboxPool(size=0, levels=(isolation,)))
            worker = await pool.load(package, local="did:example:local", peers=[PEER])
            session = await worker.open("provider")
            await session.handle(Opened())
            meters[name] = _rate(session)
            if name in ("bubblewrap", "process"):
                code = CodeCache(folder / name)
                meters[f"{name} start"] = partial(_start, pool, package, code)
        yield meters


async def _start(pool: SandboxPool, package: HandlerPackage, code: CodeCache) -> Sample:
    spent: list[float] = []
    for _ in range(STARTS):
        begun = time.perf_counter()
        worker, session = await pool.open_code(package, "provider", local="did:example:local", peer=PEER, code_cache=code)
        await session.handle(Opened())
        spent.append(1000 * (time.perf_counter() - begun))
        await worker.close()
    return Sample(median(spent))


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
