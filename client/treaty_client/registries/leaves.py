"""A proven leaf in the form in which it is remembered, and the names under which it is remembered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from treaty_consensus import statement
from treaty_consensus.kinds import NEGATIVE_STATES, Decision, Grant, Handler, Identity, Newer, Parameters, Publish, Status
from treaty_consensus.statement import Statement

PARAMETERS = "parameters"


@dataclass(frozen=True)
class SeenLeaf:
    """A statement that was proved to be leaf `index` of the log of `checkpoint`, a signed note, by the hashes of `proof`."""

    index: int
    leaf: bytes
    proof: tuple[bytes, ...]
    checkpoint: bytes

    @classmethod
    def of(cls, statement: Statement, index: int, proof: tuple[bytes, ...], checkpoint: bytes) -> SeenLeaf:
        """Create it from a statement that is parsed already."""
        leaf = cls(index, statement.leaf, proof, checkpoint)
        # Parsed already: the cached property need not parse it again. A frozen dataclass allows this through its dictionary only.
        vars(leaf)["statement"] = statement
        return leaf

    @cached_property
    def statement(self) -> Statement:
        """The leaf, parsed at the first use."""
        return statement.read(self.leaf)


def subjects_of(statement: Statement) -> tuple[str, ...]:
    """Return the names under which a statement is remembered; none if no bundle must hold it."""
    body = statement.body
    match body:
        case Identity():
            return (f"identity/{body.did}",)
        case Grant() | Newer(kind="grant"):
            return (f"grant/{body.namespace}/{body.to}",)
        case Publish():
            return (f"protocol/{body.uri}", f"topic/{body.topic}")
        case Handler() | Status() | Newer(kind="status"):
            return (f"protocol/{body.uri}",)
        case Decision() | Newer(kind="decision"):
            return (f"topic/{body.topic}",)
        case Parameters() | Newer(kind="parameters"):
            return (PARAMETERS,)
    return ()


def takes_back(statement: Statement) -> bool:
    """Return whether a publisher yanks or revokes with it, or may do so."""
    body = statement.body
    if isinstance(body, Newer):
        return body.kind == "status"
    return isinstance(body, Status) and body.state in NEGATIVE_STATES


def place_of(statement: Statement) -> str | None:
    """Return the place in which a newer statement replaces an older one, or None if no statement replaces it."""
    body = statement.body
    match body:
        case Grant() | Newer(kind="grant"):
            return f"grant/{body.namespace}/{body.to}"
        case Status() | Newer(kind="status"):
            return f"status/{body.uri}/{statement.author.text}/{body.wheel or ''}"
        case Decision() | Newer(kind="decision"):
            return f"decision/{body.topic}"
        case Parameters() | Newer(kind="parameters"):
            return PARAMETERS
    # All others are permanent: the log never replaces an identity, a publication or a handler.
    return None
