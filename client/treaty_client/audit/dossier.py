"""Who agreed on a protocol, checked offline: a bundle with the co-signed reports of agents (`URI/evidence.bundle`).

A report proves that two DIDs signed that they agreed on a document. The transcript of the decision says which reports count, for
how many pairs and in which clusters; the log signed the decision that names it. Whether that decision is right shows an audit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from treaty_consensus import statement
from treaty_consensus.did import decode_multikey
from treaty_consensus.errors import Refused
from treaty_consensus.facts import keys_of
from treaty_consensus.kinds import Decision, Identity, Newer, Publish, Report, Status
from treaty_consensus.log.checkpoint import SignedCheckpoint
from treaty_consensus.log.merkle import leaf_hash, verify_inclusion
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri
from treaty_io.codes import BundleCode

from ..policy import Policy
from ..protocols.verification.completeness import RegistryAnswer
from ..protocols.verification.records import Evidence, OfferedHandler
from ..protocols.verification.steps import Step, taking
from ..protocols.verification.ten_steps import (
    check_seen,
    newest_status,
    offered_handlers,
    prove,
    read_bundle,
    verify_document,
)
from ..protocols.verification.topic import transcript_of
from ..registries.bundle import BundledLeaf, parse_bundle
from ..registries.trust import TrustedRegistries
from .decision import Transcript, read_transcript


@dataclass(frozen=True)
class Agreement:
    """A report: two agents signed that they agreed on the document. `parties`: their DIDs."""

    index: int
    epoch: int
    parties: tuple[str, ...]


@dataclass(frozen=True)
class Dossier:
    """The proved evidence about a protocol. `agreements`: the newest report of each agent, by leaf. `decision`: the newest one of
    its topic, None without one or in a way that this release does not know; `transcript`: its transcript, if the registry has it.
    """

    uri: ProtocolUri
    published: Publish
    author: str
    index: int
    document: bytes
    status: Status | Newer | None
    handlers: tuple[OfferedHandler, ...]
    agreements: tuple[Agreement, ...]
    decision: Decision | None
    transcript: Transcript | None
    checkpoint: SignedCheckpoint

    @property
    def pairs(self) -> set[tuple[str, ...]]:
        """The pairs of DIDs that agreed."""
        return {tuple(sorted(agreement.parties)) for agreement in self.agreements}


def verify_dossier(data: bytes, registries: TrustedRegistries, policy: Policy) -> Dossier:
    """Take steps 1 to 5 on a bundle with reports, and verify each report, without network and for a proof of any age.

    It is compared with the leaves that this registry proved here before. No handler is chosen, so the publishers of the policy do
    not matter. Raises `VerificationFailed`; a report that is not of this document or not signed fails at step 4. CPU-bound:
    about 0.3 ms a report.
    """
    with taking(Step.RESOLVE):
        uri = parse_protocol_uri(parse_bundle(data).uri)
        # Without `seen`: consistency with newer checkpoints cannot be proved offline. The log's signature can.
        registry = dataclasses.replace(registries.get(uri.origin), seen=None)
    bundle = read_bundle(data, uri=str(uri))
    evidence = prove(bundle, registry, policy, now=None)
    with taking(Step.LOCK):
        answer = RegistryAnswer(evidence, uri=str(uri))
        seen = registries.memory.about(uri.origin, answer.subjects)
        check_seen(answer, (), [leaf for leaf in seen if leaf.index < answer.size], registry.keys)
    published, document = verify_document(bundle, uri, evidence, None)
    body = published.body
    assert isinstance(body, Publish)
    decision = evidence.decision(body.topic)
    decision = decision if isinstance(decision, Decision) else None
    with taking(Step.STATEMENTS):
        transcript = transcript_of(bundle, decision) if decision is not None else None
        agreements = _agreements(bundle.reports, body, evidence)
    return Dossier(
        uri,
        body,
        published.author.text,
        evidence.published(str(uri)).index,
        document,
        newest_status(evidence, uri),
        tuple(offered_handlers(evidence, uri)),
        agreements,
        decision,
        read_transcript(transcript) if transcript is not None else None,
        evidence.checkpoint,
    )


def _agreements(reports: Sequence[BundledLeaf], published: Publish, evidence: Evidence) -> tuple[Agreement, ...]:
    head = evidence.checkpoint.checkpoint
    agreements = []
    for leaf in reports:
        with taking(Step.INCLUSION):
            verify_inclusion(leaf.index, head.size, leaf_hash(leaf.leaf), leaf.proof, head.root)
        report = statement.read(leaf.leaf)
        body = report.body
        about = (body.topic, body.document, body.outcome) if isinstance(body, Report) else None
        if not isinstance(body, Report) or about != (published.topic, published.document.sha256, "agreed"):
            raise Refused(BundleCode.FORM, f"Leaf {leaf.index} is no report that two agents agreed on this document.")
        keys: dict[str, bytes] = {}
        for did in report.authors:
            keys |= keys_of({}, did)  # of a did:key
            # The keys of the newest identity before the report: one that was rotated out signs nothing later.
            identities = [logged for logged in evidence.identities(did.text) if logged.index < leaf.index]
            if identities and isinstance(identity := identities[-1].statement.body, Identity):
                keys |= {key.id: decode_multikey(key.multikey) for key in identity.keys}
        statement.verify(report, keys)
        agreements.append(Agreement(leaf.index, body.epoch, tuple(did.text for did in report.authors)))
    return tuple(agreements)
