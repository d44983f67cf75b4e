"""The log's witnesses: asking them to cosign its heads (C2SP tlog-witness, `treaty_consensus.log.witness`).

Every released head goes to all of them, the newest one of those that came up meanwhile and at most one a second, with the proof
that it extends what each cosigned last; no writer waits for that. Since the clock renews the head every minute, so do they. A
decision that needs witnesses asks for exactly the head that it rests on.

A witness that does not answer, or answers something else, is left out and asked again with the next head. One that says it
knows another history is right or broken; either way somebody has to look, so that is logged as critical.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import structlog

from treaty_client.network.hosts import Network
from treaty_consensus.canonical import parse_decimal
from treaty_consensus.errors import Unavailable, Untrusted
from treaty_consensus.kinds import Witnesses
from treaty_consensus.log.merkle import MAX_SIZE
from treaty_consensus.log.witness import AddCheckpoint, cosignature

from ..settings import WitnessName
from .checkpoints import Head
from .leader import Leader
from .reader import LogReader

_PATIENCE = 5.0
_PAUSE = 1.0
_ATTEMPTS = 3
_MAX_ANSWER = 64 * 1024

_log = structlog.get_logger(__name__)


class WitnessClient:
    """All witnesses of one log. On one event loop; `run` once, and `close` in the end."""

    def __init__(self, witnesses: Sequence[WitnessName], network: Network, leader: Leader, reader: LogReader) -> None:
        self._http = network.client(timeout=_PATIENCE)
        self._witnesses = [_Witness(name, self._http, reader) for name in witnesses]
        self._leader = leader

    async def run(self) -> None:
        """Have what is released cosigned and published, until cancelled."""
        while self._witnesses:
            await self._leader.released.wait()
            self._leader.released.clear()
            head = self._leader.head
            assert head is not None, "it was released"
            lines = await _cosignatures(self._witnesses, head, len(self._witnesses))
            if lines:
                self._leader.witness(head.cosigned(lines))
            await asyncio.sleep(_PAUSE)

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


class _Witness:
    def __init__(self, name: WitnessName, http: httpx.AsyncClient, reader: LogReader) -> None:
        self.key = name.key
        self._url = f"{name.url}/add-checkpoint"
        self._http = http
        self._reader = reader
        self._size = 0  # of what it cosigned last, as far as we know
        self._turn = asyncio.Lock()
        self._complaint = ""

    async def cosign(self, head: Head) -> bytes:
        """Its signature line, or nothing; what is wrong is logged, once."""
        try:
            async with self._turn:
                line = await self._ask(head)
        except Exception as error:  # whatever it or the database does, the log goes on
            complaint = f"{type(error).__name__}: {error}"
            if complaint != self._complaint:
                tell = _log.critical if isinstance(error, Untrusted) else _log.warning
                tell("not witnessed", witness=self.key.name, size=head.size, root=head.root.hex(), error=complaint)
            self._complaint = complaint
            return b""
        self._complaint = ""
        return line

    async def _ask(self, head: Head) -> bytes:
        old = min(self._size, head.size)
        for _ in range(_ATTEMPTS):
            request = AddCheckpoint(old, tuple(await self._reader.consistency(old, head)), head.note)
            status, body = await self._post(request.format())
            if status == httpx.codes.OK:
                line = cosignature(body, head.note, self.key)
                self._size = head.size
                return line
            if status == httpx.codes.UNPROCESSABLE_ENTITY:
                raise _other_history(old)
            if status != httpx.codes.CONFLICT:
                raise Unavailable("witness.refused", f"It answered with status {status}.")
            size = parse_decimal(body.decode("ascii").removesuffix("\n"), limit=MAX_SIZE)
            if size == old:
                raise _other_history(size)
            if size > head.size:
                raise Unavailable("witness.refused", f"It has cosigned {size} leaves already.")
            old = size
        raise Unavailable("witness.refused", "It names another size each time.")

    async def _post(self, content: bytes) -> tuple[int, bytes]:
        body = bytearray()
        headers = {"Accept-Encoding": "identity", "Content-Type": "text/plain; charset=utf-8"}
        async with self._http.stream("POST", self._url, content=content, headers=headers) as response:
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MAX_ANSWER:
                    raise Unavailable("witness.answer", f"It sent more than {_MAX_ANSWER} bytes.")
        return response.status_code, bytes(body)


def _other_history(size: int) -> Untrusted:
    return Untrusted("witness.history", f"It knows another history of this log: other leaves, or more, than its first {size}.")


async def _cosignatures(witnesses: Sequence[_Witness], head: Head, enough: int) -> bytes:
    """The lines of the first `enough` witnesses that answer in time, in the order in which they were named."""
    asked = [asyncio.create_task(witness.cosign(head)) for witness in witnesses]
    lines = 0
    try:
        async with asyncio.timeout(_PATIENCE):
            for answer in asyncio.as_completed(asked):
                lines += bool(await answer)
                if lines >= enough:
                    break
    except TimeoutError:
        pass
    finally:
        for task in asked:
            task.cancel()  # does nothing to those that have answered
    return b"".join(task.result() for task in asked if task.done() and not task.cancelled())
