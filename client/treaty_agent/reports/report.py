"""Make co-signed reports: both halves of the signature, the exchange of messages over a session, and the submission to the log.

A report makes two counterparties public for ever. So it is made only if both policies allow it, and its submission waits for a
random time of up to `delay` seconds. The outbox survives a crash: `resume` submits its reports.

No application waits for a registry. The facts of a report are read beforehand (`ReportFacts`). While the registry is silent, the
responder refuses at once. Such a report is not lost: the next session of the pair proposes one, and an election counts one of a
pair, topic and epoch. Of the sessions with one peer on one topic, one at a time proposes.

`ReportFacts` are the open epoch, keys of peers, and the checkpoints that peers have seen. They are read in the background, when a
session begins. They are used for a minute. An older epoch is harmless: the other side or
the registry refuses the report, and it is read again. One request for a fact runs at a time, so a registry that hangs gets one.

A registry that did not answer is *silent* for a minute, or until it answers again. Sessions do not wait for it meanwhile.

`ReportLedger` stores an agent's reports below HOME:

    HOME/reports/NID.json             {"document": HEX, "epoch": N, "peer": DID, "settled": BOOL, "topic": TOPIC}
    HOME/reports/outbox/ID.json       {"due": UNIX-SECONDS, "leaf": B64}, a signed report until the log has it

Both are canonical JSON and appear as a whole. The file of a negotiation is created exclusively, so only one of two processes with
the same home can sign for it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused, ReportSigned
from treaty_client.protocols.fetch import Fetcher
from treaty_client.registries.signed import SIGNED, SignedIds
from treaty_consensus import canonical, statement
from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import ElectorateCode, ReportCode, SystemCode
from treaty_consensus.did import Did, decode_multikey, did_key_id, parse_did, parse_key_id, public_key_of
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.kinds import Count, Digest, Report
from treaty_consensus.statement import MAX_LEAF, Statement, pre_authentication_encoding
from treaty_io import durable
from treaty_io.abandonable import abandonable
from treaty_io.codes import ClientRegistryCode, ClientReportCode
from treaty_io.identity import Identity
from treaty_io.line_limit import limited_logger
from treaty_io.network.did_documents import fetch_did_document
from treaty_io.network.egress import EgressGuard
from treaty_io.task_set import TaskSet

from .report_rules import (
    OpenEpoch,
    SessionFacts,
    check_epoch,
    check_proposal,
    check_signature,
    draft_report,
    later_negotiation_id,
    refusal_code,
    undated,
)

ATTEMPTS = 3
"""Signatures of one report: its epoch may close before the submission."""
RETRIES = (60.0, 600.0, 3600.0)
"""Seconds before an unavailable registry is asked again; the last value repeats."""
_NO_PRINCIPAL = ElectorateCode.NO_PRINCIPAL
_UNCOUNTED = (_NO_PRINCIPAL, ElectorateCode.ONE_PRINCIPAL)

_log = limited_logger(__name__)


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
        self,
        identity: Identity,
        home: Path,
        log_of: LogOf,
        *,
        delay: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set the ledger and the logs. `log_of`: return the log of an origin; raises for an untrusted one. `delay`: seconds.
        `clock`: Unix seconds."""
        self.identity, self._log_of, self._delay, self._clock = identity, log_of, delay, clock
        self._ledger, self._facts = ReportLedger(home), ReportFacts(log_of, clock)
        # By peer and topic. Held during an exchange: the next session then finds the report in the ledger. Weak, because a lock
        # that no session uses is not needed.
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._tasks = TaskSet[None]()
        self._due: set[asyncio.Future[None]] = set()
        self._resumed = False
        self._uncounted: set[tuple[str, str]] = set()  # log and code of the refusals that were logged already

    async def prepare(self, origin: str, peer: str) -> None:
        """Read the facts that a report with `peer` will need, unless they are known. Never raises."""
        keys = [self._facts.keys(origin, parse_did(peer))] if peer else []
        try:
            await asyncio.gather(self._facts.epoch(origin), *keys)
        except TreatyError as error:
            _log.info("The facts for a report are not known: %s", error)
        except Exception:  # a defect here must not reach the agent's other tasks
            _log.exception("Reading the facts for a report failed")

    def can_settle(self, origin: str, peer: str) -> bool:
        """Return whether a session may wait for a report with `peer`: its facts are known, or the registry is not silent."""
        return not self._facts.is_silent(origin) or self._facts.has(origin, parse_did(peer))

    async def cosign(self, facts: SessionFacts, proposal: ReportProposed) -> ReportSigned | ReportRefused:
        """Answer a proposed report at the responder: sign it if all rules of `report_rules` hold. Never raises."""
        try:
            # Compared with the session before the registry is asked for keys: a wrong proposal costs no request.
            proposed = check_proposal(facts, proposal.payload, proposal.key_id)
            await self._check(facts, proposed, proposal)
            body = proposed.body
            assert isinstance(body, Report)
            peer, _ = parse_key_id(facts.peer_key)
            # Stored before signing: after a crash this side cannot sign a second report.
            self._ledger.claim(body.nid, SignedReport(peer.text, body.topic, body.document, body.epoch, settled=True))
            self._ledger.record(proposed.id)
        except TreatyError as error:
            _log.info("Refused to co-sign a report with %s: %s", facts.peer_key, error)
            return ReportRefused(refusal_code(error))
        # A defect here must not end the session, whose own work is done. The peer gets a refusal.
        except Exception:
            _log.exception("Looking at a proposed report failed")
            return ReportRefused(ClientReportCode.NOT_CHECKED)
        return self._signed(proposal.payload)

    async def report(self, facts: SessionFacts, propose: Propose, *, kept: Callable[[], None] = lambda: None) -> bool:
        """Propose a report at the initiator, and submit it with both signatures. `kept`: called when both have signed and the
        report is on disk; no later failure loses it.

        Return False if there is nothing to report: this peer and topic were already reported in this epoch, or the report could
        never count. Raises `TreatyError` when the peer refuses (with its code) or the registry refuses for another reason; then
        nothing is in the log.
        """
        peer = parse_key_id(facts.peer_key)[0]
        if not self._can_count(facts.log, peer.text):
            return False
        for _ in range(ATTEMPTS):
            # All requests come before the exchange: the peer is not kept waiting for this side's registry.
            epoch = await self._facts.epoch(facts.log)
            keys = await self._facts.keys(facts.log, peer)
            async with self._turns.setdefault((peer.text, facts.topic), asyncio.Lock()):
                # Of a pair, a topic and an epoch the first report counts (election.md). A second one would only show the two
                # again.
                if self._ledger.has(peer.text, facts.topic, epoch.number):
                    return False
                report = await self._cosigned(self._named(facts, epoch.number), epoch, keys, propose)
                # The random time hides when two agents met, and nothing else.
                submitted = self._keep(report, random.uniform(0, self._delay))  # noqa: S311
            kept()
            if self._delay > 0:
                return True
            try:
                await asyncio.shield(submitted)
            except Unavailable:
                return True  # the outbox repeats it
            except TreatyError as error:
                if error.code == ReportCode.EPOCH:
                    continue  # the epoch closed meanwhile: both sign again, for the next one
                if error.code in _UNCOUNTED:
                    return False
                raise
            return True
        raise Refused(ReportCode.EPOCH, "The epochs close before a report can be signed.", fix="Report a later session.")

    def has_signed_with(self, peer: str) -> bool:
        """Return whether this agent and the peer both signed a report. Blocks on the disk. Raises `Unavailable`
        (`system.file`)."""
        return self._ledger.has_peer(peer)

    @property
    def waiting(self) -> int:
        """How many signed reports are not in a log yet."""
        return len(self._tasks)

    def resume(self) -> None:
        """Submit the reports that an earlier process left in the outbox. Later calls do nothing. Raises `Unavailable`."""
        if not self._resumed:
            for due, report in self._ledger.waiting():
                self._submit_later(report, max(0.0, due - self._clock()))
            self._resumed = True

    async def finish(self) -> None:
        """Wait for the first answers to the submissions that are due."""
        if self._due:
            await asyncio.wait(self._due)

    async def close(self) -> None:
        """Stop. Pending reports stay in the outbox."""
        # Waited for, so that no task writes to the outbox or uses the client after the end.
        await self._tasks.cancel()

    async def _check(self, facts: SessionFacts, proposed: Statement, proposal: ReportProposed) -> None:
        """Check a proposed report by the facts of its registry. Raises the errors of `report_rules`, and `Unavailable`
        (`report.not-checked`)."""
        # The other side keeps its connection for the answer, and must not wait for a registry that is known to hang.
        if self._facts.is_silent(facts.log):
            raise Unavailable(ClientReportCode.NOT_CHECKED, f"The registry {facts.log} did not answer lately.")
        body, (peer, _) = proposed.body, parse_key_id(facts.peer_key)
        assert isinstance(body, Report)
        check_signature(proposed, proposal.key_id, proposal.signature, await self._facts.keys(facts.log, peer))
        # A checkpoint of a fork is noticed here, before this side's signature says that it saw it.
        await self._facts.observe(facts.log, body.seen_checkpoint.encode())
        epoch = await self._facts.epoch(facts.log)
        if epoch.number != body.epoch:
            # The known epoch may have closed meanwhile.
            self._facts.forget(facts.log)
            epoch = await self._facts.epoch(facts.log)
        check_epoch(proposed, epoch)

    async def _cosigned(self, facts: SessionFacts, epoch: OpenEpoch, keys: Mapping[str, bytes], propose: Propose) -> Statement:
        draft = draft_report(facts, epoch, self._log_of(facts.log).newest_seen())
        peer, _ = parse_key_id(facts.peer_key)
        signed = SignedReport(peer.text, facts.topic, facts.document, epoch.number, settled=False)
        # Stored before signing: a crash leaves an unsettled entry, which only permits the same report.
        self._ledger.claim(facts.nid, signed)
        self._ledger.record(hex_digest(draft.signing_input))
        own = self._signed(draft.payload)
        answer = await propose(ReportProposed(draft.payload, own.key_id, own.signature))
        if not isinstance(answer, ReportSigned):
            # Its cause may be a fact that changed: an epoch that closed, a key that was replaced.
            self._facts.forget(facts.log, peer)
            reason = answer.reason if isinstance(answer, ReportRefused) else ClientReportCode.NOT_CHECKED
            raise Refused(reason, f"{peer.text} did not co-sign the report ({reason}).")
        if answer.key_id != facts.peer_key:
            raise Refused(ReportCode.OTHER, f"{answer.key_id} signed the report instead of {facts.peer_key}.")
        report = draft.seal({own.key_id: own.signature, answer.key_id: answer.signature})
        # The registry would refuse a bad signature too, but perhaps after this session, when its caller no longer learns of it.
        check_signature(report, answer.key_id, answer.signature, keys)
        # Settled before the submission: a crash in between loses the report, and never makes a second one.
        self._ledger.claim(facts.nid, msgspec.structs.replace(signed, settled=True))
        return report

    def _named(self, facts: SessionFacts, epoch: int) -> SessionFacts:
        """Return the facts with the id of a report in an epoch: another one if the session was reported in an earlier epoch."""
        before = self._ledger.epoch_of(facts.nid)
        return facts if before in (None, epoch) else replace(facts, nid=later_negotiation_id(facts.nid, epoch))

    def _signed(self, payload: bytes) -> ReportSigned:
        return ReportSigned(self.identity.key_id, self.identity.sign(pre_authentication_encoding(payload)))

    def _keep(self, report: Statement, delay: float) -> asyncio.Future[None]:
        # On the disk before the task starts: a crash keeps the report and its random time.
        self._ledger.keep(report, self._now() + round(delay))
        return self._submit_later(report, delay)

    def _submit_later(self, report: Statement, delay: float) -> asyncio.Future[None]:
        """Submit a report in the background. Return a future with the registry's first answer or error."""
        first = abandonable()
        self._tasks.start(self._submit_until_done(report, delay, first))
        if delay == 0:
            self._due.add(first)
            first.add_done_callback(self._due.discard)
        return first

    async def _submit_until_done(self, report: Statement, delay: float, first: asyncio.Future[None]) -> None:
        # No limit on the attempts: the report is signed, and the registry may return.
        pauses = itertools.chain(RETRIES, itertools.repeat(RETRIES[-1]))
        while True:
            await asyncio.sleep(delay)
            refused: TreatyError | None = None
            try:
                await self._log_of(report.log).submit(report)
            except Unavailable as error:
                _log.info("A report waits: %s", error)
                _set_error(first, error)
                delay = next(pauses)
                continue
            except TreatyError as error:
                # Logged already, by an earlier attempt whose answer was lost, is done.
                refused = error if error.code != ReportCode.EXISTS else None
            if refused is not None:
                self._facts.forget(report.log)
                self._say(report, refused)
            # Dropped last: a crash before this line only repeats a safe submission.
            self._ledger.drop(report)
            if refused is not None:
                _set_error(first, refused)
            elif not first.done():
                first.set_result(None)
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


