"""The check of a project: every problem at once with its place and its fix, the vectors in the sandbox, and their coverage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sandboxed import write_project

from treaty_client.authoring.building import build
from treaty_client.authoring.check import ProtocolCheck, check_package, check_project
from treaty_client.authoring.coverage import CoverageCell
from treaty_client.authoring.document import write_document
from treaty_client.authoring.manifest import manifest_problems
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import TreatyError

GREETING = Path(__file__).parents[2] / "examples" / "greeting"


@pytest.fixture
def greeting(tmp_path: Path) -> Path:
    """A copy of the greeting, which has no code, with one vector for each role."""
    shutil.copytree(GREETING, tmp_path / "greeting", ignore=shutil.ignore_patterns("*-errors.json"))
    write_document(tmp_path / "greeting")
    return tmp_path / "greeting"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of product-info 1.0 with a handler that has code, in ../handler."""
    return write_project(tmp_path / "product-info")


def places(check: ProtocolCheck) -> set[tuple[str, str]]:
    return {(problem.file, problem.field) for problem in check.problems}


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def test_a_good_project_passes_with_its_coverage(folder: Path) -> None:
    (folder / "vectors" / "provider-errors.json").unlink()
    write_document(folder)
    check = await check_project(folder)
    assert check.passed
    assert check.coverage is not None
    assert check.coverage.reached[CoverageCell("provider", "getProductInfo", "success")] == 2
    assert CoverageCell("provider", "getProductInfo", "404") in check.coverage.reached
    assert CoverageCell("provider", "getProductInfo", "401") in check.coverage.missed
    assert not check.coverage.unreached


@pytest.mark.parametrize(
    "shipped", ["examples/greeting", "examples/appointment", "protocols/product-info/1.0", "protocols/product-info/1.1"]
)
async def test_the_vectors_of_a_shipped_protocol_reach_every_outcome(shipped: str) -> None:
    check = await check_project(Path(__file__).parents[2] / shipped)
    assert check.passed
    assert check.coverage is not None
    assert check.coverage.missed == ()


async def test_all_problems_of_all_files_are_reported_at_once(folder: Path) -> None:
    edit(folder / "protocol.toml", ('origin = "negotiated"', 'origin = "me"'), ("title =", "titel ="))
    edit(folder / "manifest.json", ('"timeout": 15', '"timeout": "ten"'), ('"peer": "provider"', '"peer": "shop"'))
    (folder.parent / "handler" / "provider.py").write_text("def (\n")
    (folder / "vectors" / "empty.json").write_text("{}")
    edit(folder / "vectors" / "provider-hit.json", ('"role": "provider"', '"role": "seller"'))
    (folder / "document.md").write_bytes(b"\xff")
    before = snapshot(folder)
    check = await check_project(folder)
    assert {
        ("protocol.toml", "origin"),
        ("protocol.toml", "titel"),
        ("protocol.toml", "title"),
        ("document.md", ""),
        ("manifest.json", "operations.getProductInfo.timeout"),
        ("manifest.json", "roles.requester.peer"),
        ("vectors/empty.json", ""),
        ("vectors/provider-hit.json", "role"),
    } <= places(check)
    assert not check.passed
    assert snapshot(folder) == before
    by_place = {(problem.file, problem.field): problem.error for problem in check.problems}
    origin = by_place["protocol.toml", "origin"]
    assert "negotiated" in origin.message
    assert "standard" in origin.message
    assert origin.fix == 'Write, for example: origin = "negotiated"'
    assert "seconds from 1 to 86400" in by_place["manifest.json", "operations.getProductInfo.timeout"].message
    assert by_place["protocol.toml", "titel"].fix == "Write title."
    assert all(error.fix for place, error in by_place.items() if place[0] in ("protocol.toml", "manifest.json"))


async def test_a_source_that_does_not_parse_is_reported_with_its_line(folder: Path) -> None:
    (folder.parent / "handler" / "provider.py").write_text("x = 1\ndef (\n")
    assert places(await check_project(folder)) == {("../handler/provider.py", "line 2")}


async def test_each_file_that_breaks_a_rule_for_packages_is_reported(folder: Path) -> None:
    for name in ("one.so", "two.pyc"):
        (folder.parent / "handler" / name).write_bytes(b"x")
    (folder / "vectors" / "a b.json").write_bytes((folder / "vectors" / "provider-hit.json").read_bytes())
    check = await check_project(folder)
    assert {file for file, _ in places(check)} == {"../handler/one.so", "../handler/two.pyc", "vectors/a b.json"}


@pytest.mark.parametrize("name", ["appointment", "product_info", "treaty_handler_product_info"])
async def test_the_name_of_the_package_is_told(folder: Path, name: str) -> None:
    edit(folder / "protocol.toml", ("treaty_handler_product_info:handler", f"{name}:handler"))
    edit(folder / "protocol.toml", ('name = "product-info"', 'name = "appointment"'))
    (problem,) = (await check_project(folder)).problems
    assert (problem.file, problem.field) == ("protocol.toml", "[handler] entry-point")
    assert 'entry-point = "treaty_handler_appointment:handler"' in problem.error.fix


async def test_a_failed_vector_shows_its_step(folder: Path) -> None:
    edit(folder / "vectors" / "provider-hit.json", ('"Success"', '"Splendid"'))
    check = await check_project(folder)
    (mismatch,) = check.mismatches
    assert (mismatch.vector, mismatch.step, mismatch.moved, mismatch.error) == ("provider-hit.json", 2, False, "")
    assert "Splendid" in json.dumps(mismatch.expected)
    assert "Success" in json.dumps(mismatch.actual)
    assert not check.passed
    assert not check.problems


