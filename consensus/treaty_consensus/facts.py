"""Facts: the state of a log, as the rules of admission see it.

State is a flat map from a key such as `identity/did:wba:example.com` to one fact. `admit` reads the keys that a statement needs
and returns the facts it changes; whoever holds the map (a database table, an auditor's dictionary, the few leaves of a proof)
applies them. Facts are derived from leaves alone, so a map can always be rebuilt by replaying the log.

    log                              → LogFact           the log itself: operator, clock, epoch
    identity/DID                     → IdentityFact      the newest identity of a DID
    grant/NAMESPACE/DID              → GrantFact         a namespace's owner lets this DID publish
    protocol/URI                     → ProtocolFact      a published version
    handler/URI/DID/WHEEL            → HandlerFact       a handler that this DID attached
    ballot/TOPIC/DID                 → BallotFact        the newest ballot of a DID in a topic
    report/KEY                       → ReportFact        a negotiation: KEY = SHA-256(JCS[sorted DIDs, nid])
    vouch/DID                        → VouchFact         the newest vouch of a DID
    parameters/ID                    → ParametersFact    what admission needs of a parameters statement
    needed/SHA256                    → NeededFact        a blob that decisions are recomputed with
    topic/TOPIC                      → TopicFact         the newest decision
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import msgspec

from .errors import Refused
from .kinds import Witnesses


class LogFact(msgspec.Struct, frozen=True, tag="log"):
    """`time`: the log's clock, the largest `issued` of the operator's statements, set last by leaf `time_index`. `parameters`:
    the statement in force, `announced`: the one the next epoch opens with. `epoch`: the open epoch, `opened`: when, by the log's
    clock or, for epochs that close by it, by their schedule; `closed_at`: the input size
    of the decisions that closed the one before, `closed_topic`: the last topic decided with it, `remaining`: how many still
    follow."""

    origin: str
    operator: str
    time: int
    time_index: int
    parameters: str | None = None
    announced: str | None = None
    epoch: int = 0
    opened: int = 0
    closed_at: int = 0
    closed_topic: str = ""
    remaining: int = 0


class IdentityFact(msgspec.Struct, frozen=True, tag="identity"):
    """`keys`: DID URL → Multikey. `since`: the log's time when this tenure began. `index`: the leaf."""

    statement: str
    index: int
    document: str
    keys: dict[str, str]
    tenure: int
    since: int


class GrantFact(msgspec.Struct, frozen=True, tag="grant"):
    """The leaf that grants."""

    index: int


class ProtocolFact(msgspec.Struct, frozen=True, tag="protocol"):
    """Who published what, where in the log."""

    index: int
    publisher: str
    document: str
    topic: str


class HandlerFact(msgspec.Struct, frozen=True, tag="handler"):
    """The leaf that attached the wheel."""

    index: int


class BallotFact(msgspec.Struct, frozen=True, tag="ballot"):
    """The last used `seq` and its leaf."""

    seq: int
    index: int


class VouchFact(msgspec.Struct, frozen=True, tag="vouch"):
    """The last used `seq` and its leaf."""

    seq: int
    index: int


class ParametersFact(msgspec.Struct, frozen=True, tag="parameters"):
    """How long an epoch is, where the schedule closes it, and who must have witnessed what is decided."""

    epoch_seconds: int | None = None
    witnesses: Witnesses | None = None


class NeededFact(msgspec.Struct, frozen=True, tag="needed"):
    """The newest leaf that names the blob."""

    index: int


class ReportFact(msgspec.Struct, frozen=True, tag="report"):
    """The document reported first under this key; `equivocated` once another one was."""

    document: str
    index: int
    equivocated: bool = False


class TopicFact(msgspec.Struct, frozen=True, tag="topic"):
    """The statement id of a topic's newest decision."""

    decision: str
    index: int


Fact: TypeAlias = (
    LogFact
    | IdentityFact
    | GrantFact
    | ProtocolFact
    | HandlerFact
    | BallotFact
    | VouchFact
    | ParametersFact
    | NeededFact
    | ReportFact
    | TopicFact
)
Facts: TypeAlias = Mapping[str, Fact]
LOG = "log"

_F = TypeVar("_F", bound=msgspec.Struct)
_decoder = msgspec.json.Decoder(Fact)


def encode(fact: Fact) -> bytes:
    """A fact as JSON, for a store that keeps bytes."""
    return msgspec.json.encode(fact)


def decode(data: bytes) -> Fact:
    """Inverse of `encode`, for bytes of our own store."""
    fact: Fact = _decoder.decode(data)
    return fact


def find(facts: Facts, key: str, kind: type[_F]) -> _F | None:
    """The fact under `key`, or None."""
    fact = facts.get(key)
    if fact is None:
        return None
    assert isinstance(fact, kind), key
    return fact


def log_of(facts: Facts) -> LogFact:
    """The log's own fact. Raises `Refused` before leaf 0."""
    fact = find(facts, LOG, LogFact)
    if fact is None:
        raise Refused("log.no-genesis", "This log has no genesis yet: leaf 0 comes first.")
    return fact
