"""Read a topic from proven leaves: its protocols, with their states in the newest decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import DecisionCode
from treaty_consensus.election.line import line_begun_by
from treaty_consensus.errors import Refused, Untrusted
from treaty_consensus.kinds import NEGATIVE_STATES, Decision, Newer, Publish, Status
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import ClientDecisionCode

from ...registries.bundle import Bundle
from .checkpoint import CLOCK_SKEW
from .completeness import RegistryAnswer
from .records import Evidence, is_status, needs_newer

_ORDER = ("consensus", "provisional", "candidate", "published", "dormant", "superseded")


@dataclass(frozen=True)
class TopicProtocol:
    """A protocol of a topic. `hash`: that of its document. `state`: that of the document in the newest decision, else
    `published`. `status`: the newest one by its publisher, or None. `is_older`: it is a version of the elected line that is older
    than the version to speak.
    """

    uri: str
    hash: str
    publisher: str
    state: str
    status: Status | None = None
    is_older: bool = False

    @property
    def withdrawal(self) -> str:
        """Return the sentence that says how its publisher deprecated it or took it back."""
        assert self.status is not None, "only its publisher's status withdraws a protocol"
        successor = f"; its successor is {self.status.successor}" if self.status.successor else ""
        return f"{self.uri} was {self.status.state} by its publisher{successor}."


@dataclass(frozen=True)
class TopicView:
    """A topic. `protocols`: the consensus first, then the older versions of its line, then by state; the newest first of each.
    `epoch`: that of the decision, or None.

    `transcript`: the transcript of the decision; None if there is no decision, or if the registry has lost it. `taken_back`: the
    protocols that their publishers yanked or revoked, the newest first. They are not among `protocols`.
    """

    topic: str
    protocols: tuple[TopicProtocol, ...]
    consensus: str | None
    epoch: int | None
    transcript: bytes | None
    evidence: Evidence
    taken_back: tuple[TopicProtocol, ...] = ()


def view_topic(bundle: Bundle, topic: str, evidence: Evidence, constitution: str | None = None) -> TopicView:
    """Read a topic's bundle, after `ten_steps.prove`.

    `constitution`: the digest of the parameters under which a decision counts; None for any.

    Raises `Untrusted`: `decision.rule`, also for a decision that is dated after its proof; `Refused`:
    `registry.newer` for a decision that only a newer release understands, `decision.constitution` for one under other parameters.

    The view omits repealed documents, protocols that only a newer release can use, and protocols that are in the bundle only
    because others are based on them: the bundle lacks their statuses.
    """
    decision = evidence.decision(topic)
    if isinstance(decision, Newer):
        raise needs_newer(f"The decision on {topic}", "Until then name protocols by their URIs: their proofs need no election.")
    if decision is not None and constitution is not None and (under := evidence.constitution(decision)) != constitution:
        raise Refused(
            ClientDecisionCode.CONSTITUTION,
            f"The decision on {topic} is made under the constitution {under}; your policy pins {constitution}.",
            fix="See what changed: treaty audit. To accept it, pin the new one below [constitutions] in policy.toml. Until then "
            "name protocols by their URIs: their proofs need no election.",
        )
    if decision is not None:
        _check_dated(decision, evidence)
    statuses, listed = _statuses(evidence), RegistryAnswer(evidence, topic=topic).listed
    published = [
        (logged.statement.author.text, logged.statement.body)
        for logged in evidence.statements
        if isinstance(logged.statement.body, Publish)
        and logged.statement.body.uri in listed
        # Its publisher may have taken it back in a way that this release does not know.
        and not isinstance(statuses.get(logged.statement.body.uri), Newer)
        and logged.statement.body.uri not in evidence.out_of_use
    ]
    withdrawn = _withdrawn([body for _, body in published], topic, evidence)
    states = {document: state for document, state in decision.states if document not in withdrawn} if decision else {}
    older = _older([body for _, body in published], decision.consensus) if decision and decision.consensus else set()
    older -= withdrawn
    protocols: list[TopicProtocol] = []
    taken_back: list[TopicProtocol] = []
    for author, body in published:
        document, status = body.document.sha256, statuses.get(body.uri)
        assert not isinstance(status, Newer), "left out above"
        protocol = TopicProtocol(body.uri, document, author, states.get(document, "published"), status, document in older)
        (taken_back if status and status.state in NEGATIVE_STATES else protocols).append(protocol)
    # The sort below keeps the order of equal places, so the newest comes first.
    protocols.reverse()
    ranked = sorted((p for p in protocols if p.state in _ORDER), key=_place)
    return TopicView(
        topic,
        tuple(ranked),
        decision.consensus if decision else None,
        decision.epoch if decision else None,
        transcript_of(bundle, decision) if decision else None,
        evidence,
        tuple(reversed(taken_back)),
    )


def _withdrawn(published: Iterable[Publish], topic: str, evidence: Evidence) -> set[str]:
    """Return the documents that their first publishers took back after the newest decision. `published`: in the order of the log.

    The decision did not know it, and anybody can publish the same bytes again: these copies are recommended no more than others.
    """
    decided, newest = 0, dict[str, tuple[int, Status]]()
    for logged in evidence.statements:
        body = logged.statement.body
        if isinstance(body, Decision) and body.topic == topic:
            decided = logged.index
        if isinstance(body, Status) and body.wheel is None:
            newest[body.uri] = logged.index, body
    taken_back = {uri for uri, (index, body) in newest.items() if index > decided and body.state in NEGATIVE_STATES}
    own: dict[str, list[str]] = {}
    for body in published:
        uris = own.setdefault(body.document.sha256, [])
        if not uris or parse_protocol_uri(uris[0]).namespace == parse_protocol_uri(body.uri).namespace:
            uris.append(body.uri)
    return {document for document, uris in own.items() if taken_back.issuperset(uris)}


def _older(published: Iterable[Publish], consensus: str) -> set[str]:
    """Return the documents of the line of the consensus that were published before it. `published`: in the order of the log."""
    publishers: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for body in published:
        document = body.document.sha256
        if document not in publishers:
            first[document] = line_begun_by(body, publishers, first)
        publishers.setdefault(document, set()).add(body.uri)
    earlier = takewhile(lambda document: document != consensus, first)
    return {document for document in earlier if first[document] == first.get(consensus)}


def _place(protocol: TopicProtocol) -> tuple[bool, int]:
    """Return the sort key of a protocol in its topic."""
    # The users of an elected line speak its versions. A peer with an older one shares the consensus, before any other candidate.
    is_elected = protocol.is_older or protocol.state == "consensus"
    return not is_elected, _ORDER.index(protocol.state)


def _check_dated(decision: Decision, evidence: Evidence) -> None:
    """Check that a decision was made before its proof was cosigned: the operator may date it ahead to close an epoch early."""
    statement = next(logged.statement for logged in evidence.statements if logged.statement.body is decision)
    time = evidence.checkpoint.time
    if time is not None and statement.issued - time > CLOCK_SKEW:
        raise Untrusted(
            DecisionCode.RULE,
            f"The decision on {decision.topic} is dated {statement.issued - time} seconds after the checkpoint that proves it: "
            "its epoch has not ended.",
            fix="Name protocols by their URIs, and tell the members of this log.",
        )


def transcript_of(bundle: Bundle, decision: Decision) -> bytes | None:
    """Return the transcript of a decision, or None where the bundle lacks it. Raises `Untrusted` (`decision.rule`)."""
    data = bundle.blobs.get(decision.transcript.sha256)
    # Absent is allowed: replaying the log gives the same bytes. Wrong bytes are not.
    if data is not None and hex_digest(data) != decision.transcript.sha256:
        raise Untrusted(DecisionCode.RULE, "The transcript that came with the decision is not the one that it names.")
    return data


def _statuses(evidence: Evidence) -> dict[str, Status | Newer]:
    """Return the newest status of each protocol."""
    bodies = [logged.statement.body for logged in evidence.statements]
    return {body.uri: body for body in bodies if is_status(body) and body.wheel is None}
