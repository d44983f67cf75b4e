"""The log's witnesses: asking them to cosign its heads (C2SP tlog-witness, `treaty_consensus.log.witness`).

Every released head goes to all of them, the newest one of those that came up meanwhile and at most one a second, with the proof
that it extends what each cosigned last; no writer waits for that. Since the clock renews the head every minute, so do they. A
decision that needs witnesses asks for exactly the head that it rests on.

A witness that fails, or does not answer in time, is not waited for any more. It is asked again on its own, after a second and
then after pauses that double, up to half a minute. Once it answers it is one of the others again, and what it has cosigned is
added to what is published. Each kind of failure is logged when it begins. A witness that knows another history of this log, or
more of it than there is, is right or broken. Either way somebody has to look, so that is logged as critical.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import structlog

from treaty_client.network.hosts import Network
from treaty_consensus.canonical import parse_decimal
from treaty_consensus.errors import TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import Witnesses
from treaty_consensus.log.merkle import MAX_SIZE
from treaty_consensus.log.witness import SIZE_TYPE, AddCheckpoint, cosignature

from ..settings import WitnessName
from .checkpoints import Head
from .leader import Leader
from .reader import LogReader

_PATIENCE = 5.0
_PAUSE = 1.0
_AGAIN = 1.0
_LONGEST_PAUSE = 30.0
_ATTEMPTS = 3
_MAX_ANSWER = 64 * 1024
_ALARMS = ("witness.history", "witness.ahead")
"""It has cosigned something that is not a beginning of this log, or claims so."""

_log = structlog.get_logger(__name__)


class WitnessClient:
    """All witnesses of one log. On one event loop; `run` once, and `close` in the end."""

    def __init__(self, witnesses: Sequence[WitnessName], network: Network, leader: Leader, reader: LogReader) -> None:
        self._http = network.client(timeout=_PATIENCE)
        self._witnesses = [_Witness(name, self._http, leader, reader) for name in witnesses]
        self._leader = leader
        self._asked: Head | None = None
        self._lines: dict[str, bytes] = {}  # of the head that all were asked for last, by the witness's name
        self._again: dict[str, asyncio.Task[None]] = {}  # of those that failed

    @property
    def failing(self) -> dict[str, str]:
        """The witnesses that do not cosign at the moment, by name, each with the code of the reason."""
        return {witness.key.name: witness.complaint for witness in self._witnesses if witness.complaint}

    async def run(self) -> None:
        """Have what is released cosigned and published, until cancelled."""
        try:
            while self._witnesses:
                await self._leader.released.wait()
                self._leader.released.clear()
                assert self._leader.head is not None, "it was released"
                await self._ask_all(self._leader.head)
                await asyncio.sleep(_PAUSE)
        finally:
            for task in self._again.values():
                task.cancel()
            self._again.clear()

    async def cosign(self, head: Head, witnesses: Witnesses) -> str:
        """The note of exactly this head with the signatures of a quorum. Takes 5 seconds at most.

        Raises `Unavailable` (`witness.quorum`) when fewer than the quorum of `witnesses` answer in time.
        """
        quorum = witnesses.parsed
        listed = [witness for witness in self._witnesses if witness.key in quorum.keys]
        note = head.note + await _cosignatures(listed, head, quorum.needed)
        try:
            quorum.check(note, head.signed.checkpoint)
        except Untrusted as error:
            raise Unavailable(
                "witness.quorum",
                f"{len(listed)} of the {len(quorum.keys)} witnesses of the parameters are known here, and fewer than the "
                f"{quorum.needed} that are needed cosigned the log.",
                fix="Start treaty-registry with --witness URL#KEY for each of them, and see that they run.",
            ) from error
        return note.decode()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _ask_all(self, head: Head) -> None:
        """Ask those that did not fail the last time, and publish what they cosign; see to those that fail."""
        self._asked, self._lines = head, {}
        asked = [witness for witness in self._witnesses if witness.key.name not in self._again]
        lines = await asyncio.gather(*(witness.cosign(head) for witness in asked))
        self._publish(head, {witness.key.name: line for witness, line in zip(asked, lines, strict=True) if line})
        for witness in asked:
            if witness.complaint:
                self._again[witness.key.name] = asyncio.create_task(self._ask_again(witness))

    async def _ask_again(self, witness: _Witness) -> None:
        pause = _AGAIN
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            head = self._asked
            assert head is not None, "it failed when it was asked"
            line = await witness.cosign(head)
            if not witness.complaint:
                del self._again[witness.key.name]
                self._publish(head, {witness.key.name: line} if line else {})
                return

    def _publish(self, head: Head, lines: dict[str, bytes]) -> None:
        """Add lines to the head that was asked for last; of an older one they come too late."""
        if head is self._asked and lines:
            self._lines |= lines
            note = [self._lines[witness.key.name] for witness in self._witnesses if witness.key.name in self._lines]
            self._leader.witness(head.cosigned(b"".join(note)))


class _Witness:
    def __init__(self, name: WitnessName, http: httpx.AsyncClient, leader: Leader, reader: LogReader) -> None:
        self.key = name.key
        self._url = f"{name.url}/add-checkpoint"
        self._http = http
        self._leader = leader
        self._reader = reader
        self._size = 0  # of what it cosigned last, as far as we know
        self._turn = asyncio.Lock()
        self.complaint = ""
        """The code of what was wrong when it was asked last; empty if nothing was."""

    async def cosign(self, head: Head) -> bytes:
        """Its signature line, or nothing. Takes `_PATIENCE` seconds at most. What is wrong is logged when that changes."""
        try:
            async with asyncio.timeout(_PATIENCE), self._turn:
                line = await self._ask(head)
        except Exception as error:  # whatever it or the database does, the log goes on
            self._complain(error, head)
            return b""
        if self.complaint:
            _log.info("witnessed again", witness=self.key.name, size=head.size)
        self.complaint = ""
        return line

    def _complain(self, error: Exception, head: Head) -> None:
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            error = Unavailable("witness.silent", f"It did not answer within {_PATIENCE:g} seconds.")
        elif isinstance(error, httpx.HTTPError):
            error = Unavailable("witness.unreachable", f"It cannot be asked: {type(error).__name__}: {error}")
        code = error.code if isinstance(error, TreatyError) else type(error).__name__
        if code != self.complaint:
            tell = _log.critical if code in _ALARMS else _log.warning
            tell("not witnessed", witness=self.key.name, size=head.size, root=head.root.hex(), code=code, error=str(error))
        self.complaint = code

    async def _ask(self, head: Head) -> bytes:
        """The line; empty when it has cosigned a later head of ours meanwhile."""
        old = min(self._size, head.size)
        for _ in range(_ATTEMPTS):
            request = AddCheckpoint(old, tuple(await self._reader.consistency(old, head)), head.note)
            status, kind, body = await self._post(request.format())
            if status == httpx.codes.OK:
                line = cosignature(body, head.note, self.key)
                self._size = head.size
                return line
            if status == httpx.codes.UNPROCESSABLE_ENTITY:
                raise _other_history(old)
            if status != httpx.codes.CONFLICT:
                raise Unavailable("witness.refused", f"It answered with status {status}.")
            size = _size(kind, body)
            if size is None or size == old:
                raise _other_history(old)
            if size > head.size:
                self._check_exists(size)
                self._size = size
                return b""
            old = size
        raise Unavailable("witness.refused", "It names another size each time.")

    def _check_exists(self, size: int) -> None:
        """Raises `Untrusted` unless the log has that many leaves, as a later head of ours than the one that is asked for has."""
        known = self._leader.head.size if self._leader.head is not None else 0
        if size > known and not self._leader.leads:
            raise Unavailable(
                "witness.refused", f"It has cosigned {size} leaves, maybe for another process, which leads the log."
            )
        if size > known:
            raise Untrusted(
                "witness.ahead",
                f"It has cosigned {size} leaves of this log, which has {known}.",
                fix="This database is an old copy, or the log's key is in other hands. Stop this registry, ask the operator of "
                "the witness for the checkpoint it has, and compare.",
            )

    async def _post(self, content: bytes) -> tuple[int, str, bytes]:
        """The status, the media type and the body of its answer."""
        body = bytearray()
        headers = {"Accept-Encoding": "identity", "Content-Type": "text/plain; charset=utf-8"}
        async with self._http.stream("POST", self._url, content=content, headers=headers) as response:
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MAX_ANSWER:
                    raise Unavailable("witness.answer", f"It sent more than {_MAX_ANSWER} bytes.")
        return response.status_code, response.headers.get("Content-Type", "").partition(";")[0].strip(), bytes(body)


def _size(kind: str, body: bytes) -> int | None:
    """The size in a 409; None for a 409 without one, which says that the root is another one. Raises `Unavailable`."""
    try:
        return parse_decimal(body.decode("ascii").removesuffix("\n"), limit=MAX_SIZE)
    except (UnicodeDecodeError, TreatyError) as error:
        if kind == SIZE_TYPE:
            raise Unavailable("witness.answer", "It answered 409 with a size that is none.") from error
    return None


def _other_history(size: int) -> Untrusted:
    return Untrusted(
        "witness.history",
        f"It knows another history of this log: other leaves than its first {size}.",
        fix="This database is an old copy that grew differently, or the log's key is in other hands. Stop this registry, ask the "
        "operator of the witness for the checkpoint it has, and compare.",
    )


async def _cosignatures(witnesses: Sequence[_Witness], head: Head, enough: int) -> bytes:
    """The lines of the first `enough` witnesses that answer in time, in the order in which they were named."""
    asked = [asyncio.create_task(witness.cosign(head)) for witness in witnesses]
    lines = 0
    try:
        for answer in asyncio.as_completed(asked):
            lines += bool(await answer)
            if lines >= enough:
                break
    finally:
        for task in asked:
            task.cancel()  # does nothing to those that have answered
    return b"".join(task.result() for task in asked if task.done() and not task.cancelled())
