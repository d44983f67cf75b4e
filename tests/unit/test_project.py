"""A protocol's folder: what load_project takes from it, and what it says when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rejections import rejection
from sandboxed import PROTOCOLS, write_project

from treaty_client.protocols.project import load_project
from treaty_consensus.errors import NotFound, Refused, TreatyError
from treaty_consensus.handler import read_wheel
from treaty_sandbox import SandboxLimits, SandboxPool, run_vectors

URI = "https://registry.example/protocols/example.com/product-info/1.0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of product-info 1.0 that a test may spoil, with a handler that has code."""
    return write_project(tmp_path / "product-info")


def test_a_good_project(folder: Path) -> None:
    project = load_project(folder)
    assert (project.name, project.version, project.topic, project.origin) == (
        "product-info",
        "1.0",
        "commerce/product-info",
        "negotiated",
    )
    assert project.card.title == "Product information"
    assert project.document == (folder / "document.md").read_bytes()
    assert len(project.protocol_hash) == 64
    assert project.handler is not None
    assert set(project.handler.sources) == {"__init__.py", "messages.py", "provider.py", "requester.py"}
    assert [vector.name for vector in project.vectors] == sorted(path.name for path in (folder / "vectors").iterdir())


def test_the_wheel_is_bound_to_uri_and_hash_reproducibly(folder: Path) -> None:
    project = load_project(folder)
    filename, wheel = project.build_wheel(URI)
    package = read_wheel(filename, wheel)
    assert filename == "treaty_handler_product_info-1.0-py3-none-any.whl"
    assert (package.manifest.protocol_uri, package.manifest.protocol_hash) == (URI, project.protocol_hash)
    assert load_project(folder).build_wheel(URI) == (filename, wheel)
    assert project.build_wheel(URI.replace("example.com", "other.example"))[1] != wheel
    for other in (URI.replace("/1.0", "/1.1"), URI.replace("product-info", "other"), "https://registry.example/"):
        with pytest.raises(TreatyError):
            project.build_wheel(other)


def test_a_manifest_with_messages_is_a_handler_without_code() -> None:
    project = load_project(PROTOCOLS / "1.0")
    assert project.handler is not None
    assert (project.handler.sources, project.handler.entry_point) == ({}, "treaty_handler.declarative:handler")
    package = read_wheel(*project.build_wheel(URI))
    assert package.is_declarative
    files = {"manifest.json", "vectors", "METADATA", "WHEEL", "RECORD", "entry_points.txt"}
    assert {path.split("/")[1] for path in package.files} == files


@pytest.mark.parametrize("section", ['entry-point = "treaty_handler_product_info:handler"', 'source = "../handler"', ""])
def test_messages_beside_code_are_refused(folder: Path, section: str) -> None:
    manifest = json.loads((PROTOCOLS / "1.0" / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest))
    toml = (PROTOCOLS / "1.0" / "protocol.toml").read_text()
    (folder / "protocol.toml").write_text(f"{toml}\n[handler]\n{section}\n")
    if not section:
        (folder.parent / "handler").rename(folder / "handler")
    with pytest.raises(TreatyError, match="the handler has no code") as caught:
        load_project(folder)
    assert caught.value.code == "project.file"


def test_code_needs_an_entry_point(folder: Path) -> None:
    toml = (PROTOCOLS / "1.0" / "protocol.toml").read_text()
    (folder / "protocol.toml").write_text(f"{toml}\n[handler]\n")
    with pytest.raises(TreatyError, match="no entry-point"):
        load_project(folder)


def test_traces_of_running_it_stay_out(folder: Path) -> None:
    source = folder.parent / "handler"
    expected = load_project(folder).build_wheel(URI)
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "messages.cpython-311.pyc").write_bytes(b"\0")
    (source / ".hidden").write_bytes(b"\0")
    (source / ".git").mkdir()
    (source / ".git" / "config").write_text("")
    assert load_project(folder).build_wheel(URI) == expected
    (source / "fast.so").write_bytes(b"\x7fELF")
    with pytest.raises(TreatyError) as caught:
        load_project(folder).build_wheel(URI)
    assert caught.value.code == "handler.package"


def test_a_handler_may_have_a_version_of_its_own(folder: Path) -> None:
    toml = folder / "protocol.toml"
    toml.write_text(toml.read_text().replace("[handler]\n", '[handler]\nversion = "1.0.post2"\n'))
    assert load_project(folder).build_wheel(URI)[0] == "treaty_handler_product_info-1.0.post2-py3-none-any.whl"


def test_a_protocol_may_have_no_handler(folder: Path) -> None:
    toml = folder / "protocol.toml"
    toml.write_text(toml.read_text().split("[handler]")[0])
    with pytest.raises(TreatyError, match="neither code nor forms"):
        load_project(folder)
    (folder / "manifest.json").unlink()
    project = load_project(folder)
    assert project.handler is None
    with pytest.raises(NotFound, match="has no handler"):
        project.build_wheel(URI)


