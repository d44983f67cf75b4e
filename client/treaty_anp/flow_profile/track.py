"""Follow one protocol from its proposal to its session. The states of a track are in `states`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treaty_consensus.errors import TooLarge
from treaty_io.codes import FlowCode

from ..transitions import StateTable
from . import parameters as rules
from .actions import Agreed
from .parameters import Rules, json_equal
from .payloads import ProtocolConfirmation
from .states import FlowLimits, TrackEvent, TrackState, TrackTransitions


@dataclass
class Track:
    """One protocol that is negotiated. An engine changes it by its methods alone.

    `transitions`: its table.
    `deadline`: when the negotiation of it has taken too long, by the clock of `Now.seconds`.
    `renegotiates`: the running session that this is about, or "".
    `parameters`, `extensions`: the last offer, or what was accepted or is expected.
    `asked`: the ids of the messages that wait for an answer, by action.
    `agreed`: confirmed; `settled`: the peer's last answer agrees; `hosting`, `hosted`: a handler is being started, or is ready.
    """

    protocol: str
    transitions: TrackTransitions
    state: TrackState
    deadline: float
    renegotiates: str = ""
    uri: str = ""
    digest: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
    fallback: str = field(default="", init=False)
    required: tuple[str, ...] = field(default=(), init=False)
    asked: dict[str, str] = field(default_factory=dict, init=False)
    settled: bool = field(default=False, init=False)
    loaded: bool = field(default=False, init=False)
    hosting: bool = field(default=False, init=False)
    hosted: bool = field(default=False, init=False)
    agreed: bool = field(default=False, init=False)
    session_id: str = field(default="", init=False)
    expires_at: int = field(default=0, init=False)
    ready_at: int | None = field(default=None, init=False)
    acknowledgment: str = field(default="", init=False)
    _rounds: int = field(default=0, init=False)
    _offers: list[Any] = field(default_factory=list, init=False)
    _early: tuple[ProtocolConfirmation, str] | None = field(default=None, init=False)

    @property
    def result(self) -> Agreed:
        """Return the agreement so far."""
        return Agreed(self.protocol, self.parameters, self.extensions, self.uri, self.digest)

    @property
    def offered(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters and extensions of the last offer."""
        parameters, extensions = self._offers[-1]
        return parameters, extensions

    def equals(self, parameters: dict[str, Any], extensions: dict[str, Any]) -> bool:
        """Return whether these equal the last offer."""
        return json_equal(parameters, self.parameters) and json_equal(extensions, self.extensions)

    def answers(self, reply_to: str | None) -> bool:
        """Return whether a message answers one of this track."""
        return reply_to is not None and reply_to in self.asked.values()

    def fire(self, event: TrackEvent) -> None:
        """Follow a transition. Raises `UndefinedTransition`."""
        self.state = StateTable(self.transitions, lambda guard: False).follow(self.state, event).target

    def wait_until(self, deadline: float) -> None:
        """Set the deadline."""
        self.deadline = deadline

    # Messages of this side

    def propose(self, required: tuple[str, ...], fallback: str) -> None:
        """Note a proposal. `required`: the capabilities that it needs. `fallback`: the id of the other protocol in it, or ""."""
        self.required, self.fallback = required, fallback

    def ask(self, action: str, message_id: str) -> str | None:
        """Note a message that waits for its answer. Return the id of the earlier one that it replaces."""
        replaced = self.asked.get(action)
        self.asked[action] = message_id
        return replaced

    def take_reply(self, action: str, reply_to: str) -> bool:
        """Return whether a message answers the last one with this action. Its answer is then no longer awaited."""
        if self.asked.get(action) != reply_to:
            return False
        del self.asked[action]
        return True

    def offer(self, parameters: Mapping[str, Any], extensions: Mapping[str, Any], limits: FlowLimits) -> None:
        """Offer terms. Raises `TooLarge` (`flow.rounds`) after too many offers, and for one that was made before."""
        self._count_round(limits)
        self.parameters, self.extensions = dict(parameters), dict(extensions)
        offer = [self.parameters, self.extensions]
        # A repeated offer gets the same answer, so the two sides would go round in circles.
        if any(json_equal(offer, before) for before in self._offers):
            raise TooLarge(FlowCode.ROUNDS, "Offers of parameters go round in circles.")
        self._offers.append(offer)
        self.fire(TrackEvent.OFFERED)

    def expect(self, extensions: Mapping[str, Any]) -> None:
        """Expect an answer with these of the offered extensions alone, to confirm it ahead."""
        self.extensions = {name: value for name, value in self.extensions.items() if name in extensions}

    def confirm(self, session_id: str, expires_at: int) -> None:
        """Agree on the last terms, in a session with this id and this end."""
        self.fire(TrackEvent.CONFIRMED)
        self.session_id, self.expires_at, self.agreed = session_id, expires_at, True

    def respond(self, parameter_rules: Rules, extension_rules: Rules) -> None:
        """Accept the offered terms as far as this side's rules admit them. Raises `Unsupported` to refuse them."""
        try:
            self.parameters = rules.respond(parameter_rules, self.parameters)
            self.extensions = rules.respond(extension_rules, self.extensions)
        except rules.Unsupported:
            self.fire(TrackEvent.REFUSED)
            raise
        self.fire(TrackEvent.ANSWERED)

    # Messages of the peer

    def take_offer(self, parameters: dict[str, Any], extensions: dict[str, Any], limits: FlowLimits) -> None:
        """Take the peer's offer of terms. Raises `TooLarge` (`flow.rounds`)."""
        self._count_round(limits)
        self.parameters, self.extensions = parameters, extensions

    def take_answer(self, parameters: dict[str, Any], extensions: dict[str, Any]) -> None:
        """Take an answer that agrees with the last offer. A confirmation that was sent ahead holds if it has these terms."""
        self.settled = True
        if not (self.agreed and self.equals(parameters, extensions)):
            self.parameters, self.extensions = parameters, extensions
            self.fire(TrackEvent.ANSWER_TAKEN)
            self.agreed = False

    def keep_early(self, confirmation: ProtocolConfirmation, message_id: str) -> None:
        """Keep the confirmation of a shortcut, which arrives while this side still loads the protocol."""
        self._early = confirmation, message_id

    def take_early(self) -> tuple[ProtocolConfirmation, str] | None:
        """Return the confirmation that was kept, and forget it."""
        early, self._early = self._early, None
        return early

    def acknowledge(self, message_id: str, ready_at: int | None = None) -> None:
        """Note the acknowledgment of either side. `ready_at`: when the responder is ready, in milliseconds since 1970."""
        self.acknowledgment, self.ready_at = message_id, ready_at

    # The code of this side

    def begin_loading(self, digest: str) -> None:
        """Wait for the code. `digest`: of the document that the peer means, or ""."""
        self.fire(TrackEvent.LOAD_BEGUN)
        self.digest = digest

    def load(self, uri: str, digest: str) -> None:
        """Note that the protocol is loaded."""
        self.loaded, self.uri, self.digest = True, uri, digest

    def begin_hosting(self) -> None:
        """Note that a handler is being started."""
        self.hosting = True

    def host(self) -> None:
        """Note that the handler is ready."""
        self.hosted = True

    def reopen(self, agreed: Agreed) -> None:
        """Begin from the terms of a running session: its handler stays and is ready."""
        self.loaded = self.hosting = self.hosted = True
        self.uri, self.digest, self.extensions = agreed.uri, agreed.digest, dict(agreed.extensions)

    def _count_round(self, limits: FlowLimits) -> None:
        self._rounds += 1
        # Counted on both sides: a peer of another make may not count.
        if self._rounds > limits.rounds:
            raise TooLarge(FlowCode.ROUNDS, f"After {limits.rounds} offers there is no agreement on parameters.")
