"""Load the protocols that an agent provides: each is fetched, verified and loaded once before a peer can choose it.

A protocol that fails is not served; the others are. Its publisher, its registry or its handler may be at fault, and the agent
controls none of them. The failure is logged as an error with a fix, and reported to the observer as the event `unserved`. The
agent tries again: soon if the registry did not answer, else after a minute, then after twice as long each time.
The same happens to a served protocol that is refused later, or contradicted by a newer fact.

A protocol that its publisher took back (yanked or revoked) is reported as `revoked` too. Its sessions end when their calls
are answered. Sessions of other protocols go on.

Protocols may be provided and withdrawn while the agent serves. `AgentContext.note_change` is called after each change, so that
the documents of discovery are renewed.

Protocols are verified again in the background, before their proofs are too old: so a running agent learns of revocations. They
are those that the agent serves, and those of its open sessions. Each is verified again, by one request, when its
proof has half of the policy's `max_age`. While a registry is away, a protocol is served until its proof reaches `max_age`. Then
it is not served, and peers get a temporary error, until the registry answers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_anp.flow_profile.payloads import PREFIX
from treaty_consensus.errors import NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.handler import Role
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import AgentCode, ClientStatusCode, SessionCode

from .agreements import is_negotiated
from .connection_loop import part
from .context import AgentContext
from .handler_hosts import RESPONDER
from .interfaces import AgentEvent, SpokenProtocol
from .operations import check_signatures
from .served_protocols import Service

CHECKS = 8
"""Looks at the ages of all proofs within `max_age`."""
_log = logging.getLogger(__name__)


def begin_renewing(context: AgentContext) -> None:
    """Begin to verify again from time to time, unless that began before. `AgentContext.close` ends it."""
    if context.served.renewal is None:
        _renew_later(context)


async def renew(context: AgentContext) -> None:
    """Verify the protocols again whose proofs have half of their age. Ask all registries at the same time."""
    published = (protocol for protocol in context.work.connections.spoken() if not is_negotiated(protocol))
    served = {protocol.uri: protocol for protocol in published} | context.served.ready
    at_origin = dict[str, list[SpokenProtocol]]()
    for protocol in served.values():
        if 2 * protocol.age(int(time.time())) > context.served.max_age:
            at_origin.setdefault(parse_protocol_uri(protocol.uri).origin, []).append(protocol)
    await asyncio.gather(*(_renew_all(context, protocols) for protocols in at_origin.values()))


def _renew_later(context: AgentContext) -> None:
    # At random: the agents of one protocol must not ask its registry all at once.
    pause = context.served.max_age / CHECKS * random.uniform(0.75, 1.25)  # noqa: S311
    context.served.renewal = asyncio.get_running_loop().call_later(pause, lambda: context.work.spawn(_renew_and_repeat(context)))


async def _renew_and_repeat(context: AgentContext) -> None:
    try:
        await renew(context)
    except Exception:
        _log.exception("Verifying protocols again failed")
    _renew_later(context)


async def _renew_all(context: AgentContext, protocols: list[SpokenProtocol]) -> None:
    """Verify the protocols of one registry again, one after the other. The first one that it does not answer about is the
    last."""
    away: Unavailable | None = None
    for protocol in protocols:
        if away is None:
            try:
                await _renew(context, protocol.uri)
                continue
            except Unavailable as error:
                away = error
                _log.info("%s could not be verified again: %s", protocol.uri, error)
        _withdraw_stale(context, protocol, away)


async def _renew(context: AgentContext, uri: str) -> None:
    """Raises `Unavailable` if the registry does not answer."""
    try:
        await replace_protocol(context, uri, await context.ports.protocols.renew(uri))
    except Unavailable:
        raise
    except TreatyError as error:
        if uri in context.served.services:
            withdraw(context, uri, error)
        else:
            _log.warning("%s is refused now: %s", uri, error)
            end_taken_back(context, uri, error)


def _withdraw_stale(context: AgentContext, protocol: SpokenProtocol, why: TreatyError) -> None:
    if protocol.uri in context.served.services and not context.served.is_fresh(protocol):
        stale = f"Its proof is older than the policy's `max_age`, and its registry does not answer: {why.message}"
        withdraw(context, protocol.uri, Unavailable(AgentCode.STALE, stale, fix="It is served as soon as the registry answers."))


SOON, MAX_SOON = 2.0, 60.0
"""Seconds before a protocol is retried whose registry did not answer. The pause doubles."""
RETRY, MAX_RETRY = 60.0, 3600.0
"""The same after other failures: its handler may be corrected."""

_TAKEN_BACK = (ClientStatusCode.REVOKED, ClientStatusCode.YANKED)


async def provide(context: AgentContext) -> None:
    """Load every provided protocol that is not served. Return when all were tried, or `timeouts.provide` after one is ready.

    Failed and late protocols are then in `ServedProtocols.unserved`. They are retried until they are served or the agent is
    closed. If all failed for good, raise the error of the first one and retry none.
    """
    for uri, service in context.served.services.items():
        if service.protocol is None:
            _begin(context, uri, service)
    await _first_and_prompt(context)
    failures, services = list(context.served.unserved.values()), context.served.services.values()
    # A registry may be back in a moment. An agent that did not start would have to be started again by a person.
    if failures and not any(service.protocol is not None or service.is_away for service in services):
        for service in services:
            if service.attempts is not None:
                service.attempts.cancel()
            service.attempts = None
        context.served.unserved.clear()
        raise failures[0]
    context.served.is_providing = True


def provide_later(context: AgentContext, uri: str) -> None:
    """Load a protocol, or try it again now, because a function was registered while the agent serves."""
    # In the next turn of the loop: the functions of one protocol are registered one after the other.
    asyncio.get_running_loop().call_soon(_begin_registered, context, uri)


async def stop_providing(context: AgentContext, uri: str) -> None:
    """Forget a provided protocol and its functions. Its sessions end when their calls are answered. Raises `NotFound`
    (`agent.not-provided`); then nothing changed."""
    service = context.served.services.pop(uri, None)
    if service is None:
        raise NotFound(AgentCode.NOT_PROVIDED, f"This agent does not provide {uri}.")
    if service.attempts is not None:
        service.attempts.cancel()
    _take_down(context, service)
    context.served.unserved.pop(uri, None)
    context.served.note_change()
    _log.info("%s is withdrawn.", uri)
    await part(context.work.connections.speaking(uri), SessionCode.WITHDRAWN, context.timeouts.drain)
    await context.hosts.end(uri)
    # Last: the calls above may run in its threads.
    service.functions.close()


def withdraw(context: AgentContext, uri: str, error: TreatyError) -> None:
    """Stop serving a provided protocol because of `error`, until a retry succeeds. The first retry is at once: there may be
    another handler. Running sessions continue, unless the protocol was taken back."""
    service = context.served.services[uri]
    if service.protocol is not None:
        _take_down(context, service)
        service.is_away = isinstance(error, Unavailable)
        _note(context, uri, error)
        context.served.note_change()
        _begin(context, uri, service)


def withdraw_contradicted(context: AgentContext) -> None:
    """Withdraw the protocols that a known fact now refuses: a revocation, a yank, or another publisher."""
    for uri, service in context.served.services.items():
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


async def replace_protocol(context: AgentContext, uri: str, protocol: SpokenProtocol) -> None:
    """Serve a protocol as it was verified anew, perhaps with another handler. Raises the errors of the handler; then the former
    one is served."""
    service = context.served.services.get(uri)
    if service is None or service.protocol is None:
        return
    if protocol.package.digest != service.protocol.package.digest:
        await _check(context, service, protocol)
    # It may have been withdrawn or taken back during the check.
    if context.served.is_served(service, uri):
        service.protocol = protocol


def end_taken_back(context: AgentContext, uri: str, error: TreatyError) -> None:
    """If the error says that the publisher took a protocol back, report it, and end its sessions when their calls are
    answered."""
    if error.code not in _TAKEN_BACK:
        return
    context.record_event(AgentEvent("responder" if uri in context.served.services else "initiator", "", uri, "revoked", 0.0))
    # Without members too: its code must not run on.
    context.hosts.outdate(uri)
    context.work.spawn(part(context.work.connections.speaking(uri), SessionCode.REVOKED, context.timeouts.drain))


def _begin_registered(context: AgentContext, uri: str) -> None:
    service = context.served.services.get(uri)
    if service is None or service.protocol is not None:
        return
    if service.attempts is None or service.attempts.done():
        _begin(context, uri, service)
    else:
        service.again.set()


def _begin(context: AgentContext, uri: str, service: Service) -> None:
    """Start the task that loads a protocol, unless it runs already."""
    if service.attempts is None or service.attempts.done():
        service.tried = asyncio.get_running_loop().create_future()
        service.attempts = context.work.spawn(_attempt(context, uri, service, service.tried))


async def _attempt(context: AgentContext, uri: str, service: Service, tried: asyncio.Future[None]) -> None:
    failures = 0
    try:
        while not await _get_ready(context, uri, service):
            if not tried.done():
                tried.set_result(None)
            first, most = (SOON, MAX_SOON) if service.is_away else (RETRY, MAX_RETRY)
            # Doubled, so that a registry that is down is not flooded.
            pause = min(first * 2 ** min(failures, 16), most)
            failures += 1
            if await service.is_changed_within(pause):
                failures = 0
    # Also after cancellation: `provide` waits for this future.
    finally:
        if not tried.done():
            tried.set_result(None)


async def _first_and_prompt(context: AgentContext) -> None:
    """Wait until one protocol is ready, and `timeouts.provide` for the others; if none becomes ready, until all were tried. Note
    late ones as unserved."""
    pending = {
        service.tried: uri
        for uri, service in context.served.services.items()
        if service.tried is not None and not service.tried.done() and uri not in context.served.unserved
    }
    now, until = asyncio.get_running_loop().time, None
    while pending:
        if until is None and context.served.ready:
            until = now() + context.timeouts.provide
        done, _ = await asyncio.wait(
            pending, timeout=None if until is None else max(until - now(), 0.0), return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            break
        for tried in done:
            del pending[tried]
    for uri in pending.values():
        # Its peers are asked to try again.
        context.served.services[uri].is_away = True
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
        try:
            protocol = await context.ports.protocols.fetch(uri)
        except Unavailable:
            service.is_away = True
            raise
        service.is_away = False
        await _check(context, service, protocol)
        try:
            await context.hosts.reopen(protocol)
        except Unavailable:
            service.is_away = True  # the process before may still have the room
            raise
    except TreatyError as error:
        _note(context, uri, error)
        return False
    except Exception:
        _log.exception("Getting %s ready failed", uri)
        _note(context, uri, Unavailable(SessionCode.INTERNAL, "This side failed; its log says why."))
        return False
    service.protocol = protocol
    _offer_aliases(context, service, protocol)
    was_unserved = context.served.unserved.pop(uri, None) is not None
    if was_unserved or context.served.is_providing:
        # The end of an error is at the level where an operator saw the error.
        _log.log(logging.WARNING if was_unserved else logging.INFO, "%s is served from now on.", uri)
        context.record_event(AgentEvent("responder", "", uri, "served", 0.0))
    context.served.note_change()
    return True


async def _check(context: AgentContext, service: Service, protocol: SpokenProtocol) -> None:
    """Check the functions of a protocol, and load its handler once. Raises `TreatyError`."""
    role, _ = context.served.choose(protocol, RESPONDER)
    _check_answers(protocol.uri, service, role, protocol)
    check_signatures(service.functions, role, protocol.uri)
    # Bounds the handlers that load at the same time: each uses a worker.
    async with context.served.preloads:
        await context.ports.runtime.preload(protocol.package, local=context.identity.did)


def _check_answers(uri: str, service: Service, role: Role, protocol: SpokenProtocol) -> None:
    """Check that an agent that connects finds something in a session with this role: operations, or the function of
    `on_session`. Raises `Refused` (`session.role`)."""
    others = [other for other in protocol.package.manifest.roles.values() if other.fits(role)]
    if service.on_session is None and not any(role.invokes and other.calls for other in others):
        raise Refused(
            SessionCode.ROLE,
            f"As {role.name} of {uri} an agent answers no calls, so it is not offered to others.",
            fix="For operations that a peer calls back, use connect(…, serving=[…]) or peer(…, serving=[…]). To call the agents "
            "that connect, use @agent.on_session(URI, role=…).",
        )


def _offer_aliases(context: AgentContext, service: Service, protocol: SpokenProtocol) -> None:
    """Offer a provided protocol in the flow profile, by each `anp:` id that its publish statement claims. An id that the owner
    registered does not change."""
    for alias in protocol.aliases:
        if not alias.startswith(PREFIX) or context.served.flow_offers.get(alias) is not None:
            continue
        try:
            context.served.flow_offers.add(ProtocolOffer(alias, service.functions.names, uri=protocol.uri))
            service.flow_ids.append(alias)
        except TreatyError as error:  # an invalid id, or too many ids: the Hello profile still serves it
            _log.warning("%s is not offered as %s: %s", protocol.uri, alias, error)


def _take_down(context: AgentContext, service: Service) -> None:
    service.protocol = None
    for id in service.flow_ids:
        context.served.flow_offers.remove(id)
    service.flow_ids.clear()


def _note(context: AgentContext, uri: str, error: TreatyError) -> None:
    previous = context.served.unserved.get(uri)
    context.served.unserved[uri] = error
    level = logging.WARNING if error.code == AgentCode.LATE else logging.ERROR
    _log.log(level, "%s is not served: %s (%s)", uri, error, error.code)
    context.record_event(AgentEvent("responder", "", uri, "unserved", 0.0))
    if previous is None or previous.code != error.code:
        end_taken_back(context, uri, error)


def needs_sandbox(context: AgentContext) -> bool:
    """Tell whether a provided protocol has a handler with code, as far as it is known."""
    served = (service.protocol for service in context.served.services.values())
    return any(protocol is None or not protocol.package.is_declarative for protocol in served)
