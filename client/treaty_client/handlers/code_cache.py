"""Compiled handlers kept on disk, so that a warm start skips compiling.

A file a package, named by the wheel's digest and the interpreter's bytecode: 32 bytes SHA-256 of what follows, then the bytes
a worker returned for `compile`. Those bytes are opaque here: `marshal` crashes on crafted input, so only a sandboxed worker
ever reads them. The digest tells a torn or rotten file from a whole one; it is no signature, for whoever writes this folder
owns the identity beside it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from treaty_consensus.canonical import parse_digest, sha256

from .. import durable

_DIGEST_SIZE = 32
_INTERPRETER = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"


class CodeCache:
    """A folder of compiled handlers. Safe to share among processes: files appear whole or not at all."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made at the first `put`."""
        self._folder = folder

    def get(self, digest: str) -> bytes | None:
        """The code of the wheel with this digest, None when there is none or it is damaged."""
        try:
            data = self._path(digest).read_bytes()
        except OSError:
            return None
        code = data[_DIGEST_SIZE:]
        return code if sha256(code) == data[:_DIGEST_SIZE] else None

    def put(self, digest: str, code: bytes) -> None:
        """Keep the code. Raises `OSError`."""
        durable.write(self._path(digest), sha256(code) + code, mode=0o600)

    def discard(self, digest: str) -> None:
        """Forget the code, if it is there."""
        self._path(digest).unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._folder / f"{parse_digest(digest)}.{_INTERPRETER}.code"
