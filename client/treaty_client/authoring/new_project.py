"""Write the files of a new project, from the templates in the folder `templates`.

    templates/protocol.toml, handler.toml        for each protocol, and for each one with code
    templates/KIND/document.md, vectors          KIND: request, stream, event or shared
    templates/KIND/declarative, …/python         manifest and handler

In a template `@name@`, `@topic@`, `@title@`, `@summary@` and `@package@` are replaced. A new project passes `treaty test`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, get_args

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Conflict, Malformed
from treaty_consensus.protocol import is_name, is_topic
from treaty_io import durable

from ..protocols.project_file import package_of

Kind = Literal["request", "stream", "event", "shared"]
Form = Literal["declarative", "python"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORMS: tuple[Form, ...] = get_args(Form)
_ONLY_CODE: tuple[Form, ...] = ("python",)
_SUMMARIES: Mapping[Kind, str] = {
    "request": "Ask a provider for an item.",
    "stream": "Ask a provider for items, and get them one by one.",
    "event": "Tell a listener that something happened.",
    "shared": "Post texts in a room, which tells them to all members.",
}


def forms_of(kind: str) -> tuple[Form, ...]:
    """Return the forms that a kind may have, the usual one first. A shared role needs code."""
    return _ONLY_CODE if kind == "shared" else FORMS


@dataclass(frozen=True, slots=True)
class NewProtocol:
    """The choices for a new project. `form`: message forms in the manifest, or a handler in Python."""

    name: str
    topic: str
    kind: Kind = "request"
    form: Form = "declarative"

    def __post_init__(self) -> None:
        """Raises `Malformed` (`system.usage`)."""
        choices = [
            ("name", is_name(self.name), "lower-case letters and digits, joined by -", "weather-report"),
            ("topic", is_topic(self.topic), "one to four names, joined by /", "science/weather-report"),
            ("kind", self.kind in KINDS, " or ".join(KINDS), KINDS[0]),
            ("form", self.form in forms_of(self.kind), " or ".join(forms_of(self.kind)), forms_of(self.kind)[0]),
        ]
        for choice, is_legal, allowed, example in choices:
            if not is_legal:
                fault = f"{choice} = {getattr(self, choice)!a:.80} is not {allowed}."
                raise Malformed(SystemCode.USAGE, fault, fix=f"Write, for example: --{choice} {example}")

    @property
    def title(self) -> str:
        """The name as a title."""
        return self.name.replace("-", " ").capitalize()


def write_project(folder: Path, new: NewProtocol) -> list[Path]:
    """Write the project and return its files. The folder is made, or must be empty. Raises `Conflict` (`system.exists`).

    A crash leaves a part of the files; delete the folder then.
    """
    return write_files(folder, project_files(new))


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


def project_files(new: NewProtocol) -> dict[str, str]:
    """Return the files of a new project, path → text."""
    root = files(__package__) / "templates"
    parts = {"protocol.toml": (root / "protocol.toml").read_text(encoding="utf-8")}
    if new.form == "python":
        parts["protocol.toml"] += (root / "handler.toml").read_text(encoding="utf-8")
    parts["document.md"] = (root / new.kind / "document.md").read_text(encoding="utf-8")
    chosen = root / new.kind / new.form
    parts["manifest.json"] = (chosen / "manifest.json").read_text(encoding="utf-8")
    # Both forms speak the same messages, so one set of vectors holds for both.
    for folder in (chosen / "handler", root / new.kind / "vectors"):
        if folder.is_dir():
            for file in sorted(folder.iterdir(), key=lambda file: file.name):
                # Sources have another ending here, so that no tool takes them for modules of this package.
                parts[f"{folder.name}/{file.name.removesuffix('.txt')}"] = file.read_text(encoding="utf-8")
    return {path: _filled(text, _values(new, _SUMMARIES[new.kind])) for path, text in parts.items()}


def project_head(new: NewProtocol, summary: str) -> str:
    """Return the protocol.toml of a protocol without code. `summary`: printable text."""
    head = (files(__package__) / "templates" / "protocol.toml").read_text(encoding="utf-8")
    # The JSON of a printable text is TOML too.
    return _filled(head.replace('"@summary@"', json.dumps(summary, ensure_ascii=False)), _values(new, ""))


def _values(new: NewProtocol, summary: str) -> dict[str, str]:
    return {
        "name": new.name,
        "topic": new.topic,
        "title": new.title,
        "summary": summary,
        "package": package_of(new.name),
    }


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        # The values are names, topics and plain words, which TOML, Markdown and JSON read as they are.
        assert json.dumps(value) == f'"{value}"'
        text = text.replace(f"@{name}@", value)
    return text
