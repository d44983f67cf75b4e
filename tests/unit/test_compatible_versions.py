"""Whether agents of two versions can talk: parts of a manifest, and conversations between handlers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from treaty_client.authoring.building import build
from treaty_client.authoring.document import write_document
from treaty_client.authoring.new_project import NewProtocol, write_project
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Refused
from treaty_consensus.handler import HandlerPackage
from treaty_consensus.handler.compatibility import MAX_MESSAGE, MAX_REASONS, MAX_VALUE, Compatibility, check_continues
from treaty_consensus.protocol import parse_protocol_uri
from treaty_sandbox import SandboxPool
from treaty_sandbox.compatibility.versions import compatibility

ROOT = Path(__file__).parents[2]
GREETING = ROOT / "examples" / "greeting"
URI = "https://registry.example/protocols/alice.example/greeting"


def package(folder: Path, change: Any = None) -> HandlerPackage:
    """The greeting with a changed manifest. `change` takes its JSON. Its vectors stay."""
    shutil.copytree(GREETING, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    if change is not None:
        change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_document(folder)
    return build(load_project(folder))


async def compared(old: HandlerPackage, new: HandlerPackage, **options: Any) -> Compatibility:
    async with SandboxPool() as pool:
        return await compatibility(old, new, ("1.0", "1.1"), pool, before=f"{URI}/1.0", **options)


def greet(manifest: Any) -> Any:
    return manifest["operations"]["greet"]


CHANGES: dict[str, tuple[Any, str, str, str]] = {
    "nothing": (lambda m: None, "compatible", "compatible", ""),
    "a time limit": (lambda m: greet(m).update(timeout=20), "compatible", "compatible", ""),
    "a code more": (lambda m: greet(m)["errors"].update({"409": "Busy."}), "compatible", "compatible", ""),
    "not repeated": (lambda m: greet(m).update(idempotent=False), "breaking", "compatible", "idempotence"),
    "a renamed operation": (
        lambda m: (
            m["operations"].update(hail=m["operations"].pop("greet")),
            m["messages"].update(hail=m["messages"].pop("greet")),
            [role.update(calls=["hail"]) for role in m["roles"].values() if role["calls"]],
            [role.update(invokes=["hail"]) for role in m["roles"].values() if role["invokes"]],
        ),
        "breaking",
        "compatible",
        "operation",
    ),
    "a renamed role": (
        lambda m: (m["roles"].update(server=m["roles"].pop("host")), m["roles"]["guest"].update(peer="server")),
        "breaking",
        "breaking",
        "roles",
    ),
    "another word of a form": (
        lambda m: m["messages"]["greet"]["request"].update(type="greeting"),
        "breaking",
        "breaking",
        "messages",
    ),
    "a constant more": (lambda m: m["messages"]["greet"]["response"].update(v=2), "compatible", "breaking", "messages"),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_of_a_manifest_has_its_verdicts(name: str, tmp_path: Path) -> None:
    change, backward, forward, part = CHANGES[name]
    verdict = await compared(package(tmp_path / "old"), package(tmp_path / "new", change))
    assert (verdict.backward.verdict, verdict.forward.verdict) == (backward, forward), verdict
    reasons = [*verdict.backward.reasons, *verdict.forward.reasons]
    assert {reason.part for reason in reasons} == ({part} if part else set())
    if part in ("", "messages"):
        assert verdict.backward.calls > 0 and verdict.forward.calls > 0


async def test_a_conversation_shows_its_arguments_and_its_end(tmp_path: Path) -> None:
    new = package(tmp_path / "new", CHANGES["another word of a form"][0])
    [reason] = (await compared(package(tmp_path / "old"), new)).backward.reasons
    assert reason.operation == "greet" and "guest" in reason.message and json.loads(reason.value)["name"]


@pytest.mark.parametrize("folder", ["product-info/1.1", "mcp-tools-call/2026.7.28", "a2a/1.0", "handoff/1.0"])
async def test_each_protocol_understands_itself(folder: str) -> None:
    own = build(load_project(ROOT / "protocols" / folder))
    # A broker of handoff may call what its vectors do not say, so some of its calls fail among its own.
    verdict = await compared(own, own)
    assert {pair.verdict for pair in verdict.pairs} == {"compatible"}, verdict
    assert verdict.backward.calls > 0 or not own.is_declarative


async def test_handlers_with_code_talk_in_the_sandbox(tmp_path: Path) -> None:
    write_project(tmp_path / "old", NewProtocol("echo", "demo/echo", "request", "python", "Send a text back."))
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    [source] = (tmp_path / "new" / "handler").glob("*.py")
    text = source.read_text()
    old = build(load_project(tmp_path / "old"))
    assert not old.is_declarative
    verdict = await compared(old, old)
    assert verdict.backward.verdict == "compatible" and verdict.backward.calls > 0, verdict
    unseen = (await compared(old, old, runs_code=False)).backward
    assert (unseen.verdict, unseen.calls) == ("undecided", 0)
    source.write_text(text.replace("arguments", "args"))
    assert source.read_text() != text
    verdict = await compared(old, build(load_project(tmp_path / "new")))
    assert verdict.backward.verdict == "breaking" and verdict.backward.reasons[0].part == "messages"


async def test_forms_that_no_vector_speaks_are_undecided(tmp_path: Path) -> None:
    old = package(tmp_path / "old")
    shutil.rmtree(tmp_path / "old" / "vectors")
    silent = build(load_project(tmp_path / "old"))
    new = package(tmp_path / "new", CHANGES["another word of a form"][0])
    [reason] = (await compared(silent, new)).backward.reasons
    assert (reason.part, reason.verdict) == ("messages", "undecided")
    assert old.vectors and not silent.vectors


async def test_reasons_are_bounded_and_refuse_a_compatible_number(tmp_path: Path) -> None:
    def many(manifest: Any, most: int = 1_000) -> None:
        greet(manifest)["arguments"]["properties"]["name"]["maxLength"] = most
        manifest["operations"] = {f"op{number}": greet(manifest) for number in range(40)}
        manifest["roles"]["guest"]["calls"] = manifest["roles"]["host"]["invokes"] = [*manifest["operations"]]
        forms = manifest["messages"].pop("greet")
        for name in manifest["operations"]:
            manifest["messages"][name] = {kind: {**form, "type": f"{name} {form['type']}"} for kind, form in forms.items()}

    old, new = package(tmp_path / "old", many), package(tmp_path / "new", lambda manifest: many(manifest, 999))
    verdict = await compared(old, new)
    assert len(verdict.backward.reasons) == MAX_REASONS
    assert max(len(reason.message) for reason in verdict.backward.reasons) <= MAX_MESSAGE + 1
    assert {len(reason.value) for reason in verdict.backward.reasons} == {MAX_VALUE + 1}
    with pytest.raises(Refused) as refusal:
        check_continues(parse_protocol_uri(f"{URI}/1.1"), verdict)
    assert refusal.value.code == "publish.breaking"
    check_continues(parse_protocol_uri(f"{URI}/2.0"), verdict)
