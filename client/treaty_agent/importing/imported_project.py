"""Write a project from a description: its operations become those of a protocol without code, with a requester and a provider.

    description = OpenApiReader().read(data, "petstore.json")
    result = await ImportedProject(description, data, NewProtocol("petstore", "pets/store")).write(Path("petstore"))

An operation is taken if its schemas are those of a manifest, if there is a call and an answer that fit them, and as long as all
of them fit into one manifest. The others are listed with their reasons.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from treaty_client.authoring.building import build
from treaty_client.authoring.manifest import ORIGIN
from treaty_client.authoring.new_project import NewProtocol, check_free, write_files
from treaty_client.protocols.project import DOCUMENT, MANIFEST, load_project
from treaty_client.protocols.project_file import MAX_LICENCE, TOML
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import VECTORS, HandlerPackage, Manifest, encode_manifest, parse_manifest
from treaty_consensus.handler.manifest import MAX_OPERATIONS
from treaty_handler import Value
from treaty_io.codes import RpcCode
from treaty_sandbox import SandboxPool
from treaty_sandbox.vectors import LOCAL, PEER

from ..authoring.checked_files import write_checked
from ..authoring.exchange import AnsweredCall, Exchange, with_errors
from ..authoring.two_roles import NOT_CONFORMING, PROVIDER, REQUESTER, manifest_of
from .description import ImportedDescription, ImportedOperation, Inexpressible, Omission
from .imported_prose import MAX_ABOUT, imported_prose, quoted
from .operation_names import OperationNames
from .schema_example import example_of
from .schema_import import compile_schema, one_line

TIMEOUT = 30
"""Seconds for an answer; descriptions state none."""
MAX_PRINTED = 128 * 1024
"""Characters of all schemas as the document shows them: half of a document."""
NO_LICENCE = "LicenseRef-not-stated"
_URI = f"https://{ORIGIN}/protocols/example.com/protocol/1.0"
_MAX_TITLE, _MAX_SUMMARY = 120, 200


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The files of the project, the operations by their names in the protocol, and the parts that it lacks. `licence`: as
    protocol.toml has it."""

    paths: list[Path]
    operations: Mapping[str, ImportedOperation]
    omissions: tuple[Omission, ...]
    licence: str