def _set_error(future: asyncio.Future[None], error: TreatyError) -> None:
    if not future.done():
        future.set_exception(error)


class RegistryLog:
    """A registry's log over the fetcher's HTTP client, with verified checkpoints. Implements `ReportLog`."""

    def __init__(self, fetcher: Fetcher, guard: EgressGuard, origin: str) -> None:
        """Set the registry. Raises `Untrusted` when the registry of this origin is not trusted."""
        self._registries, self._guard, self._origin = fetcher.registries, guard, origin
        self._client, self._head = fetcher.client(origin), fetcher.head(origin)
        self._stamping = fetcher.stamping(origin)

    async def epoch(self) -> OpenEpoch:
        log = await self._client.log()
        # A report names a checkpoint. An agent that has fetched nothing yet has seen none.
        if self._registries.get(self._origin).seen is None:
            await self._head.refresh()
        return OpenEpoch(log.epoch, log.opened)

    def newest_seen(self) -> bytes:
        registry = self._registries.get(self._origin)
        if registry.seen is None:
            raise Unavailable(ClientReportCode.NOT_CHECKED, f"No checkpoint of {self._origin} was seen yet.")
        return undated(registry.seen, registry.keys)

    async def observe(self, note: bytes) -> None:
        if note != undated(note, self._registries.get(self._origin).keys):
            raise Refused(ReportCode.OTHER, "The checkpoint in the report has signatures that contain a time.")
        await self._head.observe_carried(note)

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
        stamped = None
        if self._stamping is not None:
            # The report goes to the registry with or without stamps: witnesses that are down must not hold it back.
            try:
                stamped = await self._stamping.stamp(report)
            except TreatyError as error:
                _log.warning("A report has no stamp: %s", error)
        await self._head.accept_receipt(await self._client.submit(report), report)
        if stamped is not None and self._stamping is not None:
            await self._stamping.settle(stamped)


