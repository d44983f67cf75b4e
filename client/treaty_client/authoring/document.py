"""Keep a document true: the part that its manifest says is written, and its prose is compared with the manifest.

    ---
    name: greeting                                         front matter, from protocol.toml
    description: "Greet a guest by name."
    ---

    # Greeting                                             the author's own text: what things mean

    <!-- treaty document -->
    ## Messages                                            roles, operations, forms, schemas, errors, examples
    <!-- end of treaty document -->

`treaty document` writes the front matter and the part between the marks, and leaves the rest as it is. The rules:

    1 no sentence of a template is left
    2 front matter and generated part are those of protocol.toml, manifest.json and the vectors
    3 the prose names every role, and every operation whose messages have forms
    4 a JSON example in the prose fits a form

A document of the origin `negotiated` without the marks is left alone: two agents agreed on its bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from treaty_consensus.errors import Refused
from treaty_consensus.handler import HandlerPackage
from treaty_consensus.protocol import PART_BEGIN, PART_END
from treaty_handler import Value
from treaty_io import durable
from treaty_io.codes import ProjectCode
from treaty_sandbox.in_process import DeclarativePackage
from treaty_sandbox.operation_schemas import Operations

from ..protocols.project import DOCUMENT, Project, load_project
from ..protocols.project_file import TOML, ProjectProblem
from .building import build
from .messages_part import messages_part
from .template_text import PLACEHOLDER, stale_paragraph

_FRONT = re.compile(r"\A---\n((?:[A-Za-z][\w-]*:.*\n|[ \t]+.*\n)+)---\n")
# A value may go on in indented lines.
_OWN = re.compile(r"^(?:name|description):.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
_PART = re.compile(rf"^{PART_BEGIN}\n.*?^{PART_END}$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPACE = re.compile(r"\s*")
_MAX_SHOWN = 80


def write_document(folder: Path) -> bool:
    """Write the document of a project anew. Return whether it changed. Raises the errors of `load_project` and `build`."""
    project = load_project(folder)
    renewed = renewed_document(project, build(project) if project.handler is not None else None)
    if renewed != project.document:
        durable.write(folder / DOCUMENT, renewed)
    return renewed != project.document


def renewed_document(project: Project, package: HandlerPackage | None) -> bytes:
    """Return the document with the front matter and the part that belong to it. `package`: of the project, None without a
    handler, which has no such part. A document without the marks gets the part at its end."""
    text = project.document.decode()
    front = _FRONT.match(text)
    others = _OWN.sub("", front[1]) if front else ""
    description = json.dumps(project.card.summary, ensure_ascii=False)
    rest = text[front.end() :] if front else f"\n{text}"
    if package is not None:
        part = f"{PART_BEGIN}\n{messages_part(package.manifest, project.vectors)}{PART_END}"
        # By a function: a backslash of the part is no escape.
        rest = _PART.sub(lambda _: part, rest, count=1) if _PART.search(rest) else f"{rest.rstrip()}\n\n{part}\n"
    return f"---\nname: {project.name}\ndescription: {description}\n{others}---\n{rest}".encode()


def document_problems(project: Project, package: HandlerPackage | None) -> Iterator[ProjectProblem]:
    """Yield the places where a document differs from its manifest. `package`: of the project, None without a handler."""
    text = project.document.decode()
    if project.card.summary == PLACEHOLDER:
        fix = "Write there in one sentence what the protocol is for, and then: treaty document FOLDER"
        yield ProjectProblem(TOML, "summary", Refused(ProjectCode.FILE, f"{TOML}: the summary is the template's.", fix=fix))
    if PLACEHOLDER in _PART.sub("", _FRONT.sub("", text)):
        yield _problem(text, text.rindex(PLACEHOLDER), "this is the template's text", "Say what the protocol is for.")
    has_part = _PART.search(text) is not None
    if package is None or (project.origin == "negotiated" and not has_part):
        return
    fix = f"treaty document {project.folder}"
    if not has_part:
        yield _problem(text, 0, f"it has no part that is generated from the manifest, between {PART_BEGIN} and {PART_END}", fix)
        return
    renewed = renewed_document(project, package).decode()
    if renewed != text:
        lines = zip_longest(text.split("\n"), renewed.split("\n"))
        number = next(number for number, (old, new) in enumerate(lines) if old != new)
        start = sum(len(line) + 1 for line in text.split("\n")[:number])
        fault = f"its front matter or its generated part is not that of {TOML}, manifest.json and the vectors"
        yield _problem(text, start, fault, fix)
    yield from _prose_problems(text, package)


def _prose_problems(text: str, package: HandlerPackage) -> Iterator[ProjectProblem]:
    # As long as the text, so that places in it are places in the file.
    prose = _PART.sub(
        lambda part: re.sub(r"[^\n]", " ", part[0]), _FRONT.sub(lambda front: re.sub(r"[^\n]", " ", front[0]), text)
    )
    manifest = package.manifest
    for kind, names in (("role", manifest.roles), ("operation", manifest.operations if manifest.messages else {})):
        for name in names:
            if not re.search(rf"(?<![\w-]){re.escape(name)}s?(?![\w-])", prose, re.IGNORECASE if kind == "role" else 0):
                fault = f"its text outside of the marks does not name the {kind} {name}"
                yield _problem(text, 0, fault, "Say there what it is for, or remove it from manifest.json.")
    if (paragraph := stale_paragraph(prose, manifest)) is not None:
        fault = "this paragraph is the template's, and manifest.json no longer is"
        yield _problem(text, prose.index(paragraph), fault, "Describe your protocol.")
    if manifest.messages:
        yield from _example_problems(text, prose, package)


def _example_problems(text: str, prose: str, package: HandlerPackage) -> Iterator[ProjectProblem]:
    forms = DeclarativePackage(package, Operations(package.manifest))
    for block in _EXAMPLE.finditer(prose):
        for value in _values(block[1]):
            if isinstance(value, dict) and "$schema" in value:
                continue
            faults = [forms.handler.validate(value, role) for role in package.manifest.roles]
            if value is None or all(faults):
                reason = "it is no JSON" if value is None else min(faults, key=len)[0]
                fault = f"this example fits no form of manifest.json: {reason.rstrip('.')}"
                fix = "Correct it. A block that shows no message begins with ```text, and a schema has a member $schema."
                yield _problem(text, block.start(), fault, fix)
                break


def _values(block: str) -> Iterator[Value]:
    """Yield the JSON values of a block, one after the other; None for the rest that is no JSON, or is null."""
    decoder, at = json.JSONDecoder(), len(_SPACE.match(block)[0])  # type: ignore[index]  # it matches everywhere
    while at < len(block):
        try:
            value, end = decoder.raw_decode(block, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
        at = _SPACE.match(block, end).end()  # type: ignore[union-attr]  # as above


def _problem(text: str, start: int, fault: str, fix: str) -> ProjectProblem:
    line = f"line {text.count(chr(10), 0, start) + 1}" if start else ""
    where = f"{DOCUMENT}, {line}" if line else DOCUMENT
    return ProjectProblem(DOCUMENT, line, Refused(ProjectCode.FILE, f"{where}: {fault}.", fix=fix))
