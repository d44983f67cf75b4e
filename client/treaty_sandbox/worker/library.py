"""A file of compiled modules, mapped into memory: a worker that can open no file imports from it.

    library = length index code…
    length  = 8 bytes, big-endian, of the index
    index   = marshal of {module: (path, offset from the end of the index, length)}
    code    = marshal of the module's code object

The host writes it as a part of the snapshot (`interpreter`). A page is read when a module on it is imported, once for all workers
of a machine.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Mapping
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Self, cast

if TYPE_CHECKING:
    from importlib.abc import Loader
    from pathlib import Path

_LENGTH = 8


def write(target: Path, modules: Mapping[str, tuple[str, bytes]]) -> None:
    """Write a library. `modules`: by name, the path that its code names, and the marshalled code."""
    places: dict[str, tuple[str, int, int]] = {}
    offset = 0
    for name, (path, code) in modules.items():
        places[name] = path, offset, len(code)
        offset += len(code)
    index = marshal.dumps(places)
    with target.open("wb") as file:
        file.write(len(index).to_bytes(_LENGTH, "big") + index)
        file.writelines(code for _, code in modules.values())


class Library:
    """Find and load the modules of a library (PEP 451)."""

    def __init__(self, content: memoryview) -> None:
        """Read the index of a library, which is trusted."""
        begin = _LENGTH + int.from_bytes(content[:_LENGTH], "big")
        self._places: dict[str, tuple[str, int, int]] = marshal.loads(content[_LENGTH:begin])  # noqa: S302  # our own
        self._code = content[begin:]

    @classmethod
    def open(cls, path: str) -> Self:
        """Map a library. Raises `OSError`."""
        import mmap

        del sys.modules["mmap"]  # no handler needs it
        with open(path, "rb") as file:  # noqa: PTH123  # pathlib would be in the memory of each worker
            return cls(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))

    def install(self) -> None:
        """Import from this library alone, and no more from files."""
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, self]
        sys.path.clear()
        sys.path_hooks.clear()
        sys.path_importer_cache.clear()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module; None if it is not here."""
        if name not in self._places:
            return None
        origin = self._places[name][0]
        is_package = origin.endswith("/__init__.pyc")
        spec = ModuleSpec(name, cast("Loader", self), origin=origin, is_package=is_package)
        # As for a module of a file: some modules of the standard library read their `__file__`.
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(origin.rpartition("/")[0])
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that the import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        _, offset, length = self._places[module.__name__]
        exec(marshal.loads(self._code[offset : offset + length]), module.__dict__)  # noqa: S102, S302  # our own
