"""Ask the log's witnesses to cosign its heads (C2SP tlog-witness, `treaty_consensus.log.witness`).

Every released head goes to all witnesses, with the proof that it extends the head each of them cosigned last. At most one head a
second is sent; heads in between are skipped. Writers do not wait for witnesses. The clock renews the head every minute, so
witnesses cosign at least every minute. A decision that needs witnesses asks for the exact head that it is based on.

A witness that fails or times out is asked again separately, after one second and then with doubled pauses, up to half a minute.
When it answers, its cosignature is published and it returns to the others. A failure is logged when it starts or changes its
kind. If a witness knows another history of this log, or more leaves than there are, either the log was forked or the witness is
broken. An operator must investigate, so this is logged as critical.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple

import httpx
import structlog

from treaty_consensus.canonical import parse_decimal
from treaty_consensus.codes import WitnessCode
from treaty_consensus.errors import TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import Witnesses
from treaty_consensus.log.merkle import MAX_SIZE
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.witness import SIZE_TYPE, AddCheckpoint, cosignature
from treaty_io.network.hosts import Network

from ..codes import RegistryWitnessCode
from ..settings import WitnessName
from ..telemetry.measures import WITNESS_ALARMS, WITNESS_SECONDS
from .checkpoints import Head
from .leader import Leader
from .reader import LogReader

_PATIENCE = 5.0  # seconds for one witness, because a decision waits for a quorum
_PAUSE = 1.0  # seconds between two heads: at most one head a second is sent
_AGAIN = 1.0  # seconds before the first retry
_LONGEST_PAUSE = 30.0  # seconds: less than the clock's renewal, so that each renewed head is offered
_ATTEMPTS = 3  # requests for one head, because the witness's size may change in between
_MAX_ANSWER = 64 * 1024  # bytes; an answer is some signature lines
_TEXT = "text/plain; charset=utf-8"
_ALARMS = (RegistryWitnessCode.HISTORY, RegistryWitnessCode.AHEAD)
"""The witness has cosigned another history than this log's, or claims so."""

_log = structlog.get_logger(__name__)


class WitnessState(NamedTuple):
    """The state of one witness. `size`, `time`: of the newest head that it cosigned while this process runs; 0 for none yet.
    `failure`: the code of the reason why it does not cosign now, or an empty text."""

    name: str
    size: int
    time: int
    failure: str


