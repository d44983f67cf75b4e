"""Decide whether a statement may enter a log: every admission rule, in one pure function.

`reads(statement)` names the facts that the rules need; `admit(facts, verified, index)` returns the changed facts, or refuses.
The sequencer calls it before a statement becomes leaf `index`, an auditor for every leaf, and a client for the few leaves
that prove one protocol. So all three enforce the same rules. A refusal changes nothing.

The parts in their order: statements of each type; epochs, and the input of decisions that witnesses saw; grants; tenures.

A grant ends when the namespace's owner takes it back, and when the owner or the DID that got it begins a new tenure: then another
person may hold the domain. Its order in the log decides. A protocol that was published before the end stays published.

Specification: `docs/specification/statements.md`, "Admission" and "Kinds".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from .amendment import announce, enacted, holds_at, withdraws
from .codes import (
    DecisionCode,
    ElectorateCode,
    HandlerCode,
    IdentityCode,
    LogCode,
    ParametersCode,
    ProtocolCode,
    PublishCode,
    ReportCode,
    StatementCode,
    WithdrawalCode,
)
from .did import parse_did
from .errors import Conflict, NotFound, Refused, TreatyError, Unauthorized, Unavailable
from .facts import (
    CONSTITUTION,
    KEYS,
    LOG,
    BallotFact,
    ConstitutionFact,
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
    ballot_key,
    find,
    grant_key,
    handler_key,
    identity_key,
    keys_of,
    log_of,
    needed_key,
    parameters_key,
    protocol_key,
    report_key,
    topic_key,
    vouch_key,
)
from .kinds import (
    RULES,
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
    Validation,
    Vouch,
    Withdrawal,
)
from .log.checkpoint import Checkpoint
from .log_keys import genesis_keys, rotate
from .protocol import owners_of, parse_protocol_uri
from .rotation import Rotation
from .statement import Statement, Verified


def reads(statement: Statement) -> set[str]:
    """Return the fact keys that `admit` may read for this statement."""
    keys = {LOG, *(identity_key(did.text) for did in statement.authors if did.method != "key")}
    body, author = statement.body, statement.author.text
    match body:
        case Validation():
            keys |= set(map(identity_key, owners_of(parse_did(body.did).namespace)))
        case Identity():
            keys.add(identity_key(body.did))
        case Publish():
            keys |= {protocol_key(body.uri), *grant_reads(parse_protocol_uri(body.uri).namespace, author)}
            keys |= {protocol_key(body.base.uri)} if body.base else set()
        case Handler():
            keys |= {protocol_key(body.uri), handler_key(body.uri, author, body.wheel.sha256)}
        case Status():
            keys.add(protocol_key(body.uri))
            keys |= {handler_key(body.uri, author, body.wheel)} if body.wheel else set()
        case Report():
            keys.add(report_key(statement.authors, body.nid))
        case Ballot():
            keys |= {ballot_key(body.topic, author), CONSTITUTION}
        case Vouch():
            keys |= {vouch_key(author), CONSTITUTION}
        case Parameters():
            keys.add(CONSTITUTION)
        case Decision():
            keys |= {topic_key(body.topic), parameters_key(body.parameters), CONSTITUTION}
        case Grant():
            keys |= grant_reads(body.namespace, body.to)
        case Withdrawal():
            keys.add(needed_key(body.sha256))
        case Rotation():
            keys.add(KEYS)
    return keys


def admit(facts: Facts, verified: Verified, index: int) -> dict[str, Fact]:
    """Judge a verified statement that would become leaf `index`; return the facts that it changes.

    `facts`: at least `reads(statement)`, as of the previous leaf.

    Raises `Malformed`, `Unauthorized`, `NotFound`, `Conflict`, `Refused` or `Unavailable` (an epoch is being closed). The
    code names the rule.
    """
    statement = verified.statement
    case = _Case(facts, statement, index)
    # A genesis creates the log fact that all other rules read, so it comes first.
    if isinstance(statement.body, Genesis):
        return _genesis(case, statement.body)
    log = log_of(facts)
    # Prevents replay: a statement signed for one log is not valid in another.
    if statement.log != log.origin:
        raise Refused(StatementCode.OTHER_LOG, f"This statement is for the log {statement.log}, not for {log.origin}.")
    case.check_authors(verified.keys, log.operator)
    # Decisions follow their input without a gap, so no topic can be left out of an epoch.
    if log.remaining and not isinstance(statement.body, Decision):
        raise Unavailable(LogCode.CLOSING, f"Epoch {log.epoch - 1} is being closed.", fix="Send the statement again.")
    changes = _RULES[type(statement.body)](case, statement.body)
    if statement.author.text == log.operator or log.operator in (did.text for did in statement.authors):
        current = changes.get(LOG, log)
        assert isinstance(current, LogFact)
        # The clock never goes back: an operator's statement with an earlier time leaves it unchanged.
        if statement.issued > log.time:
            changes[LOG] = replace(current, time=statement.issued, time_index=index)
    return changes


def check_operator(statement: Statement, operator: str) -> None:
    """Check that the operator signs the types of statement that only it may make.

    Raises `Unauthorized` (`statement.not-operator`).
    """
    operators_own = isinstance(statement.body, Identity | Parameters | Decision | Withdrawal | Rotation)
    if operators_own and operator not in (did.text for did in statement.authors):
        raise Unauthorized(StatementCode.NOT_OPERATOR, f"Only the log's operator may make {statement.type} statements.")


@dataclass(frozen=True)
class _Case:
    """Hold one statement with the facts that the rules read."""

    facts: Facts
    statement: Statement
    index: int

    @property
    def log(self) -> LogFact:
        return log_of(self.facts)

    @property
    def constitution(self) -> ConstitutionFact:
        return find(self.facts, CONSTITUTION, ConstitutionFact) or ConstitutionFact()

    def find(self, key: str, kind: type[Any]) -> Any:
        return find(self.facts, key, kind)

    def check_authors(self, keys: tuple[bytes, ...], operator: str) -> None:
        """Check that the verified keys are current, and that the number of authors fits the type."""
        # Two signatures are for reports, and for identities that an old key co-signs.
        pair = isinstance(self.statement.body, Report | Identity)
        if len(self.statement.by) != 1 and not pair:
            raise Refused(StatementCode.SIGNATURES, f"A {self.statement.type} statement has one author.")
        check_operator(self.statement, operator)
        for did, key_id, key in zip(self.statement.authors, self.statement.by, keys, strict=True):
            # The keys may have changed since the signature was verified: the sequencer checks again at the final index.
            if keys_of(self.facts, did).get(key_id) != key:
                raise Unauthorized(StatementCode.UNKNOWN_KEY, f"{key_id} is not a key of its DID as this log knows it.")
            identity: IdentityFact | None = self.find(identity_key(did.text), IdentityFact)
            if identity is not None and identity.has_ended(key_id, self.log.time):
                raise Unauthorized(
                    StatementCode.UNKNOWN_KEY, f"{key_id} signs no longer.", fix="Have a new key validated, with a new token."
                )

    def check_voter(self) -> None:
        """Check that the author may vote and vouch: under a rule with notice, a new tenure waits as it does to publish."""
        author = self.statement.author.text
        if self.constitution.in_force is not None:
            check_tenure(self.log, author, self.find(identity_key(author), IdentityFact))


def _genesis(case: _Case, body: Genesis) -> dict[str, Fact]:
    statement = case.statement
    if case.index != 0 or LOG in case.facts:
        raise Conflict(LogCode.EXISTS, "The log already has a genesis, its leaf 0.")
    if statement.log != body.origin or [did.text for did in statement.authors] != [body.operator]:
        raise Refused(StatementCode.FORM, "A genesis must be signed by the operator and for the origin that it names.")
    return {LOG: LogFact(body.origin, body.operator, statement.issued, 0, opened=statement.issued), KEYS: genesis_keys(body)}


def _identity(case: _Case, body: Identity) -> dict[str, Fact]:
    key = identity_key(body.did)
    before: IdentityFact | None = case.find(key, IdentityFact)
    cosigned = any(did.text == body.did for did in case.statement.authors)
    # No key of an account vouches for the next one: each is proved by a token.
    is_account = isinstance(body, Validation) and body.method == "oidc"
    if any(did.text not in (body.did, case.log.operator) for did in case.statement.authors) or (cosigned and is_account):
        raise Refused(
            StatementCode.SIGNATURES,
            "Only the operator and an old key of the same DID may sign an identity.",
        )
    _check_undocumented(case, body)
    # The link to the previous identity makes the order explicit, so two fetches at a time cannot both be admitted.
    if body.previous != (before.statement if before else None):
        raise Conflict(StatementCode.PREVIOUS, f"`previous` is not the newest identity of {body.did} in this log.")
    # An unchanged document would fill the log without new information.
    if before and before.document == body.document.sha256:
        raise Conflict(StatementCode.EXISTS, f"The document of {body.did} has not changed since its newest identity.")
    tenure = next_tenure(before, body, cosigned=cosigned)
    if body.tenure != tenure:
        raise Refused(IdentityCode.FORM, f"This identity of {body.did} must have tenure {tenure}, not {body.tenure}.")
    now = max(case.log.time, case.statement.issued)
    # The same tenure keeps its start, so that a routine key change does not restart the waiting period.
    since = before.since if before and before.tenure == tenure else now
    fact = IdentityFact(case.statement.id, case.index, body.document.sha256, {k.id: k.multikey for k in body.keys}, tenure, since)
    return {key: _with_ends(fact, before, body, now) if isinstance(body, Validation) else fact}


def _check_undocumented(case: _Case, body: Identity) -> None:
    """Check that no DID with a document owns the namespace of a validated name: a record would be a second, weaker way to it."""
    owners = owners_of(parse_did(body.did).namespace) if isinstance(body, Validation) else ()
    if any(owner != body.did and case.find(identity_key(owner), IdentityFact) for owner in owners):
        raise Conflict(
            StatementCode.EXISTS, f"The namespace of {body.did} belongs to a DID with a document, which this log knows."
        )


def _with_ends(fact: IdentityFact, before: IdentityFact | None, body: Validation, now: int) -> IdentityFact:
    """Return the fact with the ends of an account's keys. Raises `Refused` for a key that no token named."""
    if body.method != "oidc":
        return fact
    ends = before.ends if before and before.tenure == fact.tenure else {}
    proved, *others = (key.id for key in body.keys)
    # Only the proved key is new: the operator can neither add another one nor prolong it.
    if any(ends.get(key_id, 0) < now for key_id in others):
        raise Refused(IdentityCode.FORM, f"This validation of {body.did} lists a key that has ended, or was never proved.")
    return replace(fact, account=body.account, ends={**{key_id: ends[key_id] for key_id in others}, proved: now + KEY_LIFE})


