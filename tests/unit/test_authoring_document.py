"""A document that cannot lie: its part is the manifest's, its prose is compared with it, and a template's text is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from treaty_client.authoring.building import build
from treaty_client.authoring.check import check_project
from treaty_client.authoring.document import document_problems, renewed_document, write_document
from treaty_client.authoring.new_project import NewProtocol, write_project
from treaty_client.protocols.project import load_project
from treaty_consensus.protocol import PART_BEGIN, PART_END

ROOT = Path(__file__).parents[2]
GREETING = ROOT / "examples" / "greeting"


def problems(folder: Path) -> list[str]:
    project = load_project(folder)
    faults = document_problems(project, build(project) if project.handler is not None else None)
    return [f"{problem.file} {problem.field}: {problem.error.message}" for problem in faults]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def greeting(tmp_path: Path) -> Path:
    """A copy of the greeting."""
    return shutil.copytree(GREETING, tmp_path / "greeting")


@pytest.mark.parametrize(
    "folder",
    [path.parent for place in ("protocols", "examples") for path in sorted((ROOT / place).rglob("protocol.toml"))],
    ids=lambda folder: folder.relative_to(ROOT).as_posix(),
)
def test_each_protocols_document_fits_its_manifest(folder: Path) -> None:
    assert PART_BEGIN in load_project(folder).document.decode()
    assert problems(folder) == [], f"treaty document {folder.relative_to(ROOT)}"


def test_the_part_has_the_whole_manifest_and_examples(greeting: Path) -> None:
    text = (greeting / "document.md").read_text()
    part = text.partition(PART_BEGIN)[2].partition(PART_END)[0]
    manifest = json.loads((greeting / "manifest.json").read_text())
    assert all(f"`{role}`" in part for role in manifest["roles"])
    assert all(f"| {code} | {meaning} |" in part for code, meaning in manifest["operations"]["greet"]["errors"].items())
    assert '{"greeting": "$result", "id": "$id", "type": "response"}' in part
    assert '"type": "response", "greeting": "Hello, Ada!"}' in part
    assert '"maxLength": 500' in part


def test_front_matter_keeps_the_authors_lines(greeting: Path) -> None:
    edit(greeting / "document.md", "---\n\n#", "description: >\n  an old one,\n  on two lines\nlicence: Apache-2.0\n---\n\n#")
    edit(greeting / "protocol.toml", 'summary = "', 'summary = "\\"Hello\\": ')
    assert len(problems(greeting)) == 1
    assert write_document(greeting)
    lines = (greeting / "document.md").read_text().splitlines()[:5]
    summary = load_project(greeting).card.summary
    assert lines == ["---", "name: greeting", f"description: {json.dumps(summary)}", "licence: Apache-2.0", "---"]
    assert problems(greeting) == []
    assert not write_document(greeting)


def test_the_authors_text_stays_and_gets_missing_marks(greeting: Path) -> None:
    own = "# Greeting\n\nA guest greets a host by `greet`, \\1 and \\g<0> are no escapes.\n"
    (greeting / "document.md").write_text(own)
    write_document(greeting)
    text = (greeting / "document.md").read_text()
    assert own in text and text.endswith(f"{PART_END}\n")
    (greeting / "document.md").write_text(text.replace(f"{PART_END}\n", f"{PART_END}\n\n## After\n"))
    edit(greeting / "manifest.json", '"maxLength": 500', '"maxLength": 501')
    assert write_document(greeting)
    text = (greeting / "document.md").read_text()
    assert own in text and text.endswith("## After\n") and '"maxLength": 501' in text and '"maxLength": 500' not in text


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("manifest.json", '"403":', '"409":'),
        ("manifest.json", '"maxLength": 500', '"maxLength": 600'),
        ("manifest.json", '"timeout": 10', '"timeout": 11'),
        ("manifest.json", '"greeting": "$result"', '"words": "$result"'),
        ("protocol.toml", 'summary = "', 'summary = "Never '),
        ("document.md", "within 10 seconds", "within 9 seconds"),
    ],
)
def test_a_document_of_another_manifest_is_refused(greeting: Path, file: str, old: str, new: str) -> None:
    edit(greeting / file, old, new)
    project = load_project(greeting)
    [problem] = [problem for problem in document_problems(project, build(project)) if "generated part" in problem.error.message]
    assert problem.file == "document.md" and problem.field.startswith("line ")
    assert (problem.error.code, problem.error.fix) == ("project.file", f"treaty document {greeting}")
    write_document(greeting)
    assert problems(greeting) == []


async def test_another_manifest_below_a_template_is_refused(tmp_path: Path) -> None:
    """As a newcomer published by accident: the text told of a provider of items, the manifest of a carrier."""
    folder = tmp_path / "tracking"
    write_project(folder, NewProtocol("tracking", "logistics/tracking", "stream"))
    assert {problem.field for problem in (await check_project(folder)).problems} == {"summary", "line 8"}
    edit(folder / "protocol.toml", "Say in one sentence what this protocol is for.", "Track parcels.")
    edit(folder / "document.md", "Say in one sentence what this protocol is for.", "Track parcels.")
    write_document(folder)
    assert (await check_project(folder)).passed
    for file in [folder / "manifest.json", *(folder / "vectors").iterdir()]:
        text = file.read_text().replace("requester", "recipient").replace("provider", "carrier").replace("findItems", "track")
        file.write_text(text)
    write_document(folder)
    check = await check_project(folder)
    messages = [problem.error.message for problem in check.problems]
    assert [text.partition("name the ")[2] for text in messages[:3]] == ["role carrier.", "role recipient.", "operation track."]
    assert "this paragraph is the template's" in messages[3] and len(messages) == 4


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ('{"id": "1", "type": "request", "name": 7}', "name"),
        ('{"id": "1", "type": "hello"}', "type"),
        ('{"id": "1", "type": "request", "name": "Ada"', "no JSON"),
        ('{"id": "1", "type": "request", "name": "Ada"}\n{"id": "1"}', ""),
    ],
)
def test_an_example_that_fits_no_form_is_refused_with_its_line(greeting: Path, block: str, reason: str) -> None:
    good = '{"id": "1", "type": "request", "name": "Ada"}\n{"id": "1", "type": "response", "greeting": "Hello."}'
    schema = '{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "string"}'
    for text in (good, schema):
        edit(greeting / "document.md", "## Errors", f"```json\n{text}\n```\n\n## Errors")
    assert problems(greeting) == []
    edit(greeting / "document.md", "## Errors", f"```json\n{block}\n```\n\n## Errors")
    [problem] = problems(greeting)
    line = (greeting / "document.md").read_text().partition(f"```json\n{block}\n```")[0].count("\n") + 1
    assert f"line {line}" in problem and "fits no form" in problem and reason in problem
    edit(greeting / "document.md", f"```json\n{block}", f"```text\n{block}")
    assert problems(greeting) == []


def test_a_document_without_handler_may_lack_the_part(greeting: Path) -> None:
    (greeting / "document.md").write_text("# Anything\n")
    assert problems(greeting) == []  # negotiated: two agents agreed on these bytes
    edit(greeting / "protocol.toml", '"negotiated"', '"standard"')
    [problem] = problems(greeting)
    assert "has no part that is generated" in problem
    (greeting / "manifest.json").unlink()
    assert problems(greeting) == []
    project = load_project(greeting)
    assert renewed_document(project, None).endswith(b"---\n\n# Anything\n")
