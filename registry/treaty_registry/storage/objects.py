"""Open object stores by their URL, with bounds on the time of a request.

The stores are obstore's: S3 and its relatives, Google Cloud Storage, Azure, and a local folder. Credentials come from the
environment.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from treaty_consensus.errors import Malformed

from ..codes import SettingsCode

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion

_REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "http", "https")
_USER = re.compile(r"(?<=://)[^/]*@")
_FIX = "Use s3://BUCKET/PATH, gs://…, az://… or file:///PATH."


def open_store(url: str) -> ObjectStore:
    """Open the store at `url`. A local folder is created. Raises `Malformed` (`settings.value`) for another kind of URL."""
    _check_url(url)
    folder = local_path(url)
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(folder)
    try:
        return from_url(url, **(_bounds() if urlsplit(url).scheme in _REMOTE else {}))
    except (BaseError, ValueError):
        # Not the cause: its text may quote the whole URL.
        raise Malformed(SettingsCode.VALUE, f"{shown(url)!r} names no object store.", fix=_FIX) from None


def check_store(url: str | None) -> None:
    """Raise `Malformed` (`settings.value`) for a URL that names no store. Makes no folder and asks no store."""
    if url is not None and local_path(url) is None:
        open_store(url)


def shown(url: str) -> str:
    """Return a URL for a message: without its user, password and query, which may be secrets."""
    return _USER.sub("", url.partition("?")[0])[:200]


def _check_url(url: str) -> None:
    try:
        has_password = urlsplit(url).password is not None
    except ValueError:
        has_password = True  # it cannot be told
    if has_password:
        raise Malformed(
            SettingsCode.VALUE,
            f"{shown(url)!r} names no object store, or has a password.",
            fix="Give credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )


def local_path(url: str) -> Path | None:
    """Return the path of a file:// URL, or None for another URL."""
    return Path(url.removeprefix("file://")) if url.startswith("file://") else None


def version_of(meta: PutResult | ObjectMeta) -> UpdateVersion:
    """Return the version of an object, as the condition of a write that replaces it."""
    # obstore takes no None for the kind of version that a store does not have.
    version: UpdateVersion = {}
    if meta["e_tag"] is not None:
        version["e_tag"] = meta["e_tag"]
    if meta["version"] is not None:
        version["version"] = meta["version"]
    return version


def _bounds() -> dict[str, Any]:
    # Without bounds a store that does not answer would be asked for three minutes, and a write would wait for it.
    return {
        "client_options": {
            "timeout": timedelta(seconds=10),
            "connect_timeout": timedelta(seconds=3),
            # Options that are given here replace those of the environment, this one among them.
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
        },
        "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=10)},
    }
