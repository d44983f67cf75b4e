"""Read a project: the folder from which `treaty publish` publishes a protocol.

docs/specification/handler-packages.md, "The project folder", specifies its files: protocol.toml (`project_file`), document.md,
and for a handler manifest.json, handler/ and vectors/*.json. For example, protocols/product-info/1.0 is a project.

The wheel is built when the protocol is published, because its manifest contains the URI and the protocol hash. It contains the
vectors, so that every reader can replay them. Files whose names begin with a dot, and `__pycache__`, are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError
from treaty_consensus.handler import DECLARATIVE, MAX_ARCHIVE, MODULE_NAME, VECTORS, WASM, HandlerMetadata, Runtime, build_wheel
from treaty_consensus.protocol import MAX_DOCUMENT, Card, check_document, parse_protocol_uri
from treaty_io.codes import ProjectCode
from treaty_sandbox.vectors import MAX_VECTOR, Vector, parse_vector

from .project_file import (
    MAX_TOML,
    SOURCE,
    TOML,
    HandlerTable,
    ProjectProblem,
    ProtocolFile,
    handler_problems,
    read_protocol_file,
)

DOCUMENT, MANIFEST = "document.md", "manifest.json"
MAX_MANIFEST = 128 * 1024
# Half of the files that a wheel may have.
MAX_VECTORS = 128


@dataclass(frozen=True, slots=True)
class HandlerSource:
    """A handler before it is built. `folder`: of its sources, as in protocol.toml. `sources`: path inside the package to content;
    empty if the manifest has `messages`."""

    version: str
    entry_point: str
    sources: Mapping[str, bytes]
    manifest: Mapping[str, Any]
    folder: str = SOURCE


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

        Raises `NotFound` (`project.file`) if the project has no handler, `Malformed` (`project.file`) if the URI is of another
        protocol, and the errors of `treaty_consensus.handler.build_wheel`.
        """
        if self.handler is None:
            raise NotFound(ProjectCode.FILE, f"{self.folder} has no handler.", fix="Add [handler] to protocol.toml.")
        parts = parse_protocol_uri(uri)
        if (parts.name, parts.version) != (self.name, self.version):
            raise Malformed(ProjectCode.FILE, f"{uri} is not a URI of {self.name} {self.version}.")
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
        published = {f"{VECTORS}/{vector.name}": vector.data for vector in self.vectors}
        return build_wheel({**self.handler.sources, **published}, metadata)


def load_project(folder: Path) -> Project:
    """Read a project. Raises the first of its problems: `NotFound`, `Malformed`, `Refused` or `TooLarge`, codes `project.…`,
    `document.…`, `card.…`, `protocol.name`, `vector.…`."""
    files = examine_project(folder)
    if files.project is None:
        error, more = files.problems[0].error, len(files.problems) - 1
        fix = f"{error.fix} {more} more: treaty test {folder}".strip() if more else error.fix
        raise type(error)(error.code, error.message, fix=fix)
    return files.project


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """The files of a project. `problems`: all that can be found before the wheel is built. `project`: None if there is one.
    `manifest`, `sources`: None if they cannot be read. `folder`: of the sources, as in protocol.toml. `vectors`: those that
    parse."""

    problems: list[ProjectProblem]
    project: Project | None
    manifest: Mapping[str, Any] | None
    folder: str
    sources: Mapping[str, bytes] | None
    vectors: tuple[Vector, ...]


def examine_project(folder: Path) -> ProjectFiles:
    """Read all files of a project. Raises nothing: every fault is a problem of the result."""
    read = _Reading(folder)
    data = read.file(TOML, MAX_TOML)
    toml = None
    if data is not None:
        toml, problems = read_protocol_file(data)
        read.problems += problems
    document = read.file(DOCUMENT, MAX_DOCUMENT)
    if document is not None:
        with read.noting(DOCUMENT):
            check_document(document)
    manifest, source, sources = read.handler(toml)
    vectors = tuple(read.vectors())
    project = None
    if not read.problems and toml is not None and document is not None:
        card = Card(toml.title, toml.summary, toml.tags, toml.licence)
        handler = None
        if manifest is not None and sources is not None:
            table = toml.handler or HandlerTable()
            point = table.entry_point or (WASM if _is_wasm(manifest) else DECLARATIVE)
            handler = HandlerSource(table.version or toml.version, point, sources, manifest, source)
        name = toml.name, toml.version, toml.topic, toml.origin
        project = Project(folder, *name, card, document, handler, vectors, toml.aliases)
    return ProjectFiles(read.problems, project, manifest, source, sources, vectors)


