"""Read and build handler packages: the wheels that carry the code of a protocol.

`wheel` has the rules. They use `archive` (the zip subset), `paths`, `text` and `modules` (files with a single
interpretation), `dist_info` (the package's metadata) and `manifest` (roles and operations). `build` is the builder.
"""

from __future__ import annotations

from .archive import MAX_ARCHIVE
from .build import HandlerMetadata, build_wheel
from .manifest import INTERFACE, MANIFEST_NAME, Manifest, Operation, OperationKind, Role, parse_manifest
from .wheel import TAG, EntryPoint, HandlerPackage, parse_filename, read_wheel

__all__ = [
    "INTERFACE",
    "MANIFEST_NAME",
    "MAX_ARCHIVE",
    "TAG",
    "EntryPoint",
    "HandlerMetadata",
    "HandlerPackage",
    "Manifest",
    "Operation",
    "OperationKind",
    "Role",
    "build_wheel",
    "parse_filename",
    "parse_manifest",
    "read_wheel",
]
