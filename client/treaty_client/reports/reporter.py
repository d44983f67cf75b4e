"""Making reports happen: both halves of a co-signature, and the submission to the log.

Reporting makes two counterparties public for ever, so it happens only if both policies say so, and a submission waits for a
random time of up to `delay` seconds. The outbox survives a crash: `resume` takes up what it holds.
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

from treaty_consensus.did import Did, parse_did, parse_key_id
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.kinds import Report
from treaty_consensus.statement import Statement, pre_authentication_encoding

from ..identity import Identity
from ..meta.messages import ReportCosignature, ReportProposed, ReportRefused, ReportSigned
from .ledger import ReportLedger, Signed
from .rules import OpenEpoch, SessionFacts, check_epoch, check_proposal, check_signature, draft_report, refusal_code

ATTEMPTS = 3
"""How often a report is signed again because its epoch was closed meanwhile."""
RETRIES = (60.0, 600.0, 3600.0)
"""Seconds until a registry that did not answer is asked again; the last one repeats."""
_NO_PRINCIPAL = "electorate.no-principal"
_UNCOUNTED = (_NO_PRINCIPAL, "electorate.one-principal")

_log = logging.getLogger(__name__)


class ReportLog(Protocol):
    """The log that a report is for; `log.RegistryLog` is one. Everything raises `TreatyError`."""

    async def epoch(self) -> OpenEpoch:
        """The open epoch, as the registry says."""

    def newest_seen(self) -> bytes:
        """The newest checkpoint that was verified here, a note with the log's signature and no other."""

    async def observe(self, note: bytes) -> None:
        """Verify a checkpoint with the log's signature and no other, and that it is consistent with the newest one seen."""

    async def keys(self, did: Did) -> Mapping[str, bytes]:
        """The keys of a DID as the log knows them, or as its document says where the log does not know it."""

    async def submit(self, report: Statement) -> None:
        """Log a statement; returns once its inclusion is proved. Safe to repeat."""


Propose = Callable[[ReportProposed], Awaitable[ReportCosignature]]
LogOf = Callable[[str], ReportLog]