class WitnessClient:
    """All witnesses of one log. For one event loop; call `run` once, and `close` at the end."""

    def __init__(self, witnesses: Sequence[WitnessName], network: Network, leader: Leader, reader: LogReader) -> None:
        self._http = network.client(timeout=_PATIENCE)
        self._witnesses = [_Witness(name, self._http, leader, reader) for name in witnesses]
        self._leader = leader
        self._asked: Head | None = None
        self._lines: dict[VerifierKey, bytes] = {}  # its key → its line for the head sent last
        self._again: dict[VerifierKey, asyncio.Task[None]] = {}  # retries of failing witnesses

    @property
    def failing(self) -> dict[str, str]:
        """Return the witnesses that do not cosign now: name → code of the reason."""
        return {witness.key.name: witness.failure for witness in self._witnesses if witness.failure}

    @property
    def states(self) -> list[WitnessState]:
        """Return the state of each witness."""
        return [WitnessState(witness.key.name, witness.size, witness.cosigned, witness.failure) for witness in self._witnesses]

    def cosigned_size(self, url: str) -> int:
        """Return the size of the newest head that the witness at `url` has cosigned, as far as known; else 0."""
        return max((witness.size for witness in self._witnesses if witness.url == url), default=0)

    async def run(self) -> None:
        """Have every released head cosigned and published, until cancelled."""
        try:
            while self._witnesses:
                await self._leader.released.wait()
                # Cleared before the head is read: a head that is released meanwhile sets it again, so none is missed.
                self._leader.released.clear()
                assert self._leader.head is not None, "it was released"
                await self._ask_all(self._leader.head)
                await asyncio.sleep(_PAUSE)
        finally:
            # Retries end with this task, or they would use a closed connection.
            for task in self._again.values():
                task.cancel()
            self._again.clear()

    async def cosign(self, head: Head, witnesses: Witnesses, without: Collection[VerifierKey] = ()) -> str:
        """Return the note of exactly this head with the signatures of a quorum. Takes 5 seconds at most. `without`: witnesses
        that are not asked.

        Raises `Unavailable` (`witness.quorum`) when fewer than the quorum of `witnesses` answer in time.
        """
        quorum = witnesses.parsed
        listed = [witness for witness in self._witnesses if witness.key in quorum.keys and witness.key not in without]
        # Exactly this head: a cosignature of a later one does not attest the input of the decision.
        note = head.note + await _cosignatures(listed, head, quorum.needed)
        try:
            quorum.check(note, head.signed.checkpoint)
        except Untrusted as error:
            raise Unavailable(
                RegistryWitnessCode.QUORUM,
                f"{len(listed)} of the {len(quorum.keys)} witnesses of the parameters are known here, and fewer than the "
                f"{quorum.needed} that are needed cosigned the log.",
                fix="Start treaty-registry with --witness URL#KEY for each of them, and see that they run.",
            ) from error
        return note.decode()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _ask_all(self, head: Head) -> None:
        """Ask all witnesses that are not failing, and publish their cosignatures. Start retries for those that fail."""
        self._asked, self._lines = head, {}
        # A failing witness is asked separately, so it delays the others only once.
        due = [witness for witness in self._witnesses if witness.key not in self._again]
        lines = await asyncio.gather(*(witness.cosign(head) for witness in due))
        self._publish(head, {witness.key: line for witness, line in zip(due, lines, strict=True) if line})
        for witness in due:
            if witness.failure:
                self._again[witness.key] = asyncio.create_task(self._ask_again(witness))

    async def _ask_again(self, witness: _Witness) -> None:
        pause = _AGAIN
        while True:
            await asyncio.sleep(pause)
            # Doubled, so that a witness that is down for days is not asked each second.
            pause = min(2 * pause, _LONGEST_PAUSE)
            # The newest head that was sent, because a witness has no use for an older one.
            head = self._asked
            assert head is not None, "it failed when it was asked"
            line = await witness.cosign(head)
            if not witness.failure:
                del self._again[witness.key]
                self._publish(head, {witness.key: line} if line else {})
                return

    def _publish(self, head: Head, lines: dict[VerifierKey, bytes]) -> None:
        """Add cosignatures to the head that was asked for last. Cosignatures of an older head are too late and are dropped."""
        # A late line must not be added to another head's note.
        if head is self._asked and lines:
            self._lines |= lines
            note = [self._lines[witness.key] for witness in self._witnesses if witness.key in self._lines]
            self._leader.witness(head.cosigned(b"".join(note)))


class _Witness:
    def __init__(self, name: WitnessName, http: httpx.AsyncClient, leader: Leader, reader: LogReader) -> None:
        self.key = name.key
        self.url = name.url
        self._http = http
        self._leader = leader
        self._reader = reader
        self.size = 0  # size of the head it cosigned last, as far as known
        self.cosigned = 0  # the time of that head
        self._lock = asyncio.Lock()  # one request at a time, because each starts from the size of the one before
        self.failure = ""
        """The code of the last failure; empty after a success."""
        # From 0 on: the first alarm must be an increase.
        for code in _ALARMS:
            WITNESS_ALARMS.labels(self.key.name, str(code))

    async def cosign(self, head: Head) -> bytes:
        """Return the signature line, or empty bytes. Takes `_PATIENCE` seconds at most. A failure is logged when it changes."""
        try:
            # The timeout includes the wait for the lock: a request for an older head may hang.
            async with asyncio.timeout(_PATIENCE), self._lock:
                with WITNESS_SECONDS.labels(self.key.name).time():
                    line = await self._ask(head)
        except Exception as error:  # no failure of a witness or of the database may stop the log
            self._report_failure(error, head)
            return b""
        if self.failure:
            _log.info("witnessed again", witness=self.key.name, size=head.size)
        self.failure = ""
        return line

    def _report_failure(self, error: Exception, head: Head) -> None:
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            error = Unavailable(WitnessCode.UNREACHABLE, f"It did not answer within {_PATIENCE:g} seconds.")
        elif isinstance(error, httpx.HTTPError):
            error = Unavailable(WitnessCode.UNREACHABLE, f"It cannot be asked: {type(error).__name__}: {error}")
        code = error.code if isinstance(error, TreatyError) else type(error).__name__
        if code in _ALARMS:
            WITNESS_ALARMS.labels(self.key.name, str(code)).inc()
        if code != self.failure:
            log = _log.critical if code in _ALARMS else _log.warning
            log("not witnessed", witness=self.key.name, size=head.size, root=head.root.hex(), code=code, error=str(error))
        self.failure = code

    async def _ask(self, head: Head) -> bytes:
        """Return the line; empty when the witness has cosigned a later head of this log meanwhile."""
        # The witness may have cosigned a later head already.
        old = min(self.size, head.size)
        for _ in range(_ATTEMPTS):
            request = AddCheckpoint(old, tuple(await self._reader.consistency(old, head)), head.note)
            status, kind, body = await post(self._http, f"{self.url}/add-checkpoint", request.format(), _TEXT)
            if status == httpx.codes.OK:
                line = cosignature(body, head.note, self.key)
                self.size, self.cosigned = head.size, head.time
                return line
            # C2SP tlog-witness: 422 means that the consistency proof does not verify.
            if status == httpx.codes.UNPROCESSABLE_ENTITY:
                raise _other_history(old)
            if status != httpx.codes.CONFLICT:
                raise Unavailable(WitnessCode.UNREACHABLE, f"It answered with status {status}.")
            # C2SP tlog-witness: 409 carries the size that the witness has. Ask again from there.
            size = _size(kind, body)
            if size is None or size == old:
                raise _other_history(old)
            # It has cosigned a later head. That is no fault if this log has such a head.
            if size > head.size:
                self._check_exists(size)
                self.size = size
                return b""
            old = size
        raise Unavailable(WitnessCode.UNREACHABLE, "It names another size each time.")

    def _check_exists(self, size: int) -> None:
        """Raise `Untrusted` unless the log has `size` leaves, in a later head than the one that was sent."""
        own_size = self._leader.head.size if self._leader.head is not None else 0
        # Another process may lead now and have more leaves, so this is no alarm.
        if size > own_size and not self._leader.leads:
            raise Unavailable(
                WitnessCode.UNREACHABLE, f"It has cosigned {size} leaves, maybe for another process, which leads the log."
            )
        if size > own_size:
            raise Untrusted(
                RegistryWitnessCode.AHEAD,
                f"It has cosigned {size} leaves of this log, which has {own_size}.",
                fix="This database is an old copy, or the log's key is in other hands. Stop this registry, ask the operator of "
                "the witness for the checkpoint it has, and compare.",
            )


