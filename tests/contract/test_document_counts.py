"""Count the work of one GET of a document, because counts do not depend on the load of a machine."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from types import FrameType
from typing import Any

from http_api import path_of, publish
from registries import publication
from signers import Signer

from treaty_io.network.exchange import BoundedClient
from treaty_registry.app import create_app
from treaty_registry.registry import Registry
import os, time

async def test_x(registry: Registry, api: BoundedClient, alice: Signer) -> None:
    made = publication(alice)
    await publish(api, alice, made)
    app = create_app(registry)
    def scope():
        return {"type": "http", "http_version": "1.1", "method": "GET", "path": path_of(made.body.uri) + ".md", "query_string": b"", "headers": [(b"host", b"localhost"), (b"accept", b"*/*")], "client": ("127.0.0.1", 4000), "server": ("127.0.0.1", 80), "scheme": "http"}
    got = []
    async def send(m): got.append(m)
    async def receive(): raise AssertionError
    for _ in range(5):
        await app(scope(), receive, send)
        await asyncio.sleep(0)
    calls = Counter()
    def count(frame, event, arg):
        if event == "call": calls[frame.f_code.co_qualname] += 1
    task = asyncio.create_task(app(scope(), receive, send))
    gc.disable()
    sys.setprofile(count)
    await task
    sys.setprofile(None)
    gc.enable()
    print(sum(calls.values()))
    for c in calls.items(): print(c)
    N = 20000
    s = scope()
    best = 1e9
    class Sent:
        def __call__(self, m):
            return self
        def __await__(self): return iter(())
    fast = Sent()
    for _ in range(15):
        t = time.process_time()
        for _ in range(2000):
            try: app(s, receive, fast).send(None)
            except StopIteration: pass
            registry_rounds = None
            for f in rounds: f._begun.clear()
        best = min(best, (time.process_time() - t) / 2000)
    print("us", best * 1e6)

import treaty_registry.serving.fast_path as fp
rounds = []
class R(fp.Rounds):
    def __init__(self, *a, **k):
        super().__init__(*a, **k); rounds.append(self)
fp.Rounds = R
