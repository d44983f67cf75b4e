"""Count the work of one answer from memory, because counts do not depend on the load of a machine.

A document is asked for over a real connection. Counted are the calls of Python functions of the product, from the arrival of
the request to the end of its round. A bound only falls, unless `docs/decisions/capacity-and-uploads.md` says why.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from types import FrameType

from http_api import path_of, publish, serving
from ports import free_port
from registries import publication
from signers import Signer

from treaty_io.network.exchange import BoundedClient
from treaty_registry.registry import Registry

MOST = 11
ATTEMPTS = 10


async def test_a_document_from_memory_takes_few_calls(registry: Registry, api: BoundedClient, alice: Signer) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    request = b"GET %b.md HTTP/1.1\r\nHost: registry.example\r\nAccept: */*\r\n\r\n" % path_of(statement.body.uri).encode("ascii")
    document = statement.blobs[statement.body.document.sha256]
    calls = Counter[str]()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "treaty_" in str(frame.f_globals.get("__name__")):
            calls[frame.f_code.co_qualname] += 1

    port, attempts = free_port(), []
    async with serving(registry, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # What runs in the background falls into some answers, more of them on a loaded machine. The first ones fill the cache.
        for _ in range(ATTEMPTS):
            calls.clear()
            gc.disable()
            sys.setprofile(count)
            try:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(len(document)) == document
                await asyncio.sleep(0.01)  # the end of the round
            finally:
                sys.setprofile(None)
                gc.enable()
            attempts.append(calls.total())
            if attempts[-1] <= MOST:
                break
        else:
            raise AssertionError(f"{attempts} calls, and at most {MOST} are allowed: {calls}")
        writer.close()
