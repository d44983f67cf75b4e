"""A simulated object store: the calls of obstore that the record of the newest head makes, with conditions and lost answers.

It keeps conditions as S3 does: a put replaces the version that its caller names, or nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError


class _Result(NamedTuple):
    meta: dict[str, Any]
    content: bytes

    def bytes(self) -> bytes:
        return self.content


class ObjectStore:
    """The store of a history. `down`: it answers nothing. `losses`: how often a request or its answer is lost."""

    def __init__(self, losses: float) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.down = False
        self.losses = losses
        self._version = 0

    @property
    def content(self) -> bytes | None:
        """The bytes of the record, or None before it is created."""
        return self.objects["head"][0] if "head" in self.objects else None

    def put(self, key: str, data: bytes, mode: Any) -> int:
        """Write an object if the condition of its caller holds."""
        content = self.objects.get(key)
        if mode == "create" and content is not None:
            raise AlreadyExistsError("The object exists.")
        if isinstance(mode, dict) and (content is None or mode.get("e_tag") != str(content[1])):
            raise PreconditionError("The object has another version.")
        self._version += 1
        self.objects[key] = data, self._version
        return self._version


class Calls:
    """Stands for the module obstore where the record uses it."""

    def get(self, store: ObjectStore, key: str) -> _Result:
        """Read an object."""
        self._reach(store)
        self._lose(store)
        if key not in store.objects:
            raise FileNotFoundError(key)
        data, version = store.objects[key]
        return _Result({"size": len(data), "e_tag": str(version), "version": None}, data)

    def put(self, store: ObjectStore, key: str, data: bytes, *, mode: Any = None, use_multipart: bool) -> dict[str, Any]:
        """Write an object. A lost request is sent again by the library, which then meets its own first write."""
        self._reach(store)
        self._lose(store)
        version = store.put(key, data, mode)
        if self._lost(store):
            version = store.put(key, data, mode)
        self._lose(store)
        return {"e_tag": str(version), "version": None}

    def delete(self, store: ObjectStore, key: str) -> None:
        """Delete an object."""
        self._reach(store)
        store.objects.pop(key, None)

    def _reach(self, store: ObjectStore) -> None:
        process: Any = asyncio.get_running_loop().process  # type: ignore[attr-defined]
        if store.down or process.machine.apart > process.world.scheduler.now:
            raise BaseError("operation timed out")

    def _lost(self, store: ObjectStore) -> bool:
        process: Any = asyncio.get_running_loop().process  # type: ignore[attr-defined]
        return bool(process.world.scheduler.rng.random() < store.losses)

    def _lose(self, store: ObjectStore) -> None:
        if self._lost(store):
            raise BaseError("connection closed before message completed")


def open_store(_url: str) -> ObjectStore:
    """Return the store of the history that runs."""
    store: ObjectStore = asyncio.get_running_loop().process.world.store  # type: ignore[attr-defined]
    return store
