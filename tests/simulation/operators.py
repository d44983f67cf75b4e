"""The operator of every history."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from signers import ORIGIN

from treaty_registry.keys import Operator, create_operator, load_operator


@cache
def operator() -> Operator:
    """Return the operator's keys, made once for all histories."""
    with tempfile.TemporaryDirectory() as folder:
        create_operator(Path(folder) / "keys", ORIGIN)
        return load_operator(Path(folder) / "keys")
