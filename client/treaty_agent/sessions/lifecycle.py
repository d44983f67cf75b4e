"""Run a session from its connection to its end, on either side: make it, record it and escalate its failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from types import TracebackType
from typing import TypeAlias

from treaty_anp.flow_profile.capabilities import ProtocolOffer as FlowOffer
from treaty_consensus.errors import Refused, TreatyError
from treaty_io.codes import SessionCode
from treaty_io.identity import ClaimedPeer
from treaty_io.line_limit import limited_logger

from ..transport.connection import Backoff, Connection
from . import profiles
from .agreements import AgreementRecord
from .context import AgentContext
from .escalation import ESCALATED, FLOW_ESCALATED, Escalation
from .flow_manager import MetaProtocolManager
from .flow_run import MetaProtocolNegotiator
from .flow_session import FlowSession
from .hello_session import HelloSession
from .interfaces import SpokenProtocol
from .provision import begin_renewing
from .reporting import SessionReport, publish
from .roles import HelloOffer, InitiatorRole, ResponderRole, SessionRequest, initiator_machine, make_offer, responder_machine
from .session import Session

Dial: TypeAlias = Callable[[bool], Awaitable[Connection]]
"""Open a connection to the address of the request. True: for a Hello, encrypted as the policy requires."""

_log = limited_logger(__name__)


async def run_responder(context: AgentContext, flow: MetaProtocolManager, connection: Connection) -> None:
    """Answer the peer until the session ends. If both sides switch to the flow profile, continue on the same connection. A
    person is asked about a failure afterwards, in a separate task."""
    recorder = context.memory.recorder("hello")
    machine = responder_machine(context, recorder, now=asyncio.get_running_loop().time())
    run = HelloSession(connection, machine, [], ResponderRole(context), recorder=recorder)
    run.running.add_done_callback(lambda _: context.served.arrivals.begin(run) if run.was_running else None)
    try:
        with context.work.connections.holding(run, partial(_protocols, run), is_initiator=False):
            await run.run()
    finally:
        context.served.arrivals.end(run)
    # Only a proposal that was considered here is worth a person's time: a stranger must not be able to ask for one at no cost.
    if _is_escalated(context, run) and run.negotiation.peer_proposal and context.work.escalations.may_ask():
        context.work.spawn(_escalate_here(context, _hello_escalation(run)))
    # After the session: the write waits for the disk.
    await context.memory.keep_transcript(False, run.machine.own.message_id, recorder)
    if run.is_released:
        await flow.accept(run.wire.connection, peer=run.peer.did)


@asynccontextmanager
async def run_initiator(
    context: AgentContext, flow: MetaProtocolManager, dial: Dial, address: str, request: SessionRequest, *, again: bool
) -> AsyncIterator[Session]:
    """Open a session as `open_session` does, for the time of the block."""
    with closing(request):
        async with await open_session(context, flow, dial, address, request, again=again) as session:
            yield session


async def open_session(
    context: AgentContext, flow: MetaProtocolManager, dial: Dial, address: str, request: SessionRequest, *, again: bool
) -> OpenSession:
    """Open a session with the agent at an address, in the profile that `profiles` chooses. `again`: the address may be dialled
    once more, for a person's decision or for the other profile. Raises `TreatyError`."""
    request.check(context)
    # Also for an agent that only connects: a session may last for longer than its proof.
    begin_renewing(context)
    return OpenSession(context, await _Connecting(context, flow, dial, address, request, again=again).open())


class OpenSession:
    """A session that this side began. Call `leave` or `end`, or use `async with`, which leaves, and ends the session at an
    error."""

    def __init__(self, context: AgentContext, attempt: _HelloAttempt | _FlowAttempt) -> None:
        self.session = Session(attempt.session, context.activity.calls)
        self._context, self._attempt = context, attempt
        self._report = SessionReport(context, attempt.session)

    @property
    def ready(self) -> asyncio.Future[None]:
        """Done when both sides are ready, or the session is over. With a remembered agreement the session is used before."""
        return self._attempt.running

    async def __aenter__(self) -> Session:
        return self.session

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.leave()
        else:
            await self.end()

    def leave(self) -> None:
        """End a session that succeeded. It is over for its application at once; publishing, the report and the end of the
        connection follow in the background. Never raises."""
        session = self._attempt.session
        session.retire()
        publication: asyncio.Task[str] | None = None
        if session.calls.replies and self._context.policy.publish:
            publication = self._context.work.finish_later(publish(self._context, session))
        self._context.work.finish_later(self._linger(publication))

    async def end(self) -> None:
        """End the session without a report, if it is open, and wait for its end."""
        self._report.close()
        await self._attempt.end()

    async def _linger(self, publication: asyncio.Task[str] | None) -> None:
        """Keep the connection until its report is settled and the peer knows the URI of the publication, and end the session."""
        try:
            if publication is not None:
                await self._tell(publication)
            await self._report.settle()
        finally:
            await self.end()

    async def _tell(self, publication: asyncio.Task[str]) -> None:
        """Tell the peer where its protocol was published, if that is known in time. The publication goes on; the next session
        tells the URI then."""
        session = self._attempt.session
        await asyncio.wait({publication}, timeout=self._context.timeouts.report)
        if isinstance(session, HelloSession) and publication.done() and not publication.cancelled():
            session.tell_published(publication.result())