LIFETIME = 60.0
"""Seconds for which a fact is used."""
MAX_FACTS = 1024
"""Facts of a kind: peers are many."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class FactSource(Protocol):
    """The part of a log that is asked; `report.ReportLog` is one."""

    async def epoch(self) -> OpenEpoch:
        """Return the open epoch."""

    async def keys(self, did: Did) -> Mapping[str, bytes]:
        """Return the keys of a DID."""

    async def observe(self, note: bytes) -> None:
        """Verify a checkpoint."""


class ReportFacts:
    """The facts of one agent. For one event loop at a time. `clock`: seconds."""

    def __init__(self, log_of: Callable[[str], FactSource], clock: Callable[[], float]) -> None:
        """Ask for nothing yet."""
        self._log_of, self._clock = log_of, clock
        self._silent_until: dict[str, float] = {}
        self._checkpoints = _Facts[tuple[str, bytes], None](clock)
        self._epochs = _Facts[str, OpenEpoch](clock)
        self._keys = _Facts[tuple[str, Did], Mapping[str, bytes]](clock)

    def has(self, origin: str, peer: Did) -> bool:
        """Return whether the epoch and the keys of a peer are known, so that no request is needed."""
        return self._epochs.has(origin) and self._keys.has((origin, peer))

    async def epoch(self, origin: str) -> OpenEpoch:
        """Return the open epoch of a log. Raises the errors of `FactSource`."""
        return await self._epochs.get(origin, lambda: self._asked(origin, self._log_of(origin).epoch()))

    async def keys(self, origin: str, did: Did) -> Mapping[str, bytes]:
        """Return the keys of a DID. Raises the errors of `FactSource`."""
        # Not `_asked`: the keys of a DID that is new to the log are on its own host, which may be the one that is silent.
        return await self._keys.get((origin, did), lambda: self._log_of(origin).keys(did))

    async def observe(self, origin: str, note: bytes) -> None:
        """Verify a checkpoint of a log. Raises the errors of `FactSource`."""
        await self._checkpoints.get((origin, note), lambda: self._asked(origin, self._log_of(origin).observe(note)))

    def is_silent(self, origin: str) -> bool:
        """Return whether the registry of a log gave no answer in the last minute."""
        return self._clock() < self._silent_until.get(origin, 0.0)

    def forget(self, origin: str, did: Did | None = None) -> None:
        """Read the epoch again at its next use, and the keys of `did`."""
        self._epochs.forget(origin)
        if did is not None:
            self._keys.forget((origin, did))

    async def _asked(self, origin: str, request: Awaitable[_V]) -> _V:
        """Return the answer of a registry, and note whether it gave one."""
        try:
            answer = await request
        except Unavailable:
            self._silent_until[origin] = self._clock() + LIFETIME
            raise
        self._silent_until.pop(origin, None)
        return answer


class _Facts(Generic[_K, _V]):
    """Values that are read when they are missing or too old, one request each at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[_K, tuple[_V, float]] = {}
        self._reading: dict[_K, asyncio.Task[_V]] = {}

    def has(self, key: _K) -> bool:
        return key in self._known and self._clock() < self._known[key][1]

    async def get(self, key: _K, read: Callable[[], Awaitable[_V]]) -> _V:
        if self.has(key):
            return self._known[key][0]
        if key not in self._reading:
            task = self._reading[key] = asyncio.ensure_future(self._read(key, read))
            task.add_done_callback(lambda done: self._done(key, done))
        # Shielded: a caller that gives up leaves the request to the next one.
        return await asyncio.shield(self._reading[key])

    def forget(self, key: _K) -> None:
        self._known.pop(key, None)

    async def _read(self, key: _K, read: Callable[[], Awaitable[_V]]) -> _V:
        value = await read()
        self._known.pop(key, None)
        self._known[key] = (value, self._clock() + LIFETIME)
        if len(self._known) > MAX_FACTS:
            del self._known[next(iter(self._known))]
        return value

    def _done(self, key: _K, task: asyncio.Task[_V]) -> None:
        del self._reading[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: all callers may be gone


# Caps of files that this agent wrote itself: a damaged disk or another program must not fill the memory.
_MAX_RECORD = 4096
_MAX_WAITING = 2 * MAX_LEAF
_S = TypeVar("_S", bound=msgspec.Struct)
_T = TypeVar("_T")


class SignedReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a signature about one negotiation. `settled`: the other side has signed it too, or this side signs last."""

    peer: str
    topic: str
    document: Digest
    epoch: Count
    settled: bool


class _Waiting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    due: Count
    leaf: str


class ReportLedger:
    """Read and write HOME/reports. All methods raise `Unavailable` (`system.file`) when the disk fails or a file is damaged."""

    def __init__(self, home: Path) -> None:
        """Read nothing yet."""
        self._folder = home / "reports"
        self._outbox = self._folder / "outbox"
        self._signed = SignedIds(home / SIGNED)
        self._pairs: set[tuple[str, str, int]] | None = None

    def has(self, peer: str, topic: str, epoch: int) -> bool:
        """Return whether this process knows of a settled report with this peer on this topic in this epoch."""
        return (peer, topic, epoch) in self._settled()

    def has_peer(self, peer: str) -> bool:
        """Return whether this process knows of any settled report with this peer."""
        return any(peer == other for other, _, _ in self._settled())

    def _settled(self) -> set[tuple[str, str, int]]:
        if self._pairs is None:
            records = (_guarded(partial(_read, path, SignedReport, _MAX_RECORD)) for path in _files(self._folder))
            self._pairs = {(record.peer, record.topic, record.epoch) for record in records if record and record.settled}
        return self._pairs

    def epoch_of(self, nid: str) -> int | None:
        """Return the epoch of the settled report of a negotiation, or None."""
        record = self._record(nid)
        return record.epoch if record is not None and record.settled else None

    def record(self, id_: str) -> None:
        """Record the id of a report before it is signed. The other side may be the one that submits it."""
        _guarded(partial(self._signed.add, id_))

    def claim(self, nid: str, signed: SignedReport) -> None:
        """Store a report durably before it is signed; again when it is settled, or signed for a later epoch.

        Raises `Conflict` (`report.equivocation`) when this negotiation was signed with other content, `Refused`
        (`report.exists`) when another negotiation with this peer on this topic was signed in this epoch.
        """
        path, before = self._path(nid), self._record(nid)
        # Compared with the disk and not with this process's memory: another process of the same home may have signed.
        if before is not None and (before.peer, before.topic, before.document) != (signed.peer, signed.topic, signed.document):
            raise Conflict(ClientReportCode.EQUIVOCATION, "This negotiation was reported with another document.")
        # The same negotiation may be signed again, because its epoch may have closed before the submission.
        if before is None and self.has(signed.peer, signed.topic, signed.epoch):
            raise Refused(ReportCode.EXISTS, "This peer and topic were reported in this epoch already.")
        data = canonical.dumps(msgspec.to_builtins(signed))
        # `create` is exclusive: of two processes only one gets the negotiation.
        place = durable.create if before is None else durable.write
        try:
            _guarded(lambda: place(path, data, mode=0o600))
        except FileExistsError as error:
            raise Conflict(ClientReportCode.EQUIVOCATION, "This negotiation is being reported by another process.") from error
        # Only after the write: a failed write must not count as a report.
        if self._pairs is not None and signed.settled:
            self._pairs.add((signed.peer, signed.topic, signed.epoch))

    def _path(self, nid: str) -> Path:
        return self._folder / f"{canonical.parse_digest(nid)}.json"

    def _record(self, nid: str) -> SignedReport | None:
        return _guarded(partial(_read, self._path(nid), SignedReport, _MAX_RECORD))

    def keep(self, report: Statement, due: int) -> None:
        """Keep a signed report for submission at Unix time `due`."""
        value = {"due": due, "leaf": canonical.b64encode(report.leaf)}
        _guarded(lambda: durable.write(self._outbox / f"{report.id}.json", canonical.dumps(value), mode=0o600))

    def waiting(self) -> list[tuple[int, Statement]]:
        """Return the kept reports, each with its due time."""
        reports = []
        for path in _files(self._outbox):
            stored = _guarded(partial(_read, path, _Waiting, _MAX_WAITING))
            if stored is not None:
                reports.append((stored.due, statement.parse(canonical.b64decode(stored.leaf, limit=MAX_LEAF))))
        return reports

    def drop(self, report: Statement) -> None:
        """Remove a report that the log has, or has finally refused."""
        _guarded(lambda: (self._outbox / f"{report.id}.json").unlink(missing_ok=True))


def _files(folder: Path) -> list[Path]:
    # Files that begin with a dot are unfinished writes of a process that crashed.
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith(".")) if folder.is_dir() else []


def _read(path: Path, kind: type[_S], limit: int) -> _S | None:
    try:
        return msgspec.convert(canonical.loads(path.read_bytes(), limit=limit, name=path.name), kind)
    except FileNotFoundError:
        return None
    except (TreatyError, msgspec.ValidationError) as error:
        raise Unavailable(
            SystemCode.FILE,
            f"{path} is damaged.",
            fix="Move the file away. It protects against reporting one negotiation twice.",
        ) from error


def _guarded(work: Callable[[], _T]) -> _T:
    try:
        return work()
    except FileExistsError:
        raise
    except OSError as error:
        raise Unavailable(SystemCode.FILE, f"The reports cannot be read or written: {error.strerror}.") from error
