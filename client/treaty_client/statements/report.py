"""Make co-signed reports: both halves of the signature, the exchange of messages over a session, and the submission to the log.

A report makes two counterparties public for ever. So it is made only if both policies allow it, and its submission waits for a
random time of up to `delay` seconds. The outbox survives a crash: `resume` submits its reports.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from treaty_consensus.codes import ElectorateCode, ReportCode
from treaty_consensus.did import Did, decode_multikey, did_key_id, parse_did, parse_key_id, public_key_of
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.kinds import Report
from treaty_consensus.statement import Statement, pre_authentication_encoding

from ..abandonable import abandonable
from ..anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused, ReportSigned
from ..codes import ClientRegistryCode, ClientReportCode, MetaCode
from ..identity import Identity
from ..network.did_documents import fetch_did_document
from ..network.egress import EgressGuard
from ..protocols.fetch import Fetcher
from .report_ledger import ReportLedger, SignedReport
from .report_rules import (
    OpenEpoch,
    SessionFacts,
    check_epoch,
    check_proposal,
    check_signature,
    draft_report,
    refusal_code,
    undated,
)

ATTEMPTS = 3
"""Signatures of one report: its epoch may close before the submission."""
RETRIES = (60.0, 600.0, 3600.0)
"""Seconds before an unavailable registry is asked again; the last value repeats."""
_NO_PRINCIPAL = ElectorateCode.NO_PRINCIPAL
_UNCOUNTED = (_NO_PRINCIPAL, ElectorateCode.ONE_PRINCIPAL)

_log = logging.getLogger(__name__)


class ReportLog(Protocol):
    """The log of a report; `RegistryLog` implements it. All methods raise `TreatyError`."""

    async def epoch(self) -> OpenEpoch:
        """Return the open epoch, by the registry's account."""

    def newest_seen(self) -> bytes:
        """Return the newest verified checkpoint, a note with only the log's signature."""

    async def observe(self, note: bytes) -> None:
        """Verify a checkpoint with only the log's signature, and its consistency with the newest one seen."""

    async def keys(self, did: Did) -> Mapping[str, bytes]:
        """Return the keys of a DID as the log knows them, else as its document lists them."""

    async def submit(self, report: Statement) -> None:
        """Log a statement, and return after its inclusion is proved. Safe to repeat."""


Propose = Callable[[ReportProposed], Awaitable[ReportCosignature]]
LogOf = Callable[[str], ReportLog]


