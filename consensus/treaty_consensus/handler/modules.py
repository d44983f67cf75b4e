"""Which files of a package Python imports: those that end in `.py`, each as the one module of its name.

A module is a file `NAME.py`, or a folder `NAME/` with an `__init__.py`, and never both; names are identifiers of ASCII. A folder
that holds sources is a package, and so is every folder above it, so there are no namespace packages and no import depends on what
else is installed. No other file has an ending that an interpreter takes for code, on any system.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ..errors import Refused

_BYTECODE = (".pyc", ".pyo")
_NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a", ".lib", ".o", ".obj", ".exe", ".com", ".wasm")
_SOURCE_LIKE = re.compile(r"\.py[a-z]*$")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:/[A-Za-z_][A-Za-z0-9_]*)*")
_INIT = "__init__.py"


def is_source(path: str) -> bool:
    """Whether Python imports this file."""
    return path.endswith(".py")


def check_ending(path: str) -> None:
    """Check that a file is a source by its exact ending, or no code at all. Raises `Refused` (`handler.bytecode`, `.native`,
    `.source-name`)."""
    lower = path.lower()
    if lower.endswith(_BYTECODE) or "__pycache__" in lower.split("/"):
        raise Refused("handler.bytecode", f"{path} is bytecode; packages carry source only.")
    if lower.endswith(_NATIVE) or ".so." in lower:
        raise Refused("handler.native", f"{path} is native code.")
    if _SOURCE_LIKE.search(lower) and not path.endswith((".py", ".pyi")):
        raise Refused(
            "handler.source-name", f"{path} is a source to some interpreters and none to others.", fix="Sources end in .py."
        )


def check_modules(paths: Collection[str]) -> None:
    """Check that every source is the one module of its name. `paths`: all files of the archive, no two equal when case is folded.

    Raises `Refused` (`handler.source-name`, `handler.module-twice`, `handler.no-package`).
    """
    folders = {path[:index].lower() for path in paths for index, character in enumerate(path) if character == "/"}
    for path in filter(is_source, paths):
        module = path.removesuffix(".py")
        if not _MODULE.fullmatch(module):
            raise Refused(
                "handler.source-name",
                f"{path} has no name that can be imported.",
                fix="Name modules and packages by identifiers.",
            )
        if module.lower() in folders:
            raise Refused(
                "handler.module-twice", f"{path} and the folder {module}/ are one module's name.", fix="Rename one of them."
            )
        folder = path.rpartition("/")[0]
        while folder:
            if f"{folder}/{_INIT}" not in paths:
                raise Refused("handler.no-package", f"{folder}/ holds sources and no {_INIT}.", fix=f"Add an empty {_INIT}.")
            folder = folder.rpartition("/")[0]
