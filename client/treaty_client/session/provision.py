"""Getting ready what an agent provides: each protocol is fetched, verified and loaded once before anybody can choose it.

A protocol that fails is not served, and keeps no other from being served: its publisher, its registry or its handler may be at
fault, and neither is under the agent's control. It is logged as an error with what to do, told to the agent's observer as the
event `unserved`, and tried again after a minute, then after twice as long each time.
"""

from __future__ import annotations

import asyncio
import logging

from treaty_consensus.errors import TreatyError

from .household import AgentEvent, Household, Service

MAX_AT_ONCE = 4
"""Handlers that are loaded at once: one that hangs until its time is up must not make the others wait for each other."""
RETRY, MAX_RETRY = 60.0, 3600.0
"""Seconds until a protocol that failed is tried again: a registry may have been away, or a handler mended."""

_log = logging.getLogger(__name__)


async def provide(household: Household) -> None:
    """Get every provided protocol ready that is not. Raises what was wrong with the first one when none is left that could be
    served; otherwise those that failed are in `household.unserved`, and tried again until the agent is closed."""
    already_trying = bool(household.unserved)
    await _try(household)
    if household.unserved and not any(service.protocol for service in household.services.values()):
        first = next(iter(household.unserved.values()))
        household.unserved.clear()
        raise first
    if household.unserved and not already_trying:
        household.begin(_try_again(household))


async def _try(household: Household) -> None:
    places = asyncio.Semaphore(MAX_AT_ONCE)
    waiting = {uri: service for uri, service in household.services.items() if service.protocol is None}
    await asyncio.gather(*(_get_ready(household, uri, service, places) for uri, service in waiting.items()))


async def _get_ready(household: Household, uri: str, service: Service, places: asyncio.Semaphore) -> None:
    try:
        protocol = await household.ports.protocols.fetch(uri)
        household.role(protocol, calling=False)
        async with places:
            await household.ports.runtime.rehearse(protocol.package, local=household.identity.did)
    except TreatyError as error:
        household.unserved[uri] = error
        _log.error("%s is not served: %s (%s)", uri, error, error.code)
        household.tell(AgentEvent("destination", "", uri, "unserved", 0.0))
        return
    service.protocol = protocol
    if household.unserved.pop(uri, None) is not None:
        _log.warning("%s is served from now on.", uri)
        household.tell(AgentEvent("destination", "", uri, "served", 0.0))


async def _try_again(household: Household) -> None:
    delay = RETRY
    while household.unserved:
        await asyncio.sleep(delay)
        await _try(household)
        delay = min(2 * delay, MAX_RETRY)
