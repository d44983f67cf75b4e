"""Find out whether another process signs this log: a copy that was restored and started, or the registry that this one replaces.

Every head and time is recorded before it is signed (`log.fence`). So a checkpoint with the log's own signature was signed by a
process with another record if

- it has more leaves than the record, or another root than the leaves here: the log must not go on from here, or it forks;
- it was signed within the last two renewals, at a time after the record: the other process is alive.

Two kinds of places show such checkpoints: the base URL, where agents read, and the witnesses, which show the head that they
cosigned last (C2SP tlog-witness). They are asked before the first signature of a process, and once in each renewal, so that a
registry that was replaced stops by itself. Then nothing is signed until a person decides (`LogClock.bar`). Only the log's own
signature counts, so no witness can stop a log. A place that does not answer stops nothing either: the record is the first guard,
and a registry has to start while its witnesses are down.
"""

from __future__ import annotations

import asyncio

import httpx
import structlog

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint
from treaty_consensus.log.note import MAX_NOTE_BYTES
from treaty_io.network.exchange import BoundedClient

from ..codes import RegistryLogCode
from ..data_directory import read_record
from ..log.checkpoints import RENEWAL
from ..log.clock import LogClock, SignedTime
from ..log.fence import signed_time
from ..log.leader import Leader
from ..log.reader import LogReader
from ..outbound import network_of
from ..settings import Settings

_PATIENCE = 5.0  # seconds for all places together: a start waits for them

_log = structlog.get_logger(__name__)


class OtherSigner:
    """Looks for it. For one event loop; call `begin` before the first signature, then `run`."""

    def __init__(self, settings: Settings, origin: str, leader: Leader, clock: LogClock, reader: LogReader) -> None:
        self._settings = settings
        self._origin = origin
        self._leader = leader
        self._clock = clock
        self._reader = reader
        path = f"{hex_digest(origin.encode())}/checkpoint"
        witnesses = dict.fromkeys(f"{witness.url}/{path}" for witness in settings.witnesses)
        self._places = [f"{settings.reached_at(origin)}/checkpoint", *witnesses]

    @property
    def found(self) -> bool:
        """Whether another process signs this log, so that nothing is signed here."""
        return self._clock.barred is not None

    async def begin(self) -> None:
        """Bar the clock if another process signs this log, before this one signs anything. Takes 5 seconds at most."""
        record = await asyncio.to_thread(read_record, self._settings, self._origin)
        # Nothing was ever signed, so nobody else can have.
        if record.size:
            await self._check()
        await self._forget_restore()

    async def run(self) -> None:
        """Bar the clock when another process signs this log, until cancelled. Asks while this process leads."""
        while True:
            await asyncio.sleep(RENEWAL)
            if self._leader.leads:
                try:
                    await self._check()
                # Of the database or the record. Nothing may end this task, and each of them is reported where it is needed.
                except Exception as error:
                    _log.warning("it is unknown whether another process signs this log", error=repr(error))

    async def resume(self) -> None:
        """Let this process sign again, once no other process does. Raises `Unavailable` (`log.signed-elsewhere`) before that."""
        if (error := await self._find()) is not None:
            raise error
        self._clock.unbar()
        await self._forget_restore()
        # The next take-over reads the database again: while the clock was barred, the head of the record was served.
        self._leader.resign()

    async def _check(self) -> None:
        if (error := await self._find()) is not None and not self.found:
            _log.critical("another process signs this log, and nothing is signed here", reason=error.message, todo=error.fix)
            self._clock.bar(error)

    async def _forget_restore(self) -> None:
        """From now on this process has a record of its own."""
        if not self.found:
            await asyncio.to_thread(self._settings.restored.unlink, missing_ok=True)

    async def _find(self) -> Unavailable | None:
        """Return what shows another signer; None when no place does."""
        async with network_of(self._settings).client(timeout=_PATIENCE) as client:
            checkpoints = await asyncio.gather(*(self._shown(client, place) for place in self._places))
        silent = [place for place, signed in zip(self._places, checkpoints, strict=True) if signed is None]
        if silent:
            _log.info("these places do not show the newest head of this log", places=silent)
        # Read after the answers, and apart from the leader's own: another node may have signed what they show.
        record = await asyncio.to_thread(read_record, self._settings, self._origin)
        for place, signed in zip(self._places, checkpoints, strict=True):
            if signed is not None and (error := await self._compared(place, signed, record)) is not None:
                return error
        return None

    async def _shown(self, client: BoundedClient, place: str) -> SignedCheckpoint | None:
        """Return the checkpoint at a URL, if it is signed by this log."""
        try:
            async with asyncio.timeout(_PATIENCE):
                reply = await client.exchange(client.build_request("GET", place), limit=MAX_NOTE_BYTES)
            return self._leader.keys.open(reply.body)
        # Another server may have the address, or none. At its own start a registry does not answer at its base URL.
        except (httpx.HTTPError, OSError, TreatyError):  # a TimeoutError is an OSError
            return None

    async def _compared(self, place: str, signed: SignedCheckpoint, record: Checkpoint) -> Unavailable | None:
        checkpoint, recorded = signed.checkpoint, signed_time(record)
        if checkpoint.size > record.size:
            return _ahead(place, f"{checkpoint.size} leaves of this log, and {record.size} were signed here")
        if checkpoint.size and await self._reader.committed_root(checkpoint.size) != checkpoint.root:
            return _ahead(place, f"other {checkpoint.size} leaves of this log than the ones here")
        # A restored copy has signed nothing yet. Its record has the time of the lost registry.
        since = 0 if recorded is None or self._settings.restored.exists() else recorded.time
        age = self._clock.machine().timestamp() - (signed.time or 0)
        if signed.time is not None and signed.time > since and age < 2 * RENEWAL:
            # Readers have seen it, so no earlier time is signed here. A restored record may have no time at all.
            self._clock.read(SignedTime(signed.time))
            return _signed_elsewhere(
                f"{place} shows a checkpoint of this log that another process signed {max(0, int(age))} seconds ago.",
                f"End the other process. After {2 * RENEWAL} seconds run: treaty-registry resume-signing",
            )
        return None


def _ahead(place: str, what: str) -> Unavailable:
    return _signed_elsewhere(
        f"{place} shows {what}.",
        "Stop this registry: if it goes on, the log forks. Find the process that has these leaves, or restore a newer backup.",
    )


def _signed_elsewhere(sentence: str, fix: str) -> Unavailable:
    return Unavailable(
        RegistryLogCode.SIGNED_ELSEWHERE, f"{sentence} Nothing is signed here until an operator has decided.", fix=fix
    )
