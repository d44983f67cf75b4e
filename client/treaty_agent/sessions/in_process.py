"""Call the protocols that an agent serves from its own process, for a caller that came through a door.

The caller speaks A2A, and has no handler. So its side of the session runs here: the messages pass both handlers, and the agent
sees one more peer. It sees a `ClaimedPeer`, because a door proves nobody: all callers share one did:key, which is made when the
agent starts. Their sessions are never reported, so they are no proved use of a protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from treaty_consensus.errors import Refused
from treaty_io.codes import AgentCode
from treaty_io.identity import Identity
from treaty_io.task_set import TaskSet

from ..transport import memory
from ..transport.application import Application
from ..transport.connection import Connection
from .activity import Activity
from .context import AgentContext
from .flow_manager import MetaProtocolManager
from .lifecycle import run_initiator
from .roles import SessionRequest
from .served_protocols import ServedProtocols
from .session import Session


class InProcessCaller:
    """Opens sessions with an agent in its process. For one event loop; `aclose` it before the agent."""

    def __init__(self, context: AgentContext, flow: MetaProtocolManager) -> None:
        """`context`, `flow`: of the agent. Raises `Refused` (`agent.settings`) if it takes encrypted sessions alone."""
        policy = context.policy
        if policy.encryption == "required":
            raise Refused(
                AgentCode.SETTINGS,
                "This agent takes encrypted sessions alone, and callers of another protocol are not proved.",
                fix='Set encryption = "preferred" in the policy, or open no door.',
            )
        self._flow, self._serving, activity = flow, TaskSet[None](), Activity()
        # A copy: the agent's own functions and negotiators must not serve the caller's side.
        self._context = replace(
            context,
            identity=Identity.create(),
            policy=replace(policy, encryption="off", report=False, publish=False),
            served=ServedProtocols(context.capacity, context.memory.negotiated, policy.max_age, activity.calls),
            negotiators=None,
            on_escalation=None,
            on_event=None,
            answerer=None,
            activity=activity,
        )

    @asynccontextmanager
    async def session(self, application: Application, address: str, uri: str) -> AsyncIterator[Session]:
        """Open a session for a protocol, for the time of the block. `address`: IP:PORT of the caller; the session counts for its
        network. Raises `Unavailable` (`connection.busy`) and the errors of `Agent.connect`."""
        if (refusal := application.refusal(address.rpartition(":")[0])) is not None:
            raise refusal
        near, far = memory.pair(address=address)
        self._serving.start(application.serve(far, ""))

        async def dial(for_hello: bool) -> Connection:
            return near

        request = SessionRequest(protocols=(uri,))
        try:
            async with run_initiator(self._context, self._flow, dial, near.address, request, again=False) as session:
                yield session
        finally:
            await near.close()

    async def aclose(self) -> None:
        """Wait for the ends of the sessions, which the application closes."""
        await self._serving.finish()
        await self._context.hosts.close()
