"""Hold a verified protocol as an OCI image layout, which any OCI tool carries to a registry of containers and back.

    oci-layout, index.json, blobs/sha256/HEX        OCI Image Layout 1.0.0
    the protocol     artifactType and config.mediaType application/vnd.treaty.protocol.v1; layers: document.md, manifest.json, the
                     wheel, each under its name (org.opencontainers.image.title)
    its referrers    subject is the protocol: the bundle with all proofs, and the Sigstore bundle of the handler

The same protocol gives the same bytes on every machine, and so the same digest, as long as its bundle is the same. Nothing in a
layout is trusted: what is read passes nine of the ten steps, with the log's key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from treaty_consensus import canonical
from treaty_consensus.canonical import hex_digest, parse_digest
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import NotFound, Refused, TreatyError, Untrusted
from treaty_consensus.handler.manifest import MANIFEST_NAME
from treaty_consensus.kinds import MAX_WHEEL
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io import durable
from treaty_io.codes import DirectoryCode

from ..registries.bundle import MAX_BUNDLE, MEDIA_TYPE
from .verification.records import VerifiedProtocol

PROTOCOL_TYPE = "application/vnd.treaty.protocol.v1"
SIGSTORE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
WHEEL_TYPE = "application/vnd.pypa.wheel"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MAX_MANIFEST = 64 * 1024
"""Bytes of an index or a manifest."""
_TITLE = "org.opencontainers.image.title"
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


class _Descriptor(msgspec.Struct, frozen=True):
    mediaType: str  # noqa: N815  # the names of the OCI specification
    digest: str
    size: int
    annotations: dict[str, str] = {}
    artifactType: str = ""  # noqa: N815


class _Manifest(msgspec.Struct, frozen=True):
    layers: tuple[_Descriptor, ...]
    artifactType: str = ""  # noqa: N815
    subject: _Descriptor | None = None


class _Index(msgspec.Struct, frozen=True):
    manifests: tuple[_Descriptor, ...]


class LayoutParts(NamedTuple):
    """The parts of a protocol in a layout, unverified."""

    bundle: bytes
    wheel: bytes


def write_layout(verified: VerifiedProtocol, folder: Path) -> str:
    """Write a protocol as a layout, and return the digest of its manifest, `sha256:HEX`.

    The folder is created. Raises `Refused` (`system.exists`) if it has files: two layouts must not be mixed. A crash leaves a
    folder without index.json, which is no layout.
    """
    if folder.exists() and any(folder.iterdir()):
        raise Refused(SystemCode.EXISTS, f"{folder} is not empty.", fix="Name a new folder.")
    package, uri = verified.package, parse_protocol_uri(verified.uri)
    writer = _Writer(folder)
    layers = [
        writer.blob("text/markdown", verified.document, "document.md"),
        writer.blob("application/json", package.files[f"{package.package}/{MANIFEST_NAME}"], "manifest.json"),
        writer.blob(WHEEL_TYPE, verified.wheel, package.filename),
    ]
    names = {"org.opencontainers.image.version": uri.version, "org.opencontainers.image.source": verified.uri}
    protocol = writer.manifest(PROTOCOL_TYPE, layers, names)
    proofs = writer.blob(MEDIA_TYPE, verified.bundle, "protocol.bundle.json")
    attestation = writer.blob(SIGSTORE_TYPE, verified.attestation, f"{package.filename}.sigstore.json")
    referrers = [
        writer.manifest(MEDIA_TYPE, [proofs], {}, protocol),
        writer.manifest(SIGSTORE_TYPE, [attestation], {}, protocol),
    ]
    named = {**protocol, "annotations": {"org.opencontainers.image.ref.name": uri.version}}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [named, *referrers]}
    durable.write(folder / "oci-layout", _LAYOUT)
    durable.write(folder / "index.json", canonical.dumps(index))  # last: without it there is no layout
    return str(protocol["digest"])


def read_layout(folder: Path) -> LayoutParts:
    """Read the parts of the one protocol in a layout. Raises `NotFound` and `Untrusted` (`directory.changed`) for a missing part,
    another form, or bytes with another digest."""
    index = _parsed(_bounded(folder / "index.json", MAX_MANIFEST), _Index)
    manifests = [(entry, _parsed(_blob(folder, entry, MAX_MANIFEST), _Manifest)) for entry in index.manifests[:16]]
    protocols = [(entry, manifest) for entry, manifest in manifests if manifest.artifactType == PROTOCOL_TYPE]
    if len(protocols) != 1:
        raise _bad(f"It has {len(protocols)} protocols, and one is read.")
    ((protocol, manifest),) = protocols
    wheels = [layer for layer in manifest.layers if layer.mediaType == WHEEL_TYPE]
    proofs = [
        layer
        for _, other in manifests
        if other.artifactType == MEDIA_TYPE and other.subject is not None and other.subject.digest == protocol.digest
        for layer in other.layers
    ]
    if len(wheels) != 1 or len(proofs) != 1:
        raise _bad("A protocol has one wheel, and one bundle that refers to it.")
    return LayoutParts(_blob(folder, proofs[0], MAX_BUNDLE), _blob(folder, wheels[0], MAX_WHEEL))


class _Writer:
    def __init__(self, folder: Path) -> None:
        self._blobs = folder / "blobs" / "sha256"

    def blob(self, media_type: str, data: bytes, title: str = "") -> dict[str, Any]:
        digest = hex_digest(data)
        durable.write(self._blobs / digest, data)
        descriptor: dict[str, Any] = {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}
        return {**descriptor, "annotations": {_TITLE: title}} if title else descriptor

    def manifest(
        self,
        kind: str,
        layers: Sequence[Mapping[str, Any]],
        annotations: Mapping[str, str],
        subject: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        value: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": kind,
            # Some registries report its type as that of the artifact.
            "config": self.blob(kind, b"{}"),
            "layers": [*layers],
        }
        value |= {"annotations": dict(annotations)} if annotations else {}
        value |= {"subject": {name: subject[name] for name in ("mediaType", "digest", "size")}} if subject else {}
        return {**self.blob(MANIFEST_TYPE, canonical.dumps(value)), "artifactType": kind}


def _blob(folder: Path, descriptor: _Descriptor, limit: int) -> bytes:
    """Read a blob of at most `limit` bytes, with its digest. The digest is parsed first, so that no other text becomes a path."""
    try:
        digest = parse_digest(descriptor.digest.removeprefix("sha256:"))
    except TreatyError as error:
        raise _bad(f"{descriptor.digest[:80]!r} is not a SHA-256.") from error
    data = _bounded(folder / "blobs" / "sha256" / digest, limit)
    if hex_digest(data) != digest:
        raise _bad(f"The blob {digest} has other bytes than its name says.")
    return data


def _bounded(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            # One byte more shows that the file is too large.
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(DirectoryCode.CHANGED, f"There is no {path}.", fix="Pull it again.") from error
    if len(data) > limit:
        raise _bad(f"{path} has more than {limit} bytes.")
    return data


def _parsed(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise _bad(f"A file of it is no index or manifest: {error}.") from error


def _bad(reason: str) -> Untrusted:
    return Untrusted(
        DirectoryCode.CHANGED,
        f"The folder is not the layout of a protocol. {reason}",
        fix="Export it again: treaty oci export URI FOLDER",
    )
