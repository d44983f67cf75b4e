"""The JSON Schema of manifests for editors: it judges as the parser does, as far as a schema can."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from declared import EVERY, MANIFEST
from handler_packages import MANIFEST as CODED
from handler_packages import metadata

import treaty_consensus.handler
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import DECLARATIVE, build_wheel

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(treaty_consensus.handler.__file__).parent / "manifest.schema.json").read_text())
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)
SHIPPED = [*ROOT.glob("protocols/**/manifest.json"), *ROOT.glob("examples/*/manifest.json")]

Change = Callable[[dict[str, Any]], object]


def parser_accepts(manifest: dict[str, Any]) -> bool:
    forms = "messages" in manifest
    written = metadata(manifest)
    try:
        if forms:
            build_wheel({}, replace(written, entry_point=DECLARATIVE))
        else:
            build_wheel({"__init__.py": b""}, written)
    except TreatyError:
        return False
    return True


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_it_accepts_the_manifests_of_this_repository(path: Path) -> None:
    manifest = json.loads(path.read_text())
    VALIDATOR.validate(manifest)
    named = (path.parent / manifest["$schema"]).resolve()
    assert json.loads(named.read_text()) == SCHEMA


@pytest.mark.parametrize("manifest", [MANIFEST, CODED], ids=["forms", "code"])
def test_both_accept_a_manifest(manifest: dict[str, Any]) -> None:
    VALIDATOR.validate(manifest)
    assert parser_accepts(manifest)


def test_both_accept_a_shared_role_of_a_protocol_with_code() -> None:
    manifest = copy.deepcopy(CODED)
    next(iter(manifest["roles"].values()))["peers"] = "many"
    VALIDATOR.validate(manifest)
    assert parser_accepts(manifest)


def operation(name: str, **members: Any) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        entry = manifest["operations"][name]
        entry.update(members)
        for member in [member for member, value in entry.items() if value is DELETED]:
            del entry[member]

    return change


DELETED = object()


@pytest.mark.parametrize(
    "change",
    [
        operation("tell", result={}),
        operation("tell", timeout=5),
        operation("tell", window=5),
        operation("tell", kind="message"),
        operation("tell", kind="request"),
        operation("tell", kind=DELETED),
        operation("find", window=0),
        operation("find", window=1_025),
        operation("find", timeout=0),
        operation("find", timeout=86_401),
        operation("find", timeout=1.5),
        operation("find", result=DELETED),
        operation("ask", window=4),
        operation("ask", idempotent="yes"),
        operation("ask", arguments={}),
        operation("ask", arguments={"type": "string"}),
        operation("ask", errors=[]),
        operation("ask", errors={"4x": "What."}),
        operation("ask", errors={"0404": "What."}),
        operation("ask", errors={"404": ""}),
        operation("ask", errors={"1000000000": "What."}),
        operation("ask", retries=3),
        lambda manifest: manifest.update(interface=1),
        lambda manifest: manifest.update(interface=7),
        lambda manifest: manifest["roles"]["left"].update(peers="many"),
        lambda manifest: manifest["roles"]["left"].update(peers="several"),
        lambda manifest: manifest["roles"]["left"].update(peers=2),
        lambda manifest: (manifest.update(interface=2), manifest["roles"]["left"].update(peers="one")),
        lambda manifest: manifest.update(protocol={}),
        lambda manifest: manifest.update(operations={}),
        lambda manifest: manifest.update(extra=1),
        lambda manifest: manifest.pop("roles"),
        lambda manifest: manifest["operations"].update({"9lives": manifest["operations"]["ask"]}),
        lambda manifest: manifest["operations"].update({f"op{n}": manifest["operations"]["ask"] for n in range(64)}),
        lambda manifest: manifest["roles"].update(Upper=manifest["roles"]["left"]),
        lambda manifest: manifest["roles"]["left"].update(calls="ask"),
        lambda manifest: manifest["roles"]["left"].update(calls=["ask", "ask"]),
        lambda manifest: manifest["roles"]["left"].pop("invokes"),
        lambda manifest: manifest.update(messages={}),
        lambda manifest: manifest["messages"].update({"*": []}),
        lambda manifest: manifest["messages"]["*"].update(reply={"id": "$id"}),
        lambda manifest: manifest["messages"]["*"]["request"].update(x="$result"),
        lambda manifest: manifest["messages"]["*"]["request"].update(x="$"),
        lambda manifest: manifest["messages"]["*"]["request"].update(x={"y": "$code"}),
        lambda manifest: manifest["messages"]["*"]["request"].update(x=[]),
        lambda manifest: manifest["messages"]["*"]["request"].update(x="x" * 201),
        lambda manifest: manifest["messages"]["*"]["request"].update({"x" * 65: 1}),
        lambda manifest: manifest["messages"]["*"]["response"].update(x="$result."),
        lambda manifest: manifest["messages"]["*"]["event"].update(x="$id"),
    ],
)
def test_both_refuse_a_wrong_manifest(change: Change) -> None:
    manifest = copy.deepcopy(MANIFEST)
    change(manifest)
    assert not VALIDATOR.is_valid(manifest)
    assert not parser_accepts(manifest)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(interface=2),
        lambda manifest: manifest.update({"$schema": "anything"}),
        operation("find", window=1),
        operation("find", window=1_024),
        operation("find", window=DELETED),
        operation("ask", kind="request"),
        operation("ask", errors={"0": "Zero.", "999999999": "The largest."}),
        lambda manifest: manifest["messages"]["*"]["request"].update(x="$$", y="$$id", z={"deep": {"er": None}}, w=1.5, v=""),
        lambda manifest: manifest["messages"].update(tell={"event": EVERY["event"]}),
    ],
)
def test_both_accept_other_right_ones(change: Change) -> None:
    manifest = copy.deepcopy(MANIFEST)
    change(manifest)
    VALIDATOR.validate(manifest)
    assert parser_accepts(manifest)
