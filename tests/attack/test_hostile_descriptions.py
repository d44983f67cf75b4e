"""Descriptions that shall cost time or memory, or break the files of the project: refused, or listed with a reason."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hostile_texts import PAYLOADS
from markdown_it import MarkdownIt

from treaty_agent.importing.found_operations import MAX_EXAMINED
from treaty_agent.importing.imported_project import ImportedProject
from treaty_agent.importing.imported_prose import quoted
from treaty_agent.importing.source import READERS
from treaty_client.authoring.new_project import NewProtocol
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError
from treaty_consensus.protocol import PART_BEGIN, PART_END

NEW = NewProtocol("hostile", "test/hostile")


def answers(schema: object) -> dict[str, Any]:
    return {"200": {"description": "Here.", "content": {"application/json": {"schema": schema}}}}


def api(paths: dict[str, Any], **schemas: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "Hostile"}, "paths": paths, "components": {"schemas": schemas}}


def one(schema: object, **schemas: Any) -> dict[str, Any]:
    return api({"/a": {"get": {"responses": answers(schema)}}}, **schemas)


def project(value: object, kind: str = "openapi") -> ImportedProject:
    data = json.dumps(value).encode()
    return ImportedProject(READERS[kind]().read(data, "it"), data, NEW)


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


BOMB = {f"L{level}": {"properties": {f"p{number}": ref(f"L{level + 1}") for number in range(10)}} for level in range(9)} | {
    "L9": {}
}
CHAIN = {f"C{number}": ref(f"C{number + 1}") for number in range(500)} | {"C500": {}}
LOOP = {"Node": {"type": "object", "properties": {"next": ref("Node")}}}
WIDE = {"Wide": {"properties": {f"p{number}": {"type": "string"} for number in range(900)}}}


@pytest.mark.threat(390)
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (one(ref("L0"), **BOMB), "more than 1000 nodes"),
        (one(ref("C0"), **CHAIN), "chain of more than 32"),
        (one(ref("Node"), **LOOP), "refers to itself through Node"),
        (one(ref("Wide"), **WIDE), "more than 1000 nodes"),
        (one({"type": "array", "minItems": 10**9, "items": {}}), "none can be guessed"),
        (one({"type": "string", "pattern": "^(a{400}b{400}|[^a]{2,3})$", "minLength": 5, "maxLength": 9}), "none can be guessed"),
        (one({"const": 10**400}), "an integer is beyond"),
        (
            api({"/a": {"get": {"parameters": [{"$ref": "#/paths/~1a/get/parameters/0"}], "responses": {}}}}),
            "chain of references",
        ),
        (api({"/a": {"get": {"responses": answers({"oneOf": [{"not": {}}] * 500})}}}), "."),
    ],
)
def test_a_costly_operation_is_refused_with_a_reason(value: Any, reason: str) -> None:
    with pytest.raises(Refused, match=f"GET /a: .*({reason})"):
        project(value)


@pytest.mark.threat(390)
def test_ten_thousand_operations_are_not_all_looked_at() -> None:
    imported = project(api({f"/p{number}": {"get": {"responses": answers({"type": "integer"})}} for number in range(10_000)}))
    assert len(imported.operations) == 64 and len(imported.omissions) == MAX_EXAMINED - 64 + 1


@pytest.mark.threat(390)
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "member",
    [{"type": "string", "pattern": "^[a-z]{900}$"}, {"type": "integer"}],
    ids=["heavy patterns", "many nodes"],
)
def test_one_definition_cannot_be_paid_for_by_every_operation(member: dict[str, Any]) -> None:
    costly = {"properties": {f"p{number}": member for number in range(240 if len(member) == 1 else 1)}}
    paths = {f"/p{number}": {"get": {"responses": answers(ref("Costly"))}} for number in range(MAX_EXAMINED)}
    imported = project(api(paths, Costly=costly))
    assert [one for one in imported.omissions if "used up the budget" in one.reason]


@pytest.mark.threat(390)
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, Malformed),
        (b'{"openapi": "3.0.0", "paths": ' + b'{"a":' * 100 + b"1" + b"}" * 101, TooLarge),
        (b'{"a": [' + b"1," * 600_000 + b"1]}", TooLarge),
        (b" " * 5_000_000, TooLarge),
        (b"openapi: 3.0.0\npaths: {}\na: &a [1, 1]\nb: [*a, *a]\n", Malformed),
        (b"a: !!python/object/apply:os.system ['true']\n", Malformed),
        (b"{" + b"[" * 50_000, Malformed),
        (b"? [a]\n: b\n", Malformed),
        (bytes(range(256)), Malformed),
        (b"", Malformed),
        (b"[]", Malformed),
        (b'{"openapi": "3.0.0", "paths": {"/a\\ud800": {}}}', Malformed),
        (b'{"openapi": "3.0.0", "paths": {}, "x": NaN}', Malformed),
        (b'{"swagger": "2.0", "paths": {}}', Malformed),
    ],
)
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.sample(14)
def test_other_bytes_are_refused(data: bytes, error: type[TreatyError], kind: str) -> None:
    with pytest.raises(error):
        READERS[kind]().read(data, "it")


MARKS = (
    "```json\n{}\n```",
    f"\n{PART_BEGIN}\n{PART_END}\n",
    f"{PART_END}\n",
    "---\nname: other\n---\n",
    "\n# Heading\n",
    "[x](javascript:x)",
    '"""\n[handler]\n',
)
HOSTILE = (*MARKS, *PAYLOADS[::16], "\x1b[2J\u202e", "a\\", '"\n', "@summary@", "| a | b |", "{}")


