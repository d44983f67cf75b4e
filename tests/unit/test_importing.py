"""`treaty import`: public descriptions become protocols that pass `treaty test`, and one of 20 operations is called.

Where a test does not say so itself, `ImportedProject.write` has checked the project."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from loopback import Loopback
from public_descriptions import PETSTORE, ROUTE_PLANNER, SIMPLE_MATH, TIME_TOOLS

from treaty_agent import OperationError
from treaty_agent.importing.decoding import MAX_SOURCE
from treaty_agent.importing.description import ImportedDescription, Inexpressible
from treaty_agent.importing.imported_project import ImportedProject, ImportResult, licence_of
from treaty_agent.importing.operation_names import OperationNames
from treaty_agent.importing.schema_example import example_of
from treaty_agent.importing.schema_import import SchemaBudget, SchemaImport, compile_schema
from treaty_agent.importing.source import READERS, read_source
from treaty_agent.testing import PeerDouble, Simulation
from treaty_client.authoring.check import check_project
from treaty_client.authoring.new_project import NewProtocol
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError
from treaty_io.network.hosts import Address

COMMAND = "from treaty_command.main import main; main()"
GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "importing.md").read_text(encoding="utf-8")


def read(kind: str, value: object, *only: str) -> tuple[ImportedDescription, bytes]:
    data = json.dumps(value).encode()
    return READERS[kind]().read(data, "the description", only), data


async def imported(kind: str, value: object, folder: Path, *only: str) -> ImportResult:
    description, data = read(kind, value, *only)
    return await ImportedProject(description, data, NewProtocol(folder.name, "test/imported")).write(folder)


def manifest(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


def vector(folder: Path, name: str) -> Any:
    """The arguments and the answer of the first call of a vector."""
    steps = json.loads((folder / "vectors" / f"{name}-provider.json").read_text())["steps"]
    effects = [effect for step in steps for effect in step["effects"]]
    answers = [step["event"]["result"] for step in steps if "result" in step["event"]]
    return next(effect["invoke"]["arguments"] for effect in effects if "invoke" in effect), answers[0].get("value")


async def test_the_petstore_becomes_a_protocol(tmp_path: Path) -> None:
    folder = tmp_path / "petstore"
    result = await imported("openapi", PETSTORE, folder)
    operations = manifest(folder)["operations"]
    assert len(operations) == 18 and [*operations][:2] == ["addPet", "updatePet"]
    assert [str(one) for one in result.omissions if one.is_whole] == [
        "not imported: POST /pet/{petId}/uploadImage: a body of application/octet-stream"
    ]
    assert {name: operation["idempotent"] for name, operation in operations.items() if name.endswith("Pet")} == {
        "addPet": False,
        "updatePet": True,
        "deletePet": True,
    }
    assert operations["getPetById"]["errors"]["404"] == "Pet not found"
    assert operations["deletePet"]["arguments"]["required"] == ["petId"]
    assert set(operations["addPet"]["arguments"]["$defs"]) == {"Pet", "Category", "Tag"}
    pet = {"id": 10, "name": "doggie", "category": {"id": 10, "name": "Dogs"}, "photoUrls": ["text"]}
    arguments, answer = vector(folder, "addPet")
    assert arguments["body"].items() >= pet.items() and answer == arguments["body"]
    project = load_project(folder)
    assert (project.card.title, project.card.licence, project.origin) == (
        "Swagger Petstore - OpenAPI 3.0",
        "Apache-2.0",
        "standard",
    )
    check = await check_project(folder)
    assert check.passed and check.coverage is not None and check.coverage.missed == ()


async def test_yaml_is_the_same_description(tmp_path: Path) -> None:
    text = yaml.dump(json.loads(json.dumps(PETSTORE)), sort_keys=False).replace("'200'", "200").encode()
    assert READERS["openapi"]().read(text, "petstore.yaml") == read("openapi", PETSTORE)[0]


async def test_methods_take_the_values_of_their_examples(tmp_path: Path) -> None:
    folder = tmp_path / "math"
    result = await imported("openrpc", SIMPLE_MATH, folder)
    assert [*result.operations] == ["addition", "subtraction"] and result.omissions == ()
    assert vector(folder, "subtraction") == ({"a": 8, "b": 4}, 4)


async def test_tools_answer_with_contents(tmp_path: Path) -> None:
    folder = tmp_path / "time"
    await imported("mcp", TIME_TOOLS, folder)
    operations = manifest(folder)["operations"]
    assert {name: operation["idempotent"] for name, operation in operations.items()} == {
        "getCurrentTime": True,
        "convertTime": False,
    }
    assert vector(folder, "convertTime")[1] == [{"type": "text", "text": "text"}]


async def test_a_skill_without_schemas_is_listed_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="route-optimizer-traffic: it has no schemas"):
        await imported("a2a", ROUTE_PLANNER, tmp_path / "routes")
    assert not (tmp_path / "routes").exists()
    schemas = {"inputSchema": {"properties": {"to": {"type": "string"}}, "required": ["to"]}, "outputSchema": {"type": "number"}}
    skills = [{**ROUTE_PLANNER["skills"][0], **schemas}, ROUTE_PLANNER["skills"][1]]
    result = await imported("a2a", {**ROUTE_PLANNER, "skills": skills}, tmp_path / "routes")
    assert [*result.operations] == ["routeOptimizerTraffic"]
    assert [one.place for one in result.omissions] == ["skill custom-map-generator"]


def shop(count: int) -> dict[str, Any]:
    """An OpenAPI description of `count` operations."""
    item = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}
    answers = {
        "200": {"description": "Here.", "content": {"application/json": {"schema": item}}},
        "404": {"description": "Sold out."},
    }
    parameters = [{"name": "size", "in": "query", "schema": {"type": "integer", "minimum": 30}, "required": True}]
    paths = {f"/shelf{number}": {"get": {"parameters": parameters, "responses": answers}} for number in range(count)}
    return {"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "paths": paths}


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TREATY_HOME": str(folder / "home")}
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)


async def test_twenty_operations_go_from_a_file_to_answered_calls(tmp_path: Path) -> None:
    (tmp_path / "shop.json").write_text(json.dumps(shop(20)))
    done = await asyncio.to_thread(
        started, tmp_path, "import", "openapi", "shop.json", "shop", "--topic", "commerce/shop", "--json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [operation["name"] for operation in json.loads(done.stdout)["operations"]]
    assert len(names) == 20
    async with Simulation([tmp_path / "shop"]) as simulation:
        answers: dict[str, Any] = {name: {"price": number} for number, name in enumerate(names)}
        answers[names[-1]] = OperationError(404, "Sold out.")
        host = PeerDouble(simulation.agent("shop.example"), simulation.uri("shop"), answers)
        guest = simulation.agent("guest.example")
        async with simulation.serving(host.agent), guest.connect("shop.example", topic="commerce/shop") as session:
            assert [await session.call(name, size=30) for name in names[:-1]] == [{"price": number} for number in range(19)]
            with pytest.raises(OperationError, match="Sold out"):
                await session.call(names[-1], size=30)
            with pytest.raises(Malformed):
                await session.call(names[0], size=29)


def test_the_guide_imports_its_description(tmp_path: Path) -> None:
    [description] = re.findall(r"^```json\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    (tmp_path / "parcels.json").write_text(description)
    [lines] = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    [printed] = re.findall(r"^```text\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    first, second = (started(tmp_path, *line.split()[1:]) for line in lines.strip().splitlines())
    assert first.stdout == printed and (first.returncode, second.returncode) == (0, 0), second.stdout


async def test_only_the_named_operations_are_taken(tmp_path: Path) -> None:
    result = await imported("openapi", PETSTORE, tmp_path / "pets", "getPetById", "DELETE /pet/{petId}")
    assert [*result.operations] == ["getPetById", "deletePet"]
    assert {one.place for one in result.omissions} == {"DELETE /pet/{petId}", "security"}
    with pytest.raises(Malformed, match="no operation 'upload'"):
        await imported("openapi", PETSTORE, tmp_path / "none", "upload")
    assert not (tmp_path / "none").exists()


def test_a_path_may_be_a_reference() -> None:
    paths = {"/a": {"$ref": "#/components/pathItems/A"}, "/b": {"$ref": "other.json"}}
    item = {"get": {"operationId": "a", "responses": {"204": {"description": "Done."}}}}
    value = {"openapi": "3.1.0", "paths": paths, "components": {"pathItems": {"A": item}}}
    description, _ = read("openapi", value)
    assert [operation.wish for operation in description.operations] == ["a"]
    assert [(one.place, "another document" in one.reason) for one in description.omissions] == [("/b", True)]


def test_names_follow_one_rule() -> None:
    names = OperationNames()
    wishes = ["find-pets", "find_pets", "FindPets", "URL", "2fast", "GET /pets/{petId}", "天気", "a" * 90]
    assert [names.new(wish) for wish in wishes] == [
        *("findPets", "findPets2", "findPets3", "url", "operation2fast", "getPetsPetId", "operation", "a" * 60)
    ]


@pytest.mark.parametrize(
    ("source", "translated", "left_out"),
    [
        ({"type": "string", "nullable": True, "format": "int64", "xml": {}}, {"type": ["string", "null"]}, []),
        (
            {"type": "string", "enum": ["a"], "nullable": True},
            {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
            [],
        ),
        ({"pattern": "(?=a)b", "format": "regex"}, {}, ["the pattern (?=a)b"]),
        ({"multipleOf": 1e-12, "unevaluatedItems": False}, {}, ["the multipleOf 1e-12", "the keyword unevaluatedItems"]),
        ({"minimum": 1, "exclusiveMinimum": True}, {"minimum": 1}, ["exclusiveMinimum: true, so the bound itself is allowed"]),
        ({"items": [{"type": "null"}], "additionalItems": False}, {"prefixItems": [{"type": "null"}], "items": False}, []),
        ({"$ref": "#/definitions/A~1b", "title": "x"}, {"$ref": "#/$defs/A_1b", "$defs": {"A_1b": {"type": "integer"}}}, []),
    ],
)
def test_a_schema_is_translated(source: Any, translated: Any, left_out: list[str]) -> None:
    schemas = SchemaImport({"definitions": {"A/b": {"type": "integer"}}}, SchemaBudget())
    assert (schemas.schema(source), [*schemas.left_out]) == (translated, left_out)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"$ref": "other.json#/A"}, "another document"),
        ({"$ref": "#/A/b"}, "does not exist"),
        ({"$ref": "#/Loop"}, "refers to itself through Loop"),
        ({"$dynamicRef": "#a"}, r"\$dynamicRef"),
        ({"type": "file"}, "not valid"),
        ({"properties": []}, "properties"),
        ({"items": 3}, "no object"),
    ],
)
def test_a_schema_without_a_translation_has_a_reason(source: Any, reason: str) -> None:
    with pytest.raises(Inexpressible, match=reason):
        SchemaImport({"Loop": {"items": {"$ref": "#/Loop"}}}, SchemaBudget()).schema(source)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "pattern": "^[A-Z]{3}-(?:x|y)\\d+$"}, "AAA-x0"),
        ({"type": "string", "pattern": "^[^a]+$", "minLength": 3}, "AAA"),
        ({"type": "number", "exclusiveMinimum": 2, "multipleOf": 0.5}, 2.5),
        ({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
        ({"type": ["null", "string"], "format": "date", "maxLength": 10}, "2027-01-02"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "uniqueItems": True}, [1, 2]),
        ({"oneOf": [{"not": {}}, {"const": 4}]}, 4),
        ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "boolean"}}, {"name0": True}),
        ({"allOf": [{"properties": {"a": {"default": 3}}}, {"required": ["a"]}]}, {"a": 3}),
        # A member that is not required spoils the full object, so it is left out.
        ({"type": "object", "properties": {"a": {"not": {}}}}, {}),
    ],
)
def test_an_example_fits_its_schema(schema: Any, value: Any) -> None:
    assert example_of(schema, compile_schema(schema)) == value


def test_a_schema_that_nothing_fits_has_no_example() -> None:
    with pytest.raises(Inexpressible, match="none can be guessed"):
        example_of({"minLength": 10**9, "type": "string"}, compile_schema({"minLength": 10**9, "type": "string"}))


def test_a_stated_licence_is_kept() -> None:
    stated = {"Apache 2.0": "Apache-2.0", "MIT": "MIT", "": "LicenseRef-not-stated", "Ours, ©": "LicenseRef-Ours"}
    assert {text: licence_of(text) for text in stated} == stated


async def test_a_tool_with_another_form_is_listed(tmp_path: Path) -> None:
    tools = [7, {"name": "no_schema"}, *TIME_TOOLS["result"]["tools"]]
    result = await imported("mcp", {"tools": tools, "nextCursor": "x"}, tmp_path / "tools")
    assert [one.place for one in result.omissions] == ["tool 1", "tool no_schema", "the next page"]
    assert tomllib.loads((tmp_path / "tools" / "protocol.toml").read_text())["summary"] == "Call getCurrentTime, convertTime."


@asynccontextmanager
async def serving(loopback: Loopback, replies: Mapping[str, bytes]) -> AsyncIterator[list[str]]:
    """A host that answers each request by the path of its first line, or by the method of JSON-RPC in its body. Yields those that
    arrived."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    loopback.authority.issue_cert("pets.example").configure_cert(tls)
    requests: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r")[0] or 0)
        request = json.loads(await reader.readexactly(length) or b"{}")
        requests.append(request.get("method") or head.split()[1])
        body = replies[requests[-1]].replace(b'"ID"', str(request.get("id")).encode())
        status = b"302 Found\r\nLocation: /pets.json" if body == b"elsewhere" else b"200 OK"
        header = b"Content-Type: application/json\r\nContent-Length: %d" % len(body)
        writer.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, header, body))
        with suppress(ConnectionError):  # of a body that the reader cuts
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    loopback.addresses["pets.example"] = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield requests
    finally:
        server.close()


