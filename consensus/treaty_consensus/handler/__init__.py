"""Read and build handler packages: the wheels that carry the code of a protocol.

`wheel` has the rules. They use `archive` (the zip subset), `paths`, `text` and `modules` (files with a single
interpretation), `dist_info` (the package's metadata), `manifest` (roles and operations), `messages` (the forms of a
protocol without code) and `wasm` (modules). `build` is the builder.
"""

from __future__ import annotations

from .archive import MAX_ARCHIVE
from .build import HandlerMetadata, build_wheel, encode_manifest
from .manifest import INTERFACE, MANIFEST_NAME, MAX_ROLES, Manifest, Operation, OperationKind, Role, Runtime, parse_manifest
from .wasm import MODULE_NAME
from .wheel import DECLARATIVE, TAGS, VECTORS, WASM, EntryPoint, HandlerPackage, parse_filename, read_wheel

__all__ = [
    "DECLARATIVE",
    "INTERFACE",
    "MANIFEST_NAME",
    "MAX_ARCHIVE",
    "MAX_ROLES",
    "MODULE_NAME",
    "TAGS",
    "VECTORS",
    "WASM",
    "EntryPoint",
    "HandlerMetadata",
    "HandlerPackage",
    "Manifest",
    "Operation",
    "OperationKind",
    "Role",
    "Runtime",
    "build_wheel",
    "encode_manifest",
    "parse_filename",
    "parse_manifest",
    "read_wheel",
]
