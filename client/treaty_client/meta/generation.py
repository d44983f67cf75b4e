"""Code on both sides: each gets it ready and says so by codeGeneration, once after an agreement and once more after each repair.

A hash that was confirmed needs no message, as both sides had the code when they offered and confirmed it: there the session is
running at once, and this side's code is all that it still waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from treaty_consensus.errors import Refused, TreatyError

from .actions import Action, Agreement, Load
from .core import Core, State, say, unexpected
from .deadlines import Wait
from .messages import CodeGeneration


class Generation:
    """Whether the codes are ready. `own`, `peer`: this side's and the other's; `was_ready`: both were, once. `heard_from_peer`:
    it said so, or spoke the protocol. `both_ready`: what to do when they are."""

    def __init__(self, core: Core, *, both_ready: Callable[[float], list[Action]]) -> None:
        self._core, self._both_ready = core, both_ready
        self.own = self.peer = False
        self.was_ready = False
        self.heard_from_peer = False
        self._announces = True

    def begin(self, agreement: Agreement, now: float) -> list[Action]:
        """There is an agreement."""
        self._core.agreement = agreement
        self.peer = agreement.confirmed
        self._announces = not agreement.confirmed
        self._core.enter(State.RUNNING if agreement.confirmed else State.AGREED, Wait.CODE, now)
        return [Load(agreement)]

    def ready(self, protocol_hash: str, now: float) -> list[Action]:
        """This side's code is, for the document of this hash."""
        agreement = self._core.agreement
        if self.own or agreement is None or self._core.is_natural or self._core.is_final:
            return []
        if agreement.protocol_hash not in (None, protocol_hash):
            what = agreement.uri or "The agreed text"
            return self.failed(Refused("session.hash-mismatch", f"{what} has another hash than what was agreed on."))
        self._core.agreement = replace(agreement, protocol_hash=protocol_hash)
        self.own = True
        announced: list[Action] = [say(CodeGeneration("generated"))] if self._announces else []
        return [*announced, *(self._go_on(now) if self.peer else [])]

    def failed(self, error: TreatyError) -> list[Action]:
        """This side's code cannot be made: tell the peer, and end."""
        if self._core.is_final:
            return []
        agreed = self._core.agreement is not None and not self._core.is_natural
        return [*([say(CodeGeneration("error"))] if agreed else []), *self._core.end(State.ERROR, error)]

    def receive(self, message: CodeGeneration, now: float) -> list[Action]:
        """The peer's is ready, or never will be. Raises `Refused` (`meta.unexpected`) where there is no agreement to have code
        for."""
        if message.status == "error":
            error = Refused("session.peer-code", "The other side could not get the protocol's code ready.")
            return self._core.end(State.ERROR, error)
        if self._core.agreement is None or self._core.is_natural:
            raise unexpected("a codeGeneration message")
        self.heard_from_peer = True
        first, self.peer = not self.peer, True
        return self._go_on(now) if first and self.own else []

    def mend(self, error: str, now: float) -> list[Action]:
        """This side's code is at fault, and gets ready anew."""
        assert self._core.agreement is not None
        self.own, self._announces = False, True
        self._core.enter(State.AGREED, Wait.CODE, now)
        return [Load(self._core.agreement, error)]

    def wait_for_mended(self, now: float) -> None:
        """The other side's code is at fault, and gets ready anew."""
        self.peer = False
        self._core.enter(State.AGREED, Wait.CODE, now)

    def _go_on(self, now: float) -> list[Action]:
        self.was_ready = True
        return self._both_ready(now)