@pytest.mark.parametrize(
    ("old", "new", "code", "phrase"),
    [
        ('name = "product-info"', 'name = "Product Info"', "project.file", "name"),
        ('name = "product-info"\n', "", "project.file", "name"),
        ('name = "product-info"', "name = 7", "project.file", "name"),
        ('name = "product-info"', 'nom = "product-info"', "project.file", "nom"),
        ('version = "1.0"', 'version = "1.0.0-beta"', "protocol.name", "1.0.0b0"),
        ('topic = "commerce/product-info"', 'topic = "Commerce"', "project.file", "topic"),
        ('origin = "negotiated"', 'origin = "invented"', "project.file", "origin"),
        ('title = "Product information"', 'title = ""', "card.form", "title"),
        ('tags = ["commerce", "catalogue", "json"]', 'tags = ["A B"]', "card.form", "tags"),
        ('licence = "Apache-2.0"', "", "project.file", "licence"),
        ('source = "../handler"', 'source = "../.."', "project.file", "source"),
        ('source = "../handler"', 'source = "/etc"', "project.file", "source"),
        ('source = "../handler"', 'source = "nowhere"', "project.file", "__init__.py"),
        ("entry-point", "entry_point", "project.file", "entry"),
        ('licence = "Apache-2.0"', 'licence = "Apache-2.0"\naliases = ["two words"]', "project.file", "aliases"),
        ('licence = "Apache-2.0"', 'licence = "Apache-2.0"\naliases = ["urn:a", "urn:a"]', "project.file", "aliases"),
        ("[handler]", "[handler", "project.file", "protocol.toml"),
    ],
)
def test_a_description_that_is_wrong(folder: Path, old: str, new: str, code: str, phrase: str) -> None:
    toml = folder / "protocol.toml"
    assert old in toml.read_text()
    toml.write_text(toml.read_text().replace(old, new, 1))
    with pytest.raises(TreatyError) as caught:
        load_project(folder)
    assert caught.value.code == code, caught.value
    assert phrase in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("protocol.toml", None, "project.file: No such file"),
        ("document.md", None, "project.file: No such file"),
        ("manifest.json", None, "project.file: No such file"),
        ("document.md", b"", "document.text"),
        ("document.md", b"\xff", "document.text"),
        ("document.md", b"x" * 300_000, "project.file: more than"),
        ("protocol.toml", b"\xff", "project.file"),
        ("protocol.toml", b"a = " + b"[" * 20_000, "project.file"),
        ("manifest.json", b"[]", "project.file"),
        ("manifest.json", b"{", "project.file"),
        ("vectors/bad.json", b"{}", "vector.form"),
        ("vectors/bad.json", b'{"title": "", "role": "provider", "steps": []}', "vector.form"),
        (
            "vectors/bad.json",
            b'{"title": "", "role": "provider", "steps": [{"event": {"wait": {}}, "effects": []}]}',
            "vector.form",
        ),
    ],
)
def test_a_file_that_is_wrong(folder: Path, name: str, content: bytes | None, code: str) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TreatyError) as caught:
        load_project(folder)
    assert rejection(caught.value, code) == code, caught.value


@pytest.mark.parametrize("name", ["document.md", "manifest.json", "vectors/stolen.json", "../handler/stolen.json"])
def test_a_link_that_leads_out_of_its_folder_is_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "product-info" / "identity.json"
    secret.write_text('{"seed": "secret"}')
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(Refused) as caught:
        load_project(folder)
    assert caught.value.code == "project.file" and (folder / name).name in caught.value.message


def test_a_link_inside_its_folder_is_followed(folder: Path) -> None:
    expected = load_project(folder)
    (folder / "document.md").rename(folder / "text.md")
    (folder / "document.md").symlink_to("text.md")
    assert load_project(folder).protocol_hash == expected.protocol_hash


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        load_project(tmp_path / "nowhere")
    assert "treaty new DIR" in caught.value.fix


async def test_a_vector_that_a_handler_does_not_reproduce_is_reported(folder: Path) -> None:
    vector = folder / "vectors" / "provider-hit.json"
    vector.write_text(vector.read_text().replace('"Success"', '"Splendid"'))
    project = load_project(folder)
    package = read_wheel(*project.build_wheel(URI))
    async with SandboxPool(size=0, levels=("none",)) as pool:
        mismatches = await run_vectors(pool, package, project.vectors)
    assert [(mismatch.vector, mismatch.step, mismatch.moved) for mismatch in mismatches] == [("provider-hit.json", 2, False)]
    assert "Splendid" in json.dumps(mismatches[0].expected)
    assert "Success" in json.dumps(mismatches[0].actual)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("file", "old", "new", "phrase"),
    [
        ("requester.py", "TIMEOUT: Final = 15.0", "TIMEOUT: Final = 14.0", "14.0"),
        ("provider.py", "Invoke(call=call", 'Invoke(call="a b"', "handler.failed"),
        ("messages.py", "raise ValueError", "raise SystemExit", "handler.failed"),
        ("provider.py", '"open": self._open', '"open": {}', "after a snapshot"),
        ("provider.py", "        return []\n", "        while True: pass\n", "sandbox.limit"),
    ],
)
async def test_vectors_find_what_is_broken(folder: Path, file: str, old: str, new: str, phrase: str) -> None:
    path = folder.parent / "handler" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    project = load_project(folder)
    package = read_wheel(*project.build_wheel(URI))
    async with SandboxPool(size=1, limits=SandboxLimits(event=0.3)) as pool:
        mismatches = await run_vectors(pool, package, project.vectors)
    assert phrase in " ".join(map(str, mismatches))