async def test_a_url_is_fetched_by_the_rules_for_strangers(tmp_path: Path) -> None:
    loopback = Loopback(tmp_path)
    listed = json.dumps({"jsonrpc": "2.0", "id": "ID", "result": TIME_TOOLS["result"]}).encode()
    begun = json.dumps({"jsonrpc": "2.0", "id": "ID", "result": {"protocolVersion": "2025-06-18"}}).encode()
    replies = {
        "/pets.json": json.dumps(PETSTORE).encode(),
        "/moved": b"elsewhere",
        "/large": b" " * (MAX_SOURCE + 1),
        "server/discover": b"",
        "initialize": begun,
        "notifications/initialized": b"",
        "tools/list": listed,
    }
    async with serving(loopback, replies) as requests:
        network = loopback.network()
        description, data = await read_source("openapi", "https://pets.example/pets.json", network)
        assert (len(description.operations), data) == (18, replies["/pets.json"])
        tools, _ = await read_source("mcp", "https://pets.example/mcp", network, ["convert_time"])
        assert [operation.wish for operation in tools.operations] == ["convert_time"]
        for place in ("https://pets.example/moved", "https://pets.example/large"):
            with pytest.raises(TreatyError):
                await read_source("openapi", place, network)
        assert requests == [
            "/pets.json",
            "server/discover",
            "initialize",
            "notifications/initialized",
            "tools/list",
            "/moved",
            "/large",
        ]
        # Neither without encryption nor at an address of this machine, which only `--resolve` may name.
        for place in ("http://pets.example/pets.json", "https://127.0.0.1/pets.json", "https://localhost/pets.json"):
            with pytest.raises(TreatyError):
                await read_source("openapi", place, network)
        assert len(requests) == 7
    with pytest.raises(NotFound, match="No such file"):
        await read_source("openapi", str(tmp_path / "none.json"), network)
