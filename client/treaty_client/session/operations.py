"""Business logic: the plain functions that stand behind a protocol's operations, and how an operation fails.

    @agent.provides("https://registry.example/protocols/example.com/product-info/1.0")
    async def getProductInfo(productId: str) -> dict:
        if productId not in catalogue:
            raise OperationError(404, "There is no such product.")
        return catalogue[productId]

A function's name is its operation, its keyword arguments are the operation's. It may be `async` or not; those that are not run in
threads. It returns a JSON value that satisfies the operation's schema, or raises `OperationError` with a code that the protocol
lists. At the other end `Session.call` returns that value, or raises an `OperationError` of the same status and message.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.handler import Manifest, Operation, Role
from treaty_handler import Failure, Result, Value

MAX_THREADS = 16
_log = logging.getLogger(__name__)

Function = Callable[..., Any]


class OperationError(TreatyError):
    """An operation failed, and the protocol has a word for it. `status`: 100 to 599 as in HTTP, else the protocol's own; `code`
    is
    `operation.STATUS`."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(f"operation.{status}", message or f"The operation failed with status {status}.")
        self.status = status


def choose_role(manifest: Manifest, *, calling: bool, wanted: str | None) -> Role:
    """The role of one side: the `wanted` one, else the only role that has calls (`calling`) or invokes business logic (not).

    Raises `Refused` (`session.role`) when there is no such role, or more than one.
    """
    fitting = [role for role in manifest.roles.values() if (role.calls if calling else role.invokes)]
    found = [role for role in manifest.roles.values() if role.name == wanted] if wanted else fitting
    if len(found) != 1:
        raise Refused(
            "session.role",
            f"{manifest.protocol_uri} has no role {wanted!r}." if wanted else f"{manifest.protocol_uri} leaves the role open.",
            fix=f"Name one of its roles: {', '.join(manifest.roles)}.",
        )
    return found[0]


class Functions:
    """The functions behind the operations of one protocol. For one event loop."""

    def __init__(self) -> None:
        self._functions: dict[str, Function] = {}
        self._threads: ThreadPoolExecutor | None = None

    def add(self, function: Function) -> None:
        """Register a function under its name. Raises `Malformed` (`agent.function`) when the name is taken or it has none."""
        name = getattr(function, "__name__", "")
        if not name.isidentifier() or name in self._functions:
            raise Malformed(
                "agent.function",
                f"{name or function!r} cannot be registered: an operation is served by one function that bears its name.",
            )
        self._functions[name] = function

    @property
    def names(self) -> tuple[str, ...]:
        """The operations that are served."""
        return tuple(self._functions)

    def missing(self, operations: Iterable[str]) -> list[str]:
        """Which of the operations no function serves."""
        return [name for name in operations if name not in self._functions]

    async def call(self, call: str, operation: Operation, arguments: Mapping[str, Value]) -> Result:
        """Run the function of an operation for at most the operation's timeout. Whatever goes wrong is the result; never
        raises."""
        try:
            async with asyncio.timeout(operation.timeout):
                return Result(call=call, value=await self._run(operation.name, arguments))
        except OperationError as error:
            failure = Failure(code=error.status, message=error.message[:500])
        except TimeoutError:
            failure = Failure(code=504, message=f"No answer came within {operation.timeout} seconds.")
        except Exception:
            # Foreign to this library, and not to be told to the peer: whatever it says may be confidential.
            _log.exception("The function %s raised", operation.name)
            failure = Failure(code=500, message="The other side's business logic failed.")
        return Result(call=call, error=failure)

    def close(self) -> None:
        """Let go of the threads; what still runs in them is not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, name: str, arguments: Mapping[str, Value]) -> Value:
        function = self._functions[name]
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="treaty-operation")
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(**arguments))
