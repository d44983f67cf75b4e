"""Handlers with code, for tests of the sandbox: product-info as a Python package and as a WebAssembly module, with the document
and the vectors of the declarative one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from treaty_client.authoring.document import write_document
from treaty_client.protocols.project import HandlerSource, Project, load_project
from treaty_consensus.handler import WASM, HandlerPackage, read_wheel

PROTOCOLS = Path(__file__).parents[2] / "protocols" / "product-info"
SOURCES = Path(__file__).parent / "sandboxed_product_info"
MODULE = Path(__file__).parent / "wasm_product_info"
ENTRY_POINT = "treaty_handler_product_info:handler"


@cache
def handler_sources() -> Mapping[str, bytes]:
    """The files of the package, without its manifest."""
    return {path.name: path.read_bytes() for path in sorted(SOURCES.glob("*.py"))}


def sandboxed_product_info(version: str, *, name: str = "product-info") -> Project:
    """A version of product-info whose handler has code. `name`: of the protocol, which may be another one."""
    project = load_project(PROTOCOLS / version)
    assert project.handler is not None
    manifest = {name: member for name, member in project.handler.manifest.items() if name not in ("messages", "$schema")}
    entry_point = f"treaty_handler_{name.replace('-', '_')}:handler"
    handler = HandlerSource(project.handler.version, entry_point, handler_sources(), manifest)
    return replace(project, name=name, handler=handler)


def write_project(folder: Path, version: str = "1.0") -> Path:
    """Write that project into `folder`, with its sources beside the version's folder; return the version's folder."""
    project = folder / version
    shutil.copytree(PROTOCOLS / version, project)
    (folder / "handler").mkdir(exist_ok=True)
    for name, content in handler_sources().items():
        (folder / "handler" / name).write_bytes(content)
    handler = sandboxed_product_info(version).handler
    assert handler is not None
    (project / "manifest.json").write_text(json.dumps(handler.manifest, indent=2))
    with (project / "protocol.toml").open("a") as toml:
        toml.write(f'\n[handler]\nsource = "../handler"\nentry-point = "{ENTRY_POINT}"\n')
    write_document(project)
    return project


@cache
def sandboxed_package(version: str, uri: str = "") -> HandlerPackage:
    """The wheel of that, for a protocol at `uri`."""
    uri = uri or f"https://registry.example/protocols/example.com/product-info/{version}"
    return read_wheel(*sandboxed_product_info(version).build_wheel(uri))


def wasm_product_info(version: str) -> Project:
    """The same protocol with the module that `handler.c` was built into. Its codes are those of version 1.0."""
    project = sandboxed_product_info(version)
    assert project.handler is not None
    sources = {path.name: path.read_bytes() for path in sorted(MODULE.iterdir())}
    manifest = {**project.handler.manifest, "runtime": "wasm"}
    return replace(project, handler=HandlerSource(project.handler.version, WASM, sources, manifest))


@cache
def wasm_package(version: str) -> HandlerPackage:
    """The wheel of that."""
    return read_wheel(
        *wasm_product_info(version).build_wheel(f"https://registry.example/protocols/example.com/product-info/{version}")
    )
