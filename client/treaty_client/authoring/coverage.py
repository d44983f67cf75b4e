"""Measure the coverage of vectors: operations × roles × outcomes.

An operation has a cell for each role that calls or invokes it and each of its outcomes: `success`, every error code that the
manifest lists, and for a stream `item`. The codes that any operation may fail with (500, 502, 503, 504) are counted when a vector
has them, and not missed otherwise. For example, the vectors of a provider that answers a request reach `provider find success`.

The result is what the vectors say. Replay them first: a vector that does not hold reaches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treaty_consensus.errors import Refused
from treaty_consensus.handler import Manifest, Operation, OperationKind
from treaty_handler import Call, Item, Result
from treaty_io.codes import VectorCode

if TYPE_CHECKING:
    from treaty_sandbox.vectors import Vector

SUCCESS = "success"
ITEM = "item"


@dataclass(frozen=True, slots=True, order=True)
class CoverageCell:
    """One outcome of an operation in a role. `outcome`: `success`, `item`, or an error code in digits."""

    role: str
    operation: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.role} {self.operation} {self.outcome}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The cells of a protocol. `reached`: by a vector, cell → number of times. `missed`: by none. `unreached`: the pairs of role
    and operation of which a vector has no outcome at all."""

    reached: dict[CoverageCell, int]
    missed: tuple[CoverageCell, ...]
    unreached: tuple[tuple[str, str], ...]

    @property
    def cells(self) -> int:
        """The number of cells that vectors should reach."""
        return len(self.missed) + len([cell for cell in self.reached if cell.outcome not in _COMMON])

    @property
    def summary(self) -> str:
        """The number of cells that are reached, for a line."""
        return f"{self.cells - len(self.missed)} of {self.cells} outcomes"


_COMMON = frozenset({"500", "502", "503", "504"})
_DIGITS = 16  # of a code; converting a longer text costs more, and no manifest lists one


def measure_coverage(manifest: Manifest, vectors: Iterable[Vector]) -> Coverage:
    """Return the coverage of vectors that hold. Vectors of roles that the manifest lacks reach nothing."""
    required = list(_wanted(manifest))
    reached: dict[CoverageCell, int] = {}
    for vector in vectors:
        if manifest.roles.keys().isdisjoint(vector.roles):
            continue
        for cell in cells_of(vector):
            if cell.role in manifest.roles:
                reached[cell] = reached.get(cell, 0) + 1
    possible = {cell for cell in reached if is_outcome(manifest, cell)}
    missed = tuple(cell for cell in required if cell not in reached)
    seen = {(cell.role, cell.operation) for cell in possible}
    pairs = dict.fromkeys((cell.role, cell.operation) for cell in required)
    return Coverage({cell: reached[cell] for cell in sorted(possible)}, missed, tuple(pair for pair in pairs if pair not in seen))


def check_coverage(coverage: Coverage, vectors: int) -> None:
    """Check that every operation is reached in every role. Raises `Refused` (`vector.differs`). `vectors`: their number."""
    if not coverage.unreached:
        return
    pairs = ", ".join(f"{operation} as {role}" for role, operation in coverage.unreached)
    fault = f"No vector reaches {pairs}." if vectors else f"There is no vector, so none reaches {pairs}."
    raise Refused(
        VectorCode.DIFFERS,
        fault,
        fix="Write vectors/*.json, or record them from a session: treaty record. To publish without: --allow-uncovered.",
    )


def is_outcome(manifest: Manifest, cell: CoverageCell) -> bool:
    """Tell whether a cell is possible. The sandbox refuses an outcome that the manifest does not list, so such a vector fails."""
    role = manifest.roles.get(cell.role)
    operation = {**role.calls, **role.invokes}.get(cell.operation) if role else None
    if operation is None:
        return False
    if cell.outcome == ITEM:
        return operation.kind is OperationKind.STREAM
    # Not by `_outcomes`: foreign packages have thousands of codes, and thousands of cells.
    is_code = len(cell.outcome) < _DIGITS and cell.outcome.removeprefix("-").isdecimal()
    is_listed = is_code and int(cell.outcome) in operation.errors
    return cell.outcome == SUCCESS or cell.outcome in _COMMON or is_listed


def cells_of(vector: Vector) -> Iterator[CoverageCell]:
    """Yield a cell for each call that returns, and for each invocation that has a result, in each role of the vector.

    Raises `LookupError` or `TypeError` for a vector with effects that a handler cannot have. Such a vector does not hold.
    """
    for operation, outcome in _outcomes_of(vector):
        for role in vector.roles:
            yield CoverageCell(role, operation, outcome)


def _outcomes_of(vector: Vector) -> Iterator[tuple[str, str]]:
    called: dict[str, str] = {}
    invoked: dict[str, str] = {}
    for step in vector.steps:
        match step.event:
            case Call(call=call, operation=operation):
                called[call] = operation
            case Item(call=call) if call in invoked:
                yield invoked[call], ITEM
            case Result(call=call, error=error) if call in invoked:
                yield invoked.pop(call), str(error.code) if error else SUCCESS
        for tag, effect in step.effects:
            if tag == "invoke":
                invoked[str(effect["call"])] = str(effect["operation"])
            elif tag == "emit" and effect["call"] in called:
                yield called[effect["call"]], ITEM
            elif tag == "return" and effect["call"] in called:
                error_of = effect.get("error")
                yield called.pop(effect["call"]), str(error_of["code"]) if error_of else SUCCESS


def _wanted(manifest: Manifest) -> Iterator[CoverageCell]:
    for role in manifest.roles.values():
        for operation in {**role.calls, **role.invokes}.values():
            for outcome in _outcomes(operation):
                yield CoverageCell(role.name, operation.name, outcome)


def _outcomes(operation: Operation) -> list[str]:
    items = [ITEM] if operation.kind is OperationKind.STREAM else []
    return [SUCCESS, *items, *(str(code) for code in sorted(operation.errors) if str(code) not in _COMMON)]
