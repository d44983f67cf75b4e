"""Run the functions of an application: handlers of a session, and the function behind a tool."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from treaty_agent import OperationError
from treaty_consensus.printable import printable

from .messages import AgentMessage


def public_text(error: Exception) -> str:
    """Return the text of an application's failure for other agents.

    It is the message of an `OperationError`, which is written for them. Of any other exception it is the type: its text may hold
    internals, and belongs into the own log.
    """
    return printable(error.message if isinstance(error, OperationError) else f"{type(error).__name__} in the application.", 500)


async def invoke_all(handlers: Sequence[Callable[..., Any]], message: AgentMessage) -> list[Any]:
    """Run the handlers side by side, and wait for all; their results in order.

    If some raise, all are waited for, and then the first exception in the order of the handlers is raised.
    """
    outcomes = await asyncio.gather(*(_invoke(handler, message) for handler in handlers), return_exceptions=True)
    for result in outcomes:
        if isinstance(result, BaseException):
            raise result
    return list(outcomes)


async def _invoke(handler: Callable[..., Any], message: AgentMessage) -> Any:
    arguments = (message,) if _takes_one(handler) else ()
    return await run(handler, *arguments)


async def run(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Call a function: a coroutine here, any other in a thread, so that it holds up nothing."""
    if inspect.iscoroutinefunction(inspect.unwrap(getattr(function, "func", function))):
        return await function(*arguments, **named)
    result = await asyncio.to_thread(function, *arguments, **named)
    return await result if inspect.isawaitable(result) else result


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function has a positional parameter that must or may be given. One of `functools.partial` may have none left."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return True  # a builtin without a signature
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return any(parameter.kind in positional for parameter in parameters)