def _grant(case: _Case, body: Grant) -> dict[str, Fact]:
    if case.statement.author.namespace != body.namespace:
        raise Refused(PublishCode.NOT_ENTITLED, f"{case.statement.author.text} does not own the namespace {body.namespace}.")
    # A repeated grant is admitted: the proof of a protocol holds only some of the statements of a pair.
    fact = new_grant(case.facts, case.statement.author.text, body.to, case.index, withdrawn=body.withdrawn)
    return {grant_key(body.namespace, body.to): fact}


def _publish(case: _Case, body: Publish) -> dict[str, Fact]:
    uri, author = parse_protocol_uri(body.uri), case.statement.author
    # The URI is also the address of the document, so only its own host can publish it.
    if uri.origin != case.log.origin:
        raise Refused(StatementCode.OTHER_LOG, f"This log publishes below https://{case.log.origin}/protocols/.")
    # A port does not own the host: any user of the machine may listen on one.
    owner = author.port is None and author.namespace == uri.namespace
    grant = None if owner else find_grant(case.facts, uri.namespace, author.text)
    if not owner and grant is None:
        raise Refused(
            PublishCode.NOT_ENTITLED,
            f"{author.text} may not publish in the namespace {uri.namespace}.",
            fix="Publish in your own namespace, or ask its owner for a grant.",
        )
    publisher = case.statement.author.text
    # Those of the grant's owner too: a guest must not publish for an owner that has to wait.
    for did in (publisher, grant.owner) if grant else (publisher,):
        check_tenure(case.log, did, case.find(identity_key(did), IdentityFact))
    if protocol_key(body.uri) in case.facts:
        raise Conflict(
            PublishCode.VERSION_EXISTS,
            f"{body.uri} is already published, and a version is immutable.",
            fix="Publish a new version.",
        )
    if body.base is not None:
        base = _protocol(case, body.base.uri)
        if base.document != body.base.document:
            raise Refused(PublishCode.BASE, f"The document of {body.base.uri} has another hash than the pinned one.")
    return {protocol_key(body.uri): ProtocolFact(case.index, author.text, body.document.sha256, body.topic)}


