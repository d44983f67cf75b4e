"""The registry as one object: what the HTTP routes, the command line and the tests use.

    async with Registry.open(settings) as registry: ...

One `Registry` a process, on one event loop; every method may be called concurrently. Reads never wait for a write: they are
answered from a released head, an immutable value, and from rows below it. Whoever reads several things that must fit together
takes `registry.head` once and passes it along. Methods raise `Unavailable` or asyncpg's errors when PostgreSQL does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TypeAlias

import structlog

from treaty_client.network.egress import EgressGuard
from treaty_client.network.hosts import Address, Network
from treaty_client.network.resolver import DidDocument, fetch_did_document
from treaty_consensus import canonical
from treaty_consensus.did import Did, parse_did
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.errors import NotFound, TreatyError, Unauthorized, Unavailable
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.sigstore_leaf import parse_sigstore_leaf
from treaty_consensus.statement import Verified

from . import projection
from .admission.content_checker import ContentChecker
from .admission.electors import Electors
from .admission.fair_queue import FairQueue
from .admission.identities import Identities
from .admission.quota import Quota
from .admission.standing import Standings
from .admission.statements import Admission
from .admission.submissions import Submissions
from .admission.uploads import Uploads
from .admission.verifier import Verifier
from .data_directory import open_operator, running_database
from .keys import Operator, Testimony
from .log.changes import Changes
from .log.checkpoints import RENEWAL, CheckpointSigner, Head
from .log.clock import Clock, LogClock, ReadUptime, machine_clock, machine_uptime
from .log.entry import Entry, Logged
from .log.fence import Fence
from .log.gossip import Gossip
from .log.leader import Leader
from .log.reader import LogReader
from .log.sequencer import Proposal, Sequencer
from .log.witnesses import WitnessClient
from .operator.decisions import Decided, Decisions
from .operator.maintenance import Rebuilt, rebuild
from .operator.parameters import Announced, Constitution, Draft, read_constitution, read_draft
from .operator.schedule import Schedule, read_timetable
from .readiness import Readiness
from .settings import Settings
from .sigstore_authority.keys import AuthorityKeys
from .sigstore_authority.ports import LoggedLeaf
from .storage.blobs import BlobStore
from .storage.postgres import Connection, Pool, connect, lead, migrate, open_pool
from .storage.space import DATABASE_ROOM, Room

__all__ = ["Head", "Registry"]

_PATIENCE = 10.0
"""Seconds to wait at a start for the lock of a predecessor that is just going."""
_SWEEP = 600

Resolve: TypeAlias = Callable[[Did], Awaitable[DidDocument]]

_log = structlog.get_logger(__name__)


class Registry:
    """A log, and everything around it. Made by `open`."""

    def __init__(
        self,
        settings: Settings,
        operator: Operator,
        fence: Fence,
        pool: Pool,
        database: str,
        clock: LogClock,
        resolve: Resolve | None,
    ) -> None:
        self.origin = operator.origin
        self.base_url = settings.reached_at(operator.origin)
        self.log_key: VerifierKey = operator.log_key.verifier
        self.clock_key: VerifierKey = operator.clock_key.verifier
        self.operator: str = operator.did
        self.authority: AuthorityKeys = operator.authority
        self.trusted_root = operator.trusted_root
        self.proxies = settings.proxies
        self.pool = pool
        self.clock: Clock = clock.now
        self.blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
        self._database = database
        self._operator = operator
        self._uploads = Uploads(pool, self.blobs)
        self._reader = LogReader(pool)
        self._verifier = Verifier()
        self._checker = ContentChecker()
        self._identities = Identities(
            pool=pool,
            uploads=self._uploads,
            operator=operator,
            resolve=resolve or _guarded(settings),
            submit=self._log_own,
            clock=self.clock,
        )
        self.changes = Changes()
        """What the leaves changed that this process logged since it last took over the log; another object each time."""
        self._leader = Leader(
            lead=self._take_lead,
            apply=self._project,
            fence=fence,
            signer=CheckpointSigner(operator.log_key, operator.clock_key),
            clock=clock,
        )
        rooms = [] if settings.database else [Room(settings.data / "postgres", "database", DATABASE_ROOM)]
        self._readiness = Readiness(self._leader, clock, [*rooms, *filter(None, [self.blobs.room])], pool)
        self.accept_clock = clock.accept
        self._witnesses = WitnessClient(settings.witnesses, _network(settings), self._leader, self._reader)
        self._sequencer = Sequencer(self._leader, self.blobs, self._identities.committed, RENEWAL, self._readiness.permit_write)
        self._standings = Standings(pool)
        self._electors = Electors(pool, self._suffixes)
        self._line = FairQueue(time.monotonic)
        self._admission = Admission(
            pool=pool,
            origin=self.origin,
            operator=operator.did,
            queue=self._line,
            quota=Quota(settings.quotas, time.monotonic, self._standings.of, lambda: self._line.capacity),
            electors=self._electors,
            identities=self._identities,
            gossip=Gossip(self.log_key, self._reader, lambda: self.head),
            uploads=self._uploads,
            checker=self._checker,
            verifier=self._verifier,
        )
        self._submissions = Submissions(self._admission, self._line, self._sequencer, self._reader)
        self._decisions = Decisions(
            pool=pool,
            blobs=self.blobs,
            uploads=self._uploads,
            operator=operator,
            sequencer=self._sequencer,
            clock=self.clock,
            witnesses=self._witnesses,
        )
        self._schedule = Schedule(lambda: read_timetable(pool), self.decide, self.clock)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        *,
        clock: Clock = machine_clock,
        uptime: ReadUptime | None = None,
        resolve: Resolve | None = None,
    ) -> AsyncIterator[Registry]:
        """Start the database if need be, migrate it, lead the log; for a new data directory, make keys and the first leaves.

        `clock` in place of the machine's; then `uptime`, what it is held against, is unknown unless it is given, too. `resolve`
        fetches the document of a DID, in place of the egress guard.

        Raises `Unavailable`, `Refused`, `Conflict`, `NotFound` or `Untrusted`, each with what to do about it. Leaving the block
        waits for what has queued up.
        """
        async with AsyncExitStack() as stack:
            first = await asyncio.to_thread(read_draft, settings.parameters) if settings.parameters else None
            database = await stack.enter_async_context(running_database(settings))
            operator = await asyncio.to_thread(open_operator, settings)
            fence = await asyncio.to_thread(Fence, settings.fence, operator.origin)
            stack.callback(fence.close)
            async with connect(database) as connection:
                await migrate(connection)
            pool = await stack.enter_async_context(open_pool(database))
            uptime = uptime or (machine_uptime if clock is machine_clock else lambda: None)
            registry = cls(settings, operator, fence, pool, database, LogClock(clock, uptime, fence.signed), resolve)
            stack.push_async_callback(registry._readiness.close)
            stack.callback(registry._verifier.close)
            stack.push_async_callback(registry._checker.close)
            stack.push_async_callback(registry._witnesses.close)
            stack.push_async_callback(registry._sequencer.stop)
            await registry._sequencer.start(patience=_PATIENCE)
            await registry._begin(first or Draft(development_parameters()))
            await registry._refresh()
            stack.push_async_callback(registry._decisions.stop)
            for work in (registry._sweep(), registry._schedule.run(), registry._witnesses.run()):
                stack.callback(asyncio.create_task(work).cancel)
            yield registry

    @property
    def head(self) -> Head:
        """The newest released head."""
        assert self._leader.head is not None, "open released one"
        return self._leader.head

    @property
    def failing_witnesses(self) -> Mapping[str, str]:
        """The witnesses that do not cosign at the moment, by name, each with the code of the reason."""
        return self._witnesses.failing

    async def check_ready(self) -> None:
        """Raises `Unavailable` with the reason when this process does not take writes now. Takes about a second at most."""
        await self._readiness.check()

    async def is_ready(self) -> bool:
        """Whether this process takes writes now."""
        try:
            await self._readiness.check()
        except Unavailable:
            return False
        return True

    def begin_stop(self) -> None:
        """Get ready to stop within seconds: refuse the contents that nobody has begun to check, however many wait."""
        self._checker.stop()

    async def submit(self, leaves: Sequence[bytes], *, source: str | None = None) -> list[Logged | TreatyError]:
        """Log statements that came from the IP address `source`; one outcome a leaf, in order, each on its own.

        A statement that is logged already gets its first leaf's receipt, even if its author's keys have changed since. Raises
        `Unavailable` when quotas or a full queue refuse all of them.
        """
        return await self._submissions.submit(leaves, source)

    async def put_blob(self, sha256: str, leaf: bytes, data: bytes, *, source: str | None = None) -> bool:
        """Hold an upload until the statement `leaf` that names it is logged. True when it was not held before.

        Raises what `submit` may report of the statement, `Refused` or `Malformed` when the two do not fit, `Gone` when these
        bytes were withdrawn.
        """
        return await self._submissions.upload(sha256, leaf, data, source)

    def charge_service(self, source: str | None) -> None:
        """Take the quotas of a request to the Sigstore services from an IP address. Raises `Unavailable`."""
        self._submissions.charge_service(source)

    async def blob(self, sha256: str) -> bytes:
        """A blob that a logged statement names. Raises `NotFound` (also while it only waits), `Gone` when it was withdrawn."""
        return await self._uploads.served(canonical.parse_digest(sha256))

    async def append(self, leaf: bytes) -> LoggedLeaf:
        """Log a Sigstore leaf. Raises `Malformed`, `TooLarge` or `Unavailable`."""
        parse_sigstore_leaf(leaf)
        (place,) = await self._sequencer.submit([Proposal(leaf)])
        if isinstance(place, TreatyError):
            raise place
        assert place.proof is not None, "Sigstore leaves are always new"
        return LoggedLeaf(place.index, place.head.size, place.proof, place.head.root, place.head.note.decode())

    async def leaves(self, indexes: Iterable[int], head: Head | None = None) -> dict[int, bytes]:
        """The leaves at `indexes`. Raises `NotFound` when one is not below the head."""
        return await self._reader.leaves(indexes, head or self.head)

    async def inclusion(self, indexes: Iterable[int], head: Head | None = None) -> dict[int, list[bytes]]:
        """Inclusion proofs at `head`. Raises `NotFound` when an index is not below it."""
        return await self._reader.inclusion(indexes, head or self.head)

    async def consistency(self, old: int, head: Head | None = None) -> list[bytes]:
        """The consistency proof from the tree of `old` leaves to `head`. Raises `NotFound` when the head is smaller."""
        return await self._reader.consistency(old, head or self.head)

    async def receipt(self, statement_id: str, head: Head | None = None) -> bytes:
        """The receipt (C2SP tlog-proof) of the statement with this id. Raises `NotFound`."""
        canonical.parse_digest(statement_id)
        at = head or self.head
        index = (await self._reader.index_of([statement_id], at)).get(statement_id)
        if index is None:
            raise NotFound("statement.not-logged", f"The statement {statement_id} is not in this log.")
        return (await self._reader.receipts([index], at))[index]

    async def tile(self, path: str, head: Head | None = None) -> bytes | None:
        """A hash tile or entry bundle by its path, such as /tile/0/x001/234.p/5 or /tile/entries/000; None when the log is not
        that large (yet). Raises `Malformed` when it is no tile's path."""
        return await self._reader.tile(path, head or self.head)

    async def authentication_keys(self, did: str) -> Mapping[str, bytes]:
        """The keys that speak for a DID as the registry would judge a statement that arrives now: DID URL → raw Ed25519. A DID
        that the log does not know is resolved and logged. Raises `Malformed`, `Unauthorized` or `Unavailable`."""
        parsed = parse_did(did)
        keys = await self._identities.keys(parsed) or await self._identities.learn(parsed)
        if not keys:
            raise Unauthorized("identity.unknown", f"This log knows no key of {did}.")
        return keys

    async def testimony(self, did: str, key_id: str, *, source: str | None = None) -> Testimony:
        """The operator's half of an identity of `did` with its document as it is now, for its logged key `key_id` to co-sign.
        `source`: the IP address that asks. Raises as `Identities.testimony`, and `Unavailable` (`quota.*`)."""
        return await self._admission.testimony(parse_did(did), key_id, source)

    async def spend(self, token: str, until: datetime) -> bool:
        """True for the first caller with this `token` (64 hex digits), in any process and after any restart; False for later
        ones. It may be forgotten after `until`."""
        spent = "insert into spent_tokens (token, expires) values ($1, $2) on conflict do nothing returning true"
        return bool(await self.pool.fetchval(spent, bytes.fromhex(canonical.parse_digest(token)), until))

    async def decide(self) -> list[Decided]:
        """Close the open epoch: compute, sign and log the decision of every topic with a report or a ballot, all in one commit.

        By hand in a development electorate; in an open one the registry does so itself once an epoch is due, and before that this
        raises `Refused` (`decision.early`). Raises `Refused`, `Untrusted` or `Unavailable`.
        """
        # In a task of its own: whoever asked may go away, and a thread that replays the log cannot be cancelled.
        return await asyncio.shield(asyncio.create_task(self._close_epoch()))

    async def _close_epoch(self) -> list[Decided]:
        decided = await self._decisions.close_epoch()
        await self._refresh()
        return decided

    async def _refresh(self) -> None:
        """Read what holds from one epoch to the next: who has standing, and who can vote."""
        await self._standings.refresh()
        await self._electors.refresh()

    async def _suffixes(self) -> SuffixList | None:
        terms = (await self.constitution()).in_force.parameters.reputation
        if terms is None:
            return None
        return await asyncio.to_thread(SuffixList, await self.blob(terms.suffix_list.sha256))

    async def constitution(self) -> Constitution:
        """The parameters in force, those that were announced, and when the open epoch closes."""
        return await read_constitution(self.pool)

    async def announce(self, draft: Draft) -> Announced:
        """Log parameters, which hold from the epoch that opens next. Raises what `Draft.check` raises, and `Unavailable`."""
        await asyncio.to_thread(draft.check)
        verified = await self._state_parameters(draft)
        (place,) = await self._sequencer.submit([Proposal(verified.statement.leaf, verified)])
        if isinstance(place, TreatyError):
            raise place
        found = await self.constitution()
        holds = found.in_force.statement == verified.statement.id  # an epoch may have closed meanwhile
        return Announced(verified.statement.id, place.index, found.epoch if holds else found.epoch + 1)

    async def rebuild(self) -> Rebuilt:
        """Derive every table from the leaves again and put right what differs. Writers wait, readers do not.

        Raises `Untrusted` when the leaves themselves are damaged or break a rule.
        """
        async with self._sequencer.pause():
            writer = await lead(self._database, patience=_PATIENCE)
            try:
                return await rebuild(writer, self.pool, self.blobs)
            finally:
                await writer.close()

    async def _take_lead(self, patience: float) -> Connection:
        # What was noted may not have been committed, and another process may have written.
        self.changes = Changes()
        self._identities.forget()
        return await lead(self._database, patience=patience)

    async def _project(self, connection: Connection, entries: Sequence[Entry]) -> None:
        await projection.apply(connection, entries)
        self.changes.record(entries)

    async def _begin(self, draft: Draft) -> None:
        """The first two leaves of a new log: its genesis and the constants of its election."""
        if self.head.size:
            return
        genesis = self._operator.state(self._operator.genesis(), issued=self.clock())
        parameters = await self._state_parameters(draft)
        async with self._sequencer.turn() as turn:
            await turn.append([genesis, parameters])

    async def _state_parameters(self, draft: Draft) -> Verified:
        for digest, data in draft.blobs.items():
            await self._uploads.hold_own(digest, data)
        return self._operator.state(draft.parameters, issued=self.clock())

    async def _log_own(self, verified: Verified) -> None:
        (outcome,) = await self._sequencer.submit([Proposal(verified.statement.leaf, verified)])
        if isinstance(outcome, TreatyError):
            raise outcome

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            try:
                await self._uploads.expire()
                await self.pool.execute("delete from spent_tokens where expires < now()")
            except Exception as error:
                _log.error("expired uploads not swept", error=str(error))


def _network(settings: Settings) -> Network:
    return Network({host: Address(*address) for host, address in settings.resolve.items()}, settings.ca)


def _guarded(settings: Settings) -> Resolve:
    guard = EgressGuard(_network(settings))

    async def resolve(did: Did) -> DidDocument:
        return await fetch_did_document(did, guard)

    return resolve
