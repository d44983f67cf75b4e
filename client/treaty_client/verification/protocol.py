"""The verification of a protocol and its handler: steps 1 to 9 of `steps`, over bytes. Step 10, and all I/O, are `fetch`'s.

`prove` takes steps 1 to 4, with the answer of a registry. `choose_handler` takes steps 5 and 6, `verify_handler` 7 to 9, with the
wheel; `prove_document` is for a caller that runs nothing. All are functions of their arguments: the same bytes verify again,
offline, from the store or from a folder, which is what `verify_bundle` is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from packaging.tags import Tag, sys_tags

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Gone, Refused, TreatyError, Untrusted
from treaty_consensus.handler import TAG, HandlerPackage, parse_filename, read_wheel
from treaty_consensus.kinds import Blob, Handler, Publish, Status
from treaty_consensus.log.checkpoint import SignedCheckpoint
from treaty_consensus.protocol import Card, ProtocolUri, check_document, parse_card
from treaty_consensus.statement import Statement

from ..policy import Policy
from ..registries.trust import TrustedRegistry
from .bundle import Bundle, parse_bundle
from .evidence import Evidence, Logged, examine
from .steps import Step, taking

if TYPE_CHECKING:
    from ..attestation import SigningIdentity

_NEGATIVE = ("yanked", "revoked")


@dataclass(frozen=True)
class OfferedHandler:
    """A handler that the log holds for a protocol. `status`: its publisher's newest word on it, None without one."""

    body: Handler
    publisher: str
    tenure: int
    index: int
    status: Status | None

    @property
    def is_negative(self) -> bool:
        """Whether its publisher took it back."""
        return self.status is not None and self.status.state in _NEGATIVE


@dataclass(frozen=True)
class ProvenProtocol:
    """A protocol after steps 1 to 6, and the handler that was chosen. `card` is None when its bytes were withdrawn."""

    uri: ProtocolUri
    publish: Publish
    author: str
    document: bytes
    card: Card | None
    status: Status | None
    handler: OfferedHandler
    evidence: Evidence
    bundle: Bundle


@dataclass(frozen=True)
class VerifiedProtocol:
    """A protocol and the handler that may run for it: all ten steps hold, or the nine that need no store.

    `hash`: of `document`. `author`: the DID that published the document; `publisher`, in `tenure`: the DID whose handler
    `package` is; `signer`: who attested it. `election`: the document's state in its topic's newest decision, None without one.
    `handler_index`: the leaf of its handler statement. `warnings`: sentences for a person. `bundle`, `wheel`, `attestation`,
    `trusted_root`: the bytes that prove it all, to keep.
    """

    uri: str
    hash: str
    topic: str
    document: bytes = field(repr=False)
    card: Card | None
    author: str
    publisher: str
    tenure: int
    package: HandlerPackage = field(repr=False)
    signer: SigningIdentity
    election: str | None
    warnings: tuple[str, ...]
    handler_index: int
    evidence: Evidence = field(repr=False, compare=False)
    bundle: bytes = field(repr=False)
    wheel: bytes = field(repr=False)
    attestation: bytes = field(repr=False)
    trusted_root: bytes = field(repr=False)

    @property
    def checkpoint(self) -> SignedCheckpoint:
        """The checkpoint that all this was proved with."""
        return self.evidence.checkpoint

    def age(self, now: int) -> int:
        """Seconds since the log's clock cosigned the checkpoint that all this was proved with."""
        assert self.checkpoint.time is not None
        return now - self.checkpoint.time


def read_bundle(data: bytes, *, uri: str = "", topic: str = "") -> Bundle:
    """Step 1: the bundle of the protocol `uri`, or of `topic`; the other argument is "". Raises `VerificationFailed`.

    The bundle has to say which of the two it is of. What it has to hold depends on that.
    """
    with taking(Step.RESOLVE):
        bundle = parse_bundle(data)
        if (bundle.uri, bundle.topic) != (uri, topic):
            shown, asked = _subject_name(bundle.uri, bundle.topic), _subject_name(uri, topic)
            raise Untrusted("bundle.other", f"The registry answered with {shown}, not with {asked}.")
        return bundle


def _subject_name(uri: str, topic: str) -> str:
    return f"the protocol {uri!r}" if uri else f"the topic {topic!r}"


def check_registry(registry: TrustedRegistry, policy: Policy) -> None:
    """Step 1: the policy admits the registry. Raises `VerificationFailed`."""
    with taking(Step.RESOLVE):
        if not policy.admits_registry(registry.name.origin):
            raise Refused(
                "policy.registry",
                f"The policy does not admit protocols of {registry.name.origin}.",
                fix="Add it to `registries` in the policy.",
            )