def _handler(case: _Case, body: Handler) -> dict[str, Fact]:
    publisher = case.statement.author.text
    check_tenure(case.log, publisher, case.find(identity_key(publisher), IdentityFact))
    if _protocol(case, body.uri).document != body.document:
        raise Refused(HandlerCode.MISMATCH, f"The document of {body.uri} has another hash.")
    key = handler_key(body.uri, case.statement.author.text, body.wheel.sha256)
    if key in case.facts:
        raise Conflict(StatementCode.EXISTS, f"You have already attached this wheel to {body.uri}.")
    return {key: HandlerFact(case.index)}


def _status(case: _Case, body: Status) -> dict[str, Fact]:
    author = case.statement.author.text
    protocol = _protocol(case, body.uri)
    if body.wheel is None and protocol.publisher != author:
        raise Refused(PublishCode.NOT_ENTITLED, f"Only {protocol.publisher} may set the status of {body.uri}.")
    if body.wheel is not None and handler_key(body.uri, author, body.wheel) not in case.facts:
        raise NotFound(StatementCode.NO_TARGET, f"You have attached no handler {body.wheel} to {body.uri}.")
    return {}


def _report(case: _Case, body: Report) -> dict[str, Fact]:
    first, second = case.statement.authors[0], case.statement.authors[-1]
    if len(case.statement.by) != 2 or first == second:
        raise Refused(ReportCode.OTHER, "A report needs two signatures, of two different DIDs.")
    _check_epoch(case, body.epoch)
    # A second report on another document is admitted: it proves the equivocation, and bars both authors.
    key = report_key(case.statement.authors, body.nid)
    before: ReportFact | None = case.find(key, ReportFact)
    if before is None:
        return {key: ReportFact(body.document, case.index)}
    if before.document == body.document or before.equivocated:
        raise Conflict(ReportCode.EXISTS, "This negotiation has already been reported.")
    return {key: ReportFact(before.document, before.index, equivocated=True)}


