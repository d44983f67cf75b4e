"""The verification of a protocol and its handler: the ten steps in order, as functions of their arguments, without I/O.

The table of the steps is in `steps`. One section follows for each step; larger details are in the modules of this package. The
last section holds the calls that take several steps: `prove` takes 1 to 4, `choose_handler` 5 and 6, `verify_handler` 7 to 9.
`protocols.answers` and `protocols.fetch` do the I/O between them, and step 10 with treaty.lock and the store. The same bytes
verify again offline, from the store or from a folder.

Every function of a step raises `VerificationFailed` with the number of that step.

A protocol whose publisher was a guest in the namespace, and is one no longer, is a warning. It stays valid: the grant was in
force when it was published. But the owner of the namespace stands for it no longer. Specification:
docs/specification/statements.md, "Kinds".

Step 6 takes the handlers that the log holds for a protocol, and the one of them that the policy selects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from packaging.tags import Tag, sys_tags

from treaty_consensus.codes import HandlerCode
from treaty_consensus.did import decode_multikey
from treaty_consensus.errors import Refused, TreatyError, Untrusted
from treaty_consensus.handler import TAG, HandlerPackage, parse_filename, read_wheel
from treaty_consensus.kinds import Decision, Genesis, Grant, Handler, Identity, Newer, Publish, Status
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.log.merkle import leaf_hash, verify_inclusion
from treaty_consensus.log.policy import WitnessRule
from treaty_consensus.protocol import Card, ProtocolUri, check_document, parse_card, parse_protocol_uri
from treaty_consensus.statement import Statement
from treaty_io.codes import BundleCode, ClientDocumentCode, ClientStatusCode, LockCode, PolicyCode, PublisherCode
from treaty_io.extras import naming_extras
from treaty_io.network.did_documents import DidDocument

from ...policy import Policy
from ...registries.bundle import Bundle, parse_bundle
from ...registries.leaves import SeenLeaf
from ...registries.trust import TrustedRegistry
from ..store import LockedProtocol, LockedVersion, line_of
from .blobs import blob_of, check_bytes, trusted_root_of
from .checkpoint import check_age, check_consistency, check_forward, cosigned_between, open_head
from .completeness import MissedEpochs, RegistryAnswer, left_out
from .contradiction import contradiction_error
from .pins import Change, check_not_older, check_pins, check_status, check_unchanged, lock_entry
from .records import Evidence, Logged, OfferedHandler, ProvenProtocol, VerifiedProtocol, is_status, needs_newer
from .replay import replay
from .steps import Step, taking

if TYPE_CHECKING:
    from ..attestation import SigningIdentity

    Signed = Callable[[], tuple[SigningIdentity, bytes, bytes]]


_NEGATIVE = {"yanked": ClientStatusCode.YANKED, "revoked": ClientStatusCode.REVOKED}


# (1) resolve


def check_registry(registry: TrustedRegistry, policy: Policy) -> None:
    """Check that the policy admits the registry."""
    with taking(Step.RESOLVE):
        if not policy.admits_registry(registry.name.origin):
            raise Refused(
                PolicyCode.REFUSED,
                f"The policy does not admit protocols of {registry.name.origin}.",
                fix="Add it to `registries` in the policy.",
            )


def read_bundle(data: bytes, *, uri: str = "", topic: str = "") -> Bundle:
    """Read the bundle of the protocol `uri`, or of `topic`; the other argument is "".

    The bundle must name the subject that was asked for, because the subject decides which leaves it must hold.
    """
    with taking(Step.RESOLVE):
        bundle = parse_bundle(data)
        if (bundle.uri, bundle.topic) != (uri, topic):
            bundle_subject, requested_subject = _subject_name(bundle.uri, bundle.topic), _subject_name(uri, topic)
            raise Untrusted(BundleCode.OTHER, f"The registry answered with {bundle_subject}, not with {requested_subject}.")
        return bundle


def _subject_name(uri: str, topic: str) -> str:
    return f"the protocol {uri!r}" if uri else f"the topic {topic!r}"


# (2) checkpoint


def verify_checkpoint(
    bundle: Bundle,
    registry: TrustedRegistry,
    *,
    now: int | None,
    max_age: int,
    witnesses: WitnessRule | None = None,
    bridge: Sequence[bytes] | None = None,
) -> tuple[SignedCheckpoint, Genesis]:
    """Check the signatures of a bundle's checkpoint, its age, and its consistency; return it with leaf 0.

    The arguments are those of `examine`.
    """
    with taking(Step.CHECKPOINT):
        checkpoint, genesis = open_head(bundle, registry.keys)
        if now is not None:
            check_age(checkpoint, now, max_age)
        if witnesses is not None:
            # The operator runs the clock and could give an old head a new time. So the times of the witnesses count too.
            witnesses.check(checkpoint.note, checkpoint.checkpoint, **cosigned_between(now, max_age))
        # At a first contact there is no checkpoint to be consistent with.
        if registry.newest is not None:
            check_consistency(bundle, checkpoint, registry.newest, bridge)
            # After the comparison, whose failure is a proof. Offline, an answer of any age counts.
            if now is not None:
                check_forward(checkpoint, registry.time, max_age)
        return checkpoint, genesis


# (3) inclusion


def verify_leaves(bundle: Bundle, checkpoint: SignedCheckpoint) -> None:
    """Check that every statement of the bundle is in the log of the checkpoint."""
    with taking(Step.INCLUSION):
        head = checkpoint.checkpoint
        for leaf in bundle.leaves:
            verify_inclusion(leaf.index, head.size, leaf_hash(leaf.leaf), leaf.proof, head.root)


# (4) statements


def verify_statements(bundle: Bundle) -> tuple[Logged, ...]:
    """Check the signatures of the statements and that the log could admit them; return them in the order of the log."""
    with taking(Step.STATEMENTS):
        return replay(bundle)


def check_host_keys(publisher: str, identities: Sequence[Logged], document: DidDocument) -> None:
    """Compare the keys that the log has for a DID with the document at the DID's own host.

    `identities`: those of the DID in the log, at least one. Raises `VerificationFailed` (`publisher.other-keys`).
    """
    identity = identities[-1].statement.body
    assert isinstance(identity, Identity)
    foreign = [key.id for key in identity.keys if document.keys.get(key.id) != decode_multikey(key.multikey)]
    if foreign:
        with taking(Step.STATEMENTS):
            raise Untrusted(
                PublisherCode.OTHER_KEYS,
                f"The log says that {', '.join(foreign)} speaks for {publisher}; the document at its own host does not.",
                fix="If the publisher has just changed its keys, try again after they are logged. Otherwise do not use it.",
            )


# (5) document


def verify_document(
    bundle: Bundle, uri: ProtocolUri, evidence: Evidence, expected_hash: str | None = None
) -> tuple[Statement, bytes]:
    """Check the bytes of the published document; return the publish statement and the document.

    `expected_hash`: the hash that was asked for; None accepts every hash.
    """
    with taking(Step.STATEMENTS):
        published = evidence.published(str(uri)).statement
        assert isinstance(published.body, Publish)
    with taking(Step.DOCUMENT):
        blob = published.body.document
        document = blob_of(bundle, blob, "document")
        check_document(document)
        if expected_hash not in (None, blob.sha256):
            raise Untrusted(ClientDocumentCode.DIGEST, f"The document at {uri} has the hash {blob.sha256}, not {expected_hash}.")
    return published, document


def verify_card(bundle: Bundle, publish: Publish) -> Card | None:
    """Check and read the protocol's card. Return None if its bytes were withdrawn."""
    with taking(Step.DOCUMENT):
        return parse_card(blob_of(bundle, publish.card, "card")) if publish.card.sha256 in bundle.blobs else None


