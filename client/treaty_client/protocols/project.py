"""Read a project: the folder from which `treaty publish` publishes a protocol.

docs/specification/handler-packages.md, "The project folder", specifies its files: protocol.toml, document.md, and for a handler
manifest.json, handler/ and vectors/*.json. An example of protocol.toml:

    name = "product-info"
    version = "1.0"
    topic = "commerce/product-info"
    origin = "negotiated"
    title = "Product information"
    summary = "Ask a shop for a product."
    licence = "Apache-2.0"
    aliases = ["anp:protocol:product-info:1.0"]

A manifest with `messages` is a handler without code, and needs nothing in protocol.toml. A handler with code is named there, and
its sources are in handler/:

    [handler]
    entry-point = "treaty_handler_haggling:handler"

The wheel is built when the protocol is published, because its manifest contains the URI and the protocol hash. Files whose names
begin with a dot, and `__pycache__`, are omitted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError
from treaty_consensus.handler import DECLARATIVE, MAX_ARCHIVE, HandlerMetadata, build_wheel
from treaty_consensus.kinds import MAX_ALIASES
from treaty_consensus.protocol import (
    MAX_DOCUMENT,
    Card,
    check_aliases,
    check_document,
    is_name,
    is_topic,
    parse_protocol_uri,
    parse_version,
)

from ..codes import ProjectCode
from ..sandbox.vectors import MAX_VECTOR, Vector, parse_vector

MAX_TOML = 64 * 1024
MAX_MANIFEST = 128 * 1024
MAX_VECTORS = 256
SOURCE = "handler"


class _Handler(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    entry_point: str | None = None
    source: str | None = None
    version: str | None = None


class _Toml(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    version: str
    topic: str
    origin: Literal["negotiated", "standard"]
    title: str
    summary: str
    tags: tuple[str, ...] = ()
    licence: str = ""
    aliases: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_ALIASES)] = ()
    handler: _Handler | None = None


@dataclass(frozen=True, slots=True)
class HandlerSource:
    """A handler before it is built. `sources`: path inside the package to content; empty if the manifest has `messages`."""

    version: str
    entry_point: str
    sources: Mapping[str, bytes]
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Project:
    """A project that was read completely and is valid, as far as can be checked before the wheel is built. `aliases`: the foreign
    names that its publisher claims for the protocol."""

    folder: Path
    name: str
    version: str
    topic: str
    origin: Literal["negotiated", "standard"]
    card: Card
    document: bytes
    handler: HandlerSource | None
    vectors: tuple[Vector, ...]
    aliases: tuple[str, ...] = ()

    @property
    def protocol_hash(self) -> str:
        """The SHA-256 of the document."""
        return hex_digest(self.document)

    def build_wheel(self, uri: str) -> tuple[str, bytes]:
        """Return file name and bytes of the handler's wheel for the protocol at this URI. They are the same on every machine.

        Raises `NotFound` (`project.handler`) if the project has no handler, `Malformed` (`project.uri`) if the URI is of another
        protocol, and the errors of `treaty_consensus.handler.build_wheel`.
        """
        if self.handler is None:
            raise NotFound(ProjectCode.HANDLER, f"{self.folder} has no handler.", fix="Add [handler] to protocol.toml.")
        parts = parse_protocol_uri(uri)
        if (parts.name, parts.version) != (self.name, self.version):
            raise Malformed(ProjectCode.URI, f"{uri} is not a URI of {self.name} {self.version}.")
        metadata = HandlerMetadata(
            name=self.name,
            version=self.handler.version,
            summary=self.card.summary,
            licence=self.card.licence,
            entry_point=self.handler.entry_point,
            protocol_uri=uri,
            protocol_hash=self.protocol_hash,
            manifest=self.handler.manifest,
        )
        return build_wheel(self.handler.sources, metadata)


def load_project(folder: Path) -> Project:
    """Read a project. Raises `NotFound`, `Malformed` or `TooLarge`, codes `project.…`, `document.…`, `card.…`, `vector.…`."""
    toml = _parse_toml(_read(folder, "protocol.toml", MAX_TOML))
    if not is_name(toml.name):
        raise _malformed(f"name = {toml.name!r} is not lower-case letters and digits joined by '-'")
    if not is_topic(toml.topic):
        raise _malformed(f"topic = {toml.topic!r} is not one to four such names joined by '/'")
    card = Card(toml.title, toml.summary, toml.tags, toml.licence)
    # Encoded for its checks, so that a card that is too long is reported before anything is signed.
    card.encode()
    document = _read(folder, "document.md", MAX_DOCUMENT)
    check_document(document)
    handler = _handler(folder, toml)
    vectors = tuple(
        parse_vector(path.name, _read(folder, f"vectors/{path.name}", MAX_VECTOR))
        # One vector more than the limit is read, to detect an excess without parsing thousands.
        for path in sorted((folder / "vectors").glob("*.json"))[: MAX_VECTORS + 1]
    )
    if len(vectors) > MAX_VECTORS:
        raise TooLarge(ProjectCode.VECTORS, f"{folder} has more than {MAX_VECTORS} vectors.")
    version = parse_version(toml.version)
    return Project(folder, toml.name, version, toml.topic, toml.origin, card, document, handler, vectors, _aliases(toml))


def _aliases(toml: _Toml) -> tuple[str, ...]:
    """Return the aliases. Raises `Malformed` (`project.toml`); a registry refuses them too, but only after the wheel is built."""
    try:
        check_aliases(toml.aliases)
    except TreatyError as error:
        raise _malformed(f"aliases: {error.message.removesuffix('.')}") from error
    return toml.aliases


def _parse_toml(data: bytes) -> _Toml:
    try:
        return msgspec.convert(tomllib.loads(data.decode("utf-8")), _Toml)
    except (ValueError, RecursionError) as error:
        raise _malformed(str(error)) from error


def _handler(folder: Path, toml: _Toml) -> HandlerSource | None:
    manifest = _manifest(folder) if toml.handler is not None or (folder / "manifest.json").exists() else {}
    declared = "messages" in manifest
    if toml.handler is None and not declared:
        return None
    if not toml.licence:
        raise _malformed("a handler needs a licence")
    handler = toml.handler or _Handler()
    if declared:
        sources: Mapping[str, bytes] = {}
        if handler.entry_point is not None or handler.source is not None or (folder / SOURCE).exists():
            raise _malformed(f"manifest.json has messages, so the handler has no code: no entry-point, source or {SOURCE}/")
    else:
        if handler.entry_point is None:
            raise _malformed("[handler] has no entry-point, and manifest.json has no messages")
        sources = dict(_sources(_source_folder(folder, handler.source or SOURCE)))
    return HandlerSource(
        version=parse_version(handler.version or toml.version),
        entry_point=handler.entry_point or DECLARATIVE,
        sources=sources,
        manifest=manifest,
    )


def _manifest(folder: Path) -> dict[str, Any]:
    data = _read(folder, "manifest.json", MAX_MANIFEST)
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(ProjectCode.MANIFEST, f"{folder / 'manifest.json'} does not parse: {error}.") from error


def _source_folder(folder: Path, name: str) -> Path:
    source = (folder / name).resolve()
    # After links are resolved, so that a project cannot publish a folder from elsewhere.
    if not source.is_relative_to(folder.resolve().parent):
        raise _malformed(f"handler.source = {name!r} is neither in this folder nor beside it")
    if not (source / "__init__.py").is_file():
        raise NotFound(
            ProjectCode.SOURCE,
            f"{source} has no __init__.py.",
            fix="Put the handler's source there, or name its folder in protocol.toml: [handler] source.",
        )
    return source


def _sources(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below a folder. No file is run, and no link to a folder is followed."""
    total = 0
    # Sorted, so that the wheel has the same bytes on every machine.
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") or part == "__pycache__" for part in name.parts) or not path.is_file():
            continue
        _check_place(path, folder)
        # Sizes are added before the bytes are read, so that a huge file is not loaded.
        total += path.stat().st_size
        if total > MAX_ARCHIVE:
            raise TooLarge(ProjectCode.SOURCE, f"The files in {folder} have more than {MAX_ARCHIVE} bytes together.")
        yield name.as_posix(), path.read_bytes()


def _read(folder: Path, name: str, limit: int) -> bytes:
    path = folder / name
    _check_place(path, folder)
    try:
        with path.open("rb") as file:
            # One byte more than the limit shows that the file is too large, without reading all of it.
            data = file.read(limit + 1)
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise NotFound(
            ProjectCode.FILE,
            f"{path}: {reason}.",
            fix="A project is a folder with protocol.toml and document.md; see protocols/product-info/1.0.",
        ) from error
    if len(data) > limit:
        raise TooLarge(ProjectCode.FILE, f"{path} has more than {limit} bytes.")
    return data


def _check_place(path: Path, folder: Path) -> None:
    """Check that a file is in `folder` after links are resolved. Raises `Refused` (`project.link`)."""
    # A foreign project could link to a secret of the author, such as identity.json, and it would be published for ever.
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Refused(ProjectCode.LINK, f"{path} is a link that leads out of {folder}.", fix="Put a copy of the file there.")


def _malformed(what: str) -> TreatyError:
    return Malformed(ProjectCode.TOML, f"protocol.toml: {what}.")