def prove(
    bundle: Bundle, registry: TrustedRegistry, policy: Policy, *, now: int | None, bridge: Sequence[bytes] | None = None
) -> Evidence:
    """Steps 1 to 4, on what `read_bundle` returned, of a protocol or a topic. CPU-bound, some milliseconds.

    `now`: Unix seconds, None to accept a checkpoint of any age (offline). `bridge`: see `evidence.examine`. Raises
    `VerificationFailed`.
    """
    check_registry(registry, policy)
    return examine(bundle, registry, now=now, max_age=policy.max_age, witnesses=policy.witnesses, bridge=bridge)


def choose_handler(
    bundle: Bundle, uri: ProtocolUri, evidence: Evidence, policy: Policy, *, expected_hash: str | None = None
) -> ProvenProtocol:
    """Steps 5 and 6. `expected_hash`: the document's, when that is what was asked for. Raises `VerificationFailed`."""
    published, document = _read_document(bundle, uri, evidence)
    publish = published.body
    assert isinstance(publish, Publish)
    with taking(Step.DOCUMENT):
        if expected_hash not in (None, publish.document.sha256):
            raise Untrusted(
                "document.other", f"The document at {uri} has the hash {publish.document.sha256}, not {expected_hash}."
            )
        has_card = publish.card.sha256 in bundle.blobs
        card = parse_card(_blob(bundle, publish.card, "card")) if has_card else None
    with taking(Step.HANDLER):
        handler = _choose(_offered(evidence, uri), policy)
    return ProvenProtocol(
        uri, publish, published.author.text, document, card, _newest_status(evidence, uri), handler, evidence, bundle
    )


def verify_bundle(
    bundle: Bundle, uri: ProtocolUri, registry: TrustedRegistry, policy: Policy, *, now: int | None
) -> ProvenProtocol:
    """Steps 1 to 6 at once, for bytes that were kept. Arguments and errors are those of `prove` and `choose_handler`."""
    return choose_handler(bundle, uri, prove(bundle, registry, policy, now=now), policy)


def prove_document(bundle: Bundle, uri: ProtocolUri, evidence: Evidence) -> bytes:
    """Step 5 and the protocol's part of step 9: the document, for a caller that reads it and runs nothing. Raises
    `VerificationFailed`."""
    _, document = _read_document(bundle, uri, evidence)
    with taking(Step.STATUS):
        judge(_newest_status(evidence, uri), str(uri))
    return document


def _read_document(bundle: Bundle, uri: ProtocolUri, evidence: Evidence) -> tuple[Statement, bytes]:
    with taking(Step.STATEMENTS):
        published = evidence.published(str(uri)).statement
        assert isinstance(published.body, Publish)
    with taking(Step.DOCUMENT):
        document = _blob(bundle, published.body.document, "document")
        check_document(document)
    return published, document


def verify_handler(proven: ProvenProtocol, wheel: bytes, policy: Policy, *, bundle: bytes) -> VerifiedProtocol:
    """Steps 7 to 9. `bundle`: the bytes that `proven` was read from, to go along. CPU-bound, some milliseconds; call it off an
    event loop.

    The wheel is read in this process, without one of its own. A publisher of the policy signed its digest, and reading it is
    linear in what its caps let it hold: the costliest one takes a few times as long as an honest one of 8 MiB. In every cold
    handshake a process would take about as long to start. Raises `VerificationFailed`.
    """
    # Here, and not above: Sigstore takes a third of a second to import, and most commands verify no handler.
    from ..attestation import Binding, SigningIdentity, Trust, verify_attestation

    offered, body = proven.handler, proven.handler.body
    with taking(Step.WHEEL):
        _check_bytes(wheel, body.wheel, "wheel")
        package = read_wheel(body.filename, wheel)
        manifest = package.manifest
        said = (manifest.protocol_uri, manifest.protocol_hash, str(package.entry_point))
        if said != (body.uri, body.document, body.entry_point):
            raise Untrusted("handler.manifest", "The wheel says it is for another protocol than its publisher does.")
    with taking(Step.ATTESTATION):
        attestation = _blob(proven.bundle, body.bundle, "Sigstore bundle")
        trusted_root = trusted_root_of(proven.bundle, proven.evidence)
        binding = Binding(body.wheel.sha256, body.uri, body.document, body.entry_point)
        trust = [Trust.registry(trusted_root, origin=proven.uri.origin, publisher=offered.publisher)]
        if policy.signers:
            trust.append(Trust.public_good([SigningIdentity(*signer) for signer in policy.signers]))
        attested = verify_attestation(attestation, binding, publisher=offered.publisher, trust=trust)
    with taking(Step.STATUS):
        warnings = (*judge(proven.status, str(proven.uri)), *judge(offered.status, f"The handler {body.filename}"))
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
        signer=attested.signer,
        election=_election(proven.evidence, proven.publish),
        warnings=warnings,
        handler_index=offered.index,
        evidence=proven.evidence,
        bundle=bundle,
        wheel=wheel,
        attestation=attestation,
        trusted_root=trusted_root,
    )


