"""The path of a method in a class of generated stubs."""

from __future__ import annotations

from typing import Any

from treaty_agent import OperationError

from .handler.fields import CONVERSATIONS


class _PathChannel:
    """A channel that gives the path instead of a call."""

    def _path(self, path: str, *_: Any, **__: Any) -> str:
        return path

    unary_unary = unary_stream = stream_unary = stream_stream = _path


def path_in(stub: Any, method: str) -> str:
    """Return the path that a class of stubs uses for a method. Raises `OperationError` (400) if it has none."""
    path = getattr(stub(_PathChannel()), method, None)
    if not isinstance(path, str):
        raise OperationError(400, f"{stub.__name__} has no method {method}.")
    return path


def method_of(stub: Any, method: str) -> str:
    """Return the method's name in the protocol. Raises `OperationError` (400) if it is none between agents."""
    name = path_in(stub, method).rpartition("/")[2]
    if name not in CONVERSATIONS:
        raise OperationError(400, f"{name} is no stream between agents.")
    return name