def _ballot(case: _Case, body: Ballot) -> dict[str, Fact]:
    author = case.statement.author
    case.check_voter()
    before: BallotFact | None = case.find(ballot_key(body.topic, author.text), BallotFact)
    expected = before.seq + 1 if before else 0
    if body.seq != expected:
        raise Conflict(
            StatementCode.PREVIOUS,
            f"The next ballot of {author.text} in {body.topic} has seq {expected}, not {body.seq}.",
        )
    return {ballot_key(body.topic, author.text): BallotFact(body.seq, case.index)}


def _vouch(case: _Case, body: Vouch) -> dict[str, Fact]:
    author = case.statement.author.text
    case.check_voter()
    before: VouchFact | None = case.find(vouch_key(author), VouchFact)
    expected = before.seq + 1 if before else 0
    if body.to == author:
        raise Refused(ElectorateCode.ONE_PRINCIPAL, "A DID cannot vouch for itself. Name the DID of another principal.")
    if body.seq != expected:
        raise Conflict(StatementCode.PREVIOUS, f"The next vouch of {author} has seq {expected}, not {body.seq}.")
    return {vouch_key(author): VouchFact(body.seq, case.index)}


def _parameters(case: _Case, body: Parameters) -> dict[str, Fact]:
    statement_id = case.statement.id
    if body.witnesses and any(f"{key.name}/".startswith(f"{case.log.origin}/") for key in body.witnesses.parsed.keys):
        raise Refused(ParametersCode.AMENDMENT, "A log cannot witness itself. Name keys of other operators.")
    now = max(case.log.time, case.statement.issued)
    constitution = case.constitution
    # The rules of an open epoch never change: only the first parameters of a log apply at once.
    if case.log.parameters is None:
        amended, log = enacted(body), replace(case.log, parameters=statement_id)
    else:
        amended = announce(constitution, body, now)
        log = replace(case.log, announced=None if withdraws(constitution, body) else statement_id)
    changes: dict[str, Fact] = {LOG: log, parameters_key(statement_id): ParametersFact(body.epoch_seconds, body.witnesses)}
    # A log of the first rule alone has no such fact, so that its facts are those of earlier releases.
    if amended != constitution:
        changes[CONSTITUTION] = amended
    if body.reputation:
        # The suffix list must stay available for as long as decisions are recomputed, so its withdrawal is refused.
        changes[needed_key(body.reputation.suffix_list.sha256)] = NeededFact(case.index)
    return changes


