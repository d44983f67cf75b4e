"""MCP's own conformance suite, for 2026-07-28: those of its scenarios that need no tool of the suite, and the client's.

An agent as a server passes the same ones, if they ask no user."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

from treaty_agent import Agent, Identity, LocalProtocols, Policy
from treaty_mcp import MCP

SUPPORT = Path(__file__).parents[1] / "support"
EXAMPLES = Path(__file__).parents[2] / "examples"
REVISION = "2026-07-28"
SERVER = (
    "caching",
    "dns-rebinding-protection",
    "http-header-validation",
    "input-required-result-ignore-extra-params",
    "input-required-result-missing-input-response",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
    "prompts-list",
    "resources-list",
    "sep-2164-resource-not-found",
    "server-sse-multiple-streams",
    "server-stateless",
    "tools-list",
)
CLIENT = (
    "http-custom-headers",
    "http-invalid-tool-headers",
    "http-standard-headers",
    "json-schema-ref-no-deref",
    "request-metadata",
    "sep-2322-client-request-state",
    "tools_call",
)
AGENT = tuple(name for name in SERVER if not name.startswith("input-required"))
"""An agent asks nobody before a call."""
UNTESTABLE = {
    "sep-2575-server-rejects-undeclared-capability",
    "sep-2575-missing-capability-http-400",
    "sep-2575-http-server-no-independent-requests-on-stream",
    "sep-2575-server-no-log-without-loglevel",
}
"""Checks that want a tool of the suite's own (`test_…`). The suite says of each: not testable."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server of ours with two tools: its URL."""
    port = free_port()
    with subprocess.Popen([sys.executable, str(SUPPORT / "tool_process.py"), str(port)]) as process:
        try:
            deadline = time.monotonic() + 60
            while socket.socket().connect_ex(("127.0.0.1", port)):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


def failed(suite: list[str], *arguments: str) -> set[str]:
    """The checks of a scenario that fail; some have to pass."""
    command = [*suite, *arguments, "--spec-version", REVISION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr  # the suite reports about a client on the latter
    passed = re.search(r"Passed: (\d+)/\d+", said)
    assert passed and int(passed[1]), said
    return set(re.findall(r"\[([a-z0-9-]+) *\] \S*FAILURE", said))


@pytest.mark.deep
@pytest.mark.parametrize("scenario", SERVER)
def test_the_server_passes(mcp_conformance: list[str], server: str, scenario: str) -> None:
    assert failed(mcp_conformance, "server", "--url", server, "--scenario", scenario) <= UNTESTABLE


@pytest.mark.deep
@pytest.mark.parametrize("scenario", AGENT)
async def test_an_agent_passes(mcp_conformance: list[str], tmp_path: Path, scenario: str) -> None:
    protocols = LocalProtocols([EXAMPLES / "greeting"])
    agent = Agent(Identity.create(), protocols, Policy(), home=tmp_path)

    @agent.provides(protocols.uri("greeting"))
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async with agent, agent.listen("127.0.0.1", 0, doors=[MCP(agent)]) as port:
        arguments = ("server", "--url", f"http://127.0.0.1:{port}/mcp", "--scenario", scenario)
        checks = await asyncio.to_thread(failed, mcp_conformance, *arguments)
        # No web page may use the agent of its user, a page of this machine neither.
        assert checks <= UNTESTABLE | {"localhost-host-valid-accepted"}


@pytest.mark.deep
@pytest.mark.parametrize("scenario", CLIENT)
def test_the_client_passes(mcp_conformance: list[str], scenario: str) -> None:
    command = f"{sys.executable} {SUPPORT / 'conforming_client.py'}"
    assert failed(mcp_conformance, "client", "--command", command, "--scenario", scenario) == set()
