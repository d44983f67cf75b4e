"""Simulated witnesses, and the HTTP client that reaches them. They judge by the code of the core, and so notice a fork."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from signers import NOW, ORIGIN

from treaty_consensus.errors import Conflict, TreatyError
from treaty_consensus.log.checkpoint import SignedCheckpoint
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, sign, signature_lines
from treaty_consensus.log.witness import SIZE_TYPE, AddCheckpoint, SizeConflict, judge
from treaty_registry.settings import WitnessName

from .processes import World
from .scheduler import settle


class WitnessHost:
    """One witness: it cosigns each head that extends the one before. `down`: it does not answer."""

    def __init__(self, world: World, number: int, log_key: VerifierKey) -> None:
        self._world = world
        self._key = SignerKey(f"witness-{number}.example", KeyType.COSIGNATURE, hashlib.sha256(b"%d" % number).digest())
        self._log_key = log_key
        self._latest: SignedCheckpoint | None = None
        self.down = False
        self.name = WitnessName(f"https://witness-{number}.example", self._key.verifier)

    def answer(self, body: bytes) -> tuple[int, str, bytes]:
        """Return status, media type and body of the answer to a request."""
        try:
            signed = judge(AddCheckpoint.parse(body), {ORIGIN: self._log_key}, self._latest)
        except SizeConflict as error:
            return 409, SIZE_TYPE, b"%d\n" % error.size
        except TreatyError as error:
            self._world.found(f"{self._key.name} refused to cosign: {error}")
            return 409 if isinstance(error, Conflict) else 422, "text/plain", b""
        self._latest = signed
        note = sign(signed.checkpoint.format(), [self._key], time=NOW + int(self._world.scheduler.now))
        return 200, "text/plain", signature_lines(note, [self._key.verifier])


class _Response:
    def __init__(self, status: int, kind: str, body: bytes) -> None:
        self.status_code = status
        self.headers = {"Content-Type": kind}
        self._body = body

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        yield self._body


class SimulatedNetwork:
    """Stands for the client's `Network` in a registry, whose HTTP client only asks witnesses."""

    def __init__(self, *_: Any) -> None: ...

    def client(self, **_: Any) -> SimulatedNetwork:
        return self

    async def aclose(self) -> None: ...

    @asynccontextmanager
    async def stream(self, method: str, url: str, *, content: bytes, headers: Any) -> AsyncIterator[_Response]:
        """Send a request to a witness. The request or its answer may be lost."""
        loop: Any = asyncio.get_running_loop()
        world: World = loop.process.world
        host: WitnessHost = world.hosts[url.split("/")[2]]
        answer: asyncio.Future[_Response] = loop.create_future()
        rng = world.scheduler.rng
        lost = rng.random() < world.faults.witness_losses

        def arrive() -> None:
            if host.down:
                return
            made = _Response(*host.answer(content))
            if not lost:
                world.scheduler.after(rng.random() * 0.02, loop, lambda: settle(answer, made))

        world.scheduler.after(rng.random() * 0.02, None, arrive)
        if lost and rng.random() < 0.5:
            await asyncio.sleep(0.5)
            raise httpx.ReadError("connection reset")
        yield await answer
