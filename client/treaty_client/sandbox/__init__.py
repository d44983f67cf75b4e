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

from .bubblewrap import Isolation, SandboxLimits
from .code_cache import CodeCache
from .handler_session import HandlerSession, Worker
from .interface import LoadedHandler, LoadedSession
from .pool import SandboxPool
from .vectors import Mismatch, Vector, parse_vector, run_vectors

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
