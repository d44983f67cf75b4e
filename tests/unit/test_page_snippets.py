"""The programs that a protocol's page offers to copy: both run as they are, for each kind of exchange."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import Agent, Identity, LocalProtocols, Policy
from treaty_client.authoring.new_project import Kind, NewProtocol, write_project
from treaty_client.protocols.project import load_project
from treaty_handler import Value
from treaty_registry.catalogue.packages import read_package
from treaty_registry.pages.snippets import Snippets, snippets

ROOT = Path(__file__).parents[2]


def snippets_of(folder: Path) -> tuple[LocalProtocols, Snippets]:
    """The protocol of a project, and its snippets."""
    protocols = LocalProtocols([folder])
    (uri,) = protocols.uris
    project = load_project(folder)
    view = read_package(*project.build_wheel(uri))
    return protocols, snippets(uri, project.protocol_hash, project.name, "did:wba:alice.example", view)


async def run(program: str, printed: asyncio.Queue[Value], *arguments: str) -> None:
    """Run a program as `python FILE ARGUMENTS` does, in this loop. `printed`: takes what it prints."""
    code, _, started = program.rpartition("asyncio.run(")

    def note(*values: Value, **_options: object) -> None:
        for value in values:
            printed.put_nowait(value)

    names: dict[str, Any] = {"print": note}
    exec(compile(code, "snippet.py", "exec"), names)
    assert started.startswith("main(")
    await names["main"](*arguments)


async def meet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Value], list[Value]]:
    """Run the provider, then the caller. Return what each printed."""
    protocols, copied = snippets_of(folder)
    monkeypatch.setattr(Agent, "from_home", lambda: Agent(Identity.create(), protocols, Policy()))
    served, called = asyncio.Queue[Value](), asyncio.Queue[Value]()
    assert copied.provider and copied.caller
    provider = asyncio.create_task(run(copied.provider.replace("8765", "0"), served))
    try:
        await run(copied.caller, called, str(await served.get()))
    finally:
        provider.cancel()
        await asyncio.gather(provider, return_exceptions=True)
    return [served.get_nowait() for _ in range(served.qsize())], [called.get_nowait() for _ in range(called.qsize())]


@pytest.mark.parametrize("kind", ["request", "stream", "event"])
async def test_a_caller_and_a_provider_of_each_kind_meet(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path / kind, NewProtocol(kind, "demo/trial", kind, "declarative"))
    served, called = await meet(tmp_path / kind, monkeypatch)
    assert len(called) > 0 if kind != "event" else called == [None]
    assert bool(served) == (kind == "event")


async def test_a_member_of_a_room_serves_while_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    _, called = await meet(ROOT / "examples" / "chat", monkeypatch)
    assert len(called) == 1


def test_every_first_party_protocol_has_both_programs() -> None:
    folders = [path.parent for pattern in ("examples/*", "protocols/*/*") for path in ROOT.glob(f"{pattern}/manifest.json")]
    assert len(folders) > 6
    for folder in folders:
        _, copied = snippets_of(folder)
        roles = json.loads((folder / "manifest.json").read_text())["roles"].values()
        few = all(len(role.get("invokes", ())) <= 8 for role in roles)
        assert bool(copied.caller and copied.provider) == few, folder
        for program in (copied.caller, copied.provider):
            compile(program, str(folder), "exec")
