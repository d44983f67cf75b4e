"""What a log proves of a topic: the protocols published in it, and what the newest decision says of them."""

from __future__ import annotations

from dataclasses import dataclass

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Untrusted
from treaty_consensus.kinds import Decision, Publish, Status

from .bundle import Bundle
from .completeness import Answer
from .evidence import Evidence

_ORDER = ("consensus", "provisional", "candidate", "published", "dormant", "superseded")


@dataclass(frozen=True)
class TopicProtocol:
    """A protocol of a topic. `hash`: its document's; `state`: that document's in the newest decision, `published` without one."""

    uri: str
    hash: str
    publisher: str
    state: str


@dataclass(frozen=True)
class TopicView:
    """A topic. `protocols`: the consensus first, then by state, the newest of a state first. `epoch`: of the decision, or
    None. `transcript`: what the decision rests on, if there is one and the registry has it still."""

    topic: str
    protocols: tuple[TopicProtocol, ...]
    consensus: str | None
    epoch: int | None
    transcript: bytes | None
    evidence: Evidence


def view_topic(bundle: Bundle, topic: str, evidence: Evidence) -> TopicView:
    """What a topic's bundle says, after `protocol.prove`. Raises `Untrusted` (`decision.transcript`).

    Left out are repealed documents, protocols that their publishers took back, and those that the bundle holds only because
    others are based on them: their statuses are not in it.
    """
    decision = evidence.decision(topic)
    states = dict(decision.states) if decision else {}
    negative, listed = _taken_back(evidence), Answer(evidence, topic=topic).listed
    found = []
    for logged in evidence.statements:
        body = logged.statement.body
        if isinstance(body, Publish) and body.uri in listed and body.uri not in negative:
            state = states.get(body.document.sha256, "published")
            found.append(TopicProtocol(body.uri, body.document.sha256, logged.statement.author.text, state))
    found.reverse()
    ranked = sorted((p for p in found if p.state in _ORDER), key=lambda protocol: _ORDER.index(protocol.state))
    return TopicView(
        topic,
        tuple(ranked),
        decision.consensus if decision else None,
        decision.epoch if decision else None,
        _transcript(bundle, decision) if decision else None,
        evidence,
    )


def _transcript(bundle: Bundle, decision: Decision) -> bytes | None:
    data = bundle.blobs.get(decision.transcript.sha256)
    if data is not None and hex_digest(data) != decision.transcript.sha256:
        raise Untrusted("decision.transcript", "The transcript that came with the decision is not the one that it names.")
    return data


def _taken_back(evidence: Evidence) -> set[str]:
    newest: dict[str, str] = {}
    for logged in evidence.statements:
        body = logged.statement.body
        if isinstance(body, Status) and body.wheel is None:
            newest[body.uri] = body.state
    return {uri for uri, state in newest.items() if state in ("yanked", "revoked")}
