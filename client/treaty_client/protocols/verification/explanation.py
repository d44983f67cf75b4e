"""The evidence of a verified protocol, step by step, for a person or a program that wants to check it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treaty_consensus import canonical
from treaty_consensus.kinds import Newer, Status
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri

from ..store import LockedProtocol
from .contradiction import said
from .records import VerifiedProtocol
from .steps import Step
from .ten_steps import newest_status, offered_handlers


@dataclass(frozen=True)
class StepEvidence:
    """A step that holds. `sentence`: for a person. `facts`: for a program; digests are SHA-256 in hexadecimal."""

    step: Step
    sentence: str
    facts: Mapping[str, Any]


def step_evidence(verified: VerifiedProtocol, locked: LockedProtocol | None) -> list[StepEvidence]:
    """Return the evidence of the ten steps. `locked`: the entry of the protocol in treaty.lock; None before it is pinned."""
    uri = parse_protocol_uri(verified.uri)
    pinned = {"pinned": _pinned(locked, uri.version)}
    sentence = "not pinned" if locked is None else f"pinned to {locked.publisher}, tenure {locked.tenure}"
    return [*_of_document(verified, uri), *_of_handler(verified, uri), StepEvidence(Step.LOCK, sentence, pinned)]


def _of_document(verified: VerifiedProtocol, uri: ProtocolUri) -> list[StepEvidence]:
    """Return the evidence of steps 1 to 5."""
    evidence, head = verified.evidence, verified.checkpoint
    published, keys = evidence.published(verified.uri), evidence.keys.terms[-1]  # step 2 verified the signatures of both keys
    leaves = [
        {"index": leaf.index, "type": leaf.statement.type, "statement": leaf.statement.id, "says": said(leaf.statement)}
        for leaf in evidence.statements
    ]
    checkpoint = {"size": head.checkpoint.size, "root": head.checkpoint.root.hex(), "time": head.time}
    checkpoint |= {"key": str(keys.log), "clock": str(keys.clock), "checkpoint": head.note.decode()}
    document = {"sha256": verified.hash, "size": len(verified.document)}
    return [
        StepEvidence(Step.RESOLVE, f"{uri}, at {uri.origin}", {"uri": verified.uri, "origin": uri.origin}),
        StepEvidence(
            Step.CHECKPOINT,
            f"{head.checkpoint.size} leaves, signed by {keys.log}, cosigned by its clock",
            checkpoint,
        ),
        StepEvidence(Step.INCLUSION, f"{len(leaves)} statements are in that log", {"leaves": [leaf["index"] for leaf in leaves]}),
        StepEvidence(
            Step.STATEMENTS,
            f"signed and admissible; leaf {published.index}: {said(published.statement)}",
            {"statements": leaves, "by": list(published.statement.by)},
        ),
        StepEvidence(Step.DOCUMENT, f"{len(verified.document)} bytes, SHA-256 {verified.hash}", document),
    ]


def _of_handler(verified: VerifiedProtocol, uri: ProtocolUri) -> list[StepEvidence]:
    """Return the evidence of steps 6 to 9."""
    handler = next(each for each in offered_handlers(verified.evidence, uri) if each.index == verified.handler_index)
    states = {"protocol": _state(newest_status(verified.evidence, uri)), "handler": _state(handler.status)}
    signer, package = verified.signer, verified.package
    return [
        StepEvidence(
            Step.HANDLER,
            f"{package.filename} by {verified.publisher}, tenure {verified.tenure}, leaf {verified.handler_index}",
            {"publisher": verified.publisher, "tenure": verified.tenure, "index": verified.handler_index},
        ),
        StepEvidence(
            Step.WHEEL,
            f"{len(verified.wheel)} bytes, SHA-256 {package.digest}",
            {"filename": package.filename, "sha256": package.digest, "size": len(verified.wheel)},
        ),
        StepEvidence(
            Step.ATTESTATION,
            f"signed by {signer.identity}, whom {signer.issuer} names",
            {
                "identity": signer.identity,
                "issuer": signer.issuer,
                "bundle": canonical.hex_digest(verified.attestation),
                "trusted_root": canonical.hex_digest(verified.trusted_root),
            },
        ),
        StepEvidence(
            Step.STATUS,
            f"the protocol is {states['protocol']}, its handler {states['handler']}; "
            f"{verified.election or 'not decided'} in {verified.topic or 'no topic'}",
            {**states, "topic": verified.topic, "election": verified.election},
        ),
    ]


def _state(status: Status | Newer | None) -> str:
    return "active" if status is None else status.state if isinstance(status, Status) else "unknown to this release"


def _pinned(locked: LockedProtocol | None, version: str) -> dict[str, Any] | None:
    if locked is None:
        return None
    pinned = locked.versions.get(version)
    return {
        "publisher": locked.publisher,
        "tenure": locked.tenure,
        "signer": {"identity": locked.signer.identity, "issuer": locked.signer.issuer},
        "document": pinned.document if pinned else None,
        "wheel": pinned.wheel if pinned else None,
    }