class _Connecting:
    """The attempts of one request."""

    def __init__(
        self,
        context: AgentContext,
        flow: MetaProtocolManager,
        dial: Dial,
        address: str,
        request: SessionRequest,
        *,
        again: bool,
    ) -> None:
        self._context, self._flow, self._dial, self._again = context, flow, dial, again
        self._address, self._request, self._place = address, request, (address, request.key)

    async def open(self) -> _HelloAttempt | _FlowAttempt:
        """Return an attempt that is ready. Raises `TreatyError`."""
        context = self._context
        if profiles.begins_with_flow(context, self._address, self._request):
            remembered = context.memory.agreements.get(*self._place) is not None
            try:
                return await self._by_flow(
                    await self._dial(False), profiles.flow_peer(context, self._address, self._request), again=self._again
                )
            except TreatyError:
                if not (remembered and self._again):
                    raise
                context.memory.agreements.forget(*self._place)  # the address may speak another profile now
        return await self._by_hello()

    async def _by_hello(self) -> _HelloAttempt | _FlowAttempt:
        offer = await make_offer(self._context, self._address, self._request)
        if offer.known is None or not offer.known.package.is_declarative:
            self._context.warm()  # while the network answers
        # At most two attempts: a person may decide once.
        for last in (not self._again, True):
            attempt = _HelloAttempt(self._context, await self._dial(True), self._address, self._request, offer)
            try:
                await attempt.ready()
            except TreatyError:
                resumed = await attempt.is_resumed()
                await attempt.end()
                if attempt.session.is_released:
                    return await self._by_flow(attempt.session.wire.connection, attempt.session.peer.did, again=False)
                if resumed and not last:
                    continue
                other = await self._after_no_hello(attempt.session)
                if other is None:
                    raise
                return other
            except BaseException:
                await attempt.end()
                raise
            return attempt
        raise AssertionError("the last attempt returns or raises")

    async def _after_no_hello(self, run: HelloSession) -> _FlowAttempt | None:
        """Try the flow profile if the peer may speak only that; return None if it cannot be tried."""
        context = self._context
        peer = profiles.flow_peer(context, self._address, self._request) or run.flow_sender
        if not (self._again and run.met_no_hello and peer and profiles.may_speak_flow(context, self._request)):
            return None
        if context.policy.encryption == "required":
            return None
        offers = await profiles.flow_offers(context, self._request)
        return await self._by_flow(await self._dial(False), peer, offers, again=True) if offers else None

    async def _by_flow(
        self, connection: Connection, peer: str, offers: Sequence[FlowOffer] = (), *, again: bool, attempt: int = 1
    ) -> _FlowAttempt:
        """Negotiate. `again`: another connection may be opened. `attempt`: the number of connections that were opened for it."""
        context = self._context
        try:
            name = context.memory.flow_openings.pop(self._place, "")
            offers = offers or await profiles.flow_offers(context, self._request, name)
            if not offers:
                raise Refused(
                    SessionCode.NO_COMMON_PROTOCOL,
                    "The other side speaks the flow profile, and no protocol of this request has an id in it.",
                    fix="Register an id: agent.flow.registry.add(Offer(ID, uri=URI)). Or name another protocol.",
                )
            goal = profiles.flow_goal(self._request, offers)
            run = await self._flow.begin(connection, goal, peer=peer, offers=offers, serving=self._request.serving)
        # Also for a cancelled caller: no session owns the connection yet.
        except BaseException:
            await connection.close()
            raise
        try:
            (session,) = await self._flow.agree(run)
        except TreatyError as error:
            # The peer may have got the messages, so they are made and signed anew: each counts once.
            if again and run.was_cut and await Backoff().pause(attempt):
                return await self._by_flow(await self._dial(False), peer, offers, again=True, attempt=attempt + 1)
            if not await self._is_resumed(run, error) or not again:
                raise
            return await self._by_flow(await self._dial(False), peer, again=False)
        self._remember(session, offers)
        return _FlowAttempt(run, session)

    async def _is_resumed(self, run: MetaProtocolNegotiator, error: TreatyError) -> bool:
        """Return whether a person named another protocol after the failed negotiation."""
        if self._context.on_escalation is None or error.code not in FLOW_ESCALATED:
            return False
        answer = await _ask_person(self._context, _flow_escalation(run, error))
        if answer:
            self._context.memory.flow_openings[self._place] = answer
        return bool(answer)

    def _remember(self, session: FlowSession, offers: Sequence[FlowOffer]) -> None:
        spoken = session.spoken
        assert spoken is not None
        ids = tuple(offer.id for offer in offers)
        try:
            self._context.memory.agreements.remember(
                AgreementRecord(*self._place, session.peer.did, spoken.hash, spoken.uri, ids, "flow")
            )
        except OSError as error:
            _log.warning("An agreement cannot be written: %s", error)


