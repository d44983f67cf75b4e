"""A worker with its package loaded, and the sessions it runs: each event is judged, answered and judged again, in turn."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import HandlerPackage
from treaty_consensus.printable import printable
from treaty_handler import Effect, Event, Value

from .process import WorkerProcess
from .sandbox import Limits
from .schemas import measure
from .validation import MAX_SNAPSHOT, Operations, SessionRules
from .worker import framing

_T = TypeVar("_T")
_MAX_ISSUES = 100
_MAX_ISSUE_TEXT = 500


class Worker:
    """A process that has imported one package, for one local identity and its peers.

    Its methods and its sessions may be used concurrently; they take turns, first come first served. After any error but
    `Malformed`, `TooLarge` and `session.…` the process is dead, and with it all sessions: load another.
    """

    def __init__(
        self,
        process: WorkerProcess,
        package: HandlerPackage,
        operations: Operations,
        limits: Limits,
        local: str,
        peers: Sequence[str],
        forget: Callable[[Worker], None],
    ) -> None:
        """Made by `SandboxPool.load`. `forget` is told once the process is gone."""
        self.package = package
        self.local = local
        self.peers = tuple(peers)
        self._process = process
        self._operations = operations
        self._seconds = limits.event
        self._forget = forget
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)

    @property
    def alive(self) -> bool:
        """Whether it could still answer."""
        return self._process.alive

    async def open(self, role: str, parameters: Mapping[str, Value] | None = None, *, seed: str | None = None) -> Session:
        """A session in one of the manifest's roles; its first event has to be `Opened`.

        `parameters`: what the two sides agreed on, JSON values; `local`, `peer` and `seed` are filled in. `seed`: 32 hex
        digits, drawn here unless a transcript needs a certain one. Raises `Refused` (`session.role`) and what
        `Session.handle` raises.
        """
        known = self.package.manifest.roles.get(role)
        if known is None:
            raise Refused(
                "session.role",
                f"This protocol has no role {printable(role, 80)}.",
                fix=f"It has: {', '.join(self.package.manifest.roles)}.",
            )
        own = {"local": self.local, "peer": self.peers[0], "seed": seed or secrets.token_hex(16)}
        full = {**(parameters or {}), **own}
        measure(full, "session.parameters", "The parameters")
        rules = SessionRules(known, self._operations, self.peers)
        async with self._turn:
            number = await self._open(role, full, b"")
        return Session(self, number, rules, full)

    async def encode(self, message: Value) -> bytes:
        """The wire form of a message. Raises `Malformed` (`handler.rejected`) and what `Session.handle` raises."""
        measure(message, "handler.rejected", "The message")
        async with self._turn:
            return await self._ask("bytes", bytes, "encode", message)

    async def decode(self, data: bytes) -> Value:
        """The message in these bytes, a JSON value. Raises as `encode` does."""
        async with self._turn:
            message = await self._ask("value", object, "decode", data)
        measure(message, "handler.rejected", "The decoded message")
        return message

    async def validate(self, message: Value, sender: str) -> list[str]:
        """What is wrong with a message that the role `sender` sent, a printable sentence each. Raises as `encode` does."""
        measure(message, "handler.rejected", "The message")
        async with self._turn:
            issues = await self._ask("issues", list[str], "validate", message, sender)
        return [printable(issue, _MAX_ISSUE_TEXT) for issue in issues[:_MAX_ISSUES]]

    def kill(self) -> None:
        """End the process at once; `close` is still to be awaited."""
        self._process.kill()

    async def close(self) -> None:
        """End the process and wait until it is gone. May be called again."""
        await self._process.close()
        self._forget(self)

    async def _open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes) -> int:
        number = next(self._numbers)
        await self._exchange("done", "open", number, role, parameters, snapshot)
        return number

    async def _ask(self, kind: str, expected: type[_T], *request: object) -> _T:
        """One request, while `_turn` is held: the field of a reply of this kind, of the expected type."""
        fields = await self._exchange(kind, *request)
        try:
            return msgspec.msgpack.decode(fields[0], type=expected)
        except (IndexError, msgspec.DecodeError, RecursionError) as error:
            raise self._offence() from error

    async def _exchange(self, kind: str, *request: object) -> list[msgspec.Raw]:
        reply = await self._process.request(*request, seconds=self._seconds)
        if reply.kind != kind:
            raise self._offence()
        return reply.fields

    def _offence(self) -> Refused:
        offence = Refused("handler.reply", "The handler's reply is not of the kind that its request has.")
        self._process.kill(offence)
        return offence


class Session:
    """One conversation in one role, in a worker or at rest. Made by `Worker.open`."""

    def __init__(self, worker: Worker, number: int, rules: SessionRules, parameters: Mapping[str, Value]) -> None:
        self._worker: Worker | None = worker
        self._number = number
        self._rules = rules
        self._parameters = parameters
        self._home = worker.package.digest, worker.local, worker.peers

    @property
    def role(self) -> str:
        """The role on this side."""
        return self._rules.role.name

    @property
    def ended(self) -> bool:
        """Whether the handler said `End`, or it saw `Close`. No event follows."""
        return self._rules.ended

    @property
    def pending_calls(self) -> tuple[str, ...]:
        """Calls that have no `Return` yet. When the session ends or its worker dies, they have failed."""
        return self._rules.pending_calls

    async def handle(self, event: Event) -> list[Effect]:
        """Let the session see an event; what it returns may happen, in this order.

        A `Timer` that was cancelled or replaced meanwhile gives no effects. Raises

        - `Malformed` `operation.arguments`, `operation.result`, `TooLarge` `session.message`, `Refused` `session.…`: the
        event was not
          delivered, nothing changed (answer a bad result with `Result(error=Failure(code=500))`);
        - `Refused` `handler.effect-…`, `handler.raised`, `handler.type`, `handler.reply`, `Unavailable` `sandbox.timeout`,
        `sandbox.memory`,
          `sandbox.died`: the worker is dead, and none of the event's effects may happen;
        - `ValueError`: the session is at rest.
        """
        async with self._awake() as worker:
            if not self._rules.enter(event):
                return []
            fields = await worker._exchange("effects", "event", self._number, *framing.event_parts(event))
            try:
                return self._rules.leave(event, framing.decode_effects(fields))
            except ValueError as error:
                raise worker._offence() from error
            except TreatyError as error:
                worker._process.kill(error)
                raise

    async def rest(self) -> bytes:
        """Leave the worker, which goes on without this session. Returns all that the handler knows of it, at most
        `MAX_SNAPSHOT` bytes, for `resume`; what is pending (calls, timers, what is stored) stays here.

        Raises `Refused` (`session.snapshot`) when the handler has no such snapshot: the session stands as before. Any other
        error is one of `handle`: the worker is dead.
        """
        async with self._awake() as worker:
            snapshot = await worker._ask("bytes", bytes, "snapshot", self._number, MAX_SNAPSHOT)
            if len(snapshot) > MAX_SNAPSHOT:
                raise worker._offence()
            await worker._exchange("done", "close", self._number)
            self._worker = None
        return snapshot

    async def resume(self, worker: Worker, snapshot: bytes) -> None:
        """Go on from there, in a worker of the same package, identity and peers. Raises as `handle` does; then it is still at
        rest."""
        if self._worker is not None:
            raise ValueError("the session has a worker")
        self._check_home(worker)
        async with worker._turn:
            self._number = await worker._open(self.role, self._parameters, snapshot)
        self._worker = worker

    async def move(self, worker: Worker) -> None:
        """Go on in another worker. Raises as `rest` does, and as `resume`; then the session is lost."""
        self._check_home(worker)
        await self.resume(worker, await self.rest())

    async def close(self) -> None:
        """Drop the session from its worker, which goes on. Never raises. To let it say goodbye, `handle(Close())` first."""
        self._rules.ended = True
        worker = self._worker
        if worker is None:
            return
        async with worker._turn:
            if worker.alive:
                with contextlib.suppress(TreatyError):  # the worker died of it; there is nothing left to close
                    await worker._exchange("done", "close", self._number)

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncIterator[Worker]:
        """The session's worker, in its turn."""
        worker = self._worker
        if worker is not None:
            async with worker._turn:
                if self._worker is worker:
                    yield worker
                    return
        raise ValueError("the session is at rest")

    def _check_home(self, worker: Worker) -> None:
        if (worker.package.digest, worker.local, worker.peers) != self._home:
            raise ValueError("a session moves among workers of one package, identity and peers")
