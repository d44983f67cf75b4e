"""The purpose of a session that this agent opens, and the protocols that it names."""

from __future__ import annotations

from dataclasses import dataclass

from treaty_anp.discovery.parsing import AgentDescription
from treaty_anp.hello_profile.hello import MAX_CANDIDATES
from treaty_client.protocols.topics import Candidates
from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, NotFound, Refused
from treaty_io.codes import AgentCode

from ..discovery.client import candidates
from ..negotiators.negotiator import Requirement
from .context import AgentContext
from .operations import Functions


@dataclass(frozen=True)
class SessionRequest:
    """The purpose of a connection: a `topic` or `protocols`, a `requirement`, or only `natural` language.

    `protocols`: URIs and ids, best first.
    `requirement`: negotiate by it if topic and protocols lead to no agreement.
    `peer`: the DID that must answer, or "".
    `role`: this side's role in the protocol, or "" for the only one.
    `serving`: the functions that the peer may call in the session, or None for those that the agent provides.
    `described`: the description of a discovered agent.
    """

    topic: str = ""
    protocols: tuple[str, ...] = ()
    peer: str = ""
    requirement: Requirement | None = None
    natural: bool = False
    role: str = ""
    serving: Functions | None = None
    described: AgentDescription | None = None

    def check(self, context: AgentContext) -> None:
        """Raise `Malformed` (`agent.offer`) for an impossible combination, `Refused` (`agent.no-negotiator`) for a requirement
        without a negotiator."""
        named = bool(self.topic) + bool(self.protocols)
        if named > 1 or (self.natural and (named or self.requirement)) or not (named or self.requirement or self.natural):
            raise Malformed(
                AgentCode.OFFER,
                "Connect about a topic or by protocols, with or without a requirement; by a requirement; or in natural language.",
            )
        if self.requirement is not None and context.negotiators is None and not named:
            raise Refused(
                AgentCode.NO_NEGOTIATOR,
                "A requirement needs a negotiator, and this agent has neither a language model nor another negotiator.",
                fix="Give the agent a model: set TREATY_MODEL_URL, Agent(…, negotiators=…). Or name a topic or protocols.",
            )

    def close(self) -> None:
        """Release the functions of the session, without waiting for those that run."""
        if self.serving is not None:
            self.serving.close()

    @property
    def key(self) -> str:
        """The key under which its agreement is remembered: the topic, or a digest of the requirement."""
        if self.topic or self.protocols or self.requirement is None:
            return self.topic
        wanted = self.requirement
        return f"requirement:{canonical.hex_digest(canonical.dumps([wanted.text, wanted.input, wanted.output, wanted.topic]))}"


async def candidate_uris(context: AgentContext, request: SessionRequest) -> tuple[str, ...]:
    """Return the protocols that a request names, best first. Raises `NotFound` (`agent.no-candidates`, `agent.taken-back`),
    `TreatyError`."""
    if not request.topic:
        return request.protocols
    negotiable = request.requirement is not None and context.negotiators is not None
    try:
        published = await context.ports.protocols.candidates(request.topic)
    except NotFound:
        published = Candidates()
    if not published.uris and published.taken_back and not negotiable:
        raise NotFound(
            AgentCode.TAKEN_BACK,
            f"Every protocol about {request.topic} was taken back: {' '.join(published.taken_back[:MAX_CANDIDATES])}",
            fix="Name a successor by its URI, or ask the publisher.",
        )
    if not published.uris and not negotiable:
        raise NotFound(
            AgentCode.NO_CANDIDATES,
            f"No protocol is published about {request.topic}.",
            fix="Name another topic, publish one, or connect with a requirement to negotiate by.",
        )
    if request.described is None or not published.uris:
        return published.uris
    return candidates(request.described, published.uris, consensus=published.consensus, role=request.role)
