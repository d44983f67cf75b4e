"""A session for a handler under test, whose steps wait (`HandlerPort`)."""

from __future__ import annotations

from treaty_agent.sessions.call_context import CallOrigin
from treaty_agent.sessions.interfaces import Step
from treaty_anp.call_metadata import CallMetadata
from treaty_consensus.errors import TreatyError
from treaty_handler import Return, Value
from treaty_io.identity import PeerIdentity
from treaty_io.shared_timer import SharedTimer


class Queue:
    """A session that performs its steps only when it is told to. `sent`: the metadata of each message."""

    backlog = 0

    def __init__(self, peer: PeerIdentity) -> None:
        self.peer, self.timer = peer, SharedTimer()
        self.steps: list[Step] = []
        self.sent: list[CallMetadata | None] = []

    def post(self, step: Step) -> None:
        self.steps.append(step)

    def origin(self) -> CallOrigin:
        return CallOrigin(peer=self.peer)

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        self.sent.append(metadata)

    async def wait_writable(self) -> None: ...

    def item(self, call: str, value: Value) -> None: ...

    def served_call(self) -> None: ...

    def answer(self, call: str, outcome: Return | TreatyError, *, silent: bool = False) -> None: ...

    async def end(self, error: TreatyError | None) -> None: ...

    async def perform(self) -> None:
        steps, self.steps = self.steps, []
        for step in steps:
            await step()
