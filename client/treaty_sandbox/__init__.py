"""Run handlers, those with code in sandboxed workers, and check each effect before it happens.

    pool, code_cache                load a verified package into a worker
    handler_session                 run the sessions of a loaded worker
    in_process                      run the sessions of packages without code, outside of any sandbox
    validation, schemas             check events, effects and values against the manifest
    process, strongest, levels      start and end one worker process at a level of isolation
    interpreter                     the files that a worker can see
    worker                          the program that runs inside the sandbox
    interface, runtime, passivation the sandbox as an agent uses it; idle sessions give their workers up
    vectors, recorder               replay recorded sessions, and record them
    compatibility, vector_calls     compare two versions: schemas, and sessions of one with the other
    hostile, mutations              replay vectors with the messages of a hostile peer

The usual path is `SandboxPool.load` → `Worker.open` → `HandlerSession.handle`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treaty_io.extras import lazy_names

if TYPE_CHECKING:
    from .code_cache import CodeCache as CodeCache
    from .handler_session import HandlerSession as HandlerSession
    from .handler_session import Worker as Worker
    from .interface import LoadedHandler as LoadedHandler
    from .interface import LoadedSession as LoadedSession
    from .isolation import Isolation as Isolation
    from .limits import SandboxLimits as SandboxLimits
    from .pool import SandboxPool as SandboxPool
    from .vectors import Mismatch as Mismatch
    from .vectors import Vector as Vector
    from .vectors import parse_vector as parse_vector
    from .vectors import run_vectors as run_vectors
else:
    # At their first use: each program needs a few of them.
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".code_cache": "CodeCache",
            ".handler_session": "HandlerSession Worker",
            ".interface": "LoadedHandler LoadedSession",
            ".isolation": "Isolation",
            ".limits": "SandboxLimits",
            ".pool": "SandboxPool",
            ".vectors": "Mismatch Vector parse_vector run_vectors",
        },
    )
