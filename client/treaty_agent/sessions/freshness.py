"""Verify protocols again in the background, before their proofs are too old: so a running agent learns of revocations.

The protocols are those that the agent serves, and those of its open sessions. Each is verified again, by one request, when its
proof has half of the policy's `max_age`. While a registry is away, a protocol is served until its proof reaches `max_age`. Then
it is not served, and peers get a temporary error, until the registry answers (`provision`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import AgentCode

from .agreements import is_negotiated
from .context import AgentContext
from .interfaces import SpokenProtocol
from .provision import end_taken_back, replace_protocol, withdraw

CHECKS = 8
"""Looks at the ages of all proofs within `max_age`."""
_log = logging.getLogger(__name__)


def begin_renewing(context: AgentContext) -> None:
    """Begin to verify again from time to time, unless that began before. `AgentContext.close` ends it."""
    if context.renewal is None:
        _renew_later(context)


async def renew(context: AgentContext) -> None:
    """Verify the protocols again whose proofs have half of their age. Ask all registries at the same time."""
    known = {service.protocol.uri: service.protocol for service in context.services.values() if service.protocol is not None}
    known = {protocol.uri: protocol for protocol in context.connections.spoken() if not is_negotiated(protocol)} | known
    at_origin = dict[str, list[SpokenProtocol]]()
    for protocol in known.values():
        if 2 * protocol.age(int(time.time())) > context.policy.max_age:
            at_origin.setdefault(parse_protocol_uri(protocol.uri).origin, []).append(protocol)
    await asyncio.gather(*(_renew_all(context, protocols) for protocols in at_origin.values()))


def _renew_later(context: AgentContext) -> None:
    # At random: the agents of one protocol must not ask its registry all at once.
    pause = context.policy.max_age / CHECKS * random.uniform(0.75, 1.25)  # noqa: S311
    context.renewal = asyncio.get_running_loop().call_later(pause, lambda: context.spawn(_renew_and_repeat(context)))


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
        if uri in context.services:
            withdraw(context, uri, error)
        else:
            _log.warning("%s is refused now: %s", uri, error)
            end_taken_back(context, uri, error)


def _withdraw_stale(context: AgentContext, protocol: SpokenProtocol, why: TreatyError) -> None:
    if protocol.uri in context.services and not context.is_fresh(protocol):
        stale = f"Its proof is older than the policy's `max_age`, and its registry does not answer: {why.message}"
        withdraw(context, protocol.uri, Unavailable(AgentCode.STALE, stale, fix="It is served as soon as the registry answers."))
