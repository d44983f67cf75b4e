"""Run handlers, those with code in sandboxed workers, and check each effect before it happens.

    pool, code_cache                load a verified package into a worker
    handler_session                 run the sessions of a loaded worker
    in_process                      run the sessions of packages without code, outside of any sandbox
    validation, schemas             check events, effects and values against the manifest
    process, bubblewrap             start and end one worker process
    interpreter                     the files that a worker can see
    worker                          the program that runs inside the sandbox
    interface, runtime, passivation the sandbox as an agent uses it; idle sessions give their workers up
    vectors, recorder               replay recorded sessions, and record them

The usual path is `SandboxPool.load` → `Worker.open` → `HandlerSession.handle`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bubblewrap import Isolation, SandboxLimits
    from .code_cache import CodeCache
    from .handler_session import HandlerSession, Worker
    from .interface import LoadedHandler, LoadedSession
    from .pool import SandboxPool
    from .vectors import Mismatch, Vector, parse_vector, run_vectors
else:
    # On first use, so that a registry reads vectors without the libraries of a sandbox.
    _MODULES = {
        "CodeCache": ".code_cache",
        "HandlerSession": ".handler_session",
        "Isolation": ".bubblewrap",
        "LoadedHandler": ".interface",
        "LoadedSession": ".interface",
        "Mismatch": ".vectors",
        "SandboxLimits": ".bubblewrap",
        "SandboxPool": ".pool",
        "Vector": ".vectors",
        "Worker": ".handler_session",
        "parse_vector": ".vectors",
        "run_vectors": ".vectors",
    }

    def __getattr__(name: str) -> object:
        """Import a name at its first use."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
        return value


__all__ = [
    "CodeCache",
    "HandlerSession",
    "Isolation",
    "LoadedHandler",
    "LoadedSession",
    "Mismatch",
    "SandboxLimits",
    "SandboxPool",
    "Vector",
    "Worker",
    "parse_vector",
    "run_vectors",
]