# (6) handler


def select_handler(evidence: Evidence, uri: ProtocolUri, policy: Policy, pinned: LockedVersion | None = None) -> OfferedHandler:
    """Return the handler for this runtime that the policy selects. `pinned`: of its handlers, only this one."""
    with taking(Step.HANDLER):
        offered = offered_handlers(evidence, uri)
        if pinned is not None:
            offered = [handler for handler in offered if handler.body.wheel.sha256 == pinned.wheel]
            if not offered:
                raise Refused(
                    LockCode.CONTRADICTED,
                    f"treaty.lock pins the wheel {pinned.wheel} for {uri}, and the log shows no handler with it.",
                    fix="Pin the handler that it has: treaty upgrade.",
                )
        try:
            return choose(offered, policy, evidence.published(str(uri)).statement.author.text)
        except Refused as error:
            # Before the advice to allow a publisher: of a protocol that was taken back no handler runs anyway.
            check_current(newest_status(evidence, uri), str(uri))
            # The advice to name another publisher is wrong where one of the policy has a handler of a newer release.
            if any(_is_newer_handler(logged.statement, uri, policy) for logged in evidence.statements):
                raise needs_newer(f"The handler of {uri}") from error
            raise


def _is_newer_handler(statement: Statement, uri: ProtocolUri, policy: Policy) -> bool:
    body = statement.body
    return (
        isinstance(body, Newer) and (body.kind, body.uri) == ("handler", str(uri)) and statement.author.text in policy.publishers
    )


