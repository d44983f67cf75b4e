"""Write objects that strangers read: behind a static web server, or by a CDN. Each has its media type and its cache control.

A local folder keeps no headers and has no conditional writes. There the web server gives the headers
(`deploy/proxy/nginx-static.conf`), and one process at a time writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias, cast

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from .objects import open_store, version_of

Condition: TypeAlias = Any
"""When an object may be written: `create`, `overwrite`, or over the version that was read (obstore's `mode`)."""


class PublicStore:
    """The objects below a URL. For one event loop. Every method raises obstore's errors."""

    def __init__(self, url: str) -> None:
        """Raises `Malformed` (`settings.value`) when the URL names no store."""
        self._store = open_store(url)
        self._is_local = url.startswith("file://")

    async def put(self, key: str, data: bytes, headers: Mapping[str, str], condition: Condition = "overwrite") -> bool:
        """Write an object; return False when the condition does not hold."""
        attributes = None if self._is_local else cast("Any", dict(headers))
        try:
            await obstore.put_async(self._store, key, data, mode=condition, attributes=attributes, use_multipart=False)
        except (PreconditionError, AlreadyExistsError):
            return False
        return True

    async def get(self, key: str, limit: int) -> tuple[bytes | None, Condition]:
        """Return an object, and the condition under which it may be replaced. None: there is none, or more than `limit` bytes."""
        try:
            result = await obstore.get_async(self._store, key)
        except FileNotFoundError:
            return None, "create"
        replace: Condition = "overwrite" if self._is_local else version_of(result.meta)
        return bytes(await result.bytes_async()) if result.meta["size"] <= limit else None, replace

    async def delete(self, key: str) -> None:
        """Delete an object if it is there."""
        # S3 says nothing of a missing object, a local folder does.
        with suppress(FileNotFoundError):
            await obstore.delete_async(self._store, key)

    async def names(self, folder: str) -> list[str]:
        """Return the keys below a folder."""
        return [item["path"] for item in await obstore.list(self._store, prefix=folder).collect_async()]
