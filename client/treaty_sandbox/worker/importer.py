"""Compile and import a handler package from memory. No file is written, and the host compiles nothing."""

from __future__ import annotations

import marshal
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

ROOT = "/handler"
"""The apparent folder of a handler's files: the prefix of `__file__` and of the names in tracebacks."""


def compile_package(sources: Mapping[str, bytes]) -> bytes:
    """Compile all modules and marshal a map of path to code. Raises `SyntaxError` and the other errors of `compile`."""
    return marshal.dumps({path: compile(source, f"{ROOT}/{path}", "exec") for path, source in sources.items()})


def install_package(code: bytes, data: Mapping[str, bytes]) -> None:
    """Make the package importable. Raises `ValueError` if the bytes hold no code objects.

    `marshal` can crash on hostile bytes, so only a sandboxed worker calls this.
    """
    try:
        modules = marshal.loads(code)  # noqa: S302  # see the docstring
    except (EOFError, ValueError, TypeError) as error:
        raise ValueError("not the code of a package") from error
    if not isinstance(modules, dict) or not all(isinstance(item, CodeType) for item in modules.values()):
        raise ValueError("not the code of a package")
    sys.meta_path.insert(0, _Finder(modules, data))


class _Finder:
    """Find and load the package's modules (PEP 451)."""

    def __init__(self, modules: Mapping[str, CodeType], data: Mapping[str, bytes]) -> None:
        self._modules = modules
        self._data = data

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of the package; None for any other."""
        base = name.replace(".", "/")
        for file, is_package in ((f"{base}/__init__.py", True), (f"{base}.py", False)):
            if file in self._modules:
                spec = ModuleSpec(name, cast("Loader", self), origin=f"{ROOT}/{file}", is_package=is_package)
                # PEP 451: without it the module gets no `__file__`, and tracebacks no place in the handler.
                spec.has_location = True
                if spec.submodule_search_locations is not None:
                    spec.submodule_search_locations.append(f"{ROOT}/{base}")
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that the import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        spec = module.__spec__
        assert spec is not None
        assert spec.origin is not None
        exec(self._modules[spec.origin.removeprefix(f"{ROOT}/")], module.__dict__)  # noqa: S102  # see `worker`

    def get_data(self, path: str) -> bytes:
        """Return a data file of the package, for `pkgutil.get_data`. Raises `OSError`."""
        try:
            return self._data[path.removeprefix(f"{ROOT}/")]
        except KeyError as error:
            raise FileNotFoundError(path) from error