async def test_a_handler_that_raises_is_shown_with_its_error(folder: Path) -> None:
    edit(folder.parent / "handler" / "provider.py", ("Invoke(call=call", 'Invoke(call="a b"'))
    check = await check_project(folder)
    assert any("handler.failed" in mismatch.error for mismatch in check.mismatches)


async def test_a_handler_that_does_not_import_is_reported_once(folder: Path) -> None:
    (folder.parent / "handler" / "__init__.py").write_text("raise ValueError('no')\n")
    check = await check_project(folder)
    assert [problem.error.code for problem in check.problems] == ["handler.failed"]
    assert not check.mismatches


async def test_without_vectors_publishing_would_refuse(greeting: Path) -> None:
    shutil.rmtree(greeting / "vectors")
    write_document(greeting)
    check = await check_project(greeting)
    assert [problem.error.code for problem in check.problems] == ["vector.differs"]
    assert "greet as guest, greet as host" in check.problems[0].error.message
    assert (await check_project(greeting, allow_uncovered=True)).passed


async def test_a_role_that_no_vector_plays_is_not_reached(greeting: Path) -> None:
    (greeting / "vectors" / "host.json").unlink()
    write_document(greeting)
    check = await check_project(greeting)
    assert [problem.error.code for problem in check.problems] == ["vector.differs"]
    assert check.coverage is not None
    assert check.coverage.unreached == (("host", "greet"),)


async def test_a_vector_that_only_names_an_operation_reaches_nothing(greeting: Path) -> None:
    """A call without its return, and an invocation without its result."""
    for path in (greeting / "vectors").iterdir():
        vector = json.loads(path.read_text())
        vector["steps"] = vector["steps"][:1] if vector["role"] == "guest" else vector["steps"][2:3]
        path.write_text(json.dumps(vector))
    check = await check_project(greeting)
    assert not check.mismatches
    assert check.coverage is not None
    assert len(check.coverage.unreached) == 2


@pytest.mark.deep
async def test_a_package_contains_its_vectors(folder: Path) -> None:
    project = load_project(folder)
    package = build(project)
    assert set(package.vectors) == {vector.name for vector in project.vectors}
    report = await check_package(package)
    assert report.passed
    assert report.coverage == (await check_project(folder)).coverage


async def test_a_package_whose_vectors_do_not_hold_is_told_apart(folder: Path) -> None:
    edit(folder / "vectors" / "provider-hit.json", ('"Success"', '"Splendid"'))
    report = await check_package(build(load_project(folder)))
    assert not report.passed
    assert [mismatch.vector for mismatch in report.mismatches] == ["provider-hit.json"]


VALID: dict[str, Any] = {
    "operations": {
        "get": {"arguments": {"type": "object"}, "result": {}, "errors": {}, "idempotent": True, "timeout": 5},
        "find": {"kind": "stream", "arguments": {"type": "object"}, "result": {}, "errors": {}, "idempotent": True, "timeout": 5},
        "tell": {"kind": "event", "arguments": {"type": "object"}},
    },
    "roles": {
        "asker": {"peer": "giver", "calls": ["get", "find", "tell"], "invokes": []},
        "giver": {"peer": "asker", "calls": [], "invokes": ["get", "find", "tell"]},
    },
}


def test_a_valid_manifest_has_no_problems() -> None:
    assert manifest_problems(VALID) == []


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (["operations"], {}, "operations"),
        (["roles"], [], "roles"),
        (["extra"], 1, "extra"),
        (["operations", "get", "timeout"], 0, "operations.get.timeout"),
        (["operations", "get", "errors"], {"x": "y"}, "operations.get.errors"),
        (["operations", "get", "arguments"], {"type": "array"}, "operations.get.arguments"),
        (["operations", "get", "result"], {"$ref": "http://elsewhere.example"}, "operations.get.result"),
        (["operations", "get", "kind"], "datagram", "operations.get.kind"),
        (["operations", "find", "window"], 0, "operations.find.window"),
        (["operations", "tell", "result"], {}, "operations.tell.result"),
        (["operations", "bad-name"], {}, "operations.bad-name"),
        (["operations", "get"], 7, "operations.get"),
        (["roles", "asker", "peer"], "nobody", "roles.asker.peer"),
        (["roles", "giver", "invokes"], ["get", "get"], "roles.giver.invokes"),
        (["roles", "giver", "calls"], ["none"], "roles.giver.calls"),
        (["roles", "Asker"], VALID["roles"]["asker"], "roles.Asker"),
    ],
)
def test_each_fault_of_a_manifest_has_its_place(path: list[str], value: Any, field: str) -> None:
    manifest = json.loads(json.dumps(VALID))
    part = manifest
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    fields = [problem.field for problem in manifest_problems(manifest)]
    # Without its operations or roles, the rest of a manifest cannot be judged.
    assert field in fields if len(path) == 1 else fields == [field]


def test_two_faults_of_a_manifest_are_two_problems() -> None:
    manifest = json.loads(json.dumps(VALID))
    manifest["operations"]["get"] |= {"timeout": 0, "idempotent": 3}
    del manifest["operations"]["find"]["result"]
    fields = [problem.field for problem in manifest_problems(manifest)]
    assert fields == ["operations.get.idempotent", "operations.get.timeout", "operations.find.result"]


def test_the_first_problem_of_several_says_where_to_see_all(greeting: Path) -> None:
    edit(greeting / "protocol.toml", ('origin = "negotiated"', 'origin = "me"'), ("title =", "titel ="))
    with pytest.raises(TreatyError) as caught:
        load_project(greeting)
    assert f"treaty test {greeting}" in caught.value.fix