@pytest.mark.threat(391)
async def test_hostile_texts_break_no_document(tmp_path: Path) -> None:
    paths = {}
    for number, text in enumerate(HOSTILE):
        parameter = {
            "name": text,
            "in": "query",
            "description": text,
            "schema": {"type": "string", "example": text, "description": text},
        }
        operation: dict[str, Any] = {
            "operationId": text,
            "description": text,
            "parameters": [parameter],
            "responses": answers({"const": text}),
        }
        operation["responses"]["404"] = {"description": text}
        paths[f"/{number}{text}"] = {"get": operation, "post": {"requestBody": {"content": {text: {}}}}}
    info = {"title": MARKS[1], "version": "".join(MARKS), "description": "".join(HOSTILE), "license": {"name": MARKS[6]}}
    result = await project({**api(paths), "info": info}).write(tmp_path / "hostile")
    assert [one.reason for one in result.omissions if one.place.startswith("GET")] == [
        "a name or a value of it has characters that are not printable"
    ]
    assert len(result.operations) == len(HOSTILE) - 1
    text = (tmp_path / "hostile" / "document.md").read_text()
    lines = text.split("\n")
    assert [lines.count(mark) for mark in (PART_BEGIN, PART_END, "# Heading", "---")] == [1, 1, 0, 2]
    # The author's text: without front matter and generated part.
    body = text.split("\n---\n", 1)[1]
    prose = body.partition(f"\n{PART_BEGIN}\n")[0] + body.rpartition(f"\n{PART_END}\n")[2]
    tokens = [
        inner
        for token in MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(prose)
        for inner in (token, *(token.children or ()))
    ]
    kinds = {token.type for token in tokens}
    assert not {
        kind for kind in kinds if kind.startswith(("html", "link", "image", "code_block", "fence", "table", "em", "strong"))
    }
    # Ours alone: the member `id`, and the digest of the description.
    assert {len(token.content) for token in tokens if token.type == "code_inline"} == {len("id"), 64}
    headings = [
        tokens[place + 1].content for place, token in enumerate(tokens) if token.type == "heading_open" and token.tag != "h3"
    ]
    assert headings[1:] == ["Flow", "Operations", "Errors", "Differences"]
    assert text.replace("\n", "").isprintable()
    head = tomllib.loads((tmp_path / "hostile" / "protocol.toml").read_text())
    assert set(head) == {"name", "version", "topic", "origin", "title", "summary", "licence"}
    assert load_project(tmp_path / "hostile").card.title.isprintable()


@pytest.mark.threat(391)
def test_a_quotation_is_one_line_that_markdown_shows_as_it_is() -> None:
    assert quoted("a\n# <b> [c](d) `e` *f* \\g\x00|" + "x" * 99, 40) == (
        "“a # \\<b\\> \\[c\\](d) \\`e\\` \\*f\\* \\\\g\\\\x00\\|xxxxxxxxxx”"
    )
    assert quoted(" \n ", 40) == ""
