"""Run sessions of a handler in a loaded worker: check each event, deliver it, and check the effects."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.handler import HandlerPackage, Role
from treaty_consensus.printable import printable
from treaty_handler import Effect, Event, Value
from treaty_io.codes import AgentCode, ClientHandlerCode, SandboxCode, SessionCode

from .kept_session import KeptSession
from .limits import SandboxLimits
from .operation_schemas import Operations
from .process import WorkerProcess
from .schemas import measure
from .validation import MAX_SNAPSHOT, SessionRules
from .worker import framing

_T = TypeVar("_T")
# A handler chooses number and length of these texts. The host prints at most so much of them.
_MAX_ISSUES = 100
_MAX_ISSUE_TEXT = 500


class SessionOpening(NamedTuple):
    """A session to be opened: the request to the worker, and the session once the worker has answered `done`."""

    request: tuple[object, ...]
    opened: Callable[[], HandlerSession]


class Worker:
    """A process that has imported one package, for one local identity and its peers.

    Its methods and its sessions may be used concurrently; calls are served in the order of their arrival. After any error except
    `Malformed`, `TooLarge` and `session.…` the process and all its sessions are dead. Load another worker then.
    """

    def __init__(
        self,
        process: WorkerProcess,
        package: HandlerPackage,
        operations: Operations,
        limits: SandboxLimits,
        local: str,
        peers: Sequence[str],
        forget: Callable[[Worker], None],
    ) -> None:
        """Use `SandboxPool.load` instead. `forget`: called when the process is gone."""
        self.package = package
        self.local = local
        self.peers = tuple(peers)
        self.failed = False  # whether the process was dead when it was closed
        self._process = process
        self._operations = operations
        self._seconds = limits.event
        self._forget = forget
        self._turn = asyncio.Lock()  # the pipe carries one request at a time
        self._numbers = itertools.count(1)

    @property
    def alive(self) -> bool:
        """Return whether the worker can still answer."""
        return self._process.alive

    async def open(self, role: str, parameters: Mapping[str, Value] | None = None, *, seed: str | None = None) -> HandlerSession:
        """Open a session in one of the manifest's roles. Its first event must be `Opened`.

        `parameters`: the agreed JSON values; `local`, `peer` and `seed` are added here. `seed`: 32 hex digits; random unless a
        transcript needs a fixed one. Raises `Refused` (`session.role`) and the errors of `HandlerSession.handle`.
        """
        opening = self.opening(role, parameters, seed=seed)
        async with self._turn:
            await self._exchange("done", *opening.request)
        return opening.opened()

    def opening(
        self,
        role: str,
        parameters: Mapping[str, Value] | None = None,
        *,
        seed: str | None = None,
        kept: KeptSession | None = None,
    ) -> SessionOpening:
        """Return the request that `open` makes, for a caller that makes it. `kept`: the session to go on with. Raises `Refused`
        (`session.role`) and `Malformed` (`agent.call`)."""
        role_rules = find_role(self.package, role)
        full = session_parameters(
            self.local, "" if role_rules.is_shared else self.peers[0], parameters or {}, kept.seed if kept else seed
        )
        number, rules = next(self._numbers), SessionRules(role_rules, self._operations, self.peers)
        if kept is not None:
            rules.restore(kept)
        session = HandlerSession(self, number, rules, full, kept.snapshot if kept else None)
        return SessionOpening(("open", number, role, full, kept.snapshot if kept else b""), lambda: session)

    async def encode(self, message: Value) -> bytes:
        """Return the wire form of a message. Raises `Malformed` (`handler.rejected`) and as `HandlerSession.handle`."""
        measure(message, ClientHandlerCode.REJECTED, "The message")
        async with self._turn:
            return await self._ask("bytes", bytes, "encode", message)

    async def decode(self, data: bytes) -> Value:
        """Return the message in these bytes, a JSON value. Raises the errors of `encode`."""
        async with self._turn:
            message = await self._ask("value", object, "decode", data)
        measure(message, ClientHandlerCode.REJECTED, "The decoded message")
        return message

    async def validate(self, message: Value, sender: str) -> list[str]:
        """Return the faults of a message that the role `sender` sent, as printable sentences. Raises the errors of `encode`."""
        measure(message, ClientHandlerCode.REJECTED, "The message")
        async with self._turn:
            issues = await self._ask("issues", list[str], "validate", message, sender)
        return [printable(issue, _MAX_ISSUE_TEXT) for issue in issues[:_MAX_ISSUES]]

    def kill(self) -> None:
        """End the process at once. The caller still has to await `close`."""
        self._process.kill()

    async def close(self) -> None:
        """End the process and wait until it is gone. May be called again."""
        self.failed = self.failed or not self._process.alive
        await self._process.close()
        self._forget(self)

    async def _open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes) -> int:
        number = next(self._numbers)
        await self._exchange("done", "open", number, role, parameters, snapshot)
        return number

    async def _ask(self, kind: str, expected: type[_T], *request: object) -> _T:
        """Make one request and return the field of its reply, which must have this kind and type. The caller holds `_turn`."""
        fields = await self._exchange(kind, *request)
        try:
            return msgspec.msgpack.decode(fields[0], type=expected)
        except (IndexError, msgspec.DecodeError, RecursionError) as error:
            raise self.offence() from error

    async def _exchange(self, kind: str, *request: object) -> list[msgspec.Raw]:
        reply = await self._process.request(*request, seconds=self._seconds)
        if reply.kind != kind:
            raise self.offence()
        return reply.fields

    def offence(self) -> Refused:
        """End the process for a reply of another kind than its request has, and return the error."""
        offence = Refused(ClientHandlerCode.FAILED, "The handler's reply is not of the kind that its request has.")
        self._process.kill(offence)
        return offence


def find_role(package: HandlerPackage, role: str) -> Role:
    """Return a role of the manifest. Raises `Refused` (`session.role`)."""
    role_rules = package.manifest.roles.get(role)
    if role_rules is None:
        raise Refused(
            SessionCode.ROLE,
            f"This protocol has no role {printable(role, 80)}.",
            fix=f"It has: {', '.join(package.manifest.roles)}.",
        )
    return role_rules


def session_parameters(local: str, peer: str, agreed: Mapping[str, Value], seed: str | None) -> dict[str, Value]:
    """Return the parameters for `Handler.open`. Raises `Malformed` (`agent.call`)."""
    # After the agreed parameters, so that a peer cannot agree on another `local`, `peer` or `seed`. The seed replaces
    # randomness, which the sandbox does not give, so that a session can be replayed.
    full = {**agreed, "local": local, "peer": peer, "seed": seed or secrets.token_hex(16)}
    # Before the handler gets them: parameters of a negotiation come from the peer.
    measure(full, AgentCode.CALL, "The parameters")
    return full


class HandlerSession:
    """One session in one role, in a worker or at rest. Made by `Worker.open`."""

    def __init__(
        self, worker: Worker, number: int, rules: SessionRules, parameters: Mapping[str, Value], snapshot: bytes | None
    ) -> None:
        self._worker: Worker | None = worker
        self._number = number
        self._rules = rules
        self._parameters = parameters
        self._home = worker.package.digest, worker.local, worker.peers
        self._snapshot = snapshot

    @property
    def role(self) -> str:
        """Return the local role."""
        return self._rules.role.name

    @property
    def ended(self) -> bool:
        """Return whether the handler returned `End` or got `Close`. No event follows."""
        return self._rules.ended

    @property
    def pending_calls(self) -> tuple[str, ...]:
        """Return the ids of calls without a `Return`. When the session ends or its worker dies, these calls have failed."""
        return self._rules.pending_calls

    @property
    def has_calls(self) -> bool:
        """Return whether a call has no `Return`, or an invoked function no `Result`."""
        return self._rules.has_calls

    @property
    def snapshot(self) -> bytes | None:
        """Return the snapshot after the last event, or None: of a shared role, whose session goes on when its worker dies."""
        return self._snapshot

    @property
    def kept(self) -> KeptSession | None:
        """Return the session after its last event, or None without a snapshot, or when it has ended."""
        if self._snapshot is None or self.ended:
            return None
        return self._rules.keep(self._parameters["seed"], self._snapshot)

    async def handle(self, event: Event) -> list[Effect]:
        """Deliver an event and return its effects, which may happen, in this order.

        An event that is outdated gives no effects: a `Timer` that was cancelled or replaced, a `Requested` or `Cancelled` of a
        call that has its `Return`. Raises

        - `Malformed` (`operation.arguments`, `operation.result`), `TooLarge` (`session.message`), `Refused` (`session.…`): the
          event was not delivered and the session is unchanged. Answer a bad result with `Result(error=Failure(code=500))`.
        - `Refused` (`handler.failed`), `Unavailable` (`sandbox.limit`, `sandbox.died`): the worker is dead, and none of the
          event's effects may happen. After `Unavailable` a session with a `snapshot` is at rest, as before the event.
        - `ValueError`: the session is at rest.
        """
        async with self._awake() as worker:
            if not self._rules.role.is_shared:
                return await self._deliver(worker, event)
            before = self._rules.copy()
            try:
                effects = await self._deliver(worker, event)
                # Before the effects: without it an event that happened would be forgotten with its worker.
                self._snapshot = await self._copied(worker)
            except Unavailable as error:
                if self._snapshot is not None and error.code in (SandboxCode.DIED, SandboxCode.LIMIT):
                    self._rules, self._worker = before, None
                raise
            return effects

    async def _deliver(self, worker: Worker, event: Event) -> list[Effect]:
        # Inside the turn, so that rules and handler see the events of concurrent callers in the same order.
        if not self._rules.enter(event):
            return []
        fields = await worker._exchange("effects", "event", self._number, *framing.event_parts(event))
        try:
            # All effects are checked before the first one is returned: a refused event happens as a whole or not at all.
            return self._rules.leave(event, framing.decode_effects(fields))
        except ValueError as error:
            raise worker.offence() from error
        except TreatyError as error:
            # The handler's state assumes that its effects happened. They did not, so the session cannot go on.
            worker._process.kill(error)
            raise

    async def _copied(self, worker: Worker) -> bytes | None:
        """Return a snapshot of the session, which goes on; None if the handler has none now."""
        try:
            return self._bounded(worker, await worker._ask("bytes", bytes, "copy", self._number, MAX_SNAPSHOT))
        except Refused as error:
            if error.code != SessionCode.SNAPSHOT:
                raise
            return None

    def _bounded(self, worker: Worker, snapshot: bytes) -> bytes:
        # The worker got the limit, but a handler can write to the pipe itself.
        if len(snapshot) > MAX_SNAPSHOT:
            raise worker.offence()
        return snapshot

    async def rest(self) -> bytes:
        """Leave the worker and return the handler's snapshot, at most `MAX_SNAPSHOT` bytes, for `resume`.

        Pending calls, timers and stored values stay in this object. The worker continues without the session. Raises `Refused`
        (`session.snapshot`) if the handler has no snapshot; then the session is unchanged. Raises the errors of `handle` too;
        then the worker is dead.
        """
        async with self._awake() as worker:
            if self._snapshot is not None:
                # It is that of now. The worker may have died; if it lives, the caller ends it.
                self._worker = None
                return self._snapshot
            # With its snapshot the worker forgets the session.
            snapshot = self._bounded(worker, await worker._ask("bytes", bytes, "snapshot", self._number, MAX_SNAPSHOT))
            self._worker = None
        return snapshot

    async def resume(self, worker: Worker, snapshot: bytes) -> None:
        """Continue from a snapshot, in a worker of the same package, identity and peers.

        Raises the errors of `handle`; then the session is still at rest.
        """
        if self._worker is not None:
            raise ValueError("the session has a worker")
        self._check_home(worker)
        async with worker._turn:
            self._number = await worker._open(self.role, self._parameters, snapshot)
        self._worker = worker

    async def move(self, worker: Worker) -> None:
        """Continue in another worker. Raises the errors of `rest`, and those of `resume`, after which the session is lost."""
        self._check_home(worker)
        await self.resume(worker, await self.rest())

    async def branch(self) -> HandlerSession:
        """Return another session in the same worker that continues from here. Raises the errors of `rest`; then this session is
        unchanged, or the worker dead."""
        async with self._awake() as worker:
            snapshot = self._bounded(worker, await worker._ask("bytes", bytes, "copy", self._number, MAX_SNAPSHOT))
            number = await worker._open(self.role, self._parameters, snapshot)
        return HandlerSession(worker, number, self._rules.copy(), self._parameters, self._snapshot)

    async def close(self) -> None:
        """Remove the session from its worker, which continues. Never raises.

        Call `handle(Close())` before, if the handler should send a last message.
        """
        self._rules.ended = True
        worker = self._worker
        if worker is None:
            return
        async with worker._turn:
            if worker.alive:
                with contextlib.suppress(TreatyError):  # the worker died, and the session with it
                    await worker._exchange("done", "close", self._number)

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncIterator[Worker]:
        """Hold the session's worker for one request. Raises `ValueError` at rest."""
        worker = self._worker
        if worker is not None:
            async with worker._turn:
                if self._worker is worker:  # `rest` may have run while this call waited
                    yield worker
                    return
        raise ValueError("the session is at rest")

    def _check_home(self, worker: Worker) -> None:
        if (worker.package.digest, worker.local, worker.peers) != self._home:
            raise ValueError("a session moves among workers of one package, identity and peers")
