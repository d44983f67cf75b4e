"""A leaf that a registry proved: the form in which it is remembered, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from treaty_consensus import statement
from treaty_consensus.kinds import Decision, Grant, Handler, Identity, Parameters, Publish, Status
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
    def of(cls, made: Statement, index: int, proof: tuple[bytes, ...], checkpoint: bytes) -> SeenLeaf:
        """A leaf that is parsed already."""
        leaf = cls(index, made.leaf, proof, checkpoint)
        vars(leaf)["statement"] = made
        return leaf

    @cached_property
    def statement(self) -> Statement:
        """The leaf, parsed."""
        return statement.parse(self.leaf)


def subjects_of(made: Statement) -> tuple[str, ...]:
    """Under which names a statement is remembered; none for one that no bundle has to hold."""
    body = made.body
    match body:
        case Identity():
            return (f"identity/{body.did}",)
        case Grant():
            return (f"grant/{body.namespace}/{body.to}",)
        case Publish():
            return (f"protocol/{body.uri}", f"topic/{body.topic}")
        case Handler() | Status():
            return (f"protocol/{body.uri}",)
        case Decision():
            return (f"topic/{body.topic}",)
        case Parameters():
            return (PARAMETERS,)
    return ()


def takes_back(made: Statement) -> bool:
    """Whether a publisher yanks or revokes with it."""
    return isinstance(made.body, Status) and made.body.state in ("yanked", "revoked")


def place_of(made: Statement) -> str | None:
    """The place in which a newer statement replaces an older one; None for a statement that stands for ever."""
    body = made.body
    match body:
        case Status():
            return f"status/{body.uri}/{made.author.text}/{body.wheel or ''}"
        case Decision():
            return f"decision/{body.topic}"
        case Parameters():
            return PARAMETERS
    return None
