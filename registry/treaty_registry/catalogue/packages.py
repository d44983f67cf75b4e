"""Read the contents of a handler package for people: operations, roles, files, and the coverage of its vectors.

The package was checked when it was published; `read_wheel` checks it again. Vectors are parsed, and not replayed: that would run
the handler. So the coverage is the claim of the vectors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from treaty_client.authoring.coverage import Coverage, measure_coverage
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import MANIFEST_NAME, HandlerPackage, read_wheel
from treaty_consensus.handler.comparison import OperationView, operation_views
from treaty_sandbox.vector_calls import VectorCall, calls_of
from treaty_sandbox.vectors import Vector, parse_vector

from .conversations import Conversation, conversations

# Cut rather than refused: a page shows the beginning, and the package holds the rest. Together with the caps of a manifest they
# keep a result below `content_worker.MAX_READING`.
MAX_FILES = 64
MAX_VECTORS = 48
MAX_VECTOR_BYTES = 2 * 1024 * 1024
MAX_ITEMS = 3
MAX_JSON = 1_200
MAX_FORMS = 2_400
MAX_TITLE = 200
MAX_SOURCE = 24_000


class Example(msgspec.Struct, frozen=True):
    """One call of an operation in a vector, as indented JSON. `outcome`: the result, or the error with its code."""

    vector: str
    title: str
    arguments: str
    items: list[str]
    outcome: str
    is_error: bool


class RoleOperation(msgspec.Struct, frozen=True):
    """The outcomes of an operation in a role that vectors reach, and those that they miss."""

    role: str
    operation: str
    reached: list[str]
    missed: list[str]


class PackageOperation(OperationView, frozen=True):
    """An operation of a manifest with an example from the vectors. Of its forms it has the beginning."""

    example: Example | None


class PackageRole(msgspec.Struct, frozen=True):
    """A role of a manifest. `is_shared`: one session of it has many peers."""

    name: str
    peer: str
    calls: list[str]
    invokes: list[str]
    is_shared: bool


class PackageVector(msgspec.Struct, frozen=True):
    """A recorded session in a package."""

    name: str
    title: str
    role: str
    steps: int


class PackageFile(msgspec.Struct, frozen=True):
    """A file of a package."""

    name: str
    size: int


class PackageView(msgspec.Struct, frozen=True):
    """The contents of a package. `vector_count`, `file_count`: also of those that are cut. `fault`: why vectors are
    missing, or empty. `cells`, `reached`: the outcomes that vectors should reach, and those that they do. `conversations`,
    `source`: of a protocol without code, its vectors, and the JSON of its operations, roles and forms, empty if it is long."""

    uri: str
    document: str
    interface: int
    is_declarative: bool
    operations: list[PackageOperation]
    roles: list[PackageRole]
    vectors: list[PackageVector]
    vector_count: int
    coverage: list[RoleOperation]
    cells: int
    reached: int
    files: list[PackageFile]
    file_count: int
    fault: str
    conversations: list[Conversation] = []
    source: str = ""


def read_package(filename: str, wheel: bytes) -> PackageView:
    """Return the contents of a wheel. Raises as `read_wheel`."""
    package = read_wheel(filename, wheel)
    manifest = package.manifest
    vectors, fault = _vectors(package)
    coverage = measure_coverage(manifest, vectors)
    examples = _examples(vectors)
    return PackageView(
        uri=manifest.protocol_uri,
        document=manifest.protocol_hash,
        interface=manifest.interface,
        is_declarative=package.is_declarative,
        operations=[_operation(view, examples.get(view.name)) for view in operation_views(manifest)],
        roles=[
            PackageRole(role.name, role.peer, [*role.calls], [*role.invokes], role.is_shared) for role in manifest.roles.values()
        ],
        vectors=[
            PackageVector(
                vector.name[:MAX_TITLE], vector.title[:MAX_TITLE], ", ".join(vector.roles)[:MAX_TITLE], len(vector.steps)
            )
            for vector in vectors[:MAX_VECTORS]
        ],
        vector_count=len(package.vectors),
        coverage=_coverage(coverage),
        cells=coverage.cells,
        reached=coverage.cells - len(coverage.missed),
        files=[PackageFile(name, len(content)) for name, content in sorted(package.files.items())[:MAX_FILES]],
        file_count=len(package.files),
        fault=fault,
        conversations=conversations(manifest, vectors) if package.is_declarative else [],
        source=_source(package) if package.is_declarative else "",
    )


def _source(package: HandlerPackage) -> str:
    """Return the members of the manifest by which messages are read, as compact JSON, or "" where a page would be too long."""
    manifest = json.loads(package.files[f"{package.package}/{MANIFEST_NAME}"])
    members = {name: manifest[name] for name in ("operations", "roles", "messages")}
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= MAX_SOURCE else ""


def _vectors(package: HandlerPackage) -> tuple[list[Vector], str]:
    """Return the vectors that can be read, and the first reason why not all are."""
    vectors: list[Vector] = []
    left = MAX_VECTOR_BYTES
    for name, data in sorted(package.vectors.items()):
        left -= len(data)
        if left < 0:
            return vectors, "The vectors are too large to read all of them here."
        try:
            vectors.append(parse_vector(name, data))
        except TreatyError as error:
            return vectors, error.message
    return vectors, ""


def _operation(view: OperationView, example: Example | None) -> PackageOperation:
    forms = view.forms if len(view.forms) <= MAX_FORMS else f"{view.forms[:MAX_FORMS]}…"
    return PackageOperation(**{**msgspec.structs.asdict(view), "forms": forms}, example=example)


def _coverage(coverage: Coverage) -> list[RoleOperation]:
    """Return the outcomes by role and operation, in the order of the manifest."""
    rows: dict[tuple[str, str], RoleOperation] = {}
    for cells, is_reached in ((coverage.reached, True), (coverage.missed, False)):
        for cell in cells:
            row = rows.setdefault((cell.role, cell.operation), RoleOperation(cell.role, cell.operation, [], []))
            (row.reached if is_reached else row.missed).append(cell.outcome)
    return list(rows.values())


def _examples(vectors: Sequence[Vector]) -> dict[str, Example]:
    """Return the first call of each operation in the vectors. One that succeeds is preferred to one that fails."""
    examples: dict[str, Example] = {}
    for vector in vectors:
        for call in calls_of(vector):
            earlier = examples.get(call.operation)
            if earlier is None or (earlier.is_error and call.error is None):
                examples[call.operation] = _example(vector, call)
    return examples


def _example(vector: Vector, call: VectorCall) -> Example:
    outcome: Any = call.value if call.error is None else {"code": call.error.code, "message": call.error.message}
    return Example(
        vector.name[:MAX_TITLE],
        vector.title[:MAX_TITLE],
        _json(call.arguments, MAX_JSON),
        [_json(item, MAX_JSON) for item in call.items[:MAX_ITEMS]],
        "" if outcome is None else _json(outcome, MAX_JSON),
        call.error is not None,
    )


def _json(value: object, limit: int) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= limit else f"{text[:limit]}\n…"
