"""Compose the messages for a language model from reviewed Markdown files, and mark foreign text.

The system message of a request is its file, the files that it needs (`document.md`, `cases.md`) and `data.md`. The user message
consists of sections:

    BEGIN peer-proposal 5f2b…
    …
    END peer-proposal 5f2b…

The number is the start of the SHA-256 of the text between the two lines. So no text can close its own section and continue as
another section.
"""

from __future__ import annotations

import functools
from importlib.resources import files

from treaty_consensus.canonical import hex_digest

_STANDS_ON = {
    "draft": ("document",),
    "consider": ("document",),
    "tests": ("cases",),
    "consider_tests": ("cases",),
    "handler": ("cases",),
    "repair": ("handler", "cases"),
    "judge": (),
    "answer": (),
}


@functools.cache
def system(name: str) -> str:
    """Return the system message of a kind of request."""
    parts = (name, *_STANDS_ON[name], "data")
    return "\n".join(files(__name__).joinpath(f"{part}.md").read_text(encoding="utf-8") for part in parts)


def sections(**texts: str) -> str:
    """Return a user message: each text in a section of its name, with `_` as `-`. Empty texts are left out."""
    return "\n\n".join(_section(name.replace("_", "-"), text) for name, text in texts.items() if text)


def _section(name: str, text: str) -> str:
    mark = f"{name} {hex_digest(text.encode('utf-8'))[:16]}"
    return f"BEGIN {mark}\n{text}\nEND {mark}"
