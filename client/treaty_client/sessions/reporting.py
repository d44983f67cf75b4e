"""Report a session that this side began, and publish the protocol that it negotiated.

The next pair of agents then finds the document and its code in the registry and needs no negotiator. The report shows the
election that two agents agreed. Both happen beside the session and its application:

- The report is signed by both sides once the session has done work, and again after a pause if the other side could not check it.
  When the session ends first, its end waits for the other side's answer only, at most `timeouts.finish`, and only if no registry
  has to be asked. Else the next session of the pair reports.
- The submission and the publication go on after the session.

A failure is logged and reported to the observer; the session is not affected.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging

from treaty_consensus.codes import PublishCode, ReportCode
from treaty_consensus.errors import Conflict, TreatyError, Unavailable
from treaty_consensus.protocol import parse_version

from ..anp.hello_profile.messages import ReportCosignature, ReportProposed
from ..codes import ClientReportCode
from ..identity import Identity
from ..network.hosts import Network
from ..protocols.fetch import Fetcher
from ..protocols.project import Project
from .agreements import NegotiatedProtocol
from .context import AgentContext
from .session import SessionBackend

RETRIES = (60.0, 600.0, 3600.0)
"""Seconds before an open session proposes its report again; the last value repeats."""
# Each attempt is a signed statement to a registry, which limits its senders.
MAX_VERSIONS = 16
"""Versions of a name that are tried before the owner must choose another name."""
_REPORTED = (ReportCode.EXISTS, ClientReportCode.REPEATED)
_PASSING = (ClientReportCode.NOT_CHECKED, ClientReportCode.BUSY, ClientReportCode.NO_ANSWER)

_log = logging.getLogger(__name__)


class SessionReport:
    """The report of one session. Call `finish` at the end of a session that succeeded, and always `close`."""

    def __init__(self, context: AgentContext, session: SessionBackend) -> None:
        """Begin to wait for the first answer of the peer."""
        self._context, self._session = context, session
        # Set when the report is on disk, or when there will be none.
        self._is_settled = asyncio.Event()
        self._asks_peer = self._is_kept = False
        self._task = context.spawn(self._run()) if context.policy.report else None

    async def finish(self) -> None:
        """Wait for a co-signature that needs no registry, at most `timeouts.finish`. Never raises."""
        if self._task is None or not self._session.calls.replies or not self._session.is_running:
            return
        try:
            async with asyncio.timeout(self._context.timeouts.finish):
                if self._asks_peer or await self._is_prepared():
                    await self._is_settled.wait()
        except TimeoutError:
            self._session.record_event("report failed")
        except TreatyError:
            pass  # the task recorded it

    def close(self) -> None:
        """Stop. A report that is on disk is submitted all the same."""
        if self._task is not None:
            self._task.cancel()

    async def _is_prepared(self) -> bool:
        facts = self._context.session_facts(self._session.spoken, await self._session.report_parties(), spoke=True)
        return self._context.reporter.is_prepared(facts)

    async def _run(self) -> None:
        try:
            await self._session.calls.replied.wait()
            if self._session.can_report:
                for pause in itertools.chain(RETRIES, itertools.repeat(RETRIES[-1])):
                    if await self._report():
                        return
                    # The session may be short: its end must not wait for the next attempt.
                    self._is_settled.set()
                    await asyncio.sleep(pause)
        finally:
            self._is_settled.set()

    async def _report(self) -> bool:
        """Try once. Return whether that is final."""
        try:
            facts = self._context.session_facts(self._session.spoken, await self._session.report_parties(), spoke=True)
            made = await self._context.reporter.report(facts, self._propose, kept=self._kept)
        except TreatyError as error:
            if error.code in _REPORTED:
                self._session.record_event("nothing to report")
                return True
            is_final = not (isinstance(error, Unavailable) or error.code in _PASSING)
            _log.log(logging.WARNING if is_final else logging.INFO, "No report was made with %s: %s", self._session.peer, error)
            if not self._is_kept:
                self._session.record_event("report failed")
            return is_final
        if not made and not self._is_kept:
            self._session.record_event("nothing to report")
        return True

    async def _propose(self, proposal: ReportProposed) -> ReportCosignature:
        self._asks_peer = True
        try:
            return await self._session.propose(proposal)
        finally:
            self._asks_peer = False

    def _kept(self) -> None:
        if not self._is_kept:
            self._session.record_event("reported")
        self._is_kept = True
        self._is_settled.set()


class RegistryPublisher:
    """Publish in an identity's own namespace at a trusted registry. Implements `interfaces.ProtocolPublisher`."""

    def __init__(self, identity: Identity, fetcher: Fetcher, origin: str, network: Network) -> None:
        """Opens no connection."""
        self.identity, self._fetcher, self._origin, self._network = identity, fetcher, origin, network

    async def publish(self, project: Project) -> str:
        from ..statements.publish import Publisher  # imports Sigstore; `Agent.__aenter__` has done it in a thread

        client = self._fetcher.client(self._origin)
        publisher = Publisher(self.identity, client, self._fetcher.registries, self._origin, self._network)
        for version in _versions(project):
            try:
                # The two sides agreed on the test cases, and their vectors are these: more cannot be asked for.
                return [done.uri async for done in publisher.publish(version, allow_uncovered=True)][-1]
            except Conflict as error:
                if error.code != PublishCode.VERSION_EXISTS:
                    raise
        raise Conflict(
            PublishCode.VERSION_EXISTS,
            f"{project.name} has {MAX_VERSIONS} versions already.",
            fix="Publish it yourself, under another name: treaty publish HOME/negotiated/HASH/project.",
        )


async def publish(context: AgentContext, session: SessionBackend) -> None:
    """Publish the protocol that a session negotiated, if the policy allows it and it is not published yet. Never raises."""
    if not context.policy.publish:
        return
    spoken = session.spoken
    protocol = context.negotiated.get(spoken.hash) if isinstance(spoken, NegotiatedProtocol) else None
    if protocol is None or protocol.published or not protocol.topic:
        return
    try:
        project = await asyncio.to_thread(context.negotiated.project, protocol.hash)
        uri = await context.ports.publisher.publish(project)
        await asyncio.to_thread(context.negotiated.published, protocol, uri)
    except (TreatyError, OSError) as error:
        _log.warning("A negotiated protocol was not published: %s", error)
        session.record_event("publishing failed")
    else:
        session.record_event("published")


def _versions(project: Project) -> list[Project]:
    """Return the project with its own version and the following ones: 1.0, 1.1, …"""
    major = project.version.split(".")[0]
    versions = [project]
    for minor in range(1, MAX_VERSIONS):
        version = parse_version(f"{major}.{minor}")
        handler = dataclasses.replace(project.handler, version=version) if project.handler is not None else None
        versions.append(dataclasses.replace(project, version=version, handler=handler))
    return versions