class _HelloAttempt:
    """One session of the Hello profile, at the initiator."""

    def __init__(
        self, context: AgentContext, connection: Connection, address: str, request: SessionRequest, offer: HelloOffer
    ) -> None:
        self._context, self._offer, self._place = context, offer, (address, request.key)
        self._recorder = context.memory.recorder("hello")
        machine, first = initiator_machine(
            context,
            request,
            offer,
            self._recorder,
            switches=profiles.may_speak_flow(context, request),
            now=asyncio.get_running_loop().time(),
        )
        opening = context.memory.openings.pop(self._place, "")
        role = InitiatorRole(context, address=address, request=request, offer=offer, opening=opening)
        early = (offer.known, ClaimedPeer(offer.remembered.did)) if offer.known and offer.remembered else None
        self.session = HelloSession(connection, machine, first, role, recorder=self._recorder, early=early)
        self._waits = early is None
        # A task of its own, because the application uses the session meanwhile.
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with self._context.work.connections.holding(self.session, partial(_protocols, self.session), is_initiator=True):
            await self.session.run()
        # Now, and not when its caller leaves it: the next session must not offer the same.
        if self._offer.remembered and not self.session.was_running and self.session.error.code != SessionCode.BUSY:
            self._context.memory.agreements.forget(*self._place)

    @property
    def running(self) -> asyncio.Future[None]:
        """Done when both sides are ready, or the session is over."""
        return self.session.running

    async def ready(self) -> None:
        """Wait until both sides are ready, unless an agreement is remembered. Raises `TreatyError`."""
        if self._waits:
            await self.session.running

    async def is_resumed(self) -> bool:
        """Return whether a person gave a document after the failed negotiation."""
        await self._task
        if not _is_escalated(self._context, self.session):
            return False
        text = await _ask_person(self._context, _hello_escalation(self.session))
        if text:
            self._context.memory.openings[self._place] = text
        return bool(text)

    async def end(self) -> None:
        """Leave the session if it is open, and wait for its end."""
        self.session.leave()
        await self._task
        await self._context.memory.keep_transcript(True, self.session.machine.own.message_id, self._recorder)


class _FlowAttempt:
    """One session of the flow profile, at the initiator."""

    def __init__(self, run: MetaProtocolNegotiator, session: FlowSession) -> None:
        self.session = session
        self.running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running.set_result(None)
        self._run = run

    async def end(self) -> None:
        """Leave the session if it is open, and wait for the end of the connection."""
        # Both: the session is over before its connection is.
        await self.session.close()
        await self._run.closed.wait()


def _protocols(run: HelloSession) -> list[SpokenProtocol]:
    return [run.spoken] if run.spoken is not None else []


# Escalation


def _is_escalated(context: AgentContext, run: HelloSession) -> bool:
    error = run.machine.error
    return context.on_escalation is not None and error is not None and error.code in ESCALATED and not error.retryable


async def _escalate_here(context: AgentContext, escalation: Escalation) -> None:
    """Ask a person at the responder, and approve the answer."""
    try:
        text = await _ask_person(context, escalation)
        if text:
            context.memory.approvals.add(text)
    except OSError as error:
        _log.warning("An approval cannot be written: %s", error)
    finally:
        context.work.escalations.finish()


async def _ask_person(context: AgentContext, escalation: Escalation) -> str:
    assert context.on_escalation is not None
    try:
        return await context.on_escalation(escalation) or ""
    except Exception:  # the application's function may raise anything; a failure counts as no answer
        _log.exception("on_escalation raised")
        return ""


def _hello_escalation(run: HelloSession) -> Escalation:
    return Escalation(
        role="initiator" if run.is_initiator else "responder",
        peer=run.peer.did,
        reason=run.error.message,
        own_proposal=run.negotiation.own_proposal,
        peer_proposal=run.negotiation.peer_proposal,
        transcript=run.transcript(),
    )


def _flow_escalation(run: MetaProtocolNegotiator, error: TreatyError) -> Escalation:
    machine = run.machine
    return Escalation(
        role="initiator",
        peer=run.peer,
        reason=error.message,
        own_proposal="\n".join(offer.id for offer in machine.capabilities.registry),
        peer_proposal="\n".join(machine.peer_capabilities.protocols),
        transcript=run.failed_talks,
        profile="flow",
    )
