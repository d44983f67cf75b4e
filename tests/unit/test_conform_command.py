"""`treaty conform`: its reports and exit statuses, with peers that conform, lie, flood and are silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aip_nodes import LOOPBACK, nodes

from treaty_aip import Tool
from treaty_command.main import main


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREATY_HOME", str(tmp_path))


async def conform(*arguments: str) -> int:
    """Run the command in a thread of its own; its exit status."""

    def run() -> int:
        try:
            main(["conform", *arguments])
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return await asyncio.to_thread(run)


@asynccontextmanager
async def answering(*parts: bytes) -> AsyncIterator[str]:
    """A server that answers every request with these bytes, or reads on for ever where there are none; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65_536) and parts:
                for part in parts:
                    writer.write(part)
                    await writer.drain()
        except OSError:
            pass
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_conforming_tool_is_reported_and_the_status_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    async with nodes() as network:
        tool = await network.tool(Tool.create_function_tool(add, LOOPBACK))
        options = ("--tool", "add", "--argument", "a=1", "--argument", "b=2")
        assert await conform("aip", tool.address, *options, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["protocol"], report["holds"], report["fails"], report["notTried"]) == ("aip", 3, 0, 0)
        assert report["items"][0] | {"rule": "", "fix": ""} == {
            "role": "tool",
            "id": "answers",
            "section": "Tools",
            "outcome": "holds",
            "rule": "",
            "fix": "",
            "why": "",
            **{name: report["items"][0][name] for name in ("sent", "came")},
        }
        assert await conform("aip", tool.address, *options) == 0
        assert "3 hold, 0 fail, 0 were not tried." in capsys.readouterr().out


HTTP = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "parts",
    [(), (HTTP % 30_000, b"[" * 30_000), (HTTP % 10_000_000, *[b"x" * 1_000_000] * 10), (HTTP % 2, b"[]"), (b"\x00" * 1_000,)],
    ids=["silent", "nested", "huge", "no-envelope", "no-http"],
)
async def test_a_hostile_peer_ends_with_a_report(parts: tuple[bytes, ...], capsys: pytest.CaptureFixture[str]) -> None:
    async with answering(*parts) as address:
        command = ("handoff", f"http://{address}", "--recipient", "x", "--seconds", "2" if parts else "0.2", "--json")
        assert await conform(*command) == 1
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (report["holds"], report["fails"] + report["notTried"]) == (0, len(report["items"]))
    assert all(item["why"] for item in report["items"])
    assert all(item["fix"] for item in report["items"] if item["outcome"] == "fails")
    assert all(len(item["came"]) <= 2_000 * 10 for item in report["items"])


async def test_a_session_that_does_not_open_is_a_failed_item(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("handoff", "ws://127.0.0.1:1", "--uri", "urn:x", "--recipient", "x", "--json")
    assert await conform(*command) == 1
    assert json.loads(capsys.readouterr().out)["fails"] == 3


async def test_a_sender_that_never_comes_is_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in ("handoff", "routing"):
        assert await conform(protocol, "--listen", "127.0.0.1:0", "--wait", "0.1", "--json") == 1
        report = json.loads(capsys.readouterr().out)
        assert {item["outcome"] for item in report["items"]} == {"not tried"}
    assert await conform("aip", "--wait", "0.1", "--json") == 1
    assert {item["outcome"] for item in json.loads(capsys.readouterr().out)["items"]} == {"not tried"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", ["handoff", "handoff http://x", "aip", "aip x --listen nowhere", "routing ws://x"])
async def test_a_wrong_command_line_names_the_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await conform(*command.split(), "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "system.usage"