class _Reading:
    """Read the files of a folder and note their problems."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[ProjectProblem] = []

    @contextmanager
    def noting(self, file: str) -> Iterator[None]:
        """Note the error of the block as a problem of this file."""
        try:
            yield
        except TreatyError as error:
            self.problems.append(ProjectProblem(file, "", error))

    def file(self, name: str, limit: int) -> bytes | None:
        """Return the bytes of a file, or None if it cannot be read."""
        with self.noting(name):
            return _read(self.folder, name, limit)
        return None

    def handler(self, toml: ProtocolFile | None) -> tuple[dict[str, Any] | None, str, dict[str, bytes] | None]:
        """Return the manifest, the folder of the sources, and the sources; None for what is absent or cannot be read.

        Without a valid protocol.toml the usual files are read, if they exist.
        """
        table = (toml.handler if toml is not None else None) or HandlerTable()
        folder = table.source or SOURCE
        if (toml is None or toml.handler is None) and not (self.folder / MANIFEST).exists():
            return None, folder, None
        manifest, sources = self._manifest(), None
        if manifest is None:
            return None, folder, None
        declarative, wasm = "messages" in manifest, _is_wasm(manifest)
        if toml is not None:
            has_folder = (self.folder / SOURCE).exists()
            self.problems += handler_problems(toml, declarative=declarative, wasm=wasm, has_folder=has_folder)
        # The folder of the sources is not known, or there is none.
        if not declarative and not wasm and (toml is None or toml.handler is None) and not (self.folder / SOURCE).exists():
            return manifest, folder, None
        if declarative:
            return manifest, folder, {}
        with self.noting(folder):
            sources = dict(_sources(_source_folder(self.folder, folder, MODULE_NAME if wasm else "__init__.py")))
        return manifest, folder, sources

    def _manifest(self) -> dict[str, Any] | None:
        data = self.file(MANIFEST, MAX_MANIFEST)
        with self.noting(MANIFEST):
            return None if data is None else _parse_manifest(data)
        return None

    def vectors(self) -> Iterator[Vector]:
        """Yield the vectors that parse."""
        paths = sorted((self.folder / VECTORS).glob("*.json"))
        if len(paths) > MAX_VECTORS:
            fault = f"{self.folder} has more than {MAX_VECTORS} vectors."
            self.problems.append(ProjectProblem(VECTORS, "", TooLarge(ProjectCode.FILE, fault, fix="Join or delete some.")))
        for path in paths[:MAX_VECTORS]:
            name = f"{VECTORS}/{path.name}"
            data = self.file(name, MAX_VECTOR)
            if data is not None:
                with self.noting(name):
                    yield parse_vector(path.name, data)


def _is_wasm(manifest: Mapping[str, Any]) -> bool:
    return manifest.get("runtime") == Runtime.WASM


def _source_folder(folder: Path, name: str, needed: str) -> Path:
    """Return the folder of the sources. `needed`: the file that it must have."""
    source = (folder / name).resolve()
    # After links are resolved, so that a project cannot publish a folder from elsewhere.
    if not source.is_relative_to(folder.resolve().parent):
        fault = f"{TOML}: [handler] source = {name!r} is neither in this folder nor beside it."
        raise Malformed(ProjectCode.FILE, fault, fix='Move it there, for example to handler/, the default of "source".')
    if not (source / needed).is_file():
        raise NotFound(
            ProjectCode.FILE,
            f"{source} has no {needed}.",
            fix="Put the handler's source there, or name its folder in protocol.toml: [handler] source.",
        )
    # The wheel has the project's vectors in this folder.
    if (source / VECTORS).exists():
        raise Refused(ProjectCode.FILE, f"{source / VECTORS} has the name of the vectors' folder.", fix="Rename it.")
    return source


def _parse_manifest(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        fix = "Write a JSON object with `operations` and `roles`."
        raise Malformed(ProjectCode.FILE, f"{MANIFEST} does not parse: {error}.", fix=fix) from error


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
            raise TooLarge(ProjectCode.FILE, f"The files in {folder} have more than {MAX_ARCHIVE} bytes together.")
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
            fix="A project is a folder with protocol.toml and document.md; treaty new DIR makes one.",
        ) from error
    if len(data) > limit:
        raise TooLarge(ProjectCode.FILE, f"{path} has more than {limit} bytes.")
    return data


def _check_place(path: Path, folder: Path) -> None:
    """Check that a file is in `folder` after links are resolved. Raises `Refused` (`project.file`)."""
    # A foreign project could link to a secret of the author, such as identity.json, and it would be published for ever.
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Refused(ProjectCode.FILE, f"{path} is a link that leads out of {folder}.", fix="Put a copy of the file there.")
