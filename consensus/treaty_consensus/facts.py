"""Define facts: the state of a log, as the admission rules read it.

State is a flat map from a key such as `identity/did:wba:example.com` to one fact. `admit` reads the keys that a statement
needs and returns the changed facts. The owner of the map applies them: a database table, an auditor's dictionary, or the few
leaves of a proof. Facts are derived from leaves alone, so a replay of the log can always rebuild the map.

    log                              → LogFact           the log itself: operator, clock, epoch
    identity/DID                     → IdentityFact      the newest identity of a DID
    grant/NAMESPACE/DID              → GrantFact         the newest grant of a namespace to this DID
    protocol/URI                     → ProtocolFact      a published version
    handler/URI/DID/WHEEL            → HandlerFact       a handler that this DID attached
    ballot/TOPIC/DID                 → BallotFact        the newest ballot of a DID in a topic
    report/KEY                       → ReportFact        a negotiation: KEY = SHA-256(JCS[sorted DIDs, nid])
    vouch/DID                        → VouchFact         the newest vouch of a DID
    parameters/ID                    → ParametersFact    the part of a parameters statement that admission needs
    constitution                     → ConstitutionFact  the parameters in force and the announced ones, of rules with notice
    needed/SHA256                    → NeededFact        a blob that is needed to recompute decisions
    topic/TOPIC                      → TopicFact         the newest decision
    keys                             → KeysFact          the keys of the log and its clock
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import msgspec

from . import canonical
from .authority import Authority
from .codes import LogCode
from .did import Did, decode_multikey, did_key_id, public_key_of
from .errors import Refused
from .kinds import Parameters, Witnesses


class LogFact(msgspec.Struct, frozen=True, tag="log"):
    """Hold the state of the log itself.

    `time`: the log's clock, the largest `issued` of the operator's statements; set last by leaf `time_index`.
    `parameters`: the statement in force.
    `announced`: the statement that a later epoch starts with: the next one, unless the constitution says when.
    `epoch`: the open epoch.
    `opened`: the time at which it opened, by the log's clock; for epochs with a schedule, by the schedule.
    `closed_at`: the input size of the decisions that closed the previous epoch.
    `closed_topic`: the last topic decided with it.
    `remaining`: how many of these decisions still follow.
    """

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


class IdentityFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="identity"):
    """Hold the newest identity of a DID.

    `keys`: DID URL → Multikey.
    `since`: the log's time at the beginning of this tenure.
    `index`: the leaf.
    `account`: of a validated account, its number.
    `ends`: the keys that sign for a while only: DID URL → the last second by the log's clock.
    """

    statement: str
    index: int
    document: str
    keys: dict[str, str]
    tenure: int
    since: int
    account: str | None = None
    ends: dict[str, int] = {}

    def has_ended(self, key_id: str, now: int) -> bool:
        """Tell whether this key no longer signs."""
        return now > self.ends.get(key_id, canonical.MAX_INTEGER)


class GrantFact(msgspec.Struct, frozen=True, tag="grant"):
    """Hold the newest grant of a namespace to a DID. `grants.in_force` tells whether it still counts.

    `owner`: the DID that signed it, in tenure `owner_tenure`.
    `tenure`: the tenure of the DID that may publish.
    """

    index: int
    owner: str
    owner_tenure: int
    tenure: int
    withdrawn: bool = False


class ProtocolFact(msgspec.Struct, frozen=True, tag="protocol"):
    """Hold a published version: its leaf, publisher, document hash and topic."""

    index: int
    publisher: str
    document: str
    topic: str


class HandlerFact(msgspec.Struct, frozen=True, tag="handler"):
    """Hold the leaf that attached the wheel."""

    index: int


class BallotFact(msgspec.Struct, frozen=True, tag="ballot"):
    """Hold the last used `seq` and its leaf."""

    seq: int
    index: int


class VouchFact(msgspec.Struct, frozen=True, tag="vouch"):
    """Hold the last used `seq` and its leaf."""

    seq: int
    index: int


class ParametersFact(msgspec.Struct, frozen=True, tag="parameters"):
    """Hold the length of an epoch, where epochs have a schedule, and the witnesses that decisions need."""

    epoch_seconds: int | None = None
    witnesses: Witnesses | None = None


class ConstitutionFact(msgspec.Struct, frozen=True, tag="constitution"):
    """Hold what bounds an amendment. `amendment` has the rules. A log in which no rule has notice has no such fact.

    `in_force`, `announced`: None for parameters of a rule without notice, and where nothing is announced.
    `holds`: the log's time from which an epoch opens with the announced ones; None: the next epoch does.
    """

    in_force: Parameters | None = None
    announced: Parameters | None = None
    holds: int | None = None


class NeededFact(msgspec.Struct, frozen=True, tag="needed"):
    """Hold the newest leaf that names the blob."""

    index: int


class ReportFact(msgspec.Struct, frozen=True, tag="report"):
    """Hold the document that was reported first under this key. `equivocated`: a second report named another document."""

    document: str
    index: int
    equivocated: bool = False


class TopicFact(msgspec.Struct, frozen=True, tag="topic"):
    """Hold the statement id of a topic's newest decision."""

    decision: str
    index: int