class ImportedProject:
    """The protocol that a description describes."""

    def __init__(self, description: ImportedDescription, data: bytes, new: NewProtocol) -> None:
        """`data`: the bytes of the description. Raises `Refused` (`rpc.answer`) if no operation can be taken."""
        self.operations: dict[str, ImportedOperation] = {}
        self.omissions = list(description.omissions)
        self._description, self._data, self._new = description, data, new
        self._entries: dict[str, dict[str, Any]] = {}
        self._printed, self._is_full = 0, False
        self._calls: dict[str, AnsweredCall] = {}
        names = OperationNames()
        for operation in description.operations:
            try:
                self._take(operation, names)
            except Inexpressible as error:
                self.omissions.append(Omission(operation.place, str(error)))
        if not self.operations:
            reasons = "; ".join(map(str, self.omissions[:3]))
            fault = f"The description has no operation that can be imported. {one_line(reasons, 400)}".rstrip(" .")
            raise Refused(RpcCode.ANSWER, f"{fault}.", fix="Begin with: treaty new FOLDER")

    @property
    def manifest(self) -> Manifest:
        """The manifest of the protocol, with a URI of no registry."""
        return parse_manifest(encode_manifest(manifest_of(self._entries), _URI, "0" * 64))

    async def write(self, folder: Path) -> ImportResult:
        """Write the project. It passes `check_project`, or no file is written. Raises `Conflict` (`system.exists`) and `Refused`
        (`rpc.answer`)."""
        check_free(folder)
        files = self._files()
        with TemporaryDirectory() as scratch:
            place = Path(scratch) / "project"
            write_files(place, files)
            files |= await self._vectors(build(load_project(place)))
        try:
            paths = await write_checked(folder, files)
        except ValueError as error:
            fix = "Name fewer operations: --only NAME"
            raise Refused(RpcCode.ANSWER, f"The description cannot become a protocol: {error}", fix=fix) from error
        return ImportResult(paths, self.operations, tuple(self.omissions), self._licence)

    def _take(self, operation: ImportedOperation, names: OperationNames) -> None:
        """Take an operation, if the protocol stays one with it. Raises `Inexpressible`."""
        if len(self._entries) == MAX_OPERATIONS:
            raise Inexpressible(f"a protocol has at most {MAX_OPERATIONS} operations; choose them by --only")
        # The cheap bounds first: an operation that does not fit costs no examples.
        entry = _entry(operation)
        printed = self._printed + len(json.dumps(entry, ensure_ascii=False, indent=2))
        if self._is_full or printed > MAX_PRINTED:
            raise Inexpressible("the protocol would be too large with it; choose operations by --only")
        _check_manifest({"it": entry})
        call = AnsweredCall(_arguments(operation), _answer(operation))
        # Names and constants cannot be escaped. A mark that turns the direction of writing would change how a document reads.
        if not json.dumps([entry, call.arguments, call.answer], ensure_ascii=False).isprintable():
            raise Inexpressible("a name or a value of it has characters that are not printable")
        name = names.new(operation.wish)
        entries = {**self._entries, name: entry}
        # It is one alone, so the sum is too large. Each further attempt would read all operations again.
        self._is_full = True
        _check_manifest(entries)
        self._is_full = False
        self._entries, self._printed, self._calls[name], self.operations[name] = entries, printed, call, operation

    def _files(self) -> dict[str, str]:
        manifest = manifest_of(self._entries)
        prose = imported_prose(self._title, self._description, self._origin, TIMEOUT, self.operations, self.omissions)
        return {
            TOML: "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in self._head()),
            DOCUMENT: prose,
            MANIFEST: json.dumps(manifest, ensure_ascii=False, indent=2) + "\n",
        }

    def _head(self) -> Iterator[tuple[str, str]]:
        # The JSON of a printable text is TOML too.
        yield "name", self._new.name
        yield "version", "1.0"
        yield "topic", self._new.topic
        # People made it, and no two agents negotiated it.
        yield "origin", "standard"
        yield "title", self._title
        about = self._description.about.strip().partition("\n\n")[0]
        yield "summary", one_line(about, _MAX_SUMMARY) or f"Call {', '.join(self.operations)}."[:_MAX_SUMMARY]
        yield "licence", self._licence

    @property
    def _title(self) -> str:
        return one_line(self._description.title, _MAX_TITLE) or self._new.title

    @property
    def _licence(self) -> str:
        return licence_of(self._description.licence)

    @property
    def _origin(self) -> str:
        description = self._description
        title, version = quoted(description.title, MAX_ABOUT // 5), quoted(description.version, 40)
        parts = [f"{description.kind} description", *([title] if title else []), *([f"version {version}"] if version else [])]
        size = f"{len(self._data):,} bytes, SHA-256 `{hex_digest(self._data)}`"
        return f"Made from the {' '.join(parts)} ({size}). Texts in quotation marks are its own."

    async def _vectors(self, package: HandlerPackage) -> dict[str, str]:
        vectors = {}
        async with SandboxPool(size=0) as pool:
            worker = await pool.load(package, local=LOCAL, peers=[PEER])
            for name, call in self._calls.items():
                operation = package.manifest.operations[name]
                exchange = await Exchange.open(worker, REQUESTER, PROVIDER)
                for answered in with_errors([call], operation):
                    await exchange.call(operation, answered)
                for role, data in (await exchange.close()).items():
                    vectors[f"{VECTORS}/{name}-{role}.json"] = data.decode()
        return vectors


def _check_manifest(entries: Mapping[str, Any]) -> None:
    try:
        parse_manifest(encode_manifest(manifest_of(entries), _URI, "0" * 64))
    except TreatyError as error:
        # Without the name of a file that is not written yet.
        raise Inexpressible(error.message.rpartition("manifest.json is not valid: ")[2].rstrip(".")) from error


def _arguments(operation: ImportedOperation) -> dict[str, Value]:
    described = [dict(operation.arguments)] if operation.arguments else []
    value = example_of(operation.parameters, compile_schema(operation.parameters), described)
    if not isinstance(value, dict):
        raise Inexpressible("its arguments are no object")
    return value


def _answer(operation: ImportedOperation) -> Value:
    return example_of(operation.result, compile_schema(operation.result), operation.answer)


def _entry(operation: ImportedOperation) -> dict[str, Any]:
    text = one_line(operation.text.strip().partition("\n\n")[0], _MAX_SUMMARY)
    errors = {400: NOT_CONFORMING, **operation.errors}
    return {
        "arguments": {**operation.parameters, **({"description": text} if text else {})},
        "result": dict(operation.result),
        "errors": {str(code): errors[code] for code in sorted(errors)},
        "idempotent": operation.is_idempotent,
        "timeout": TIMEOUT,
    }


def licence_of(text: str) -> str:
    """Return the SPDX expression for a licence as a description states it; without one, `NO_LICENCE`."""
    for expression in (text, text.strip().replace(" ", "-")):
        try:
            if 0 < len(expression) <= MAX_LICENCE:
                return str(canonicalize_license_expression(expression))
        except InvalidLicenseExpression:
            continue
    name = re.sub(r"[^A-Za-z0-9.]+", "-", text[:40]).strip("-.")
    return f"LicenseRef-{name}" if name else NO_LICENCE
