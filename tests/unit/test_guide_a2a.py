"""The guide to A2A is executed: its agent answers a client that knows only the card."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
from ports import free_port

from treaty_agent import Agent, Identity, LocalProtocols

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "a2a.md").read_text(encoding="utf-8")


async def test_the_guide_serves_an_agent(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    guide: dict[str, Any] = {"asyncio": asyncio}
    exec(compile(block, "docs/guides/a2a.md", "exec"), guide)
    protocols, port = LocalProtocols([ROOT / "examples" / "greeting"]), free_port()
    async with Agent(Identity.create(), protocols, home=tmp_path) as agent, httpx.AsyncClient() as http:

        @agent.provides(protocols.uri("greeting"))
        async def greet(name: str) -> str:
            return f"Hello, {name}!"

        serving = asyncio.create_task(guide["serve"](agent, port))
        async with asyncio.timeout(30):
            while True:
                try:
                    card = (await http.get(f"http://127.0.0.1:{port}/.well-known/agent-card.json")).json()
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)
        (url,) = [each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "JSONRPC"]
        data = {"operation": "greet", "arguments": {"name": "Ada"}}
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"data": data}]}
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        answer = (await http.post(url, json=call, headers={"A2A-Version": "1.0"})).json()
        assert answer["result"]["message"]["parts"] == [{"data": "Hello, Ada!"}]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
