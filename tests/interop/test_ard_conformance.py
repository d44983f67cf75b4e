"""ARD's own conformance tool, in both modes, and the published schema: a registry with protocols, and an agent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path

import httpx
import pytest
from http_api import described, publish, serving
from ports import free_port
from registries import Web
from signers import domain_signer

from treaty_agent.discovery.documents import AgentFacts, OfferedProtocol, describe
from treaty_io.identity import Identity
from treaty_io.identity.ai_catalog import CATALOG_PATH
from treaty_registry.registry import Registry

CHECKOUT = Path(__file__).parent / "ard"
"""Files of the repository ards-project/ard-spec at 5fa2f5a, unchanged. It is no package."""
HASHES = {
    "conformance/bin/conformance-test": "fa387310d5f28358012ecb676b8257ef41e6015ea29905879e6802e0cb7df6b4",
    "spec/schemas/ai-catalog.schema.json": "c55238483a4738e08b250bdd6af1f4dc05a91afe882c649d224d09c19cd8fe09",
}


@pytest.fixture
def tool() -> Path:
    """The tool, with the schema that it reads."""
    for name, digest in HASHES.items():
        assert hashlib.sha256((CHECKOUT / name).read_bytes()).hexdigest() == digest, name
    return CHECKOUT / "conformance" / "bin" / "conformance-test"


async def run(tool: Path, *arguments: str) -> str:
    """What the tool prints when it passes."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(tool), *arguments, stdout=asyncio.subprocess.PIPE)
    out = (await process.communicate())[0].decode()
    assert process.returncode == 0 and "CONFORMANCE STATUS: PASS" in out, out
    assert "not installed" not in out
    return out


async def test_a_registry_conforms_in_both_modes(tool: Path, registry: Registry, web: Web, tmp_path: Path) -> None:
    agent = domain_signer("alpha.example")
    web.serve(agent)
    async with serving(registry, free_port()) as url, httpx.AsyncClient(base_url=url, trust_env=False) as api:
        await publish(api, agent, described(agent, "weather", title="Weather forecast", summary="Of a town", topic="weather"))
        manifest = await run(tool, "manifest", url + CATALOG_PATH)
        assert "Strict JSON Schema validation passed" in manifest
        assert "GET /agents response contains valid 'items' list (1 items)" in await run(tool, "registry", url)
        # The tool asks for MCP servers alone. So an entry of a search is checked as one of a manifest.
        found = await api.post("/search", json={"query": {"text": "weather forecast tools"}})
        (result,) = found.json()["results"]
        entry = {name: value for name, value in result.items() if name not in ("score", "source")}
        file = tmp_path / "ai-catalog.json"
        file.write_text(json.dumps({"specVersion": "1.0", "entries": [entry]}))
        assert "Strict JSON Schema validation passed" in await run(tool, "manifest", str(file))


async def test_the_catalog_of_an_agent_conforms(tool: Path, tmp_path: Path) -> None:
    for identity in (Identity.create("shop.example"), Identity.create()):
        offered = OfferedProtocol("https://registry.example/protocols/example.com/info/1.1", "9c" * 32, "info", "", ("ask",))
        facts = AgentFacts(identity.did, ("ws://127.0.0.1:8000/",), (offered,))
        file = tmp_path / "ai-catalog.json"
        file.write_bytes(describe(facts, signer=identity)[CATALOG_PATH].body)
        assert "Strict JSON Schema validation passed" in await run(tool, "manifest", str(file))