def _decision(case: _Case, body: Decision) -> dict[str, Fact]:
    log = case.log
    if body.parameters != log.parameters:
        raise Refused(DecisionCode.RULE, "A decision must name the parameters in force.")
    previous: TopicFact | None = case.find(topic_key(body.topic), TopicFact)
    if body.previous != (previous.decision if previous else None):
        raise Conflict(StatementCode.PREVIOUS, f"`previous` is not the newest decision in {body.topic}.")
    check_place(log, body, case.index)
    parameters: ParametersFact | None = case.find(parameters_key(body.parameters), ParametersFact)
    if parameters is None:
        raise Refused(DecisionCode.RULE, "The parameters of this decision are not among the given leaves.")
    check_witnessed(log, body, parameters, case.statement.issued)
    closed = replace(
        log,
        epoch=body.epoch + 1,
        opened=next_opening(log, case.statement.issued, parameters),
        closed_at=body.input.size,
        closed_topic=body.topic,
        remaining=body.remaining,
    )
    changes: dict[str, Fact] = {topic_key(body.topic): TopicFact(case.statement.id, case.index)}
    # New parameters apply from an epoch on, so after the last decision of the one before.
    if not body.remaining and log.announced and holds_at(case.constitution, closed.opened):
        closed = replace(closed, parameters=log.announced, announced=None)
        if (after := enacted(case.constitution.announced)) != case.constitution:
            changes[CONSTITUTION] = after
    return {**changes, LOG: closed}


def _withdrawal(case: _Case, body: Withdrawal) -> dict[str, Fact]:
    # Without the suffix list no audit could recompute the decisions.
    if needed_key(body.sha256) in case.facts:
        raise Refused(WithdrawalCode.NEEDED, f"Decisions of this log need the suffix list {body.sha256} to be recomputed.")
    return {}


def _rotation(case: _Case, body: Rotation) -> dict[str, Fact]:
    return rotate(case.facts, body, issued=case.statement.issued, now=case.log.time, index=case.index)


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
    Rotation: _rotation,
    Validation: _identity,
}


def _check_epoch(case: _Case, epoch: int) -> None:
    if epoch != case.log.epoch:
        raise Refused(
            ReportCode.EPOCH,
            f"The open epoch is {case.log.epoch}, not {epoch}.",
            fix="Sign the report again for the open epoch.",
        )


def _protocol(case: _Case, uri: str) -> ProtocolFact:
    fact: ProtocolFact | None = case.find(protocol_key(uri), ProtocolFact)
    if fact is None:
        raise NotFound(ProtocolCode.UNKNOWN, f"{uri} is not published in this log.")
    return fact


MAX_AHEAD = 300
"""Seconds that the log's clock may be ahead of a cosignature, because clocks differ; as much as readers allow a witness."""


def check_place(log: LogFact, body: Decision, index: int) -> None:
    """Check that a decision is the next one due, and follows its input. Raises `Refused` (`decision.rule`)."""
    if log.remaining:
        next_up = body.remaining == log.remaining - 1 and body.topic > log.closed_topic
        follows = next_up and body.epoch == log.epoch - 1 and body.input.size == log.closed_at
    else:
        follows = body.epoch == log.epoch and body.input.size == index
    if not follows:
        raise Refused(
            DecisionCode.RULE,
            "The decisions of an epoch must directly follow their input, in the order of their topics.",
        )


def check_witnessed(log: LogFact, body: Decision, parameters: ParametersFact, issued: int) -> None:
    """Check that the parameters' witnesses cosigned the decision's input.

    A reader who trusts one of them then knows that the decision rests on the history that the witness saw. Under a rule with
    notice the log's clock, set by `issued`, is also at most `MAX_AHEAD` seconds ahead of the time that the quorum states: an
    operator cannot close epochs that have not ended.
    """
    if parameters.witnesses is None:
        if body.input.witnessed is not None:
            raise Refused(DecisionCode.RULE, "The parameters in force name no witnesses. Leave `witnessed` out.")
        return
    head = Checkpoint(log.origin, body.input.size, bytes.fromhex(body.input.root))
    try:
        parameters.witnesses.parsed.check((body.input.witnessed or "").encode(), head)
    except TreatyError as error:
        raise Refused(DecisionCode.RULE, error.message, fix=error.fix) from error
    seen = parameters.witnesses.parsed.time_of((body.input.witnessed or "").encode())
    ahead = max(log.time, issued) - (seen or 0)
    if body.rule != RULES[0] and ahead > MAX_AHEAD:
        raise Refused(
            DecisionCode.RULE,
            f"The log's clock is {ahead} seconds ahead of the witnesses of this decision's input.",
            fix="Correct the clock of the registry, or those of the witnesses.",
        )


