"""After a session that went well: what was negotiated is published, if the policy says so, and both sides report.

The next pair then needs no negotiator: it finds the document and its code in the registry, and the report tells the election that
two agents agreed on it. Whatever fails here is told to the log and the observer; the session was none the worse for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING

from treaty_consensus.errors import Conflict, TreatyError
from treaty_consensus.protocol import parse_version

from ..fetch import Fetcher
from ..identity import Identity
from ..meta.machine import State
from ..network.hosts import Network
from ..project import Project
from ..publish import Publisher
from .household import Household
from .negotiated import NegotiatedProtocol
from .sides import session_facts

if TYPE_CHECKING:
    from .driver import SessionDriver

SETTLING_TIME = 60.0
"""Seconds that the end of a session may be put off."""
MAX_VERSIONS = 16
"""How many versions of a name are tried before somebody has to look."""

_log = logging.getLogger(__name__)


class RegistryPublisher:
    """Implements `ports.ProtocolPublisher`: publishes in an identity's own namespace at a trusted registry."""

    def __init__(self, identity: Identity, fetcher: Fetcher, origin: str, network: Network) -> None:
        """Reaches for nothing."""
        self._identity, self._fetcher, self._origin, self._network = identity, fetcher, origin, network

    async def publish(self, project: Project) -> str:
        client = self._fetcher.client(self._origin)
        publisher = Publisher(self._identity, client, self._fetcher.registries, self._origin, self._network)
        for version in _versions(project):
            try:
                return [done.uri async for done in publisher.publish(version)][-1]
            except Conflict as error:
                if error.code != "publish.version-exists":
                    raise
        raise Conflict(
            "publish.version-exists",
            f"{project.name} has {MAX_VERSIONS} versions already.",
            fix="Publish it yourself, under another name: treaty publish HOME/negotiated/HASH/project.",
        )


async def settle(household: Household, driver: SessionDriver) -> None:
    """Publish and report a session that this side began and that is still open. Raises nothing."""
    if driver.machine.state is not State.RUNNING or not driver.calls.replies:
        return
    try:
        async with asyncio.timeout(SETTLING_TIME):
            if household.policy.publish:
                await _publish(household, driver)
            if driver.machine.can_report():
                await _report(household, driver)
    except TimeoutError:
        _log.warning("Publishing or reporting a session took too long, and was left")


async def _publish(household: Household, driver: SessionDriver) -> None:
    spoken = driver.code.protocol
    protocol = household.negotiated.get(spoken.hash) if isinstance(spoken, NegotiatedProtocol) else None
    if protocol is None or protocol.published or not protocol.topic:
        return
    try:
        project = await asyncio.to_thread(household.negotiated.project, protocol.hash)
        uri = await household.ports.publisher.publish(project)
        await asyncio.to_thread(household.negotiated.published, protocol, uri)
    except (TreatyError, OSError) as error:
        _log.warning("What was negotiated was not published: %s", error)
        driver.tell("publishing failed")
    else:
        driver.tell("published")


async def _report(household: Household, driver: SessionDriver) -> None:
    try:
        made = await household.reporter.report(session_facts(household, driver), driver.propose)
    except TreatyError as error:
        _log.warning("No report was made with %s: %s", driver.machine.peer and driver.machine.peer.source_did, error)
        driver.tell("report failed")
    else:
        driver.tell("reported" if made else "nothing to report")


def _versions(project: Project) -> list[Project]:
    """The project under its own version and the ones that follow: 1.0, 1.1, …"""
    major = project.version.split(".")[0]
    versions = [project]
    for minor in range(1, MAX_VERSIONS):
        version = parse_version(f"{major}.{minor}")
        handler = dataclasses.replace(project.handler, version=version) if project.handler is not None else None
        versions.append(dataclasses.replace(project, version=version, handler=handler))
    return versions
