"""Agents of earlier releases talk with agents of this tree, in both roles, through registries of both.

Each agent is a process with the packages of its release. `make test` runs one row of the matrix, `make test-deep` all.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import former_packages
import pytest
from depth import FULL
from postgres_server import Postgres
from registry_process import Server, empty
from treaty_process import treaty, treaty_here

from treaty_agent import Identity

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "released_agent.py"
KINDS = {"code": "haggling", "code-free": "greeting", "shared": "assembly", "code-free-e2ee": "greeting"}
ANSWERS: dict[str, object] = {"code": 1667, "code-free": "Hello, Ada!", "shared": "heard", "code-free-e2ee": "Hello, Ada!"}
ROWS = [(kind, former_serves) for kind in KINDS for former_serves in (False, True)] if FULL else [("code-free-e2ee", False)]


def test_the_last_releases_are_kept() -> None:
    assert len(former_packages.names()) >= 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("former_registry", [False, True], ids=["present-registry", "former-registry"])
@pytest.mark.parametrize("release", former_packages.names())
async def test_agents_of_two_releases_talk(release: str, former_registry: bool, data: Path, postgres: Postgres) -> None:
    older = former_packages.unpack(release, data / "packages")
    async with postgres.fresh("template1") as database, empty(data / "registry", "--database", database) as server:
        server.options += ("--base-url", f"http://127.0.0.1:{server.port}")
        if former_registry:
            server.program = former_packages.registry_program(older, data / "treaty-registry")
        await server.start()
        assert await server.ready()
        # A publisher of the other release than the registry's.
        author = older if FULL and not former_registry else None
        publisher, uris = await asyncio.to_thread(publish, server, data / "publisher", author)
        for kind, former_serves in ROWS:
            home = data / f"{kind}-{former_serves}"
            sides = [older, {}] if former_serves else [{}, older]
            outcome = await asyncio.to_thread(meet, kind, home, [server.about["name"], publisher, uris[KINDS[kind]]], *sides)
            # The second session resumes the agreement of the first one.
            encrypted = kind.endswith("-e2ee")
            expected = {"answers": [ANSWERS[kind]] * 2, "resumed": [False, True], "encrypted": [encrypted] * 2}
            assert outcome == expected, (kind, former_serves)
        assert await server.stop() == 0


def publish(server: Server, home: Path, older: dict[str, str] | None) -> tuple[str, dict[str, str]]:
    """Publish the protocols of the rows; the publisher and their URIs by name. `former`: the environment of another release."""

    def run(*arguments: str) -> dict[str, str]:
        options = (*arguments, "--home", str(home), "--json")
        status, out, errors = treaty_here(*options) if older is None else treaty(*options, environment=older)
        assert status == 0, out + errors
        value: dict[str, str] = json.loads(out)
        return value

    did = run("identity", "new")["did"]
    run("trust", "add", server.about["base_url"], "--yes")
    example_names = sorted({KINDS[kind] for kind, _ in ROWS})
    return did, {name: run("publish", str(ROOT / "examples" / name))["uri"] for name in example_names}


def meet(kind: str, home: Path, names: list[str], serving: dict[str, str], calling: dict[str, str]) -> object:
    """Let one agent serve and the other one call; what the latter printed. `serving`, `calling`: their environments."""
    with agent("serve", kind, home / "serving", names, serving) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        with agent("call", kind, home / "calling", [*names, f"ws://127.0.0.1:{port}"], calling) as caller:
            out, _ = caller.communicate(timeout=120)
            assert caller.returncode == 0, (kind, out)
    return json.loads(out)


@contextmanager
def agent(action: str, kind: str, home: Path, names: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process of an agent with a key of its own, which ends with the block."""
    home.mkdir(parents=True)
    Identity.create().save(home / "identity.json")
    command = [sys.executable, str(PROGRAM), action, kind, str(home), *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        try:
            yield process
        finally:
            process.terminate()