class Reporter:
    """Make the reports of one agent. For one event loop; call `close` at the end."""

    def __init__(
        self, identity: Identity, home: Path, log_of: LogOf, *, delay: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Set the ledger and the logs. `log_of`: return the log of an origin; raises for an untrusted one. `delay`: seconds.
        `clock`: Unix seconds."""
        self._identity, self._log_of, self._delay, self._clock = identity, log_of, delay, clock
        self._ledger = ReportLedger(home)
        self._tasks: set[asyncio.Task[None]] = set()
        self._uncounted: set[tuple[str, str]] = set()  # log and code of the refusals that were logged already

    async def cosign(self, facts: SessionFacts, proposal: ReportProposed) -> ReportSigned | ReportRefused:
        """Answer a proposed report at the responder: sign it if all rules of `report_rules` hold. Never raises."""
        try:
            # Compared with the session before the registry is asked for keys: a wrong proposal costs no request.
            proposed = check_proposal(facts, proposal.payload, proposal.key_id)
            body = proposed.body
            assert isinstance(body, Report)
            log = self._log_of(facts.log)
            peer, _ = parse_key_id(facts.peer_key)
            check_signature(proposed, proposal.key_id, proposal.signature, await log.keys(peer))
            # A checkpoint of a fork is noticed here, before this side's signature says that it saw it.
            await log.observe(body.seen_checkpoint.encode())
            check_epoch(proposed, await log.epoch())
            # Stored before signing: after a crash this side cannot sign a second report.
            self._ledger.claim(facts.nid, SignedReport(peer.text, body.topic, body.document, body.epoch, settled=True))
        except TreatyError as error:
            _log.info("Refused to co-sign a report with %s: %s", facts.peer_key, error)
            return ReportRefused(refusal_code(error))
        # A defect here must not end the session, whose own work is done. The peer gets a refusal.
        except Exception:
            _log.exception("Looking at a proposed report failed")
            return ReportRefused(ClientReportCode.NOT_CHECKED)
        return self._signed(proposal.payload)

    async def report(self, facts: SessionFacts, propose: Propose) -> bool:
        """Propose a report at the initiator, and submit it with both signatures.

        Return False if there is nothing to report: this peer and topic were already reported in this epoch, or the report could
        never count. Raises `TreatyError` when the peer refuses (with its code) or the registry refuses for another reason; then
        nothing is in the log.
        """
        log, peer = self._log_of(facts.log), parse_key_id(facts.peer_key)[0].text
        if not self._can_count(facts.log, peer):
            return False
        for _ in range(ATTEMPTS):
            epoch = await log.epoch()
            # Of a pair, a topic and an epoch the first report counts (election.md). A second one would only show the two again.
            if self._ledger.has(peer, facts.topic, epoch.number):
                return False
            report = await self._cosigned(facts, epoch, log, propose)
            if self._delay > 0:
                self._keep(report, random.uniform(0, self._delay))  # noqa: S311  # hides when two agents met, and nothing else
                return True
            try:
                await log.submit(report)
            # Signed by both sides and perhaps logged already. Submitting again is safe, so the outbox repeats it.
            except Unavailable:
                self._keep(report, RETRIES[0])
            except TreatyError as error:
                if error.code == ReportCode.EPOCH:
                    continue  # the epoch closed meanwhile: both sign again, for the next one
                if error.code in _UNCOUNTED:
                    self._say(report, error)
                    return False
                # Logged already, by an earlier attempt whose answer was lost.
                if error.code != ReportCode.EXISTS:
                    raise
            return True
        raise Refused(ReportCode.EPOCH, "The epochs close before a report can be signed.", fix="Report a later session.")

    def resume(self) -> None:
        """Submit the reports that an earlier process left in the outbox. Raises `Unavailable`."""
        for due, report in self._ledger.waiting():
            self._submit_later(report, max(0.0, due - self._clock()))

    async def close(self) -> None:
        """Stop. Pending reports stay in the outbox."""
        for task in self._tasks:
            task.cancel()
        # Waited for, so that no task writes to the outbox or uses the client after the end.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cosigned(self, facts: SessionFacts, epoch: OpenEpoch, log: ReportLog, propose: Propose) -> Statement:
        draft = draft_report(facts, epoch, log.newest_seen())
        peer, _ = parse_key_id(facts.peer_key)
        signed = SignedReport(peer.text, facts.topic, facts.document, epoch.number, settled=False)
        # Stored before signing: a crash leaves an unsettled entry, which only permits the same report.
        self._ledger.claim(facts.nid, signed)
        own = self._signed(draft.payload)
        answer = await propose(ReportProposed(draft.payload, own.key_id, own.signature))
        if not isinstance(answer, ReportSigned):
            reason = answer.reason if isinstance(answer, ReportRefused) else ClientReportCode.NO_ANSWER
            raise Refused(reason, f"{peer.text} did not co-sign the report ({reason}).")
        if answer.key_id != facts.peer_key:
            raise Refused(ReportCode.PARTIES, f"{answer.key_id} signed the report instead of {facts.peer_key}.")
        report = draft.seal({own.key_id: own.signature, answer.key_id: answer.signature})
        # The registry would refuse a bad signature too, but perhaps after this session, when its caller no longer learns of it.
        check_signature(report, answer.key_id, answer.signature, await log.keys(peer))
        # Settled before the submission: a crash in between loses the report, and never makes a second one.
        self._ledger.claim(facts.nid, msgspec.structs.replace(signed, settled=True))
        return report

    def _signed(self, payload: bytes) -> ReportSigned:
        return ReportSigned(self._identity.key_id, self._identity.sign(pre_authentication_encoding(payload)))

    def _keep(self, report: Statement, delay: float) -> None:
        # On the disk before the task starts: a crash keeps the report and its random time.
        self._ledger.keep(report, self._now() + round(delay))
        self._submit_later(report, delay)

    def _submit_later(self, report: Statement, delay: float) -> None:
        task = asyncio.create_task(self._submit_until_done(report, delay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit_until_done(self, report: Statement, delay: float) -> None:
        # No limit on the attempts: the report is signed, and the registry may return.
        pauses = itertools.chain(RETRIES, itertools.repeat(RETRIES[-1]))
        while True:
            await asyncio.sleep(delay)
            try:
                await self._log_of(report.log).submit(report)
            except Unavailable as error:
                _log.info("A report waits: %s", error)
                delay = next(pauses)
                continue
            except TreatyError as error:
                self._say(report, error)
            # Dropped last: a crash before this line only repeats a safe submission.
            self._ledger.drop(report)
            return

    def _can_count(self, log: str, peer: str) -> bool:
        """Return whether an election could count a report with `peer`. It could not if the registry said that this agent has no
        principal and the peer is a did:key. A peer with a domain is always reported, for the directory of speakers."""
        return (log, _NO_PRINCIPAL) not in self._uncounted or parse_did(peer).host is not None

    def _say(self, report: Statement, error: TreatyError) -> None:
        """Log a final refusal. A report that could never count is no fault of the session, so it is logged once for each log."""
        if error.code in _UNCOUNTED:
            if (report.log, error.code) in self._uncounted:
                return
            self._uncounted.add((report.log, error.code))
        _log.warning("A report is dropped, the log refuses it: %s", error)

    def _now(self) -> int:
        return int(self._clock())


class RegistryLog:
    """A registry's log over the fetcher's HTTP client, with verified checkpoints. Implements `ReportLog`."""

    def __init__(self, fetcher: Fetcher, guard: EgressGuard, origin: str) -> None:
        """Set the registry. Raises `Untrusted` when the registry of this origin is not trusted."""
        self._registries, self._guard, self._origin = fetcher.registries, guard, origin
        self._client, self._head = fetcher.client(origin), fetcher.head(origin)
        self._key = fetcher.registries.get(origin).name.key

    async def epoch(self) -> OpenEpoch:
        log = await self._client.log()
        return OpenEpoch(log.epoch, log.opened)

    def newest_seen(self) -> bytes:
        seen = self._registries.get(self._origin).seen
        if seen is None:
            raise Unavailable(ClientReportCode.NO_CHECKPOINT, f"No checkpoint of {self._origin} was seen yet.")
        return undated(seen, self._key)

    async def observe(self, note: bytes) -> None:
        if note != undated(note, self._key):
            raise Refused(ClientReportCode.CHECKPOINT, "The checkpoint in the report has signatures that contain a time.")
        await self._head.observe(note)

    async def keys(self, did: Did) -> Mapping[str, bytes]:
        """Return the keys without a proof: the report goes to the same registry, which verifies both signatures with its logged
        keys."""
        if did.method == "key":
            key = public_key_of(did)
            return {did_key_id(key): key}
        try:
            listed = (await self._client.identity(did.text)).get("keys")
        except NotFound:
            return (await fetch_did_document(did, self._guard)).keys
        if not isinstance(listed, dict):
            raise Malformed(ClientRegistryCode.ANSWER, "The registry's answer does not list keys.")
        return {key_id: decode_multikey(str(multikey)) for key_id, multikey in listed.items() if parse_key_id(key_id)[0] == did}

    async def submit(self, report: Statement) -> None:
        await self._head.accept_receipt(await self._client.submit(report), report)


class CosignatureExchange:
    """Exchange the report messages of one session. `send`: send a message to the peer. `answer`: return the answer to a proposal;
    never raises."""

    def __init__(
        self,
        send: Callable[[ReportCosignature], None],
        answer: Callable[[ReportProposed], Awaitable[ReportCosignature]],
        seconds: float,
    ) -> None:
        self._send, self._answer, self._seconds = send, answer, seconds
        self._proposed: asyncio.Future[ReportCosignature] | None = None
        self._answering: asyncio.Task[None] | None = None

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        """Propose, and return the answer. Raises `Unavailable` (`report.no-answer`), or the error that ended the session."""
        self._proposed = abandonable()
        self._send(proposal)
        try:
            # A peer that never answers must not hold the end of the session.
            async with asyncio.timeout(self._seconds):
                return await self._proposed
        except TimeoutError as error:
            raise Unavailable(ClientReportCode.NO_ANSWER, "The other side did not answer the proposed report.") from error
        finally:
            self._proposed = None

    def take(self, message: ReportCosignature) -> None:
        """Handle a message of the peer. Raises `Refused` (`meta.unexpected`) for an answer without a proposal."""
        if isinstance(message, ReportProposed):
            # One proposal at a time: a peer must not start any number of checks.
            if self._answering is not None and not self._answering.done():
                self._send(ReportRefused(ClientReportCode.BUSY))
            else:
                self._answering = asyncio.create_task(self._reply(message))
        elif self._proposed is not None and not self._proposed.done():
            self._proposed.set_result(message)
        else:
            raise Refused(MetaCode.UNEXPECTED, "The other side answered a report that was not proposed.")

    def end(self, error: TreatyError) -> None:
        """Fail the open proposal with the error that ended the session."""
        if self._answering is not None:
            # A check that is under way would answer into a closed session.
            self._answering.cancel()
        if self._proposed is not None and not self._proposed.done():
            self._proposed.set_exception(error)

    async def _reply(self, proposal: ReportProposed) -> None:
        self._send(await self._answer(proposal))
