"""Keep compiled handlers on disk, so that later starts need not compile them.

Each package has one file, named by the wheel's digest and its compiler: the interpreter's bytecode
version, or that of wasmtime with the settings of `worker.wasm`. It holds 32 bytes, the SHA-256 of
the rest, then the bytes that a worker returned for `compile`. This process never decodes those bytes: `marshal` can crash on
crafted input, so only a sandboxed worker reads them. The digest detects a damaged file. It is no signature: a process that can
write this folder can read the agent's private key beside it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path

from treaty_consensus.canonical import parse_digest, sha256
from treaty_io import durable
from treaty_io.afterwards import Afterwards

_DIGEST_SIZE = 32
# Bytecode is valid for one magic number only. After an upgrade the name differs, so the old file is never read.
PYTHON = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"


class CodeCache:
    """A folder of compiled handlers. Processes may share it: each file is renamed into place, whole or not at all."""

    def __init__(self, folder: Path, afterwards: Afterwards | None = None) -> None:
        """Use `folder`, which the first `put` creates. `afterwards`: makes the writes; without it `put` does."""
        self._folder, self._afterwards = folder, afterwards
        self._owed: dict[Path, bytes] = {}

    def get(self, digest: str, compiler: str = PYTHON) -> bytes | None:
        """Return the code of the wheel with this digest by this compiler; None if there is none or it is damaged."""
        path = self._path(digest, compiler)
        if path in self._owed:
            return self._owed[path]
        try:
            data = path.read_bytes()
        except OSError:
            return None
        code = data[_DIGEST_SIZE:]
        # A damaged file counts as absent: compiling again is always right.
        return code if sha256(code) == data[:_DIGEST_SIZE] else None

    def put(self, digest: str, code: bytes, compiler: str = PYTHON) -> None:
        """Keep the code. Raises `OSError`, unless the write is made afterwards."""
        path = self._path(digest, compiler)
        if self._afterwards is None:
            _write(path, code)
        else:
            self._owed[path] = code
            self._afterwards.add(lambda: self._pay(path))

    def _pay(self, path: Path) -> None:
        code = self._owed.get(path)
        try:
            if code is not None:  # else it was discarded meanwhile
                with contextlib.suppress(OSError):  # without the cache (a full disk), only the next start is slower
                    _write(path, code)
        finally:
            self._owed.pop(path, None)

    def discard(self, digest: str, compiler: str = PYTHON) -> None:
        """Delete the code, if it is there."""
        path = self._path(digest, compiler)
        self._owed.pop(path, None)
        path.unlink(missing_ok=True)

    def _path(self, digest: str, compiler: str) -> Path:
        return self._folder / f"{parse_digest(digest)}.{compiler}.code"


def _write(path: Path, code: bytes) -> None:
    # 0600, because the file is code: another user must neither read nor replace it.
    # Unsynced: after a power failure the digest finds a torn file, and after a crash the handler is compiled again.
    durable.write_unsynced(path, sha256(code) + code, mode=0o600)
