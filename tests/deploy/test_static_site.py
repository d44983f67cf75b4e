"""A registry writes its static site and dies. Two agents that never saw it meet by nginx over that folder."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port
from proxies import static_nginx
from registry_process import Server

from treaty_agent import Agent, AgentConfig, Identity, Policy
from treaty_io.network.hosts import Network

PROGRAM = Path(__file__).parents[2] / ".venv" / "bin" / "treaty"
GREETING = Path(__file__).parents[2] / "examples" / "greeting"
PERIOD = 0.2  # seconds


async def treaty(home: Path, *arguments: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(PROGRAM, *arguments, "--home", home, "--json", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    value: dict[str, Any] = json.loads(output)
    return value


def copied(site: Path) -> int:
    progress = site / "site.json"
    size: int = json.loads(progress.read_bytes())["size"] if progress.exists() else 0
    return size


@pytest.mark.deep
async def test_two_agents_meet_by_the_site_of_a_dead_registry(data: Path, tmp_path: Path) -> None:
    site, port = data / "site", free_port()
    server = Server(data / "registry", port, options=("--tiles", f"file://{site}"))
    await server.start()
    assert await server.ready()
    url, origin = f"http://127.0.0.1:{port}", f"{port}.localhost"
    author = tmp_path / "author"
    publisher = (await treaty(author, "identity", "new"))["did"]
    await treaty(author, "trust", "add", url, "--yes")
    uri = (await treaty(author, "publish", str(GREETING)))["uri"]
    name = str(server.about["name"])
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        size = int((await client.get("/checkpoint")).text.split("\n")[1])
        paths = [uri.removeprefix(f"https://{origin}"), "/topics/social/greeting"]
        live = {f"{path}.json": await client.get(f"{path}.json") for path in paths}
        async with asyncio.timeout(60):
            while copied(site) < size:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(PERIOD)
    # No goodbye: the machine is gone.
    await server.kill()
    proxies = tmp_path / "nginx"
    proxies.mkdir()
    with static_nginx(proxies, site) as nginx:
        mirror = f"https://localhost:{nginx.port}"
        network = Network(ca=nginx.authority.ca)
        async with httpx.AsyncClient(base_url=mirror, verify=nginx.authority.trusting(), trust_env=False) as client:
            for path, answer in live.items():
                copy = await client.get(path)
                assert copy.content == answer.content
                for header in ("content-type", "cache-control", "x-content-type-options"):
                    assert copy.headers[header] == answer.headers[header], (path, header)
            page = await client.get(f"{paths[0]}/")
            assert page.headers["content-type"] == "text/html; charset=utf-8" and "Greeting" in page.text
            bundle = await client.get(f"{paths[0]}.bundle?since=1")
            assert bundle.headers["content-type"] == "application/vnd.treaty.bundle.v1+json"
            assert "stale-if-error" in bundle.headers["cache-control"]
            assert (await client.get("/checkpoint")).headers["content-type"] == "text/plain; charset=utf-8"
            assert (await client.get("/log")).headers["content-type"] == "application/json"

        def agent(home: str) -> Agent:
            policy = Policy(publishers=[publisher], report_delay=0, mirrors={origin: (mirror,)})
            return Agent(Identity.create(), name, AgentConfig(policy, home=tmp_path / home), network=network)

        async with agent("host") as host, agent("guest") as guest:

            @host.provides(uri)
            async def greet(name: str) -> str:
                return f"Hello, {name}!"

            async with host.listen("127.0.0.1", 0) as at, guest.peer(f"ws://127.0.0.1:{at}", protocols=[uri]) as peer:
                assert await peer.call("greet", name="Ada") == "Hello, Ada!"
        for home in ("host", "guest"):
            assert uri.rpartition("/")[0] in (tmp_path / home / "treaty.lock").read_text()