# (7) wheel


def verify_wheel(body: Handler, wheel: bytes) -> HandlerPackage:
    """Check the bytes of a wheel, the rules for wheels, and that its manifest is that of the handler statement."""
    with taking(Step.WHEEL):
        check_bytes(wheel, body.wheel, "wheel")
        package = read_wheel(body.filename, wheel)
        manifest = package.manifest
        stated = (manifest.protocol_uri, manifest.protocol_hash, str(package.entry_point))
        if stated != (body.uri, body.document, body.entry_point):
            raise Untrusted(
                HandlerCode.MANIFEST, "The wheel's manifest names another protocol or entry point than its handler statement."
            )
        return package


# (8) attestation


def verify_signer(proven: ProvenProtocol, policy: Policy) -> tuple[SigningIdentity, bytes, bytes]:
    """Check the Sigstore bundle of the handler: its signature, its binding, and that its signer may sign for the publisher.

    Return the signer, the bytes of the Sigstore bundle, and those of the trusted root.
    """
    # Imported here because Sigstore takes a third of a second to import, and most commands verify no handler. Where it is not
    # installed, this step fails: no handler runs unverified.
    with naming_extras():
        from ..attestation import Binding, SigningIdentity, Trust, verify_attestation

    offered, body = proven.handler, proven.handler.body
    with taking(Step.ATTESTATION):
        attestation = blob_of(proven.bundle, body.bundle, "Sigstore bundle")
        trusted_root = trusted_root_of(proven.bundle, proven.evidence)
        binding = Binding(body.wheel.sha256, body.uri, body.document, body.entry_point)
        trust = [Trust.registry(trusted_root, origin=proven.uri.origin, publisher=offered.publisher)]
        if policy.signers:
            trust.append(Trust.public_good([SigningIdentity(*signer) for signer in policy.signers]))
        attested = verify_attestation(attestation, binding, publisher=offered.publisher, trust=trust)
        return attested.signer, attestation, trusted_root


# (9) status


def check_current(status: Status | Newer | None, subject: str) -> tuple[str, ...]:
    """Return the warnings that follow from the newest status of `subject`, a protocol or a handler.

    Raises `VerificationFailed` (`status.yanked`, `status.revoked`, `registry.newer`).
    """
    if isinstance(status, Newer):  # it may be a revocation
        with taking(Step.STATUS):
            raise needs_newer(f"The status of {subject}")
    if status is None or status.state == "active":
        return ()
    successor = f" Its successor is {status.successor}." if status.successor else ""
    if status.state in _NEGATIVE:
        with taking(Step.STATUS):
            fix = f"Use its successor: treaty fetch {status.successor}" if status.successor else "Use another version."
            raise Refused(_NEGATIVE[status.state], f"{subject} is {status.state} by its publisher.{successor}", fix=fix)
    return (f"{subject} is deprecated by its publisher.{successor}",)


def check_state(state: str | None, topic: str, policy: Policy) -> None:
    """Check the state of a document in its topic. `state`: None if no decision names it. Raises `VerificationFailed`
    (`policy.refused`)."""
    if not policy.admits_state(state):
        with taking(Step.STATUS):
            raise Refused(
                PolicyCode.REFUSED,
                f"The document is {state or 'not decided'} in {topic or 'no topic'}; the policy asks for {policy.minimal_state}.",
                fix=f"See what it lacks: treaty topic {topic or 'TOPIC'} --explain. Or lower `minimal_state` in policy.toml.",
            )


