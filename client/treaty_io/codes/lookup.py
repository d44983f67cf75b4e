"""Find a code by its text, for codes that come from a peer."""

from __future__ import annotations

import inspect
from functools import cache

from treaty_consensus import codes as consensus
from treaty_consensus.codes import Code

from . import network, registries, sessions


@cache
def _codes() -> dict[str, Code]:
    modules = (consensus, network, registries, sessions)
    classes = {member for module in modules for _, member in inspect.getmembers(module, inspect.isclass)}
    return {str(code): code for member in classes if issubclass(member, Code) for code in member}


def find_code(text: str) -> Code | None:
    """Return the code of this package or of `treaty_consensus` with the text, or None."""
    return _codes().get(text)
