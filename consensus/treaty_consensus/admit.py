"""Admission: every rule that decides whether a statement may stand in a log, as one pure function.

`reads(statement)` names the facts a statement is judged by; `admit(facts, verified, index)` returns the facts that it changes, or
refuses. The sequencer runs it before a statement becomes leaf `index`, an auditor for every leaf of a finished log, and a
client for the few leaves that prove one protocol; so all three enforce the same rules. A refusal changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from . import canonical
from .did import Did, decode_multikey, did_key_id, public_key_of
from .errors import Conflict, NotFound, Refused, TreatyError, Unauthorized, Unavailable
from .facts import (
    LOG,
    BallotFact,
    Fact,
    Facts,
    GrantFact,
    HandlerFact,
    IdentityFact,
    LogFact,
    NeededFact,
    ParametersFact,
    ProtocolFact,
    ReportFact,
    TopicFact,
    VouchFact,
    find,
    log_of,
)
from .kinds import (
    Ballot,
    Body,
    Decision,
    Genesis,
    Grant,
    Handler,
    Identity,
    Parameters,
    Publish,
    Report,
    Status,
    Vouch,
    Withdrawal,
)
from .log.checkpoint import Checkpoint
from .protocol import parse_protocol_uri
from .statement import Statement, Verified

TENURE_WAIT = 30 * 24 * 3600
"""Seconds of the log's clock that a DID whose domain may have changed hands waits before it publishes."""


def identity_key(did: str) -> str:
    """The fact key of a DID's newest identity."""
    return f"identity/{did}"


def report_key(authors: tuple[Did, ...], nid: str) -> str:
    """The fact key of a negotiation between two DIDs."""
    digest = canonical.hex_digest(canonical.dumps([sorted(did.text for did in authors), nid]))
    return f"report/{digest}"


def topic_key(topic: str) -> str:
    """The fact key of a topic's newest decision."""
    return f"topic/{topic}"


def keys_of(facts: Facts, did: Did) -> dict[str, bytes]:
    """The keys that speak for a DID now: DID URL → raw Ed25519. Empty when the log does not know the DID."""
    if did.method == "key":
        key = public_key_of(did)
        return {did_key_id(key): key}
    fact = find(facts, identity_key(did.text), IdentityFact)
    return {key_id: decode_multikey(multikey) for key_id, multikey in fact.keys.items()} if fact else {}


def tenure_after(before: IdentityFact | None, multikeys: set[str], *, cosigned: bool) -> int:
    """The tenure of an identity with these keys that follows `before`.

    It stays the same when an old key co-signs, or when the document lists no key that was not listed before: keys are public,
    so whoever took a domain over may list old ones, but gains nothing by it. Any new key on the document's word alone opens a
    new tenure.
    """
    if before is None:
        return 1
    return before.tenure if cosigned or multikeys <= set(before.keys.values()) else before.tenure + 1


def reads(statement: Statement) -> set[str]:
    """The fact keys that `admit` may look at for this statement."""
    keys = {LOG, *(identity_key(did.text) for did in statement.authors if did.method != "key")}
    body, author = statement.body, statement.author.text
    match body:
        case Identity():
            keys.add(identity_key(body.did))
        case Publish():
            keys |= {_protocol_key(body.uri), _grant_key(parse_protocol_uri(body.uri).namespace, author)}
            keys |= {_protocol_key(body.base.uri)} if body.base else set()
        case Handler():
            keys |= {_protocol_key(body.uri), _handler_key(body.uri, author, body.wheel.sha256)}
        case Status():
            keys.add(_protocol_key(body.uri))
            keys |= {_handler_key(body.uri, author, body.wheel)} if body.wheel else set()
        case Report():
            keys.add(report_key(statement.authors, body.nid))
        case Ballot():
            keys.add(_ballot_key(body.topic, author))
        case Vouch():
            keys.add(_vouch_key(author))
        case Decision():
            keys |= {topic_key(body.topic), _parameters_key(body.parameters)}
        case Grant():
            keys.add(_grant_key(body.namespace, body.to))
        case Withdrawal():
            keys.add(_needed_key(body.sha256))
    return keys