def next_opening(log: LogFact, issued: int, parameters: ParametersFact) -> int:
    """Return the time at which the next epoch opens. Refuses a decision before the end of its epoch.

    The schedule does not drift. A registry that was down for some epochs continues with the current one.
    """
    # Later decisions of the same epoch keep the opening time that the first one set.
    if log.remaining:
        return log.opened
    # The decision itself advances the clock: it may be the operator's first statement after the due time.
    now = max(log.time, issued)
    if parameters.epoch_seconds is None:
        return now
    due = log.opened + parameters.epoch_seconds
    if now < due:
        raise Refused(DecisionCode.EARLY, f"Epoch {log.epoch} is open for another {due - now} seconds.")
    # Rounded down to the schedule, so a late decision does not shift later epochs.
    return now - (now - due) % parameters.epoch_seconds


def grant_reads(namespace: str, did: str) -> set[str]:
    """Return the keys of the facts that `find_grant` and `new_grant` read."""
    return {grant_key(namespace, did), *map(identity_key, (*owners_of(namespace), did))}


def find_grant(facts: Facts, namespace: str, did: str) -> GrantFact | None:
    """Return the grant of `namespace` to `did` that is in force, or None."""
    fact: GrantFact | None = find(facts, grant_key(namespace, did), GrantFact)
    if fact is None or fact.withdrawn:
        return None
    same = tenure_of(facts, fact.owner) == fact.owner_tenure and tenure_of(facts, did) == fact.tenure
    return fact if same else None


def new_grant(facts: Facts, owner: str, did: str, index: int, *, withdrawn: bool) -> GrantFact:
    """Return the fact of a grant that becomes leaf `index`, in the present tenures of both DIDs."""
    return GrantFact(index, owner, tenure_of(facts, owner), tenure_of(facts, did), withdrawn)


def tenure_of(facts: Facts, did: str) -> int:
    """Return the present tenure of a DID: 1 for a did:key, and before the first identity of a domain."""
    fact = find(facts, identity_key(did), IdentityFact)
    return fact.tenure if fact else 1


# Seconds of the log's clock. A workflow publishes within minutes, and nobody keeps its key.
KEY_LIFE = 3600
# Seconds of the log's clock: the time in which the owner of a domain can notice that others took it, before they publish.
TENURE_WAIT = 30 * 24 * 3600


def next_tenure(before: IdentityFact | None, body: Identity, *, cosigned: bool) -> int:
    """Return the tenure that an identity must have which follows `before`.

    An account keeps its tenure with its number, whatever key it proves: the key of a workflow lives for minutes. The number of
    another account begins a new one, as a name that was given up may be taken by others. All else follows `tenure_after`.
    """
    if before is not None and isinstance(body, Validation) and body.method == "oidc":
        return before.tenure + (before.account != body.account)
    return tenure_after(before, {key.multikey for key in body.keys}, cosigned=cosigned)


def tenure_after(before: IdentityFact | None, multikeys: set[str], *, cosigned: bool) -> int:
    """Return the tenure of an identity with these keys that follows `before`.

    The tenure stays the same if an old key co-signs, or if the document lists no new key. Keys are public, so the new owner
    of a domain may list old keys, but gains nothing by it. A new key without a co-signature starts a new tenure.
    """
    if before is None:
        return 1
    return before.tenure if cosigned or multikeys <= set(before.keys.values()) else before.tenure + 1


def check_tenure(log: LogFact, author: str, identity: IdentityFact | None) -> None:
    """Check that the DID's tenure did not change in the last thirty days."""
    if identity and identity.tenure > 1 and log.time < identity.since + TENURE_WAIT:
        changed = "is another account" if identity.account else "lists new keys that no old key co-signed"
        raise Refused(
            IdentityCode.NEW_TENURE,
            f"{author} {changed}, so the name may have changed hands.",
            fix="Wait until 30 days have passed since then.",
        )