class Reporter:
    """One an agent. For one event loop; `close` it."""

    def __init__(
        self, identity: Identity, home: Path, log_of: LogOf, *, delay: float, clock: Callable[[], float] = time.time
    ) -> None:
        """`log_of`: the log of an origin, which raises for one that is not trusted. `delay`: seconds. `clock`: Unix seconds."""
        self._identity, self._log_of, self._delay, self._clock = identity, log_of, delay, clock
        self._ledger = ReportLedger(home)
        self._tasks: set[asyncio.Task[None]] = set()
        self._uncounted: set[tuple[str, str]] = set()  # log and code of the refusals that were said already

    async def cosign(self, facts: SessionFacts, proposal: ReportProposed) -> ReportSigned | ReportRefused:
        """The half of the side that was connected to: sign what is proposed, if every rule of `rules` holds. Never raises."""
        try:
            proposed = check_proposal(facts, proposal.payload, proposal.key_id)
            body = proposed.body
            assert isinstance(body, Report)
            log = self._log_of(facts.log)
            peer, _ = parse_key_id(facts.peer_key)
            check_signature(proposed, proposal.key_id, proposal.signature, await log.keys(peer))
            await log.observe(body.seen_checkpoint.encode())
            check_epoch(proposed, await log.epoch())
            self._ledger.claim(facts.nid, Signed(peer.text, body.topic, body.document, body.epoch, settled=True))
        except TreatyError as error:
            _log.info("Refused to co-sign a report with %s: %s", facts.peer_key, error)
            return ReportRefused(refusal_code(error))
        except Exception:
            _log.exception("Looking at a proposed report failed")
            return ReportRefused("report.not-checked")
        return self._signed(proposal.payload)

    async def report(self, facts: SessionFacts, propose: Propose) -> bool:
        """The half of the side that connected: propose, and see to it that the log gets what both signed.

        False when there is nothing to report: this peer and topic were reported in this epoch already, or the registry says that
        the report could never count. Raises `TreatyError` when the peer refuses (with its code) or the registry does for another
        reason; then nothing is in the log.
        """
        log, peer = self._log_of(facts.log), parse_key_id(facts.peer_key)[0].text
        if not self._can_count(facts.log, peer):
            return False
        for _ in range(ATTEMPTS):
            epoch = await log.epoch()
            if self._ledger.has(peer, facts.topic, epoch.number):
                return False
            report = await self._cosigned(facts, epoch, log, propose)
            if self._delay > 0:
                self._keep(report, random.uniform(0, self._delay))  # noqa: S311  # hides when two agents met, and nothing else
                return True
            try:
                await log.submit(report)
            except Unavailable:
                self._keep(report, RETRIES[0])
            except TreatyError as error:
                if error.code == "report.epoch":
                    continue  # it was closed meanwhile: both sign again, for the next one
                if error.code in _UNCOUNTED:
                    self._say(report, error)
                    return False
                if error.code != "report.exists":
                    raise
            return True
        raise Refused("report.epoch", "Epochs are closed faster than a report can be signed.", fix="Report a later session.")

    def resume(self) -> None:
        """Submit what an earlier process left in the outbox. Raises `Unavailable`."""
        for due, report in self._ledger.waiting():
            self._submit_later(report, max(0.0, due - self._clock()))

    async def close(self) -> None:
        """Stop; what is not submitted yet stays in the outbox."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cosigned(self, facts: SessionFacts, epoch: OpenEpoch, log: ReportLog, propose: Propose) -> Statement:
        draft = draft_report(facts, epoch, log.newest_seen())
        peer, _ = parse_key_id(facts.peer_key)
        signed = Signed(peer.text, facts.topic, facts.document, epoch.number, settled=False)
        self._ledger.claim(facts.nid, signed)
        own = self._signed(draft.payload)
        answer = await propose(ReportProposed(draft.payload, own.key_id, own.signature))
        if not isinstance(answer, ReportSigned):
            reason = answer.reason if isinstance(answer, ReportRefused) else "report.no-answer"
            raise Refused(reason, f"{peer.text} did not co-sign the report ({reason}).")
        if answer.key_id != facts.peer_key:
            raise Refused("report.parties", f"{answer.key_id} signed the report instead of {facts.peer_key}.")
        report = draft.seal({own.key_id: own.signature, answer.key_id: answer.signature})
        check_signature(report, answer.key_id, answer.signature, await log.keys(peer))
        self._ledger.claim(facts.nid, msgspec.structs.replace(signed, settled=True))
        return report

    def _signed(self, payload: bytes) -> ReportSigned:
        return ReportSigned(self._identity.key_id, self._identity.sign(pre_authentication_encoding(payload)))

    def _keep(self, report: Statement, delay: float) -> None:
        self._ledger.keep(report, self._now() + round(delay))
        self._submit_later(report, delay)

    def _submit_later(self, report: Statement, delay: float) -> None:
        task = asyncio.create_task(self._submit_until_done(report, delay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit_until_done(self, report: Statement, delay: float) -> None:
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
            self._ledger.drop(report)
            return

    def _can_count(self, log: str, peer: str) -> bool:
        """False once the registry of `log` said that this agent has no principal, if `peer` is a did:key: no election would count
        the two. A peer with a domain is reported all the same, for the directory of who speaks what."""
        return (log, _NO_PRINCIPAL) not in self._uncounted or parse_did(peer).host is not None

    def _say(self, report: Statement, error: TreatyError) -> None:
        """Log a final refusal. That a report could never count is no fault of this session: it is said once for each log."""
        if error.code in _UNCOUNTED:
            if (report.log, error.code) in self._uncounted:
                return
            self._uncounted.add((report.log, error.code))
        _log.warning("A report is dropped, the log refuses it: %s", error)

    def _now(self) -> int:
        return int(self._clock())
