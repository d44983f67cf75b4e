"""Getting ready what an agent provides: each protocol is fetched, verified and loaded once before anybody can choose it.

A protocol that fails is not served, and keeps no other from being served: its publisher, its registry or its handler may be at
fault, and neither is under the agent's control. It is logged as an error with what to do, told to the agent's observer as the
event `unserved`, and tried again after a minute, then after twice as long each time. The same happens to a protocol that is
served and then refused, or contradicted by something that the agent learned since.
"""

from __future__ import annotations

import asyncio
import logging

from treaty_consensus.errors import Refused, TreatyError, Unavailable

from .household import AgentEvent, Household, Service

PROMPT = 5.0
"""Seconds that the others have once one protocol is ready: enough for a registry that is well, where a fetch is two requests and
a handler loads in about a second. One that drips may take minutes, and must not keep the port closed."""
RETRY, MAX_RETRY = 60.0, 3600.0
"""Seconds until a protocol that failed is tried again: a registry may have been away, or a handler mended."""

_log = logging.getLogger(__name__)


async def provide(household: Household) -> None:
    """Get every provided protocol ready that is not. Returns when all were tried, or `PROMPT` seconds after the first is ready.

    Those that failed or are late are in `household.unserved` then, and are tried until they are served or the agent is closed.
    Raises what was wrong with the first one when all failed; then none is tried again.
    """
    for uri, service in household.services.items():
        if service.protocol is None:
            _begin(household, uri, service)
    await _first_and_prompt(household)
    if household.unserved and not _is_any_served(household):
        first = next(iter(household.unserved.values()))
        for service in household.services.values():
            if service.attempts is not None:
                service.attempts.cancel()
            service.attempts = None
        household.unserved.clear()
        raise first


def withdraw(household: Household, uri: str, error: TreatyError) -> None:
    """Serve a provided protocol no longer, because of `error`, until an attempt to get it ready succeeds. The first is made at
    once: there may be another handler. Sessions that run go on."""
    service = household.services[uri]
    if service.protocol is not None:
        service.protocol = None
        _note(household, uri, error)
        _begin(household, uri, service)


def withdraw_contradicted(household: Household) -> None:
    """Withdraw what the agent knows to be refused now: revoked, yanked, or published by somebody else."""
    for uri, service in household.services.items():
        if service.protocol is not None and not household.ports.protocols.holds(service.protocol.uri):
            withdraw(
                household,
                uri,
                Refused(
                    "agent.contradicted",
                    f"Something that was learned from the registry since {uri} was verified contradicts it.",
                    fix=f"See why with: treaty fetch {uri}",
                ),
            )


def _begin(household: Household, uri: str, service: Service) -> None:
    """Try to get a protocol ready until it is, unless that is under way."""
    if service.attempts is None or service.attempts.done():
        service.tried = asyncio.get_running_loop().create_future()
        service.attempts = household.begin(_attempt(household, uri, service, service.tried))


async def _attempt(household: Household, uri: str, service: Service, tried: asyncio.Future[None]) -> None:
    delay = RETRY
    try:
        while not await _get_ready(household, uri, service):
            if not tried.done():
                tried.set_result(None)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RETRY)
    finally:
        if not tried.done():
            tried.set_result(None)


async def _first_and_prompt(household: Household) -> None:
    """Wait until a protocol is ready, and `PROMPT` seconds for the others; until all were tried where none is. Those that are
    late are noted as unserved."""
    pending = {
        service.tried: uri
        for uri, service in household.services.items()
        if service.tried is not None and not service.tried.done() and uri not in household.unserved
    }
    now, until = asyncio.get_running_loop().time, None
    while pending:
        if until is None and _is_any_served(household):
            until = now() + PROMPT
        done, _ = await asyncio.wait(
            pending, timeout=None if until is None else max(until - now(), 0.0), return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            break
        for tried in done:
            del pending[tried]
    for uri in pending.values():
        _note(
            household,
            uri,
            Unavailable(
                "agent.late",
                f"It was not ready {PROMPT:g} seconds after another protocol was.",
                fix="It is served as soon as it is ready. If that takes long, see whether its registry is well.",
            ),
        )


async def _get_ready(household: Household, uri: str, service: Service) -> bool:
    """Whether it is served now; why not is noted."""
    try:
        protocol = await household.ports.protocols.fetch(uri)
        household.role(protocol, calling=False)
        async with household.rehearsals:
            await household.ports.runtime.rehearse(protocol.package, local=household.identity.did)
    except TreatyError as error:
        _note(household, uri, error)
        return False
    except Exception:
        _log.exception("Getting %s ready failed", uri)
        _note(household, uri, Unavailable("agent.internal", "This side failed; its log says why."))
        return False
    service.protocol = protocol
    if household.unserved.pop(uri, None) is not None:
        _log.warning("%s is served from now on.", uri)
        household.tell(AgentEvent("destination", "", uri, "served", 0.0))
    return True


def _note(household: Household, uri: str, error: TreatyError) -> None:
    household.unserved[uri] = error
    _log.error("%s is not served: %s (%s)", uri, error, error.code)
    household.tell(AgentEvent("destination", "", uri, "unserved", 0.0))


def _is_any_served(household: Household) -> bool:
    return any(service.protocol is not None for service in household.services.values())
