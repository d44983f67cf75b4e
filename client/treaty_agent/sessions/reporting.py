"""Report a session that this side began, and publish the protocol that it negotiated.

The next pair of agents then finds the document and its code in the registry and needs no negotiator. The report shows the
election that two agents agreed. Both happen beside the session and its application:

- The report is signed by both sides once the session has done work: a call of one side was answered, or an event taken. So a side
  that only serves reports too. It is proposed again after a pause if the other side could not check it.
  A session that stays open is reported again in each later epoch in which it does work.
  When the application leaves first, the connection stays open in the background until the report is settled, at most
  `timeouts.report`. It does not wait for a registry that gave no answer in the last minute. Then the next session of the pair
  reports.
- The submission and the publication go on after the session.

A failure is logged and reported to the observer; the session is not affected.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from contextlib import suppress
from enum import Enum

from treaty_anp.hello_profile.documents import check_pinned, parse_candidate
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.project import Project
from treaty_consensus.codes import PublishCode, ReportCode
from treaty_consensus.errors import Conflict, TreatyError, Unavailable
from treaty_consensus.protocol import parse_version
from treaty_io import tracing
from treaty_io.codes import ClientReportCode
from treaty_io.identity import Identity
from treaty_io.network.hosts import Network

from .agreements import NegotiatedProtocol
from .context import AgentContext
from .session import SessionBackend

RETRIES = (60.0, 600.0, 3600.0)
"""Seconds before an open session proposes its report again; the last value repeats, and is the time between two looks for a new
epoch."""
AGAIN = 10.0
"""Seconds after a failed attempt from which the end of the session is worth another one."""
# Each attempt is a signed statement to a registry, which limits its senders.
MAX_VERSIONS = 16
"""Versions of a name that are tried before the owner must choose another name."""

_log = logging.getLogger(__name__)


class _Outcome(Enum):
    """The outcome of an attempt: settled in this epoch, to be tried again, or never to be tried again."""

    SETTLED = "settled"
    FAILED = "failed"
    FINAL = "final"


class SessionReport:
    """The reports of one session, one an epoch in which it did work. Call `settle` at the end of a session that succeeded, and
    always `close`."""

    def __init__(self, context: AgentContext, session: SessionBackend) -> None:
        """Begin to wait for the first answer of the peer, or to it."""
        self._context, self._session = context, session
        # Set while no attempt is awaited: the report is on disk, or there will be none now.
        self._is_settled, self._is_left = asyncio.Event(), asyncio.Event()
        # Of the newest attempt: the work before it, when it ended, and how.
        self._work, self._ended, self._outcome = 0, 0.0, _Outcome.FAILED
        self._is_kept = False
        self._task = context.work.spawn(self._run()) if context.policy.report else None

    async def settle(self) -> None:
        """Wait until the report of a session that did work is on disk, or there will be none, at most `timeouts.report`. Do not
        wait when its registry is known to be silent, or when too many sessions wait already. Never raises."""
        session, protocol = self._session, self._session.spoken
        lingering, reports = self._context.work.lingering, self._context.reports
        was_settled = self._is_settled.is_set()
        if self._task is None or self._task.done() or protocol is None or (was_settled and not self._is_due()):
            return
        if not (session.is_running and session.can_report and session.calls.work):
            return
        self._is_left.set()
        # Each holds a connection at both sides. A further report is left to the next session of the pair.
        if not lingering.locked() and reports.reporter.can_settle(reports.log(protocol.uri), session.peer.did):
            self._is_settled.clear()
            with suppress(TimeoutError):
                async with lingering, asyncio.timeout(self._context.timeouts.report):
                    await self._is_settled.wait()
                    return
        # The attempt may fail in this very moment; its failure is told once.
        self.close()
        if not was_settled and not self._is_settled.is_set():
            session.record_event("report failed")

    def close(self) -> None:
        """Stop. A report that is on disk is submitted all the same."""
        if self._task is not None:
            self._task.cancel()

    def _is_due(self) -> bool:
        """Return whether another attempt at the end may lead to a report: the last one failed some time ago, or the session did
        work after it, perhaps in the next epoch."""
        if self._outcome is _Outcome.FAILED:
            return asyncio.get_running_loop().time() - self._ended >= AGAIN
        return self._session.calls.work > self._work

    async def _run(self) -> None:
        pauses = itertools.chain(RETRIES, itertools.repeat(RETRIES[-1]))
        try:
            await self._session.calls.wait_worked()
            while self._session.can_report:
                self._work = self._session.calls.work
                self._outcome = await self._report(self._outcome)
                self._ended = asyncio.get_running_loop().time()
                # The application may be gone: then this was the last attempt.
                if self._outcome is _Outcome.FINAL or self._is_left.is_set():
                    return
                self._is_settled.set()
                if self._outcome is _Outcome.FAILED:
                    await self._pause(next(pauses))
                else:
                    await self._next_work()
        finally:
            self._is_settled.set()

    async def _next_work(self) -> None:
        """Wait until the session has done work again, and the epoch may be another one."""
        await self._pause(RETRIES[-1])
        while self._session.calls.work == self._work and not self._is_left.is_set():
            await self._pause(RETRIES[-1])

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than the application stays."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_left.wait()

    async def _report(self, before: _Outcome) -> _Outcome:
        """Try once. `before`: the outcome of the attempt before; a settled report is not told again."""
        self._is_kept = False
        try:
            with tracing.span("report"):
                facts = self._context.reports.facts(self._session.spoken, await self._session.report_parties(), spoke=True)
                await self._context.reports.reporter.report(facts, self._session.propose, kept=self._kept)
        except TreatyError as error:
            if error.code != ReportCode.EXISTS:
                is_final = not (isinstance(error, Unavailable) or error.code == ClientReportCode.NOT_CHECKED)
                level = logging.WARNING if is_final else logging.INFO
                _log.log(level, "No report was made with %s: %s", self._session.peer, error)
                if not self._is_kept:
                    self._session.record_event("report failed")
                return _Outcome.FINAL if is_final else _Outcome.FAILED
        if not self._is_kept and before is not _Outcome.SETTLED:
            self._session.record_event("nothing to report")
        return _Outcome.SETTLED

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
        from treaty_client.statements.publish import Publisher  # imports Sigstore; `Agent.__aenter__` has done it in a thread

        client, copies = self._fetcher.client(self._origin), self._fetcher.policy.copies
        publisher = Publisher(self.identity, client, self._fetcher.registries, self._origin, self._network, copies=copies)
        for version in _versions(project):
            try:
                # The two sides agreed on the test cases, and their vectors are these: more cannot be asked for.
                return [done.uri async for done in publisher.publish(version, is_agreed=True)][-1]
            except Conflict as error:
                if error.code != PublishCode.VERSION_EXISTS:
                    raise
        raise Conflict(
            PublishCode.VERSION_EXISTS,
            f"{project.name} has {MAX_VERSIONS} versions already.",
            fix="Publish it yourself, under another name: treaty publish HOME/negotiated/HASH/project.",
        )


async def publish(context: AgentContext, session: SessionBackend) -> str:
    """Publish the protocol that a session negotiated, if it is not published yet. Return its URI, "" if it has none. Never
    raises."""
    spoken = session.spoken
    protocol = context.memory.negotiated.get(spoken.hash) if isinstance(spoken, NegotiatedProtocol) else None
    if protocol is None or protocol.published or not protocol.topic:
        return protocol.published if protocol is not None else ""
    try:
        project = await asyncio.to_thread(context.memory.negotiated.project, protocol.hash)
        # Others could not know which bytes the text changes.
        check_pinned(parse_candidate(project.document.decode()).base)
        uri = await context.ports.publisher.publish(project)
        await asyncio.to_thread(context.memory.negotiated.published, protocol, uri)
    except (TreatyError, OSError) as error:
        _log.warning("A negotiated protocol was not published: %s", error)
        session.record_event("publishing failed")
        return ""
    # This side may offer functions for it, too.
    context.served.note_change()
    session.record_event("published")
    return uri


def _versions(project: Project) -> list[Project]:
    """Return the project with its own version and the following ones: 1.0, 2.0, … They are not negotiated to be compatible."""
    major = int(project.version.split(".")[0])
    versions = [project]
    for following in range(1, MAX_VERSIONS):
        version = parse_version(f"{major + following}.0")
        handler = dataclasses.replace(project.handler, version=version) if project.handler is not None else None
        versions.append(dataclasses.replace(project, version=version, handler=handler))
    return versions