class Keys(msgspec.Struct, frozen=True):
    """Hold verifier keys in text form, with the values of `log.checkpoint.KeyTerm`."""

    log_key: str
    clock_key: str
    since: int
    until: int
    authority: Authority | None = None


class KeysFact(msgspec.Struct, frozen=True, tag="keys"):
    """Hold the keys of the genesis, and of each rotation since."""

    terms: tuple[Keys, ...]


Fact: TypeAlias = (
    LogFact
    | IdentityFact
    | GrantFact
    | ProtocolFact
    | HandlerFact
    | BallotFact
    | VouchFact
    | ParametersFact
    | ConstitutionFact
    | NeededFact
    | ReportFact
    | TopicFact
    | KeysFact
)
Facts: TypeAlias = Mapping[str, Fact]
LOG = "log"
KEYS = "keys"
CONSTITUTION = "constitution"

_F = TypeVar("_F", bound=msgspec.Struct)
_decoder = msgspec.json.Decoder(Fact)


def encode(fact: Fact) -> bytes:
    """Return a fact as JSON, for stores that keep bytes."""
    return msgspec.json.encode(fact)


def decode(data: bytes) -> Fact:
    """Return the fact in these bytes; the inverse of `encode`. For bytes of our own stores only."""
    fact: Fact = _decoder.decode(data)
    return fact


def find(facts: Facts, key: str, kind: type[_F]) -> _F | None:
    """Return the fact under `key`, or None."""
    fact = facts.get(key)
    if fact is None:
        return None
    # Keys of one prefix hold facts of one type: another type is a bug of ours, not foreign input.
    assert isinstance(fact, kind), key
    return fact


def log_of(facts: Facts) -> LogFact:
    """Return the log's own fact. Raises `Refused` (`log.no-genesis`) before leaf 0."""
    fact = find(facts, LOG, LogFact)
    if fact is None:
        raise Refused(LogCode.NO_GENESIS, "This log has no genesis yet. Write the genesis as leaf 0 first.")
    return fact


# Keys of one kind begin alike, so that a store can find all of a kind.


def identity_key(did: str) -> str:
    """Return the fact key of a DID's newest identity."""
    return f"identity/{did}"


def report_key(authors: tuple[Did, ...], nid: str) -> str:
    """Return the fact key of a negotiation between two DIDs."""
    # Sorted, so that the order of the two signatures makes no second negotiation.
    digest = canonical.hex_digest(canonical.dumps([sorted(did.text for did in authors), nid]))
    return f"report/{digest}"


def topic_key(topic: str) -> str:
    """Return the fact key of a topic's newest decision."""
    return f"topic/{topic}"


def protocol_key(uri: str) -> str:
    """Return the fact key of a protocol."""
    return f"protocol/{uri}"


def grant_key(namespace: str, did: str) -> str:
    """Return the fact key of a grant of a namespace to a DID."""
    return f"grant/{namespace}/{did}"


def handler_key(uri: str, did: str, wheel: str) -> str:
    """Return the fact key of an author's handler of a protocol."""
    return f"handler/{uri}/{did}/{wheel}"


def ballot_key(topic: str, did: str) -> str:
    """Return the fact key of a DID's newest ballot in a topic."""
    return f"ballot/{topic}/{did}"


def vouch_key(did: str) -> str:
    """Return the fact key of a DID's newest vouch."""
    return f"vouch/{did}"


def needed_key(sha256: str) -> str:
    """Return the fact key of a blob that decisions need."""
    return f"needed/{sha256}"


def parameters_key(statement: str) -> str:
    """Return the fact key of the parameters that a statement announced."""
    return f"parameters/{statement}"


def keys_of(facts: Facts, did: Did) -> dict[str, bytes]:
    """Return the current keys of a DID: DID URL → raw Ed25519. Empty when the log does not know the DID."""
    # A did:key contains its key, so the log needs no identity of it.
    if did.method == "key":
        key = public_key_of(did)
        return {did_key_id(key): key}
    fact = find(facts, identity_key(did.text), IdentityFact)
    return {key_id: decode_multikey(multikey) for key_id, multikey in fact.keys.items()} if fact else {}