def trusted_root_of(bundle: Bundle, evidence: Evidence) -> bytes:
    """The Sigstore trusted root that the log's genesis pins. Raises `Untrusted` (`trusted-root.digest`)."""
    digest = evidence.genesis.trusted_root
    root = bundle.blobs.get(digest)
    if root is None or hex_digest(root) != digest:
        raise Untrusted("trusted-root.digest", "The bundle does not hold the Sigstore trusted root that the log's genesis pins.")
    return root


def _offered(evidence: Evidence, uri: ProtocolUri) -> list[OfferedHandler]:
    return [
        OfferedHandler(
            logged.statement.body,
            logged.statement.author.text,
            logged.tenure,
            logged.index,
            _newest_status(evidence, uri, logged),
        )
        for logged in evidence.statements
        if isinstance(logged.statement.body, Handler) and logged.statement.body.uri == str(uri)
    ]


def _newest_status(evidence: Evidence, uri: ProtocolUri, handler: Logged | None = None) -> Status | None:
    """What was said last of the protocol, or of one of its handlers by whoever attached it."""
    wheel = None
    if handler is not None:
        assert isinstance(handler.statement.body, Handler)
        wheel = handler.statement.body.wheel.sha256
    newest = None
    for logged in evidence.statements:
        body = logged.statement.body
        if not isinstance(body, Status) or body.uri != str(uri) or body.wheel != wheel:
            continue
        if handler is None or logged.statement.author == handler.statement.author:
            newest = body
    return newest


def _choose(offered: Iterable[OfferedHandler], policy: Policy) -> OfferedHandler:
    """The newest handler of the first publisher of the policy that has one for this runtime, not taken back."""
    admitted = [
        handler
        for handler in offered
        if policy.admits_publisher(handler.publisher, handler.tenure) and _runs_here(handler.body.filename)
    ]
    for publisher in policy.publishers:
        usable = [handler for handler in admitted if handler.publisher == publisher and not handler.is_negative]
        if usable:
            return max(usable, key=lambda handler: handler.index)
    if admitted:
        return max(admitted, key=lambda handler: handler.index)  # taken back, which is for step 9 to say
    found = ", ".join(sorted({handler.publisher for handler in offered})) or "nobody"
    raise Refused(
        "policy.publisher",
        f"No publisher that the policy names has a handler for this runtime; {found} has.",
        fix="An election chooses documents, you choose whose code runs: add a publisher you trust to `publishers` in the policy.",
    )


@cache
def _handlers_run_here() -> bool:
    return Tag(*TAG.split("-")) in sys_tags()


def _runs_here(filename: str) -> bool:
    try:
        parse_filename(filename)
    except TreatyError:  # another runtime's, or no handler package at all
        return False
    return _handlers_run_here()


def _blob(bundle: Bundle, blob: Blob, what: str) -> bytes:
    data = bundle.blobs.get(blob.sha256)
    if data is None:
        raise Gone("bundle.no-blob", f"The bundle does not hold the {what} {blob.sha256}; it may have been withdrawn.")
    _check_bytes(data, blob, what)
    return data


def _check_bytes(data: bytes, blob: Blob, what: str) -> None:
    if len(data) != blob.size or hex_digest(data) != blob.sha256:
        raise Untrusted(
            f"{what.replace(' ', '-').lower()}.digest",
            f"These are not the bytes of the {what} that was published: {len(data)} bytes, SHA-256 {hex_digest(data)}, "
            f"instead of {blob.size} bytes, SHA-256 {blob.sha256}.",
            fix="Somebody between you and the publisher changed them, or they were damaged; fetch them elsewhere or again.",
        )


def judge(status: Status | None, what: str) -> tuple[str, ...]:
    """The warnings that follow from the newest status. Raises `Refused` (`status.yanked`, `status.revoked`)."""
    if status is None or status.state == "active":
        return ()
    successor = f" Its successor is {status.successor}." if status.successor else ""
    if status.state in _NEGATIVE:
        raise Refused(
            f"status.{status.state}", f"{what} is {status.state} by its publisher.{successor}", fix="Use another version."
        )
    return (f"{what} is deprecated by its publisher.{successor}",)


def _election(evidence: Evidence, publish: Publish) -> str | None:
    decision = evidence.decision(publish.topic)
    return dict(decision.states).get(publish.document.sha256) if decision else None
