"""Load the protocols that an agent provides: each is fetched, verified and loaded once before a peer can choose it.

A protocol that fails is not served; the others are. Its publisher, its registry or its handler may be at fault, and the agent
controls none of them. The failure is logged as an error with a fix, and reported to the observer as the event `unserved`. The
agent tries again after a minute, then after twice as long each time. The same happens to a served protocol that is refused later,
or contradicted by a newer fact.
"""

from __future__ import annotations

import asyncio
import logging

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.handler import Role

from ..anp.flow_profile.payloads import PREFIX
from ..anp.flow_profile.registry import ProtocolOffer
from ..codes import AgentCode, SessionCode
from .context import AgentContext, AgentEvent, Service
from .handler_host import RESPONDER
from .interfaces import SpokenProtocol

RETRY, MAX_RETRY = 60.0, 3600.0
"""Seconds before a failed protocol is retried: its registry may be back, or its handler corrected. The pause doubles."""

_log = logging.getLogger(__name__)


async def provide(context: AgentContext) -> None:
    """Load every provided protocol that is not served. Return when all were tried, or `timeouts.provide` after one is ready.

    Failed and late protocols are then in `context.unserved`. They are retried until they are served or the agent is closed. If
    all failed, raise the error of the first one and retry none.
    """
    for uri, service in context.services.items():
        if service.protocol is None:
            _begin(context, uri, service)
    await _first_and_prompt(context)
    if context.unserved and not _is_any_served(context):
        first = next(iter(context.unserved.values()))
        for service in context.services.values():
            if service.attempts is not None:
                service.attempts.cancel()
            service.attempts = None
        context.unserved.clear()
        raise first


def withdraw(context: AgentContext, uri: str, error: TreatyError) -> None:
    """Stop serving a provided protocol because of `error`, until a retry succeeds. The first retry is at once: there may be
    another handler. Running sessions continue."""
    service = context.services[uri]
    if service.protocol is not None:
        service.protocol = None
        _withdraw_aliases(context, service)
        _note(context, uri, error)
        _begin(context, uri, service)


def withdraw_contradicted(context: AgentContext) -> None:
    """Withdraw the protocols that a known fact now refuses: a revocation, a yank, or another publisher."""
    for uri, service in context.services.items():
        if service.protocol is not None and not context.ports.protocols.holds(service.protocol.uri):
            withdraw(
                context,
                uri,
                Refused(
                    AgentCode.CONTRADICTED,
                    f"A newer fact from the registry contradicts the verified {uri}.",
                    fix=f"See why with: treaty fetch {uri}",
                ),
            )


def _begin(context: AgentContext, uri: str, service: Service) -> None:
    """Start the task that loads a protocol, unless it runs already."""
    if service.attempts is None or service.attempts.done():
        service.tried = asyncio.get_running_loop().create_future()
        service.attempts = context.spawn(_attempt(context, uri, service, service.tried))


async def _attempt(context: AgentContext, uri: str, service: Service, tried: asyncio.Future[None]) -> None:
    delay = RETRY
    try:
        while not await _get_ready(context, uri, service):
            if not tried.done():
                tried.set_result(None)
            await asyncio.sleep(delay)
            # Doubled, so that a registry that is down is not flooded.
            delay = min(2 * delay, MAX_RETRY)
    # Also after cancellation: `provide` waits for this future.
    finally:
        if not tried.done():
            tried.set_result(None)


async def _first_and_prompt(context: AgentContext) -> None:
    """Wait until one protocol is ready, and `timeouts.provide` for the others; if none becomes ready, until all were tried. Note
    late ones as unserved."""
    pending = {
        service.tried: uri
        for uri, service in context.services.items()
        if service.tried is not None and not service.tried.done() and uri not in context.unserved
    }
    now, until = asyncio.get_running_loop().time, None
    while pending:
        if until is None and _is_any_served(context):
            until = now() + context.timeouts.provide
        done, _ = await asyncio.wait(
            pending, timeout=None if until is None else max(until - now(), 0.0), return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            break
        for tried in done:
            del pending[tried]
    for uri in pending.values():
        _note(
            context,
            uri,
            Unavailable(
                AgentCode.LATE,
                f"It was not ready {context.timeouts.provide:g} seconds after another protocol was.",
                fix="It is served as soon as it is ready. If that takes long, check its registry.",
            ),
        )


async def _get_ready(context: AgentContext, uri: str, service: Service) -> bool:
    """Load a protocol once. Return whether it is served now; else note the error."""
    try:
        protocol = await context.ports.protocols.fetch(uri)
        _check_answers(protocol.uri, service, context.served(protocol, RESPONDER)[0], protocol)
        # Bounds the handlers that load at the same time: each uses a worker.
        async with context.preloads:
            await context.ports.runtime.preload(protocol.package, local=context.identity.did)
    except TreatyError as error:
        _note(context, uri, error)
        return False
    except Exception:
        _log.exception("Getting %s ready failed", uri)
        _note(context, uri, Unavailable(AgentCode.INTERNAL, "This side failed; its log says why."))
        return False
    service.protocol = protocol
    _offer_aliases(context, service, protocol)
    if context.unserved.pop(uri, None) is not None:
        _log.warning("%s is served from now on.", uri)
        context.record_event(AgentEvent("responder", "", uri, "served", 0.0))
    return True


def _check_answers(uri: str, service: Service, role: Role, protocol: SpokenProtocol) -> None:
    """Check that an agent that connects finds something in a session with this role: operations, or the function of
    `on_session`. Raises `Refused` (`session.role`)."""
    others = [other for other in protocol.package.manifest.roles.values() if other.fits(role)]
    if service.on_session is None and not any(role.invokes and other.calls for other in others):
        raise Refused(
            SessionCode.ROLE,
            f"As {role.name} of {uri} an agent answers no calls, so it is not offered to others.",
            fix="For operations that a peer calls back, use connect(serving=[…]). To call the agents that connect, use "
            "@agent.on_session(URI, role=…).",
        )


def _offer_aliases(context: AgentContext, service: Service, protocol: SpokenProtocol) -> None:
    """Offer a provided protocol in the flow profile, by each `anp:` id that its publish statement claims. An id that the owner
    registered does not change."""
    for alias in protocol.aliases:
        if not alias.startswith(PREFIX) or context.flow_offers.get(alias) is not None:
            continue
        try:
            context.flow_offers.add(ProtocolOffer(alias, service.functions.names, uri=protocol.uri))
            service.flow_ids.append(alias)
        except TreatyError as error:  # an invalid id, or too many ids: the Hello profile still serves it
            _log.warning("%s is not offered as %s: %s", protocol.uri, alias, error)


def _withdraw_aliases(context: AgentContext, service: Service) -> None:
    for id in service.flow_ids:
        context.flow_offers.remove(id)
    service.flow_ids.clear()


def _note(context: AgentContext, uri: str, error: TreatyError) -> None:
    context.unserved[uri] = error
    _log.error("%s is not served: %s (%s)", uri, error, error.code)
    context.record_event(AgentEvent("responder", "", uri, "unserved", 0.0))


def needs_sandbox(context: AgentContext) -> bool:
    """Tell whether a provided protocol has a handler with code, as far as it is known."""
    served = (service.protocol for service in context.services.values())
    return any(protocol is None or not protocol.package.is_declarative for protocol in served)


def _is_any_served(context: AgentContext) -> bool:
    return any(service.protocol is not None for service in context.services.values())
