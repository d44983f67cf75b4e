"""Running handlers: a verified package in, a sandboxed worker out, every effect checked before it happens.

`SandboxPool.load` (`loader`) → `Worker.open` → `Session.handle` (`session`). `sandbox` says what a worker can see, `process`
ends one, `validation` judges events and effects, `vectors` replays a protocol's transcripts, `worker` is the inside.
"""

from __future__ import annotations

from .code_cache import CodeCache
from .loader import SandboxPool
from .sandbox import Isolation, Limits
from .session import Session, Worker
from .vectors import Mismatch, Vector, parse_vector, run_vectors

__all__ = [
    "CodeCache",
    "Isolation",
    "Limits",
    "Mismatch",
    "SandboxPool",
    "Session",
    "Vector",
    "Worker",
    "parse_vector",
    "run_vectors",
]