def admit(facts: Facts, verified: Verified, index: int) -> dict[str, Fact]:
    """Judge a verified statement that would become leaf `index`; return the facts it changes.

    `facts` holds at least `reads(statement)`, as of the leaf before. Raises `Malformed`, `Unauthorized`, `NotFound`, `Conflict`,
    `Refused` or `Unavailable` (an epoch is being closed), each with a code that names the rule.
    """
    statement = verified.statement
    case = _Case(facts, statement, index)
    if isinstance(statement.body, Genesis):
        return _genesis(case, statement.body)
    log = log_of(facts)
    if statement.log != log.origin:
        raise Refused("statement.other-log", f"This statement is for the log {statement.log}, not for {log.origin}.")
    case.check_authors(verified.keys, log.operator)
    if log.remaining and not isinstance(statement.body, Decision):
        raise Unavailable("log.closing", f"Epoch {log.epoch - 1} is being closed.", fix="Send the statement again.")
    changes = _RULES[type(statement.body)](case, statement.body)
    if statement.author.text == log.operator or log.operator in (did.text for did in statement.authors):
        current = changes.get(LOG, log)
        assert isinstance(current, LogFact)
        if statement.issued > log.time:
            changes[LOG] = _replace(current, time=statement.issued, time_index=index)
    return changes


def check_operator(statement: Statement, operator: str) -> None:
    """Check that a statement of the operator's is by the operator. Raises `Unauthorized` (`statement.not-operator`)."""
    operators_own = isinstance(statement.body, Identity | Parameters | Decision | Withdrawal)
    if operators_own and operator not in (did.text for did in statement.authors):
        raise Unauthorized("statement.not-operator", f"Only the log's operator makes {statement.type} statements.")


@dataclass(frozen=True)
class _Case:
    """One statement before the rules."""

    facts: Facts
    statement: Statement
    index: int

    @property
    def log(self) -> LogFact:
        return log_of(self.facts)

    def find(self, key: str, kind: type[Any]) -> Any:
        return find(self.facts, key, kind)

    def check_authors(self, keys: tuple[bytes, ...], operator: str) -> None:
        """The keys that were verified are the ones the log knows now, and there are as many authors as the type has."""
        pair = isinstance(self.statement.body, Report | Identity)
        if len(self.statement.by) != 1 and not pair:
            raise Refused("statement.by", f"A {self.statement.type} statement has one author.")
        check_operator(self.statement, operator)
        for did, key_id, key in zip(self.statement.authors, self.statement.by, keys, strict=True):
            if keys_of(self.facts, did).get(key_id) != key:
                raise Unauthorized("statement.unknown-key", f"{key_id} is not a key of its DID as this log knows it.")


def _genesis(case: _Case, body: Genesis) -> dict[str, Fact]:
    statement = case.statement
    if case.index != 0 or LOG in case.facts:
        raise Conflict("genesis.exists", "A log has one genesis, its leaf 0.")
    if statement.log != body.origin or [did.text for did in statement.authors] != [body.operator]:
        raise Refused("genesis.operator", "A genesis is signed by the operator it names, for the origin it names.")
    return {LOG: LogFact(body.origin, body.operator, statement.issued, 0, opened=statement.issued)}


def _identity(case: _Case, body: Identity) -> dict[str, Fact]:
    key = identity_key(body.did)
    before: IdentityFact | None = case.find(key, IdentityFact)
    cosigned = any(did.text == body.did for did in case.statement.authors)
    if any(did.text not in (body.did, case.log.operator) for did in case.statement.authors):
        raise Refused(
            "statement.by",
            "An identity is signed by the operator, and by an old key of the same DID if there is one.",
        )
    if body.previous != (before.statement if before else None):
        raise Conflict("identity.previous", f"The newest identity of {body.did} in this log is another one.")
    if before and before.document == body.document.sha256:
        raise Conflict("identity.unchanged", f"The document of {body.did} has not changed.")
    tenure = tenure_after(before, {key.multikey for key in body.keys}, cosigned=cosigned)
    if body.tenure != tenure:
        raise Refused("identity.tenure", f"This identity of {body.did} is of tenure {tenure}, not {body.tenure}.")
    since = before.since if before and before.tenure == tenure else max(case.log.time, case.statement.issued)
    keys = {k.id: k.multikey for k in body.keys}
    return {key: IdentityFact(case.statement.id, case.index, body.document.sha256, keys, tenure, since)}


def _grant(case: _Case, body: Grant) -> dict[str, Fact]:
    if case.statement.author.namespace != body.namespace:
        raise Refused("grant.not-owner", f"{case.statement.author.text} does not own the namespace {body.namespace}.")
    key = _grant_key(body.namespace, body.to)
    if key in case.facts:
        raise Conflict("grant.exists", f"{body.to} may already publish in {body.namespace}.")
    return {key: GrantFact(case.index)}