# (10) lock: the history is compared right after step 4, the handler after step 9


def check_seen(answer: RegistryAnswer, own: Iterable[SeenLeaf], seen: Iterable[SeenLeaf], key: LogKeys) -> None:
    """Check that an answer holds the leaves it must hold, of those that earlier answers proved (`completeness`).

    `own`: the leaves of the answer. `key`: of the log. Raises `LeftOut`, and `MissedEpochs` for an answer whose decision has to
    be followed back first.
    """
    seen = list(seen)
    if answer.earlier is None and (gap := answer.gap(seen)):
        raise MissedEpochs(gap)
    missing = left_out(answer, seen)
    if missing:
        raise contradiction_error(answer, missing, own, key)


def check_lock(
    entries: Mapping[str, LockedProtocol], origin: str, evidence: Evidence, uri: ProtocolUri | None, *, is_kept: bool = False
) -> LockedVersion | None:
    """Check an answer against the history that treaty.lock pins (`pins`). `uri`: of the protocol; None for a topic.

    `is_kept`: the evidence is from the store or a folder and may be older than the lock. Return the version of the lock entry
    with its newest statuses, or None if it is not locked.
    """
    with taking(Step.LOCK):
        check_pins(entries, origin, evidence, is_kept=is_kept)
        return check_status(entries, uri, evidence) if uri is not None else None


def check_kept(verified: VerifiedProtocol, seen: Sequence[SeenLeaf], key: LogKeys) -> list[SeenLeaf]:
    """Compare a protocol that was verified earlier with the leaves that were proved since; return those that are newer than it.

    `seen`: the leaves under the subjects of its answer. Only a newer status of protocol or handler can refuse it (step 9); a
    newer decision or another handler does not. Raises `LeftOut` if it contradicts its own log.
    """
    answer = RegistryAnswer(verified.evidence, uri=verified.uri)
    check_seen(answer, (), [leaf for leaf in seen if leaf.index < answer.size], key)
    newer = left_out(answer, seen)
    for leaf in newer:
        body, author = leaf.statement.body, leaf.statement.author.text
        if not is_status(body) or body.uri != verified.uri:
            continue
        if body.wheel is None or (body.wheel, author) == (verified.package.digest, verified.publisher):
            check_current(body, body.uri)
    return newer


def check_handler(
    verified: VerifiedProtocol,
    uri: ProtocolUri,
    locked: LockedProtocol | None,
    seen: Iterable[SeenLeaf] = (),
    accept: Collection[Change] = (),
) -> None:
    """Check that a handler comes from the publisher, tenure and signer in treaty.lock, and is not older than one that was seen.

    `locked`: the entry of the protocol, None without one. `seen`: the leaves about the protocol that earlier answers proved.
    `accept`: changes that the owner accepts.
    """
    with taking(Step.LOCK):
        check_unchanged(locked, lock_entry(verified), line_of(uri), accept)
        if "handler" not in accept:
            check_not_older(verified, locked.versions.get(uri.version) if locked is not None else None, seen)


# Several steps in one call


def examine(
    bundle: Bundle,
    registry: TrustedRegistry,
    *,
    now: int | None,
    max_age: int,
    witnesses: WitnessRule | None = None,
    bridge: Sequence[bytes] | None = None,
) -> Evidence:
    """Take steps 2 to 4. CPU-bound: about 0.2 ms a statement.

    `now`, `max_age`: Unix seconds and seconds; without `now` the checkpoint may be of any age. `witnesses`: those who must have
    cosigned it within `max_age`. `bridge`: the proof for the sizes of `missing_proof`. Without `registry.seen` consistency is not
    checked.
    """
    checkpoint, genesis = verify_checkpoint(bundle, registry, now=now, max_age=max_age, witnesses=witnesses, bridge=bridge)
    verify_leaves(bundle, checkpoint)
    return Evidence(checkpoint, genesis, verify_statements(bundle))


