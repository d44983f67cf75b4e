"""`python -m docs.generate`: write the generated parts of the repository anew; `--check`: only say which pages differ."""

from __future__ import annotations

import sys

from . import ROOT
from .parts import drifted, renewed


def main(arguments: list[str]) -> int:
    """The exit status: 1 when `--check` finds a page that differs."""
    pages = drifted()
    for page in pages:
        print(page.relative_to(ROOT))
    if "--check" in arguments:
        return 1 if pages else 0
    for page, text in renewed().items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