def _publish(case: _Case, body: Publish) -> dict[str, Fact]:
    uri, author = parse_protocol_uri(body.uri), case.statement.author
    if uri.origin != case.log.origin:
        raise Refused("publish.other-host", f"This log publishes below https://{case.log.origin}/protocols/.")
    owner = author.port is None and author.namespace == uri.namespace
    if not owner and _grant_key(uri.namespace, author.text) not in case.facts:
        raise Refused(
            "publish.not-entitled",
            f"{author.text} may not publish in the namespace {uri.namespace}.",
            fix="Publish in your own namespace, or ask its owner for a grant.",
        )
    _check_tenure(case)
    if _protocol_key(body.uri) in case.facts:
        raise Conflict(
            "publish.version-exists",
            f"{body.uri} is published; a version is immutable.",
            fix="Publish a new version.",
        )
    if body.base is not None:
        base = _protocol(case, body.base.uri)
        if base.document != body.base.document:
            raise Refused("publish.base", f"The document of {body.base.uri} has another hash than the one pinned.")
    return {_protocol_key(body.uri): ProtocolFact(case.index, author.text, body.document.sha256, body.topic)}


def _handler(case: _Case, body: Handler) -> dict[str, Fact]:
    _check_tenure(case)
    if _protocol(case, body.uri).document != body.document:
        raise Refused("handler.other-document", f"The document of {body.uri} has another hash.")
    key = _handler_key(body.uri, case.statement.author.text, body.wheel.sha256)
    if key in case.facts:
        raise Conflict("handler.exists", f"You have attached this wheel to {body.uri} already.")
    return {key: HandlerFact(case.index)}


def _status(case: _Case, body: Status) -> dict[str, Fact]:
    author = case.statement.author.text
    protocol = _protocol(case, body.uri)
    if body.wheel is None and protocol.publisher != author:
        raise Refused("status.not-publisher", f"Only {protocol.publisher} sets the status of {body.uri}.")
    if body.wheel is not None and _handler_key(body.uri, author, body.wheel) not in case.facts:
        raise NotFound("status.no-handler", f"You have attached no handler {body.wheel} to {body.uri}.")
    return {}


def _report(case: _Case, body: Report) -> dict[str, Fact]:
    first, second = case.statement.authors[0], case.statement.authors[-1]
    if len(case.statement.by) != 2 or first == second:
        raise Refused("report.parties", "A report has two signatures, of two different DIDs.")
    _check_epoch(case, body.epoch)
    key = report_key(case.statement.authors, body.nid)
    before: ReportFact | None = case.find(key, ReportFact)
    if before is None:
        return {key: ReportFact(body.document, case.index)}
    if before.document == body.document or before.equivocated:
        raise Conflict("report.exists", "This negotiation is reported already.")
    return {key: ReportFact(before.document, before.index, equivocated=True)}


def _ballot(case: _Case, body: Ballot) -> dict[str, Fact]:
    author = case.statement.author
    before: BallotFact | None = case.find(_ballot_key(body.topic, author.text), BallotFact)
    expected = before.seq + 1 if before else 0
    if body.seq != expected:
        raise Conflict(
            "ballot.seq",
            f"The next ballot of {author.text} in {body.topic} has seq {expected}, not {body.seq}.",
        )
    return {_ballot_key(body.topic, author.text): BallotFact(body.seq, case.index)}


def _vouch(case: _Case, body: Vouch) -> dict[str, Fact]:
    author = case.statement.author.text
    before: VouchFact | None = case.find(_vouch_key(author), VouchFact)
    expected = before.seq + 1 if before else 0
    if body.to == author:
        raise Refused("vouch.self", "Nobody vouches for itself.")
    if body.seq != expected:
        raise Conflict("vouch.seq", f"The next vouch of {author} has seq {expected}, not {body.seq}.")
    return {_vouch_key(author): VouchFact(body.seq, case.index)}


def _parameters(case: _Case, body: Parameters) -> dict[str, Fact]:
    made = case.statement.id
    # Nobody changes the rules of a vote that is open: only the very first ones hold at once.
    if body.witnesses and any(f"{key.name}/".startswith(f"{case.log.origin}/") for key in body.witnesses.parsed.keys):
        raise Refused("parameters.witnesses", "A log does not witness itself: neither its key nor its clock is a witness.")
    log = _replace(case.log, parameters=made) if case.log.parameters is None else _replace(case.log, announced=made)
    changes: dict[str, Fact] = {LOG: log, _parameters_key(made): ParametersFact(body.epoch_seconds, body.witnesses)}
    if body.reputation:
        changes[_needed_key(body.reputation.suffix_list.sha256)] = NeededFact(case.index)
    return changes


