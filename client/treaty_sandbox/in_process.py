"""Run the sessions of protocols without code in this process.

Such a package is data: message forms, which `treaty_handler.declarative`, a part of the agent, interprets. So there is nothing to
isolate. Events and effects are checked as those of a sandboxed handler, so a fault of the interpreter has no other effect than
a fault of a handler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.handler import MANIFEST_NAME, HandlerPackage
from treaty_consensus.printable import printable
from treaty_handler import Audit, Effect, Event, Handler, Received, Session, Value
from treaty_handler.declarative import Check, handler
from treaty_handler.declarative.provider import MAX_OPEN
from treaty_io.codes import ClientHandlerCode, SessionCode

from .handler_session import find_role, session_parameters
from .kept_session import KeptSession
from .operation_schemas import Operations
from .schemas import ValidationBudget, measure
from .validation import MAX_SNAPSHOT, SessionRules

# Sentences about a foreign message, as long as those of a sandboxed handler.
_MAX_ISSUE_TEXT = 500
MAX_IGNORED = 32
"""Messages of a peer that may be ignored in a session. Each message that has an effect makes up for one: an answer may come late,
but junk costs this process more than its sender."""


class CompiledPackage:
    """A package whose handler runs in this process. It is compiled once for all its sessions."""

    def __init__(self, package: HandlerPackage, operations: Operations, handler: Handler) -> None:
        """Set a handler of the package. `testing` has the only one that is foreign code."""
        self.package, self.operations, self.handler = package, operations, handler
        self.max_ignored: float = math.inf
        """Messages of a peer that may lead to nothing but notes."""


class DeclarativePackage(CompiledPackage):
    """A package without code."""

    def __init__(self, package: HandlerPackage, operations: Operations) -> None:
        """Compile the forms. `package`: a declarative one."""
        # The rules of manifests hold for it. Those of messages do not: a schema may have a larger integer.
        manifest = json.loads(package.files[f"{package.package}/{MANIFEST_NAME}"])
        super().__init__(package, operations, handler(manifest, _check(package, operations)))
        self.max_ignored = MAX_IGNORED


class LocalWorker:
    """Implement `LoadedHandler` without a process."""

    def __init__(self, compiled: CompiledPackage, local: str, peers: Sequence[str]) -> None:
        """Use `SandboxPool.load` instead."""
        self.package = compiled.package
        self.local, self.peers = local, tuple(peers)
        self._compiled = compiled

    @property
    def alive(self) -> bool:
        """Return True: there is no process that could die."""
        return True

    async def open(
        self,
        role: str,
        parameters: Mapping[str, Value] | None = None,
        *,
        seed: str | None = None,
        kept: KeptSession | None = None,
    ) -> LocalSession:
        """Open a session. `kept`: the one to go on with. Raises `Refused` (`session.role`) and `Malformed` (`agent.call`)."""
        role_rules, seed = find_role(self.package, role), kept.seed if kept else seed
        rules = SessionRules(role_rules, self._compiled.operations, self.peers)
        if kept is not None:
            rules.restore(kept)
        full = session_parameters(self.local, "" if role_rules.is_shared else self.peers[0], parameters or {}, seed)
        # One member must not end a session of many.
        most = math.inf if role_rules.is_shared else self._compiled.max_ignored
        start = partial(self._compiled.handler.open, role, full)
        return LocalSession(rules, start, full["seed"], kept.snapshot if kept else b"", max_ignored=most)

    async def encode(self, message: Value) -> bytes:
        measure(message, ClientHandlerCode.REJECTED, "The message")
        try:
            return self._compiled.handler.encode(message)
        except ValueError as error:
            raise _rejected(error) from error

    async def decode(self, data: bytes) -> Value:
        try:
            return self._compiled.handler.decode(data)
        except ValueError as error:
            raise _rejected(error) from error

    async def validate(self, message: Value, sender: str) -> list[str]:
        measure(message, ClientHandlerCode.REJECTED, "The message")
        return [printable(issue, _MAX_ISSUE_TEXT) for issue in self._compiled.handler.validate(message, sender)]

    async def close(self) -> None:
        pass


class LocalSession:
    """Implement `LoadedSession`. Made by `LocalWorker.open`."""

    def __init__(
        self, rules: SessionRules, start: Callable[[bytes], Session], seed: str, snapshot: bytes, *, max_ignored: float = math.inf
    ) -> None:
        self._rules, self._start, self._seed, self._max_ignored = rules, start, seed, max_ignored
        self._session = start(snapshot)
        self._ignored = 0

    @property
    def role(self) -> str:
        """Return the local role."""
        return self._rules.role.name

    @property
    def ended(self) -> bool:
        """Return whether no event follows."""
        return self._rules.ended

    @property
    def pending_calls(self) -> tuple[str, ...]:
        """Return the ids of calls without a `Return`."""
        return self._rules.pending_calls

    @property
    def kept(self) -> KeptSession | None:
        """Return the session after its last event, as `HandlerSession.kept` does."""
        if self.ended or not self._rules.role.is_shared:
            return None
        snapshot = self._session.snapshot()
        return self._rules.keep(self._seed, snapshot) if len(snapshot) <= MAX_SNAPSHOT else None

    async def handle(self, event: Event) -> list[Effect]:
        if not self._rules.enter(event):
            return []
        try:
            effects = self._rules.leave(event, self._session.handle(event))
            if type(event) is Received:
                self._count_ignored(effects)
            return effects
        except TreatyError:
            # The session's state assumes that its effects happened. They did not, so the session cannot go on.
            self._rules.ended = True
            raise

    def _count_ignored(self, effects: list[Effect]) -> None:
        """Note whether a message was ignored. Raises `Refused` (`session.ignored`) if too many were."""
        # With so many functions open, an event is left out because this side is slow.
        if not effects or self._rules.open_invokes >= MAX_OPEN:
            return
        is_ignored = all(type(effect) is Audit for effect in effects)
        self._ignored = max(0, self._ignored + (1 if is_ignored else -1))
        if self._ignored > self._max_ignored:
            raise Refused(SessionCode.IGNORED, f"More than {self._max_ignored} messages of the peer are none of the protocol.")

    async def move(self, worker: object) -> None:
        """Continue from a snapshot. Raises `Refused` (`session.snapshot`); then the session is unchanged."""
        snapshot = self._session.snapshot()
        if len(snapshot) > MAX_SNAPSHOT:
            raise Refused(SessionCode.SNAPSHOT, f"The session's state has {len(snapshot)} bytes; {MAX_SNAPSHOT} is the most.")
        self._session = self._start(snapshot)

    async def branch(self) -> LocalSession:
        """Return another session that continues from here."""
        rules, snapshot = self._rules.copy(), self._session.snapshot()
        return LocalSession(rules, self._start, self._seed, snapshot, max_ignored=self._max_ignored)

    async def close(self) -> None:
        self._rules.ended = True


def _check(package: HandlerPackage, operations: Operations) -> Check:
    """Return the check of values for the interpreter. Each value has a budget of its own."""

    def check(name: str, schema: str, value: Value) -> str:
        operation = package.manifest.operations[name]
        checked = operations.check_arguments if schema == "arguments" else operations.check_value
        try:
            checked(operation, value, ValidationBudget())
        except Malformed as error:
            return error.message
        return ""

    return check


def _rejected(error: ValueError) -> Malformed:
    return Malformed(ClientHandlerCode.REJECTED, f"The handler rejected the message: {printable(str(error), _MAX_ISSUE_TEXT)}.")
