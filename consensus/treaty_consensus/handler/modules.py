"""Check which files of a package Python imports: those that end in `.py`, each as exactly one module.

A module is a file `NAME.py`, or a folder `NAME/` with an `__init__.py`, never both. Names are ASCII identifiers. A folder
with sources is a package, and so is every folder above it: without namespace packages, no import depends on other installed
distributions. No other file has an ending that an interpreter treats as code, on any system.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ..codes import HandlerCode
from ..errors import Refused

_BYTECODE = (".pyc", ".pyo")
_NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a", ".lib", ".o", ".obj", ".exe", ".com", ".wasm")
_SOURCE_LIKE = re.compile(r"\.py[a-z]*$")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:/[A-Za-z_][A-Za-z0-9_]*)*")
_INIT = "__init__.py"


def is_source(path: str) -> bool:
    """Tell whether Python imports this file."""
    return path.endswith(".py")


def check_ending(path: str) -> None:
    """Check that a file is either a source by its exact ending, or not code.

    Raises `Refused` (`handler.bytecode`, `handler.native`, `handler.source-name`).
    """
    # On systems without case, `X.PYC` is bytecode too.
    lower = path.lower()
    if lower.endswith(_BYTECODE) or "__pycache__" in lower.split("/"):
        raise Refused(HandlerCode.BYTECODE, f"{path} is bytecode; packages carry source only.")
    # Versioned libraries end in `.so.1`.
    if lower.endswith(_NATIVE) or ".so." in lower:
        raise Refused(HandlerCode.NATIVE, f"{path} is native code.")
    # Python on Windows also imports `.pyw`.
    if _SOURCE_LIKE.search(lower) and not path.endswith((".py", ".pyi")):
        raise Refused(HandlerCode.SOURCE_NAME, f"{path} is a source to some interpreters only.", fix="Let sources end in .py.")


def check_modules(paths: Collection[str]) -> None:
    """Check that every source is the only module of its name.

    `paths`: all files of the archive; no two are equal without case.

    Raises `Refused` (`handler.source-name`, `handler.module-twice`, `handler.no-package`).
    """
    # Lower case: some systems find a folder by any case.
    folders = {path[:index].lower() for path in paths for index, character in enumerate(path) if character == "/"}
    for path in filter(is_source, paths):
        module = path.removesuffix(".py")
        if not _MODULE.fullmatch(module):
            raise Refused(
                HandlerCode.SOURCE_NAME,
                f"{path} has a name that Python cannot import.",
                fix="Name modules and packages by identifiers.",
            )
        # Which of the two Python imports depends on the order of its finders.
        if module.lower() in folders:
            raise Refused(
                HandlerCode.MODULE_TWICE, f"{path} and the folder {module}/ have one module name.", fix="Rename one of them."
            )
        folder = path.rpartition("/")[0]
        while folder:
            # Without it the folder would be a namespace package, which other distributions can extend.
            if f"{folder}/{_INIT}" not in paths:
                raise Refused(HandlerCode.NO_PACKAGE, f"{folder}/ holds sources and no {_INIT}.", fix=f"Add an empty {_INIT}.")
            folder = folder.rpartition("/")[0]
