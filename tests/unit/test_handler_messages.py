"""The rules for message forms: what a manifest with `messages` may say, and what its package may hold."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from declared import EVERY, MANIFEST, build, declared
from handler_packages import DIST_INFO, FILENAME, PACKAGE, metadata, with_record, zipped

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import DECLARATIVE, build_wheel, parse_manifest, read_wheel
from treaty_consensus.handler.messages import MAX_FORM_DEPTH, MAX_FORM_NODES, MAX_NODES

Change = Callable[[dict[str, Any]], None]


def refusal(change: Change, manifest: dict[str, Any] = MANIFEST) -> TreatyError:
    changed = copy.deepcopy(manifest)
    change(changed)
    with pytest.raises(TreatyError) as caught:
        declared(changed)
    return caught.value


def test_002_02_the_forms_of_an_operation_have_its_name() -> None:
    manifest = declared().manifest
    assert {name: set(forms) for name, forms in manifest.messages.items()} == {
        "ask": {"request", "response", "error", "cancel"},
        "find": {"request", "item", "end", "error", "more", "cancel"},
        "tell": {"event"},
    }
    assert manifest.messages["ask"]["request"] == EVERY["request"]
    assert manifest.interface == 2


def test_002_02_a_named_operation_has_its_own_forms_alone() -> None:
    changed = copy.deepcopy(MANIFEST)
    own = {"request": {"n": "$id", "say": "$arguments.name"}, "response": {"n": "$id", "ok": "$result"}}
    changed["messages"]["ask"] = {
        "request": {**own["request"], "type": "question"},
        "response": {**own["response"], "type": "answer"},
        "error": {"n": "$id", "type": "failure", "code": "$code"},
    }
    assert set(declared(changed).manifest.messages["ask"]) == {"request", "response", "error"}


def form(name: str, value: Any, operation: str = "*") -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["messages"][operation][name] = value

    return change


def without(name: str) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        del manifest["messages"]["*"][name]

    return change


def member(form: str, name: str, value: Any) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["messages"]["*"][form][name] = value

    return change


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (lambda manifest: manifest.update(messages=[]), "not an object of forms"),
        (lambda manifest: manifest.update(messages={}), "not an object of forms"),
        (lambda manifest: manifest.update(messages={"*": []}), "not an object of forms"),
        (lambda manifest: manifest["messages"].update(nothing=EVERY), "no operation"),
        (lambda manifest: manifest["messages"].update(tell={"request": {}}), "it needs event"),
        (lambda manifest: manifest["messages"].update(ask={"request": EVERY["request"]}), "it needs error, request, response"),
        (form("reply", {"id": "$id"}), "has the forms"),
        (without("request"), "no form request"),
        (without("response"), "no form response"),
        (without("error"), "no form error"),
        (without("end"), "no form end"),
        (without("more"), "no form more"),
        (without("item"), "no form item"),
        (without("event"), "no form event"),
        (form("request", []), "not an object"),
        (form("request", {"type": "request", "operation": "$operation", "arguments": "$arguments"}), "no slot $id"),
        (form("error", {"id": "$id", "type": "error"}), "no slot $code"),
        (form("more", {"id": "$id", "type": "more"}), "no slot $count"),
        (member("request", "x", "$result"), "does not have"),
        (member("request", "x", "$code"), "does not have"),
        (member("request", "x", "$"), "does not have"),
        (member("request", "x", "$ID"), "does not have"),
        (member("request", "x", "$id.x"), "does not have"),
        (member("event", "x", "$id"), "does not have"),
        (member("response", "x", "$result."), "does not have"),
        (member("response", "x", "$result.a"), "beside its members"),
        (member("request", "x", "$id"), "twice"),
        (member("request", "x", []), "has a list"),
        (member("request", "x", ["$id"]), "has a list"),
        (member("request", "x", "x" * 201), "more than 200 characters"),
        (member("request", "x" * 65, 1), "more than 64 characters"),
        (member("request", "x", deep(MAX_FORM_DEPTH)), "nested deeper"),
        (member("request", "x", dict.fromkeys(map(str, range(MAX_FORM_NODES)))), f"more than {MAX_FORM_NODES} nodes"),
        (form("request", {**EVERY["request"], "arguments": "$arguments.size"}), "no slot $arguments.name"),
    ],
)
def test_002_01_to_04_forms_that_are_refused(change: Change, phrase: str) -> None:
    fault = refusal(change)
    assert (fault.code, isinstance(fault, Refused)) == ("handler.manifest", True)
    assert phrase in fault.message


@pytest.mark.parametrize(
    "change",
    [
        # A request and an answer, two answers, two controls, an event and a request, two operations.
        form("request", {"id": "$id", "type": "response", "operation": "$operation", "arguments": "$arguments"}),
        form("end", {"id": "$id", "type": "item"}),
        form("cancel", {"id": "$id", "type": "more"}),
        form("event", {"type": "request", "arguments": "$arguments"}),
        form("request", {"id": "$id", "type": "request", "arguments": "$arguments"}),
        form("end", {"id": "$id"}),
        # A code that the operation may fail with does not tell a success from an error.
        lambda manifest: manifest["messages"]["*"].update(
            response={"id": "$id", "code": 404, "result": "$result"}, error={"id": "$id", "code": "$code"}
        ),
        lambda manifest: manifest["messages"]["*"].update(
            response={"id": "$id", "code": 502, "result": "$result"}, error={"id": "$id", "code": "$code"}
        ),
    ],
)
def test_002_05_forms_that_a_reader_could_confuse_are_refused(change: Change) -> None:
    fault = refusal(change)
    assert fault.code == "handler.manifest"
    assert "not told apart" in fault.message


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["messages"]["*"].update(
            response={"id": "$id", "type": "answer", "code": 200, "result": "$result"},
            error={"id": "$id", "type": "answer", "code": "$code"},
        ),
        # True is another constant than 1, and "1" another one than both.
        lambda manifest: manifest["messages"]["*"].update(
            response={"id": "$id", "ok": True, "result": "$result"},
            error={"id": "$id", "ok": 1, "code": "$code"},
            item={"id": "$id", "ok": "1", "item": "$item"},
            end={"id": "$id", "ok": None},
            request={**EVERY["request"], "ok": 0},
            more={**EVERY["more"], "ok": 2},
            cancel={**EVERY["cancel"], "ok": 3},
            event={**EVERY["event"], "ok": 4},
        ),
        # The operation's name tells an event from a request.
        form("event", {"type": "request", "operation": "$operation", "arguments": "$arguments"}),
        # `$$` begins a constant.
        member("request", "currency", "$$"),
        member("request", "currency", "$$id"),
    ],
)
def test_002_05_forms_that_are_told_apart(change: Change) -> None:
    changed = copy.deepcopy(MANIFEST)
    change(changed)
    assert declared(changed).is_declarative


RPC: dict[str, Any] = {
    "request": {"jsonrpc": "2.0", "id": "$id", "method": "$operation", "params": "$arguments"},
    "response": {"jsonrpc": "2.0", "id": "$id", "method": "$absent", "error": "$absent", "result": "$result"},
    "error": {"jsonrpc": "2.0", "id": "$id", "method": "$absent", "result": "$absent", "error": {"code": "$code"}},
}
REQUESTS: dict[str, Any] = {
    "operations": {
        "ask": {**MANIFEST["operations"]["ask"], "errors": {"404": "There is none.", "-32602": "It does not conform."}}
    },
    "roles": {"left": {"peer": "left", "calls": ["ask"], "invokes": ["ask"]}},
    "messages": {"*": RPC},
    "refusals": {"400": -32602},
}


def test_002_23_forms_of_json_rpc_are_told_apart_by_absent_members() -> None:
    manifest = declared(REQUESTS).manifest
    assert (manifest.interface, set(manifest.operations["ask"].errors)) == (5, {404, -32602})
    assert manifest.refusals == {400: -32602}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        # Without `method` a response with one could be a request, without `error` nothing tells the two answers apart.
        (lambda manifest: manifest["messages"]["*"]["response"].pop("method"), "not told apart"),
        (
            lambda manifest: (
                manifest["messages"]["*"]["response"].pop("error"),
                manifest["messages"]["*"]["error"].pop("result"),
            ),
            "not told apart",
        ),
        # A member that may be left out does not tell: the schema does not require `size`.
        (
            lambda manifest: manifest["messages"]["*"].update(
                request={"id": "$id", "jsonrpc": "2.0", "method": "$arguments.size", "name": "$arguments.name"}
            ),
            "not told apart",
        ),
        # Nor does a member of a value.
        (member("response", "error", {"code": "$absent"}), ""),
        (member("error", "error", "$code"), ""),
        (lambda manifest: manifest.update(interface=4), "interface"),
        (lambda manifest: manifest.update(refusals={"404": -32602}), "refusals"),
        (lambda manifest: manifest.update(refusals={"400": -32601}), "refusals.400"),
        (lambda manifest: manifest.update(refusals={"400": True}), "refusals.400"),
        (lambda manifest: manifest.update(refusals=[]), "refusals"),
        (lambda manifest: manifest["operations"]["ask"]["errors"].update({"-0": "x"}), "-0"),
        (lambda manifest: manifest["operations"]["ask"]["errors"].update({"--1": "x"}), "plain digits"),
        (lambda manifest: manifest["operations"]["ask"]["errors"].update({"-01": "x"}), "plain digits"),
    ],
)
def test_002_23_forms_of_json_rpc_that_are_refused(change: Change, told: str) -> None:
    if not told:
        # These two stay told apart: an object is a member, and so is a code.
        changed = copy.deepcopy(REQUESTS)
        change(changed)
        assert declared(changed).is_declarative
        return
    fault = refusal(change, REQUESTS)
    assert fault.code == "handler.manifest"
    assert told in fault.message


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["messages"]["*"]["end"].update(x="$absent"),
        lambda manifest: manifest["operations"]["ask"]["errors"].update({"-1": "x"}),
        lambda manifest: manifest.update(refusals={}),
    ],
)
def test_002_23_each_part_of_json_rpc_needs_interface_5(change: Change) -> None:
    changed = copy.deepcopy(MANIFEST)
    change(changed)
    assert declared(changed).manifest.interface == 5
    for interface in (2, 4):
        changed["interface"] = interface
        with pytest.raises(TreatyError) as caught:
            declared(changed)
        assert caught.value.code == "handler.manifest"


def test_002_04_all_forms_together_are_bounded() -> None:
    manifest = {
        "operations": {f"op{number}": MANIFEST["operations"]["ask"] for number in range(40)},
        "roles": {"left": {"peer": "left", "calls": [], "invokes": []}},
        "messages": {
            f"op{number}": {kind: {**EVERY[kind], "op": number, **deep(5)} for kind in ("request", "response", "error")}
            for number in range(40)
        },
    }
    assert declared(manifest).is_declarative
    for forms in manifest["messages"].values():
        forms["request"].update(dict.fromkeys(map(str, range(45))))
    with pytest.raises(Refused, match=f"more than {MAX_NODES} nodes together"):
        declared(manifest)


def test_002_06_messages_need_interface_2() -> None:
    requests = {
        "operations": {"ask": MANIFEST["operations"]["ask"]},
        "roles": {"left": {"peer": "left", "calls": ["ask"], "invokes": ["ask"]}},
        "messages": MANIFEST["messages"],
    }
    assert declared(requests).manifest.interface == 2
    assert refusal(lambda manifest: manifest.update(interface=1), requests).code == "handler.manifest"
    _, wheel = build()
    written = json.loads(read_wheel(FILENAME, wheel).files[f"{PACKAGE}/manifest.json"])
    assert written["interface"] == 2


def test_the_schema_for_an_editor_stays_out_of_the_package() -> None:
    package = declared({"$schema": "manifest.schema.json", **MANIFEST})
    assert "$schema" not in json.loads(package.files[f"{PACKAGE}/manifest.json"])
    with pytest.raises(TreatyError):
        parse_manifest(b'{"$schema": "x", ' + package.files[f"{PACKAGE}/manifest.json"][1:])


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("__init__.py", b"handler = 1\n"),
        ("extra.json", b"{}"),
        ("deep/readme.txt", b"text"),
        ("types.pyi", b""),
        ("vectors/late.txt", b"text"),
        ("vectors/late.pyi", b""),
    ],
)
def test_002_07_a_code_free_package_has_manifest_and_vectors(path: str, content: bytes) -> None:
    _, wheel = build()
    files = dict(read_wheel(FILENAME, wheel).files)
    record = f"{DIST_INFO}/RECORD"
    changed = with_record({**{name: data for name, data in files.items() if name != record}, f"{PACKAGE}/{path}": content})
    with pytest.raises(Refused) as caught:
        read_wheel(FILENAME, zipped(changed))
    assert caught.value.code == "handler.manifest"


def test_002_07_forms_and_entry_point_need_each_other() -> None:
    with pytest.raises(Refused) as caught:
        build_wheel({"__init__.py": b"handler = 1\n"}, metadata(MANIFEST))
    assert caught.value.code == "handler.manifest"
    coded = {name: value for name, value in MANIFEST.items() if name != "messages"}
    with pytest.raises(Refused) as caught:
        build_wheel({}, replace(metadata(coded), entry_point=DECLARATIVE))
    assert caught.value.code == "handler.manifest"
    # Another name of the interpreter's module is not in the package.
    for entry_point in ("treaty_handler.declarative:other", "treaty_handler.declarative.session:handler", "treaty_handler:Call"):
        with pytest.raises(TreatyError):
            build_wheel({}, replace(metadata(MANIFEST), entry_point=entry_point))