def prove(
    bundle: Bundle, registry: TrustedRegistry, policy: Policy, *, now: int | None, bridge: Sequence[bytes] | None = None
) -> Evidence:
    """Take steps 1 to 4 with a bundle of `read_bundle`. CPU-bound, some milliseconds.

    `now`: Unix seconds; None accepts a checkpoint of any age (offline). `bridge`: as in `examine`.
    """
    check_registry(registry, policy)
    return examine(bundle, registry, now=now, max_age=policy.max_age, witnesses=policy.witnesses, bridge=bridge)


def choose_handler(
    bundle: Bundle,
    uri: ProtocolUri,
    evidence: Evidence,
    policy: Policy,
    *,
    expected_hash: str | None = None,
    pinned: LockedVersion | None = None,
) -> ProvenProtocol:
    """Take steps 5 and 6. `expected_hash`: the hash of the document if the name was a hash, else None. `pinned`: as
    `select_handler`."""
    published, document = verify_document(bundle, uri, evidence, expected_hash)
    publish = published.body
    assert isinstance(publish, Publish)
    card = verify_card(bundle, publish)
    handler, status = select_handler(evidence, uri, policy, pinned), newest_status(evidence, uri)
    return ProvenProtocol(uri, publish, published.author.text, document, card, status, handler, evidence, bundle)


def verify_bundle(
    bundle: Bundle,
    uri: ProtocolUri,
    registry: TrustedRegistry,
    policy: Policy,
    *,
    now: int | None,
    pinned: LockedVersion | None = None,
) -> ProvenProtocol:
    """Take steps 1 to 6 with stored bytes. Arguments and errors are those of `prove` and `choose_handler`."""
    return choose_handler(bundle, uri, prove(bundle, registry, policy, now=now), policy, pinned=pinned)


def prove_document(bundle: Bundle, uri: ProtocolUri, evidence: Evidence) -> bytes:
    """Take step 5 and the protocol's part of step 9; return the document, for a caller that reads it and runs nothing."""
    _, document = verify_document(bundle, uri, evidence)
    check_current(newest_status(evidence, uri), str(uri))
    return document


def verify_handler(
    proven: ProvenProtocol, wheel: bytes, policy: Policy, *, bundle: bytes, signed: Signed | None = None
) -> VerifiedProtocol:
    """Take steps 7 to 9. `bundle`: the bytes that `proven` was read from. `signed`: the outcome of `verify_signer`, if it was
    called before; it needs no wheel. CPU-bound, some milliseconds; call it in a thread."""
    offered = proven.handler
    # In this process: a publisher of the policy signed the wheel's digest, and reading takes linear time within the caps.
    package = verify_wheel(offered.body, wheel)
    signer, attestation, trusted_root = signed() if signed is not None else verify_signer(proven, policy)
    warnings = (
        *check_current(proven.status, str(proven.uri)),
        *check_current(offered.status, f"The handler {offered.body.filename}"),
        *grant_warnings(proven.evidence, str(proven.uri)),
    )
    decision = proven.evidence.decision(proven.publish.topic)
    if isinstance(decision, Newer):
        warnings += (
            f"The election of {decision.topic} is decided in a way that this release does not know, so its state is unknown.",
        )
    pinned = policy.constitutions.get(proven.uri.origin)
    if isinstance(decision, Decision) and pinned is not None and proven.evidence.constitution(decision) != pinned:
        warnings += (
            f"The decision on {decision.topic} is made under another constitution than the policy pins, so it does not count.",
        )
        decision = None
    state = dict(decision.states).get(proven.publish.document.sha256) if isinstance(decision, Decision) else None
    check_state(state, proven.publish.topic, policy)
    return VerifiedProtocol(
        uri=str(proven.uri),
        hash=proven.publish.document.sha256,
        topic=proven.publish.topic,
        document=proven.document,
        card=proven.card,
        author=proven.author,
        publisher=offered.publisher,
        tenure=offered.tenure,
        package=package,
        signer=signer,
        election=state,
        warnings=warnings,
        handler_index=offered.index,
        evidence=proven.evidence,
        bundle=bundle,
        wheel=wheel,
        attestation=attestation,
        trusted_root=trusted_root,
    )


