"""The view of a topic, and the elected protocol in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.markup import escape

from treaty_client.audit.decision import Transcript, read_transcript
from treaty_client.audit.strength import FEW_DECIDE, is_few, strength, warning
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.records import VerifiedProtocol
from treaty_client.protocols.verification.steps import Step, VerificationFailed
from treaty_client.protocols.verification.topic import TopicProtocol, TopicView
from treaty_consensus.codes import TopicCode
from treaty_consensus.errors import NotFound, Refused
from treaty_consensus.kinds import Decision
from treaty_consensus.protocol import is_topic, parse_protocol_uri
from treaty_io.codes import ClientStatusCode, ClientTopicCode

_HASH = re.compile(r"[0-9a-f]{64}")


def names_topic(name: str) -> bool:
    """Return whether a name is that of a topic. A hash has the form of a topic too, and is none."""
    return is_topic(name) and not _HASH.fullmatch(name)


async def topic_views(fetcher: Fetcher, topic: str, origin: str = "") -> Sequence[TopicView]:
    """Return the proved views of a topic, at one registry or at all of the policy. Raises `Refused` (`topic.name`), `NotFound`
    (`topic.unknown`), and as `Fetcher.topic`."""
    if not is_topic(topic):
        raise Refused(TopicCode.NAME, f"{topic[:120]!r} is not a topic.", fix="A topic is lower-case names joined by '/'.")
    views = [view for view in await fetcher.topic(topic) if origin in ("", view.evidence.genesis.origin)]
    if not views:
        raise NotFound(TopicCode.UNKNOWN, f"{origin} knows no protocol in {topic}.", fix="List the topics: treaty topics")
    return views


def elected(topic: str, views: Sequence[TopicView]) -> tuple[TopicView, Sequence[TopicProtocol]]:
    """Return the first view with an elected document, and the protocols that publish it.

    Raises `NotFound` (`topic.undecided`), and `VerificationFailed` (`status.…`) if the elected one was taken back.
    """
    for view in views:
        if protocols := [protocol for protocol in view.protocols if protocol.state == "consensus"]:
            return view, protocols
    for view in views:
        for protocol in (protocol for protocol in view.taken_back if protocol.hash == view.consensus):
            assert protocol.status is not None, "it was taken back"
            code = ClientStatusCode.REVOKED if protocol.status.state == "revoked" else ClientStatusCode.YANKED
            successor = protocol.status.successor
            fix = f"Its publisher names the successor, which is not elected: treaty fetch {successor}"
            fault = f"The network elected {parse_protocol_uri(protocol.uri).label} in {topic}. {protocol.withdrawal}"
            raise VerificationFailed(Step.STATUS, code, fault, fix if successor else f"See the others: treaty topic {topic}")
    raise NotFound(
        ClientTopicCode.UNDECIDED,
        f"No protocol is elected in {topic}.",
        fix=f"See what is missing: treaty topic {topic} --explain. Then fetch one by its URI.",
    )


def why(verified: VerifiedProtocol, view: TopicView) -> tuple[dict[str, Any], list[str]]:
    """Return the decision that elects a fetched protocol, for `--json`, and for people with the votes."""
    label, topic = escape(parse_protocol_uri(verified.uri).label), escape(verified.topic)
    # The stored proof of the protocol may be older than the decision; the answer about the topic is new.
    newest = max((verified.evidence, view.evidence), key=lambda evidence: evidence.checkpoint.checkpoint.size)
    bodies = [(entry, entry.statement.body) for entry in newest.statements]
    decisions = [(entry, body) for entry, body in bodies if isinstance(body, Decision) and body.topic == verified.topic]
    if newest is verified.evidence and verified.election != "consensus":  # an epoch was closed between both answers
        return {}, [f"[yellow]![/] {label} was the consensus of {topic}; a newer decision does not say so."]
    entry, body = decisions[-1]
    value = {"topic": verified.topic, "epoch": body.epoch, "statement": entry.statement.id, "index": entry.index}
    decided = f"{escape(view.evidence.genesis.origin)} decided so in epoch {body.epoch}, leaf {entry.index}"
    return value, [f"[green]✓[/] [bold]{label}[/] is the consensus of {topic}: {decided}.", *strength_lines(view)]


def strength_lines(view: TopicView, transcript: Transcript | None = None) -> Iterator[str]:
    """Yield how strong the consensus is."""
    if transcript is None and view.transcript is not None:
        transcript = read_transcript(view.transcript)
    candidate = transcript.spoken.get(view.consensus or "") if transcript else None
    if transcript is None or candidate is None:
        return
    sentences = [*strength(candidate, transcript), *warning(candidate), *([FEW_DECIDE] if is_few(transcript) else [])]
    yield from map(escape, sentences)