def _decision(case: _Case, body: Decision) -> dict[str, Fact]:
    log = case.log
    if body.parameters != log.parameters:
        raise Refused("decision.parameters", "A decision is made under the parameters in force.")
    previous: TopicFact | None = case.find(topic_key(body.topic), TopicFact)
    if body.previous != (previous.decision if previous else None):
        raise Conflict("decision.previous", f"The newest decision in {body.topic} is another one.")
    if log.remaining:
        next_up = body.remaining == log.remaining - 1 and body.topic > log.closed_topic
        follows = next_up and body.epoch == log.epoch - 1 and body.input.size == log.closed_at
    else:
        follows = body.epoch == log.epoch and body.input.size == case.index
    if not follows:
        raise Refused(
            "decision.epoch",
            "The decisions of an epoch follow their input at once, in the order of their topics.",
        )
    parameters: ParametersFact | None = case.find(_parameters_key(body.parameters), ParametersFact)
    if parameters is None:
        raise Refused("decision.parameters", "The parameters that a decision is made under are not among these leaves.")
    _check_witnessed(case, body, parameters)
    closed = _replace(
        log,
        epoch=body.epoch + 1,
        opened=_opened(case, parameters),
        closed_at=body.input.size,
        closed_topic=body.topic,
        remaining=body.remaining,
    )
    if not body.remaining and log.announced:
        closed = _replace(closed, parameters=log.announced, announced=None)
    return {topic_key(body.topic): TopicFact(case.statement.id, case.index), LOG: closed}


def _check_witnessed(case: _Case, body: Decision, parameters: ParametersFact) -> None:
    """A decision rests on a log that its witnesses have seen: whoever asks them, and whoever reads it, looks at one history."""
    if parameters.witnesses is None:
        if body.input.witnessed is not None:
            raise Refused("decision.not-witnessed", "The parameters in force name no witnesses, so there is nothing to carry.")
        return
    head = Checkpoint(case.log.origin, body.input.size, bytes.fromhex(body.input.root))
    try:
        parameters.witnesses.parsed.check((body.input.witnessed or "").encode(), head)
    except TreatyError as error:
        raise Refused("decision.not-witnessed", error.message, fix=error.fix) from error


def _opened(case: _Case, parameters: ParametersFact) -> int:
    """When the epoch after this decision's opened; refuses one that would close before its time.

    The schedule does not drift, and a registry that was away for some epochs goes on with the one it wakes up in.
    """
    if case.log.remaining:
        return case.log.opened
    now = max(case.log.time, case.statement.issued)
    if parameters.epoch_seconds is None:
        return now
    due = case.log.opened + parameters.epoch_seconds
    if now < due:
        raise Refused("decision.early", f"Epoch {case.log.epoch} is open for another {due - now} seconds.")
    return now - (now - due) % parameters.epoch_seconds


def _withdrawal(case: _Case, body: Withdrawal) -> dict[str, Fact]:
    if _needed_key(body.sha256) in case.facts:
        raise Refused("withdrawal.needed", f"Decisions of this log are recomputed with the suffix list {body.sha256}.")
    return {}


_RULES: Mapping[type[Body], Callable[[_Case, Any], dict[str, Fact]]] = {
    Identity: _identity,
    Grant: _grant,
    Publish: _publish,
    Handler: _handler,
    Status: _status,
    Report: _report,
    Ballot: _ballot,
    Vouch: _vouch,
    Parameters: _parameters,
    Decision: _decision,
    Withdrawal: _withdrawal,
}


def _check_tenure(case: _Case) -> None:
    """Whoever took a domain over publishes neither protocols nor handlers for thirty days."""
    author = case.statement.author.text
    identity: IdentityFact | None = case.find(identity_key(author), IdentityFact)
    if identity and identity.tenure > 1 and case.log.time < identity.since + TENURE_WAIT:
        raise Refused("publish.new-tenure", f"{author} changed hands; it may publish 30 days after that.")


def _check_epoch(case: _Case, epoch: int) -> None:
    if epoch != case.log.epoch:
        raise Refused(
            "report.epoch",
            f"The open epoch is {case.log.epoch}, not {epoch}.",
            fix="Sign the report again for the open epoch.",
        )


def _protocol(case: _Case, uri: str) -> ProtocolFact:
    fact: ProtocolFact | None = case.find(_protocol_key(uri), ProtocolFact)
    if fact is None:
        raise NotFound("protocol.unknown", f"{uri} is not published in this log.")
    return fact


def _protocol_key(uri: str) -> str:
    return f"protocol/{uri}"


def _grant_key(namespace: str, did: str) -> str:
    return f"grant/{namespace}/{did}"


def _handler_key(uri: str, did: str, wheel: str) -> str:
    return f"handler/{uri}/{did}/{wheel}"


def _ballot_key(topic: str, did: str) -> str:
    return f"ballot/{topic}/{did}"


def _vouch_key(did: str) -> str:
    return f"vouch/{did}"


def _needed_key(sha256: str) -> str:
    return f"needed/{sha256}"


def _parameters_key(statement: str) -> str:
    return f"parameters/{statement}"


def _replace(log: LogFact, **changes: Any) -> LogFact:
    return msgspec.structs.replace(log, **changes)