async def post(
    http: httpx.AsyncClient, url: str, content: bytes | AsyncIterator[bytes], media_type: str
) -> tuple[int, str, bytes]:
    """Send a request to a witness. Returns the status, the media type and the body of the answer.

    Raises `Unavailable` (`witness.unreachable`) for more than 64 KiB, and `httpx.HTTPError`.
    """
    body = bytearray()
    # Not compressed: the cap below counts the bytes as they arrive.
    headers = {"Accept-Encoding": "identity", "Content-Type": media_type}
    async with http.stream("POST", url, content=content, headers=headers) as response:
        async for chunk in response.aiter_raw():
            body += chunk
            # While bytes arrive, so that a broken witness cannot fill the memory.
            if len(body) > _MAX_ANSWER:
                raise Unavailable(WitnessCode.UNREACHABLE, f"It sent more than {_MAX_ANSWER} bytes.")
    return response.status_code, response.headers.get("Content-Type", "").partition(";")[0].strip(), bytes(body)


def _size(kind: str, body: bytes) -> int | None:
    """Return the size in a 409 answer. None: it has no size, which means that the roots differ. Raises `Unavailable`."""
    try:
        return parse_decimal(body.decode("ascii").removesuffix("\n"), limit=MAX_SIZE)
    except (UnicodeDecodeError, TreatyError) as error:
        if kind == SIZE_TYPE:
            raise Unavailable(WitnessCode.UNREACHABLE, "It answered 409 with a size that is none.") from error
    return None


def _other_history(size: int) -> Untrusted:
    return Untrusted(
        RegistryWitnessCode.HISTORY,
        f"It knows another history of this log: other leaves than its first {size}.",
        fix="This database is an old copy that grew differently, or the log's key is in other hands. Stop this registry, ask the "
        "operator of the witness for the checkpoint it has, and compare.",
    )


async def _cosignatures(witnesses: Sequence[_Witness], head: Head, enough: int) -> bytes:
    """Return the lines of the first `enough` witnesses that answer in time, in the order in which they were configured."""
    requests = [asyncio.create_task(witness.cosign(head)) for witness in witnesses]
    lines = 0
    try:
        # Not in their order: a silent witness in front must not delay a quorum of the others.
        for answer in asyncio.as_completed(requests):
            lines += bool(await answer)
            if lines >= enough:
                break
    finally:
        for task in requests:
            task.cancel()  # no effect on finished tasks
    return b"".join(task.result() for task in requests if task.done() and not task.cancelled())
