"""The guide to UCP is executed: the agent serves the profile as UCP demands."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any

import httpx
import trustme
from ports import free_port

from treaty_agent import Agent, Identity, LocalProtocols

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "ucp.md").read_text(encoding="utf-8")


async def test_the_guide_serves_the_profile(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    guide: dict[str, Any] = {"asyncio": asyncio}
    exec(compile(block, "docs/guides/ucp.md", "exec"), guide)
    authority, tls, trust = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.configure_trust(trust)
    protocols, port = LocalProtocols([ROOT / "examples" / "greeting"]), free_port()
    async with Agent(Identity.create(), protocols, home=tmp_path) as agent, httpx.AsyncClient(verify=trust) as http:

        @agent.provides(protocols.uri("greeting"))
        async def greet(name: str) -> str:
            return f"Hello, {name}!"

        serving = asyncio.create_task(guide["serve"](agent, port, tls, b'{"ucp": {}}'))
        async with asyncio.timeout(30):
            while True:
                try:
                    answer = await http.get(f"https://127.0.0.1:{port}/.well-known/ucp")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)
        assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (200, {"ucp": {}}, "application/json")
        assert (answer.headers["cache-control"], answer.headers["etag"][:1]) == ("public, max-age=300", '"')
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
