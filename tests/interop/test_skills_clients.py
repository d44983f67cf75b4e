"""The clients of Agent Skills, unchanged: `npx skills add URL` takes what a registry lists, and `agentskills validate` agrees."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from http_api import publish, say, serving
from pages_read import everybody_reports
from ports import free_port
from registries import Publication, Web, ballot, blob, publication
from signers import Signer, domain_signer

from treaty_consensus import kinds
from treaty_registry.registry import Registry

EXAMPLES = Path(__file__).parents[2] / "examples"


def skill(agent: Signer, name: str) -> Publication:
    """The document of an example, which `treaty document` wrote, in a publication."""
    plain, document = publication(agent, name), (EXAMPLES / name / "document.md").read_bytes()
    body = kinds.Publish(plain.body.uri, plain.body.topic, blob(document), plain.body.card, "negotiated")
    return Publication(body, document, plain.card)


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a client in a folder that is its home, too."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "DISABLE_TELEMETRY": "1", "CI": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.deep
async def test_the_installer_takes_skills_and_the_validator_agrees(
    tmp_path: Path, registry: Registry, web: Web, skills_cli: list[str], skills_ref: Path
) -> None:
    agents = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie")]
    web.serve(*agents)
    own, wrapped, stranger = skill(agents[0], "greeting"), publication(agents[0], "old"), publication(agents[1], "stranger")

    async def added(url: str, folder: str) -> dict[str, bytes]:
        """The skills that the installer writes for a URL, by name; the validator takes each."""
        project = tmp_path / folder
        project.mkdir()
        command = [*skills_cli, "add", url, "--skill", "*", "--agent", "claude-code", "--yes", "--copy"]
        done = await asyncio.to_thread(run, command, project)
        files = sorted(project.glob(".claude/skills/*/SKILL.md"))
        assert (done.returncode == 0) == bool(files), done.stdout + done.stderr
        for file in files:
            checked = await asyncio.to_thread(run, [skills_ref, "validate", file.parent], project)
            assert checked.returncode == 0, checked.stdout + checked.stderr
        return {file.parent.name: file.read_bytes() for file in files}

    async with serving(registry, free_port(), period=0) as url, httpx.AsyncClient(base_url=url) as client:
        for made, agent in ((own, agents[0]), (wrapped, agents[0]), (stranger, agents[1])):
            await publish(client, agent, made)
        found = await added(f"{url}/namespaces/alpha.example", "namespace")
        assert found.keys() == {"greeting", "old"}
        assert found["greeting"] == own.document and found["old"].endswith(wrapped.document)
        assert await added(url, "nothing") == {}
        for epoch in range(3):
            await everybody_reports(registry, agents, own.body.document.sha256, epoch)
            for agent in agents if epoch == 0 else ():
                await say(client, agent, ballot(registry, 0, own.body.document.sha256))
            await registry.decide()
        assert await added(url, "elected") == {"greeting": own.document}
