"""The detail of step 4: replay the leaves of a bundle in their order through `admit`, which let them into the log.

The replay starts without any facts, so its result depends on the signatures alone. A few leaves cannot show two properties:

- That they are complete. At the first contact a registry can leave out a later identity or status. Later answers are compared
  with the leaves that were proved before (step 10, `completeness`).
- That a decision is right. It is admitted as if the log were in the state that the decision describes, and parameters as if they
  were the first. An auditor recomputes decisions, and checks notice and bounds of amendments.

A statement that only a newer release understands is passed over, or has its subject out of use, and so has each later one that
rests on it (docs/specification/compatibility.md).
"""

from __future__ import annotations

import msgspec

from treaty_consensus import statement
from treaty_consensus.admit import admit, reads
from treaty_consensus.codes import DecisionCode, StatementCode
from treaty_consensus.errors import Refused, Unauthorized
from treaty_consensus.facts import (
    LOG,
    Fact,
    IdentityFact,
    LogFact,
    TopicFact,
    find,
    grant_key,
    identity_key,
    keys_of,
    log_of,
    parameters_key,
    protocol_key,
    topic_key,
)
from treaty_consensus.kinds import Decision, Genesis, Grant, Handler, Identity, Newer, Parameters, Publish, Status, Withdrawal
from treaty_consensus.rotation import Rotation
from treaty_consensus.statement import KINDS, Statement, Verified
from treaty_io.codes import BundleCode

from ...registries.bundle import Bundle
from .records import Logged, needs_newer

_OPERATORS_OWN = frozenset({"identity", "validation", "parameters", "decision", "withdrawal", "rotation"})
_PROVING = Genesis | Parameters | Identity | Grant | Publish | Handler | Status | Decision | Withdrawal | Rotation | Newer


def replay(bundle: Bundle) -> tuple[Logged, ...]:
    """Verify and admit every leaf of a bundle, in order. Raises the error of the rule that a leaf breaks."""
    # Empty, and not from earlier answers: the same bytes must verify alike on every machine and offline.
    facts: dict[str, Fact] = {}
    replayed = []
    # The facts that statements of newer releases set: their values are unknown.
    unread: set[str] = set()
    for leaf in bundle.leaves:
        parsed = statement.read(leaf.leaf)
        # Other kinds, such as ballots, prove nothing about a protocol and would only cost time.
        if not isinstance(parsed.body, _PROVING):
            raise Refused(BundleCode.FORM, f"A {parsed.type} statement proves nothing about a protocol.")
        # Keys of the identities before this leaf, so a key that was rotated out signs nothing after its rotation.
        keys: dict[str, bytes] = {}
        for did in parsed.authors:
            keys |= keys_of(facts, did)
        # Under keys that are unknown no signature can be checked. Step 3 has proved that the leaf is in the log.
        if unread.isdisjoint(identity_key(did.text) for did in parsed.authors):
            verified = statement.verify(parsed, keys)
        if not isinstance(parsed.body, Newer) and not unread.isdisjoint(reads(parsed)):
            parsed = statement.unread(parsed)
        if isinstance(parsed.body, Newer):
            facts |= _pass_over(facts, parsed, leaf.index)
            unread |= _facts_of(parsed.body, parsed.id)
        elif isinstance(parsed.body, Decision):
            # A bundle lacks the earlier epochs, so a decision cannot be admitted as in the log.
            facts |= _admit_decision(facts, verified, parsed.body, leaf.index)
        elif isinstance(parsed.body, Parameters):
            # Nor can parameters: the bounds of an amendment refer to those in force, which a bundle may lack.
            facts |= _admit_parameters(facts, verified, leaf.index)
        else:
            facts |= admit(facts, verified, leaf.index)
        identity = find(facts, identity_key(parsed.author.text), IdentityFact)
        replayed.append(Logged(leaf.index, parsed, identity.tenure if identity else 1))
    return tuple(replayed)


def _facts_of(newer: Newer, statement_id: str) -> set[str]:
    """Return the facts that a statement of a newer release sets. Raises `Refused` (`registry.newer`) for one that may set any."""
    if not newer.critical:
        return set()
    match newer.kind:
        case "publish":
            return {protocol_key(newer.uri)}
        case "grant":
            return {grant_key(newer.namespace, newer.to)}
        case "identity" | "validation":
            return {identity_key(newer.did)}
        case "parameters":
            return {parameters_key(statement_id)}
        # A handler stands for itself, and the others have no statements that rest on them.
        case "handler" | "status" | "decision" | "withdrawal":
            return set()
    if newer.kind in KINDS or not (newer.uri or newer.topic):
        raise needs_newer(f"A {newer.kind[:40]} statement of this log")
    return set()


def _pass_over(facts: dict[str, Fact], newer: Statement, index: int) -> dict[str, Fact]:
    """Return the changes by a statement that only a newer release understands: the log's clock, where it is the operator's."""
    log = log_of(facts)
    by_operator = log.operator in (did.text for did in newer.authors)
    if newer.type in _OPERATORS_OWN and not by_operator:
        raise Unauthorized(StatementCode.NOT_OPERATOR, f"Only the log's operator may make {newer.type} statements.")
    if not by_operator or newer.issued <= log.time:
        return {}
    return {LOG: msgspec.structs.replace(log, time=newer.issued, time_index=index)}


def _admit_parameters(facts: dict[str, Fact], verified: Verified, index: int) -> dict[str, Fact]:
    """Admit parameters as the first of a log. Author and origin are checked."""
    log = log_of(facts)
    changes = admit({**facts, LOG: msgspec.structs.replace(log, parameters=None)}, verified, index)
    return {**changes, LOG: _with_clock_of(log, changes)}


def _admit_decision(facts: dict[str, Fact], verified: Verified, decision: Decision, index: int) -> dict[str, Fact]:
    """Admit a decision into a log in the state that it describes. Author and origin are checked, earlier epochs are not."""
    log = log_of(facts)
    if decision.input.size > index:
        raise Refused(DecisionCode.RULE, "A decision rests on leaves before it.")
    decision_fact = msgspec.structs.replace(
        log,
        parameters=decision.parameters,
        epoch=decision.epoch + 1,
        closed_at=decision.input.size,
        closed_topic="",
        remaining=decision.remaining + 1,
    )
    before: dict[str, Fact] = {**facts, LOG: decision_fact}
    if decision.previous is not None:
        before[topic_key(decision.topic)] = TopicFact(decision.previous, 0)
    changes = admit(before, verified, index)
    return {**changes, LOG: _with_clock_of(log, changes)}


def _with_clock_of(log: LogFact, changes: dict[str, Fact]) -> LogFact:
    """Return the log with the clock of an assumed state. What else that state says, such as the epoch, is not proved here."""
    after = changes[LOG]
    assert isinstance(after, LogFact)
    return msgspec.structs.replace(log, time=after.time, time_index=after.time_index)
