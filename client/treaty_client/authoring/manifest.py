"""Find the problems of a manifest, member by member.

The only rules are those of `treaty_consensus.handler.parse_manifest`. It stops at the first fault, so each member is parsed in a
manifest that is valid but for this member:

    operations.greet.timeout is not a number of seconds from 1 to 86400
    roles.guest.calls names an operation twice, or one that the manifest lacks
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import encode_manifest, parse_manifest

from ..protocols.project import MANIFEST
from ..protocols.project_file import ProjectProblem

ORIGIN = "registry.example"
"""The registry of a protocol that is not published yet."""
_PREFIX = "The handler's manifest.json is not valid: "
# Each entry is parsed a few times. A manifest with more entries than this is refused as a whole.
_MAX_ENTRIES = 64
_OPTIONAL = {"$schema", "messages", "refusals"}
_OPERATION: dict[str, Any] = {"arguments": {"type": "object"}, "result": {}, "errors": {}, "idempotent": True, "timeout": 1}
_ROLE: dict[str, Any] = {"peer": "role", "calls": [], "invokes": []}


def manifest_problems(manifest: Mapping[str, Any]) -> list[ProjectProblem]:
    """Return the problems of an author's manifest.json; none if it is valid."""
    whole = _fault(manifest)
    if whole is None:
        return []
    problems = [*_top(manifest), *_operations(manifest), *_roles(manifest)]
    # A fault between members, such as the cost of all schemas together, has no member of its own.
    return problems or [ProjectProblem(MANIFEST, "", _plain(whole))]


def _top(manifest: Mapping[str, Any]) -> Iterator[ProjectProblem]:
    """The members of the manifest itself: each that is missing, unknown or empty."""
    valid = {"operations": {"operation": _OPERATION}, "roles": {"role": _ROLE}}
    for name in valid:
        if name not in manifest:
            yield from _problem(name, {key: value for key, value in valid.items() if key != name})
        elif not isinstance(manifest[name], dict) or not manifest[name]:
            yield from _problem(name, {**valid, name: manifest[name]})
    for name in sorted(manifest.keys() - valid - _OPTIONAL):
        yield from _problem(name, {**valid, name: manifest[name]})


def _operations(manifest: Mapping[str, Any]) -> Iterator[ProjectProblem]:
    for name, operation in _entries(manifest, "operations"):

        def alone(value: Any, name: str = name) -> dict[str, Any]:
            return _alone(name, value)

        kind = operation.get("kind") if isinstance(operation, dict) else None
        usual = {"kind": kind, "arguments": _OPERATION["arguments"]} if kind == "event" else _OPERATION
        usual = {**usual, "kind": kind} if kind == "stream" else usual
        yield from _parts(f"operations.{name}", alone(operation), operation, usual, alone)


def _roles(manifest: Mapping[str, Any]) -> Iterator[ProjectProblem]:
    # Valid operations of the same names, so that a fault of an operation is not reported for each role again.
    operations = {name: _OPERATION for name, _ in _entries(manifest, "operations") if _fault(_alone(name, _OPERATION)) is None}
    operations = operations or {"operation": _OPERATION}
    names = [name for name, _ in _entries(manifest, "roles")]
    others = {name: {**_ROLE, "peer": name} for name in names if _fault(_speaking({name: {**_ROLE, "peer": name}})) is None}
    for name, role in _entries(manifest, "roles"):

        def among(value: Any, name: str = name) -> dict[str, Any]:
            return {"operations": operations, "roles": {**others, name: value}}

        usual = {**_ROLE, "peer": name}
        yield from _parts(f"roles.{name}", among(role), role, usual, among)


def _parts(
    where: str, whole: Mapping[str, Any], value: Any, usual: Mapping[str, Any], make: Callable[[Any], Mapping[str, Any]]
) -> Iterator[ProjectProblem]:
    """The problems of one entry: of its members if they can be told apart, else its own.

    `usual`: a valid entry. `make`: returns a manifest that is valid but for the given entry.
    """
    fault = _fault(whole)
    if fault is None:
        return
    problems: list[ProjectProblem] = []
    # Not if even a valid entry is refused: then its name is the fault.
    if isinstance(value, dict) and _fault(make(usual)) is None:
        for name in sorted(usual.keys() | value.keys()):
            rest = {key: item for key, item in usual.items() if key != name}
            part = make({**rest, name: value[name]} if name in value else rest)
            problems += _problem(f"{where}.{name}", part, fix=_fix(name, usual, value))
    yield from problems or [ProjectProblem(MANIFEST, where, _plain(fault))]


def _fix(name: str, usual: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    if name in usual:
        return f'Write, for example: "{name}": {json.dumps(usual[name])}'
    near = difflib.get_close_matches(name, usual.keys() - value.keys(), n=1)
    return f"Write {near[0]}." if near else "Remove it."


def _alone(name: str, operation: Any) -> dict[str, Any]:
    return {"operations": {name: operation}, "roles": {"role": _ROLE}}


def _speaking(roles: Mapping[str, Any]) -> dict[str, Any]:
    return {"operations": {"operation": _OPERATION}, "roles": roles}


def _entries(manifest: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    value = manifest.get(name)
    return list(value.items())[:_MAX_ENTRIES] if isinstance(value, dict) else []


def _problem(field: str, manifest: Mapping[str, Any], fix: str = "") -> list[ProjectProblem]:
    fault = _fault(manifest)
    return [] if fault is None else [ProjectProblem(MANIFEST, field, _plain(fault, fix))]


def _plain(fault: TreatyError, fix: str = "") -> TreatyError:
    """Return the fault without the sentence that names the file, and with a fix if it has none."""
    return type(fault)(fault.code, fault.message.removeprefix(_PREFIX), fix=fault.fix or fix)


def _fault(manifest: Mapping[str, Any]) -> TreatyError | None:
    try:
        parse_manifest(encode_manifest(manifest, f"https://{ORIGIN}/protocols/example.com/protocol/1.0", "0" * 64))
    except TreatyError as error:
        return error
    return None
