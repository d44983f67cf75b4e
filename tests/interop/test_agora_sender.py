"""Agora's own sender, unchanged: it fetches a protocol from a registry by its SHA-1, and speaks it with an agent."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_api import publish, serving
from ports import free_port
from registries import Publication, blob, publication
from signers import ORIGIN, Signer

from treaty_agent import Agent, Identity, LocalProtocols, Policy
from treaty_consensus import kinds
from treaty_registry.registry import Registry

GREETING = Path(__file__).parents[2] / "examples" / "greeting"
DOCUMENT = (GREETING / "document.md").read_bytes()
HASH = base64.b64encode(hashlib.sha1(DOCUMENT, usedforsecurity=False).digest()).decode()
ROUTINE = """
import json

def run(task):
    answer = send_to_server(json.dumps({"id": "1", "type": "request", "name": task["name"]}))
    return json.loads(answer)["greeting"]
"""


def published(agent: Signer) -> Publication:
    """The example's document under a name of this agent."""
    plain = publication(agent, "greeting")
    body = kinds.Publish(plain.body.uri, plain.body.topic, blob(DOCUMENT), plain.body.card, "negotiated")
    return Publication(body, DOCUMENT, plain.card)


@pytest.mark.deep
async def test_the_sender_fetches_by_its_hash_and_converses(
    tmp_path: Path, registry: Registry, alice: Signer, agora_script: Any
) -> None:
    protocols = LocalProtocols([GREETING])
    agent = Agent(Identity.create(), protocols, Policy(), home=tmp_path / "home")

    @agent.provides(protocols.uri("greeting"))
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async with serving(registry, free_port()) as url, agent, agent.listen("127.0.0.1", 0) as port:
        made = published(alice)
        async with httpx.AsyncClient(base_url=url) as client:
            await publish(client, alice, made)
            found = (await client.get("/resolve", params={"uri": HASH})).json()["matches"]
        assert [match["uri"] for match in found] == [made.body.uri]
        source, target = f"{url}{made.body.uri.removeprefix(f'https://{ORIGIN}')}.md", f"http://127.0.0.1:{port}"
        with agora_script("agora_sender.py") as sender:

            async def ask(function: str, **arguments: object) -> Any:
                return await asyncio.to_thread(sender.call, function, protocol_hash=HASH, source=source, **arguments)

            assert await ask("fetch") == {
                "name": "greeting",
                "description": "One agent tells its name, the other greets it.",
                "multiround": False,
                "hash": HASH,
            }
            other = base64.b64encode(bytes(20)).decode()
            assert await asyncio.to_thread(sender.call, "fetch", protocol_hash=other, source=source) is None
            bodies = [json.dumps({"id": f"{number}", "type": "request", "name": f"N{number}"}) for number in range(3)]
            for some in (bodies[:1], bodies):
                answers = await ask("converse", target=target, bodies=some)
                assert [answer["status"] for answer in answers] == ["success"] * len(some)
                assert [json.loads(answer["body"]) for answer in answers] == [
                    {"id": f"{number}", "type": "response", "greeting": f"Hello, N{number}!"} for number in range(len(some))
                ]
            assert await ask("perform", target=target, routine=ROUTINE, data={"name": "Ada"}) == "Hello, Ada!"
