"""Reads over HTTP, each against a raw ASGI application on the same server that sends the very same answers.

Server and database run on one processor, the load on another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import httpx

from treaty_consensus.protocol import parse_protocol_uri

from .contest import Group, Meter, Row, Sample
from .http_load import Load, LoadGenerator, get, load_generator
from .publishing import TOPIC, Author, author, hashes, introduce, make_voters
from .servers import Processors, raw_asgi, record, registry, workspace

CONNECTIONS = 32
SECONDS = 0.2
RECORDS = 4_096
_LEAVES, _GROWN = 10, 1.0  # leaves a second, for so many seconds
_GROWING = ("record", "bundle", "search", "topic")

_HTML = "text/html"

_AGAINST = "raw ASGI application, same server, same bytes"
ROWS = tuple(
    Row(name, what, _AGAINST, "1/s", name, f"raw {name}", bar)
    for name, what, bar in (
        ("document", "resolve a protocol to its document", 0.85),
        ("blob", "resolve a blob (a handler's wheel)", 0.85),
        ("record", "record from PostgreSQL: each one asked for the first time since an epoch was closed", 0.45),
        ("search", "search page from memory", 0.70),
        ("topic", "topic with its decision, from memory", 0.70),
        ("growing record", "record while the log grows by ten leaves a second", 0.60),
        ("growing bundle", "bundle while the log grows by ten leaves a second", 0.60),
        ("growing search", "search page while the log grows by ten leaves a second", 0.60),
        ("growing topic", "topic while the log grows by ten leaves a second", 0.60),
        ("growing page", "page of a version while the log grows by ten leaves a second", 0.60),
    )
)


@asynccontextmanager
async def scene() -> AsyncIterator[Mapping[str, Meter]]:
    """A registry with two versions of a protocol, a decided topic and many small protocols, and the baseline beside it."""
    processors = Processors.divided()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(workspace())
        voters = make_voters(100)
        served = await stack.enter_async_context(registry(folder, processors.server, prepare=partial(introduce, voters)))
        writer = await stack.enter_async_context(author(served, folder, voters))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=served.url, headers={"Accept": "*/*"}))
        targets = await _fill(writer, client)
        paths = [f"{path}.json" for path in await writer.publish_many(RECORDS)]
        answers = await record(client, [*targets.values(), *paths])
        page = targets["record"].removesuffix(".json")
        answers |= await record(client, [page], _HTML)
        raw = await stack.enter_async_context(raw_asgi(folder, answers, processors.server))
        generator = stack.enter_context(load_generator(processors.load))
        meters: dict[str, Meter] = {}
        for name, target in targets.items():
            meters[name] = steady(generator, served.port, target)
            meters[f"raw {name}"] = steady(generator, raw, target)
        for name in _GROWING:
            meters[f"growing {name}"] = growing(generator, served.port, targets[name], writer)
            meters[f"raw growing {name}"] = steady(generator, raw, targets[name], seconds=_GROWN)
        meters["growing page"] = growing(generator, served.port, page, writer, _HTML)
        meters["raw growing page"] = steady(generator, raw, page, accept=_HTML, seconds=_GROWN)
        meters["record"] = sweep(generator, served.port, paths, writer)
        meters["raw record"] = sweep(generator, raw, paths, writer)
        yield meters


async def _fill(writer: Author, client: httpx.AsyncClient) -> dict[str, str]:
    """Publish, vote and decide; the targets to ask for, by row."""
    uris = [await writer.publish(version) for version in ("1.0", "1.1")]
    await writer.log(await writer.votes(100, hashes()))
    await writer.decide()
    path = parse_protocol_uri(uris[-1]).path
    handlers = (await client.get(f"{path}.json")).json()["handlers"]
    return {
        "document": f"{path}.md",
        "blob": f"/blobs/sha256/{handlers[0]['wheel']}",
        "search": "/protocols?q=product",
        "topic": f"/topics/{TOPIC}",
        "record": f"{path}.json",
        "bundle": f"{path}.bundle",
    }


def steady(generator: LoadGenerator, port: int, target: str, *, accept: str = "*/*", seconds: float = SECONDS) -> Meter:
    """The rate at which one target is served, over and over."""
    request = get(target, {"Accept": accept})
    once, load = Load(port, (request,), 1), Load(port, (request,), CONNECTIONS, seconds)

    async def read() -> Sample:
        await generator.drive(once)  # the log may have grown since, and what comes from memory has to be there
        return (await generator.drive(load)).sample

    return read


def growing(generator: LoadGenerator, port: int, target: str, writer: Author, accept: str = "*/*") -> Meter:
    """The same, while the log grows by `_LEAVES` a second."""
    load = Load(port, (get(target, {"Accept": accept}),), CONNECTIONS, _GROWN)

    async def read() -> Sample:
        votes = await writer.votes(int(_GROWN * _LEAVES), hashes())

        async def grow() -> None:
            for vote in votes:
                await writer.log([vote])
                await asyncio.sleep(1 / _LEAVES)

        writing = asyncio.create_task(grow())
        sample = (await generator.drive(load)).sample
        await writing
        return sample

    return read


def sweep(generator: LoadGenerator, port: int, paths: list[str], writer: Author) -> Meter:
    """The rate at which many targets are served that are each asked for once after an epoch was closed."""
    load = Load(port, tuple(map(get, paths)), CONNECTIONS)

    async def read() -> Sample:
        await writer.log(await writer.votes(1, hashes()))
        await writer.decide()  # which makes the registry forget everything
        return (await generator.drive(load)).sample

    return read


GROUP = Group("reading", ROWS, scene, turns=8)
