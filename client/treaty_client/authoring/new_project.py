"""Write the files of a new project, from the templates in the folder `templates`.

    templates/protocol.toml, handler.toml        for each protocol, and for each one with code
    templates/KIND/document.md, vectors          KIND: request, stream, event or shared
    templates/KIND/declarative, …/python         manifest and handler

In a template `@name@`, `@topic@`, `@title@`, `@summary@` and `@package@` are replaced. Then the front matter and the generated
part of the document are written. A new project with a summary of its author passes `treaty test`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Conflict, Malformed
from treaty_consensus.protocol import is_name, is_topic
from treaty_io import durable

from ..protocols.project import DOCUMENT, MANIFEST
from ..protocols.project_file import TOML, package_of
from .document import write_document
from .template_text import PLACEHOLDER, TEMPLATES

Kind = Literal["request", "stream", "event", "shared"]
Form = Literal["declarative", "python"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORMS: tuple[Form, ...] = get_args(Form)
_ONLY_CODE: tuple[Form, ...] = ("python",)
MAX_SUMMARY = 200
"""Characters of the summary of a new project."""


def forms_of(kind: str) -> tuple[Form, ...]:
    """Return the forms that a kind may have, the usual one first. A shared role needs code."""
    return _ONLY_CODE if kind == "shared" else FORMS


@dataclass(frozen=True, slots=True)
class NewProtocol:
    """The choices for a new project. `form`: message forms in the manifest, or a handler in Python. `summary`: one sentence; its
    author has to replace the one of a template before the project passes `treaty test`."""

    name: str
    topic: str
    kind: Kind = "request"
    form: Form = "declarative"
    summary: str = PLACEHOLDER

    def __post_init__(self) -> None:
        """Raises `Malformed` (`system.usage`)."""
        choices = [
            ("name", is_name(self.name), "lower-case letters and digits, joined by -", "weather-report"),
            ("topic", is_topic(self.topic), "one to four names, joined by /", "science/weather-report"),
            ("kind", self.kind in KINDS, " or ".join(KINDS), KINDS[0]),
            ("form", self.form in forms_of(self.kind), " or ".join(forms_of(self.kind)), forms_of(self.kind)[0]),
            ("summary", self._has_summary, f"one line of 1 to {MAX_SUMMARY} characters", "'Ask a station for its weather.'"),
        ]
        for choice, is_legal, allowed, example in choices:
            if not is_legal:
                fault = f"{choice} = {getattr(self, choice)!a:.80} is not {allowed}."
                raise Malformed(SystemCode.USAGE, fault, fix=f"Write, for example: --{choice} {example}")

    @property
    def _has_summary(self) -> bool:
        return 0 < len(self.summary) <= MAX_SUMMARY and self.summary.isprintable()

    @property
    def title(self) -> str:
        """The name as a title."""
        return self.name.replace("-", " ").capitalize()


def write_project(folder: Path, new: NewProtocol) -> list[Path]:
    """Write the project and return its files. The folder is made, or must be empty. Raises `Conflict` (`system.exists`).

    A crash leaves a part of the files; delete the folder then.
    """
    paths = write_files(folder, _project_files(new))
    write_document(folder)
    return paths


def write_files(folder: Path, contents: Mapping[str, str]) -> list[Path]:
    """Write a project, path → text, as `write_project` does."""
    check_free(folder)
    for path, text in contents.items():
        durable.write(folder / path, text.encode())
    return [folder / path for path in contents]


def check_free(folder: Path) -> None:
    """Check that a folder can become a new project. Raises `Conflict` (`system.exists`)."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Conflict(SystemCode.EXISTS, f"{folder} exists and is not empty.", fix="Name a new folder.")


def project_head(new: NewProtocol) -> str:
    """Return the protocol.toml of a protocol without code."""
    head = (TEMPLATES / "protocol.toml").read_text(encoding="utf-8")
    # The JSON of a printable text is TOML too.
    return _filled(head.replace('"@summary@"', json.dumps(new.summary, ensure_ascii=False)), new)


def _project_files(new: NewProtocol) -> dict[str, str]:
    parts = {TOML: project_head(new)}
    if new.form == "python":
        parts[TOML] += _filled((TEMPLATES / "handler.toml").read_text(encoding="utf-8"), new)
    of_kind, of_form = TEMPLATES / new.kind, TEMPLATES / new.kind / new.form
    texts = {path: (folder / path).read_text(encoding="utf-8") for folder, path in ((of_kind, DOCUMENT), (of_form, MANIFEST))}
    # Both forms speak the same messages, so one set of vectors holds for both.
    for folder in (of_form / "handler", of_kind / "vectors"):
        if folder.is_dir():
            for file in sorted(folder.iterdir(), key=lambda file: file.name):
                # Sources have another ending here, so that no tool takes them for modules of this package.
                texts[f"{folder.name}/{file.name.removesuffix('.txt')}"] = file.read_text(encoding="utf-8")
    return parts | {path: _filled(text, new).replace("@summary@", new.summary) for path, text in texts.items()}


def _filled(text: str, new: NewProtocol) -> str:
    # Names, topics and plain words, which TOML, Markdown and JSON read as they are.
    values = {"name": new.name, "topic": new.topic, "title": new.title, "package": package_of(new.name)}
    for name, value in values.items():
        assert json.dumps(value) == f'"{value}"'
        text = text.replace(f"@{name}@", value)
    return text
