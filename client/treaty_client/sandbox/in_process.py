"""Run the sessions of protocols without code in this process.

Such a package is data: message forms, which `treaty_handler.declarative`, a part of the agent, interprets. So there is nothing to
isolate. Events and effects are checked as those of a sandboxed handler, so a fault of the interpreter has no other effect than
a fault of a handler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.handler import MANIFEST_NAME, HandlerPackage
from treaty_consensus.printable import printable
from treaty_handler import Effect, Event, Handler, Session, Value
from treaty_handler.declarative import Check, handler

from ..codes import ClientHandlerCode, SessionCode
from .handler_session import find_role, session_parameters
from .operation_schemas import Operations
from .schemas import ValidationBudget, measure
from .validation import MAX_SNAPSHOT, SessionRules

# Sentences about a foreign message, as long as those of a sandboxed handler.
_MAX_ISSUE_TEXT = 500


class CompiledPackage:
    """A package whose handler runs in this process. It is compiled once for all its sessions."""

    def __init__(self, package: HandlerPackage, operations: Operations, handler: Handler) -> None:
        """Set a handler of the package. `testing` has the only one that is foreign code."""
        self.package, self.operations, self.handler = package, operations, handler


class DeclarativePackage(CompiledPackage):
    """A package without code."""

    def __init__(self, package: HandlerPackage, operations: Operations) -> None:
        """Compile the forms. `package`: a declarative one."""
        # The rules of manifests hold for it. Those of messages do not: a schema may have a larger integer.
        manifest = json.loads(package.files[f"{package.package}/{MANIFEST_NAME}"])
        super().__init__(package, operations, handler(manifest, _check(package, operations)))


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

    async def open(self, role: str, parameters: Mapping[str, Value] | None = None, *, seed: str | None = None) -> LocalSession:
        """Open a session. Raises `Refused` (`session.role`) and `Malformed` (`session.parameters`)."""
        known = find_role(self.package, role)
        rules = SessionRules(known, self._compiled.operations, self.peers)
        full = session_parameters(self.local, "" if known.is_shared else self.peers[0], parameters or {}, seed)
        return LocalSession(rules, lambda snapshot: self._compiled.handler.open(role, full, snapshot))

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

    def __init__(self, rules: SessionRules, start: Callable[[bytes], Session]) -> None:
        self._rules, self._start = rules, start
        self._session = start(b"")

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

    async def handle(self, event: Event) -> list[Effect]:
        if not self._rules.enter(event):
            return []
        try:
            return self._rules.leave(event, self._session.handle(event))
        except TreatyError:
            # The session's state assumes that its effects happened. They did not, so the session cannot go on.
            self._rules.ended = True
            raise

    async def move(self, worker: object) -> None:
        """Continue from a snapshot. Raises `Refused` (`session.snapshot`); then the session is unchanged."""
        snapshot = self._session.snapshot()
        if len(snapshot) > MAX_SNAPSHOT:
            raise Refused(SessionCode.SNAPSHOT, f"The session's state has {len(snapshot)} bytes; {MAX_SNAPSHOT} is the most.")
        self._session = self._start(snapshot)

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
