"""Find text of the templates that is still in a document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from treaty_consensus.handler import Manifest, encode_manifest, parse_manifest

TEMPLATES = files(__package__) / "templates"
PLACEHOLDER = "Say in one sentence what this protocol is for."
"""The summary of a new project that was given none."""


def stale_paragraph(prose: str, manifest: Manifest) -> str | None:
    """Return a paragraph that is a template's, although the manifest is another one. It would describe another protocol."""
    paragraphs = {_joined(paragraph): paragraph.strip("\n") for paragraph in prose.split("\n\n")}
    fitting, stale = set[str](), list[str]()
    for kind in sorted((folder for folder in TEMPLATES.iterdir() if folder.is_dir()), key=lambda folder: folder.name):
        written = map(_joined, (kind / "document.md").read_text(encoding="utf-8").split("\n\n"))
        # Not a heading, a mark, or a text that is filled in.
        paragraphs_left = [text for text in written if text in paragraphs and text[:1] not in ("#", "<", "@")]
        if paragraphs_left and any(_is_same(manifest, template) for template in _manifests(kind)):
            fitting.update(paragraphs_left)
        else:
            stale += paragraphs_left
    return next((paragraphs[text] for text in stale if text not in fitting), None)


def _joined(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _manifests(kind: Traversable) -> Iterator[Manifest]:
    for form in kind.iterdir():
        path = form / "manifest.json"
        if path.is_file():
            written = json.loads(path.read_text(encoding="utf-8"))
            yield parse_manifest(
                encode_manifest(written, "https://registry.example/protocols/example.com/protocol/1.0", "0" * 64)
            )


def _is_same(manifest: Manifest, template: Manifest) -> bool:
    return manifest.operations == template.operations and manifest.roles == template.roles
