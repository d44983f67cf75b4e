"""Say of each of the ten steps the finding of this registry, and the part that only the reader's agent can decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..catalogue.packages import PackageView
from ..catalogue.signatures import SignatureView

if TYPE_CHECKING:
    from ..catalogue.resources import HandlerView, Record
    from .inspection import Unreadable

Finding = Literal["holds", "fails", "open"]


@dataclass(frozen=True)
class TrustStep:
    """A step. `found`: the registry's finding. `left`: the part that each agent decides. `finding`: `open` where the registry
    checks nothing."""

    name: str
    finding: Finding
    found: str
    left: str


@dataclass(frozen=True)
class ProtocolFacts:
    """The facts about a protocol. `is_published`: the published checkpoint covers it. `witnesses`: its number of cosignatures."""

    record: Record
    handler: HandlerView | None
    has_document: bool
    package: PackageView | Unreadable | None
    signature: SignatureView | Unreadable | None
    is_published: bool
    witnesses: int


def trust_steps(evidence: ProtocolFacts) -> list[TrustStep]:
    """Return the ten steps in their order."""
    record = evidence.record
    return [
        TrustStep("resolve", "holds", "This URI is published here.", "Whether your policy allows this registry."),
        TrustStep(
            "checkpoint",
            "holds",
            f"{'The newest' if evidence.is_published else 'The next'} published checkpoint covers the publication. "
            f"{_witnessed(evidence.witnesses)}",
            "Whether the key is the one you pinned, the checkpoint is recent, and it extends the last one you saw.",
        ),
        TrustStep(
            "inclusion",
            "holds",
            f"The publication is leaf {record.index:,} of the log.",
            "The proofs of all leaves. Your agent computes them from the bundle.",
        ),
        TrustStep(
            "statements",
            "holds",
            "Before it was logged, each statement was checked: a key of its author signed it, and the author had the right to.",
            "All of it again, from the log alone.",
        ),
        _document(evidence),
        _handler(evidence),
        _wheel(evidence),
        _attestation(evidence),
        _status(evidence),
        TrustStep(
            "lock",
            "open",
            "Nothing: the registry does not know what your agent saw before.",
            "Whether publisher and signer are the same as last time.",
        ),
    ]


def _witnessed(count: int) -> str:
    if not count:
        return "No witness has cosigned it."
    return f"{count} {'witness has' if count == 1 else 'witnesses have'} cosigned it."


def _document(evidence: ProtocolFacts) -> TrustStep:
    if evidence.has_document:
        sentence = "The text below has the hash that the publication names."
        return TrustStep("document", "holds", sentence, "The hash again, and the hash that you asked for, if you named one.")
    return TrustStep("document", "fails", "The bytes of the document are not served.", "Nothing: there is no document to check.")


def _handler(evidence: ProtocolFacts) -> TrustStep:
    handlers = evidence.record.handlers
    usable = sum(handler.status in ("active", "deprecated") for handler in handlers)
    left = "Whose handlers may run. An election chooses documents; your policy chooses code."
    if usable:
        words = "handler is" if usable == 1 else "handlers are"
        return TrustStep("handler", "holds", f"{usable} {words} attached and not taken back.", left)
    sentence = "All handlers were taken back." if handlers else "No handler is attached."
    return TrustStep("handler", "fails", sentence, left)


def _wheel(evidence: ProtocolFacts) -> TrustStep:
    left = "Size, hash and rules again, on the bytes that it downloads."
    if evidence.handler is None:
        return TrustStep("wheel", "open", "There is no package to check.", left)
    if isinstance(evidence.package, PackageView):
        # `read_wheel` ran for this page, and so did it before the statement was logged.
        same = (evidence.package.uri, evidence.package.document) == (evidence.record.uri, evidence.record.hash)
        sentence = f"{evidence.handler.filename} keeps all rules for handler packages and names this protocol."
        return TrustStep("wheel", "holds" if same else "fails", sentence if same else "The package names another protocol.", left)
    reason = evidence.package.reason if evidence.package else "The package was not read."
    return TrustStep("wheel", "fails", reason, left)


def _attestation(evidence: ProtocolFacts) -> TrustStep:
    left = "The signature, its certificate and its log entry. A registry does not verify them for you."
    if isinstance(evidence.signature, SignatureView):
        issuer = f", as {evidence.signature.issuer} certified" if evidence.signature.issuer else ""
        return TrustStep(
            "attestation", "open", f"The Sigstore bundle says: signed by {evidence.signature.identity}{issuer}.", left
        )
    reason = evidence.signature.reason if evidence.signature else "There is no handler, so there is no attestation."
    return TrustStep("attestation", "open", reason, left)


def _status(evidence: ProtocolFacts) -> TrustStep:
    left = "Whether a deprecated one still suits you. Yanked and revoked ones are refused."
    status = evidence.record.status
    of_handler = evidence.handler.status if evidence.handler else "active"
    worst = next((name for name in ("revoked", "yanked", "deprecated") if name in (status, of_handler)), "active")
    sentence = f"The protocol is {status}." + (f" The handler is {of_handler}." if evidence.handler else "")
    return TrustStep("status", "fails" if worst in ("revoked", "yanked") else "holds", sentence, left)
