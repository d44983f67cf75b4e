"""The syntax trees of the product's modules, each parsed once: generators and tests of the sources read all of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the tree of a file. Callers change nothing in it."""
    return ast.parse(path.read_text(encoding="utf-8"))
