"""Senders whose statements provoke an alert: publications, and batches."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from contextlib import suppress

import httpx
from registries import TOPIC, blob, grant, publication
from registry_process import Server
from signers import NOW, ORIGIN, key_signer

from treaty_consensus import canonical, kinds


async def publish(server: Server, name: str) -> None:
    """Publish one protocol after the other, until cancelled."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=30) as client:
        for number in itertools.count():
            publisher = key_signer(f"{name} {number}")
            statement = publication(publisher)
            uri = statement.body.uri.replace(ORIGIN, server.about["origin"])
            body = kinds.Publish(uri, TOPIC, blob(statement.document), blob(statement.card), "negotiated")
            leaf = publisher.statement(body, log=server.about["origin"], issued=NOW).leaf
            with suppress(httpx.HTTPError):
                for data in (statement.document, statement.card):
                    headers = {"Treaty-Statement": canonical.b64encode(leaf), "Content-Type": "application/octet-stream"}
                    await client.put(f"/blobs/sha256/{hashlib.sha256(data).hexdigest()}", content=data, headers=headers)
                await client.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
            await asyncio.sleep(0.1)


async def send_batches(server: Server, name: str) -> None:
    """Send one batch of 256 new statements after the other, until cancelled."""
    writer = key_signer(name)
    numbers = itertools.count()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=60) as client:
        while True:
            leaves = [
                writer.statement(grant(writer, number), log=server.about["origin"], issued=NOW).leaf
                for number in itertools.islice(numbers, 256)
            ]
            await asyncio.sleep(0)  # 256 signatures are a tenth of a second
            with suppress(httpx.HTTPError):
                await client.post("/statements", content=b"\n".join(leaves), headers={"Content-Type": "application/x-ndjson"})
            await asyncio.sleep(0.05)