def grant_warnings(evidence: Evidence, uri: str) -> tuple[str, ...]:
    """Return a sentence if `uri` was published by a grant that ended since; nothing for the owner's own protocol.

    Raises `NotFound` (`bundle.form`).
    """
    published = evidence.published(uri)
    namespace, guest = parse_protocol_uri(uri).namespace, published.statement.author
    grants: list[tuple[Logged, Grant]] = []
    for logged in evidence.statements:
        body = logged.statement.body
        if isinstance(body, Grant) and (body.namespace, body.to) == (namespace, guest.text):
            grants.append((logged, body))
    # Without a grant the replay admits the owner alone. A DID with a port owns nothing, and has a grant.
    if not grants or (guest.port is None and guest.namespace == namespace):
        return ()
    newest, body = grants[-1]
    if body.withdrawn:
        return (f"The owner of {namespace} no longer lets {guest.text} publish there.",)
    # The grant names no tenure of its guest. It began in that of the newest identity before it.
    owner, began = newest.statement.author.text, _tenure(evidence, guest.text, newest.index)
    if _tenure(evidence, owner) != newest.tenure or _tenure(evidence, guest.text) != began:
        return (f"The grant of {namespace} to {guest.text} ended: one of the two domains has another owner.",)
    return ()


def _tenure(evidence: Evidence, did: str, before: int | None = None) -> int:
    """Return the tenure of a DID at the end of the log, or before the leaf `before`."""
    identities = [logged for logged in evidence.identities(did) if before is None or logged.index < before]
    body = identities[-1].statement.body if identities else None
    return body.tenure if isinstance(body, Identity) else 1


def offered_handlers(evidence: Evidence, uri: ProtocolUri) -> list[OfferedHandler]:
    """Return all handlers of a protocol, each with its newest status, in the order of the log."""
    return [
        OfferedHandler(
            logged.statement.body,
            logged.statement.author.text,
            logged.tenure,
            logged.index,
            newest_status(evidence, uri, logged),
        )
        for logged in evidence.statements
        if isinstance(logged.statement.body, Handler) and logged.statement.body.uri == str(uri)
    ]


def newest_status(evidence: Evidence, uri: ProtocolUri, handler: Logged | None = None) -> Status | Newer | None:
    """Return the newest status of a protocol, or of one of its handlers by the author of that handler statement."""
    wheel = None
    if handler is not None:
        assert isinstance(handler.statement.body, Handler)
        wheel = handler.statement.body.wheel.sha256
    newest: Status | Newer | None = None
    for logged in evidence.statements:
        body = logged.statement.body
        if not is_status(body) or body.uri != str(uri) or body.wheel != wheel:
            continue
        # Only the author of a handler takes it back. A stranger who attaches the same wheel cannot.
        if handler is None or logged.statement.author == handler.statement.author:
            newest = body
    return newest


def choose(offered: Iterable[OfferedHandler], policy: Policy, author: str = "") -> OfferedHandler:
    """Return the newest handler of the first publisher in the policy that has one for this runtime and did not take it back.

    If all were taken back, return the newest of them: step 9 refuses it. Raises `Refused` (`policy.refused`), whose fix names
    `author` where the author of the protocol is among the publishers: anybody may attach a handler.
    """
    admitted = [
        handler
        for handler in offered
        if policy.admits_publisher(handler.publisher, handler.tenure) and _runs_here(handler.body.filename)
    ]
    # In the order of the policy: the owner's preference, not the registry's, selects the code.
    for publisher in policy.publishers:
        usable = [handler for handler in admitted if handler.publisher == publisher and not handler.is_negative]
        if usable:
            return max(usable, key=lambda handler: handler.index)
    if admitted:
        return max(admitted, key=lambda handler: handler.index)  # taken back: step 9 refuses it and names its successor
    publishers = sorted({handler.publisher for handler in offered})
    raise Refused(
        PolicyCode.REFUSED,
        f"No publisher that the policy names has a handler for this runtime; {', '.join(publishers) or 'no publisher'} has.",
        fix="An election selects documents; you select publishers of code. Allow one that you trust: treaty policy allow "
        f"{author if author in publishers else 'DID'}",
    )


# Listing the tags of this runtime takes about a millisecond, and they do not change.
@cache
def _handlers_run_here() -> bool:
    return Tag(*TAG.split("-")) in sys_tags()


def _runs_here(filename: str) -> bool:
    try:
        parse_filename(filename)
    except TreatyError:  # for another runtime, or not a handler package
        return False
    return _handlers_run_here()
