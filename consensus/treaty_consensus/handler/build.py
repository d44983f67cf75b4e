"""Build the wheel of a handler package. The same sources and metadata give the same bytes on every machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from ..codes import HandlerCode
from ..errors import Malformed, Refused
from .archive import write_archive
from .dist_info import GROUP, record_of
from .manifest import MANIFEST_NAME, Runtime
from .wheel import PREFIX, TAGS, read_wheel


@dataclass(frozen=True, slots=True)
class HandlerMetadata:
    """Hold the metadata of the wheel.

    `name`: without `treaty-handler-`.
    `entry_point`: `MODULE:ATTRIBUTE`; `DECLARATIVE` if the manifest has `messages`, `WASM` if it has that `runtime`.
    `manifest`: `operations` and `roles` as `manifest` describes them, and `interface` where the handler needs a later one than
    its operations show. The build adds the protocol.
    """

    name: str
    version: str
    summary: str
    licence: str
    entry_point: str
    protocol_uri: str
    protocol_hash: str
    manifest: Mapping[str, object]


def build_wheel(sources: Mapping[str, bytes], metadata: HandlerMetadata) -> tuple[str, bytes]:
    """Return file name and bytes of the wheel. The result has passed `read_wheel`.

    `sources`: path inside the package (`__init__.py`, `handler.wasm`, …) → content, without the manifest. Empty if the
    manifest has `messages`.

    Raises the errors of `read_wheel`, so every refusal names its rule before the package is published.
    """
    try:
        version = str(Version(metadata.version))
    except InvalidVersion as error:
        raise Malformed(HandlerCode.PACKAGE, f"{metadata.version!a} is not a version (PEP 440).") from error
    if MANIFEST_NAME in sources or "protocol" in metadata.manifest:
        raise Refused(HandlerCode.MANIFEST, "The build adds the manifest and its protocol. Leave them out.")
    for line in (metadata.name, metadata.summary, metadata.licence, metadata.entry_point):
        # A line break would add a header of its own to METADATA.
        if not line.isprintable():
            raise Malformed(HandlerCode.PACKAGE, f"{ascii(line)[:80]} is not one line of text.")
    tag = TAGS[Runtime.WASM if metadata.manifest.get("runtime") == Runtime.WASM else Runtime.PYTHON]
    package = (PREFIX + metadata.name).replace("-", "_")
    dist_info = f"{package}-{version}.dist-info"
    files = {f"{package}/{path}": content for path, content in sources.items()}
    files[f"{package}/{MANIFEST_NAME}"] = encode_manifest(metadata.manifest, metadata.protocol_uri, metadata.protocol_hash)
    files[f"{dist_info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {PREFIX}{metadata.name}\nVersion: {version}\nSummary: {metadata.summary}\n"
        f"License-Expression: {metadata.licence}\nRequires-Python: >=3.11\n"
    ).encode()
    files[f"{dist_info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: treaty\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    files[f"{dist_info}/entry_points.txt"] = f"[{GROUP}]\n{metadata.name} = {metadata.entry_point}\n".encode()
    files[f"{dist_info}/RECORD"] = _record(files, f"{dist_info}/RECORD")
    filename, data = f"{package}-{version}-{tag}.whl", write_archive(files)
    # The reader's rules are the only ones: the builder repeats none of them.
    read_wheel(filename, data)
    return filename, data


def encode_manifest(manifest: Mapping[str, object], protocol_uri: str, protocol_hash: str) -> bytes:
    """Return the manifest of a package: the author's `manifest`, with its protocol and the lowest interface that it needs."""
    # The lowest interface: hosts of an earlier version can then run the handler too.
    interface = 3 if _names(manifest, "roles", "peers") else 2 if _names(manifest, "operations", "kind") else 1
    if "messages" in manifest:
        interface = max(interface, 2)
    if "refusals" in manifest or _has_negative_code(manifest) or _has_text(manifest.get("messages"), "$absent"):
        interface = 5
    if "runtime" in manifest:
        interface = 6
    # `$schema` is for the author's editor.
    members = {name: member for name, member in manifest.items() if name != "$schema"}
    protocol = {"uri": protocol_uri, "sha256": protocol_hash}
    value = {"interface": interface, "protocol": protocol, **members}
    # Sorted, so that equal metadata give equal bytes.
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False).encode() + b"\n"


def _names(manifest: Mapping[str, object], table: str, member: str) -> bool:
    """Tell whether an entry of a table of the author's manifest has a member."""
    entries = manifest.get(table)
    return isinstance(entries, dict) and any(isinstance(entry, dict) and member in entry for entry in entries.values())


def _has_negative_code(manifest: Mapping[str, object]) -> bool:
    operations = manifest.get("operations")
    entries = operations.values() if isinstance(operations, dict) else ()
    tables = [entry.get("errors") for entry in entries if isinstance(entry, dict)]
    return any(isinstance(table, dict) and any(code.startswith("-") for code in table) for table in tables)


def _has_text(value: object, text: str) -> bool:
    # The author's own file, whose parser has bounded its depth.
    return value == text or (isinstance(value, dict) and any(_has_text(item, text) for item in value.values()))


def _record(files: Mapping[str, bytes], record: str) -> bytes:
    rows = [",".join((path, *record_of(content))) for path, content in sorted(files.items())]
    return "\n".join([*rows, f"{record},,"]).encode() + b"\n"
