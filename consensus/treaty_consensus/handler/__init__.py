"""Handler packages: the wheels that carry the code of a protocol, what they must and must not hold, and how they are built.

`wheel` has the rules, `archive` the zip subset they stand on, `manifest` the declaration of roles and operations, `build` the
builder.
"""

from __future__ import annotations

from .archive import MAX_ARCHIVE
from .build import HandlerMetadata, build_wheel
from .manifest import INTERFACE, MANIFEST_NAME, Manifest, Operation, Role, parse_manifest
from .wheel import EntryPoint, HandlerPackage, parse_filename, read_wheel

__all__ = [
    "INTERFACE",
    "MANIFEST_NAME",
    "MAX_ARCHIVE",
    "EntryPoint",
    "HandlerMetadata",
    "HandlerPackage",
    "Manifest",
    "Operation",
    "Role",
    "build_wheel",
    "parse_filename",
    "parse_manifest",
    "read_wheel",
]
