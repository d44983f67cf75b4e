"""Keep the record of the newest head in an object store, for nodes on several machines.

The object's content is the text of a checkpoint, as in a slot of the file (`fence`). It is created and replaced by conditional
writes alone: a node replaces the version that it has read, and no other. So of two nodes that believe to lead, one is refused.

After an error of the store it is unknown whether the record was written. The caller then reads it again before it signs. A late
write is harmless: it was made from the version that its node had read, and its head was committed.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from treaty_consensus.errors import Conflict, NotFound, Refused, TreatyError, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import EMPTY_ROOT

from ..codes import FenceCode, KeysCode, SettingsCode
from ..storage.objects import open_store, shown, version_of
from .clock import SignedTime
from .fence import advanced, moved, of_origin, signed_time

if TYPE_CHECKING:
    from obstore import UpdateVersion

_MAX_RECORD = 4096  # bytes; a record has less than 512


class StoredFence:
    """The record in the object at `url`. Blocks on the network; safe for threads. See `fence.HeadRecord`."""

    def __init__(self, url: str, origin: str) -> None:
        """Read the record. Raises as `read_fence`, and OSError when the store does not answer."""
        self._url = url
        self.place = shown(url)
        self._origin = origin
        folder, _, self._key = url.rpartition("/")
        self._store = open_store(folder)
        # `record` and `_version` change together.
        self._lock = threading.Lock()
        self._version: UpdateVersion = {}
        self.record = Checkpoint(origin, 0, EMPTY_ROOT)
        self.reread()

    @classmethod
    def create(cls, url: str, origin: str) -> None:
        """Record the empty tree for a new log, as `create_fence` does.

        Raises `Refused` (`settings.value`) when the store does not keep conditions, so that two nodes could sign two histories.
        """
        folder, _, key = url.rpartition("/")
        store = open_store(folder)
        text = Checkpoint(origin, 0, EMPTY_ROOT).format().encode()
        try:
            obstore.put(store, key, text, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # After a crash before the keys were made. The first signature will depend on the version that is there now.
            if cls(url, origin).record.size:
                raise Conflict(
                    KeysCode.MISSING,
                    f"{url} exists, so a log was signed, but its keys are missing.",
                    fix="Bring the keys back, or start a new log with an empty data directory and another --head.",
                ) from None
        except BaseError as error:
            raise _silent(url, error) from error
        _check_conditions(store, key, text, url)

    @classmethod
    def restore(cls, url: str, record: Checkpoint) -> None:
        """Record the head of a restored log, which the caller has compared with every head that may have been signed.

        Raises as `create`, and `Untrusted` (`log.damaged`) when the record there is of a larger tree, or of another one.
        """
        with suppress(Conflict):  # the object of the lost registry, which may be the same record
            cls.create(url, record.origin)
        cls(url, record.origin).advance(record.size, record.root, signed_time(record))

    @property
    def signed(self) -> SignedTime | None:
        """See `HeadRecord`."""
        return signed_time(self.record)

    def reread(self) -> None:
        """See `HeadRecord`."""
        with self._lock:
            try:
                result = obstore.get(self._store, self._key)
                meta, data = result.meta, bytes(result.bytes()) if result.meta["size"] <= _MAX_RECORD else b""
            except FileNotFoundError as error:
                raise NotFound(
                    FenceCode.DAMAGED,
                    f"{self._url}, the record of what this log has signed, is missing.",
                    fix="Bring back its newest version. Never start with an older one, or without it.",
                ) from error
            except BaseError as error:
                raise _silent(self._url, error) from error
            try:
                record = Checkpoint.parse(data.decode())
            except (UnicodeDecodeError, TreatyError) as error:
                raise Untrusted(FenceCode.DAMAGED, f"{self._url} is damaged.", fix="Bring back its newest version.") from error
            self.record = of_origin(record, self._url, self._origin)
            self._version = version_of(meta)

    def advance(self, size: int, root: bytes, signed: SignedTime | None = None) -> None:
        """See `HeadRecord`."""
        with self._lock:
            record = advanced(self.record, size, root, signed)
            if record == self.record:
                return
            try:
                # Only in place of the version that this node has read: another one may lead by now.
                result = obstore.put(self._store, self._key, record.format().encode(), mode=self._version, use_multipart=False)
            # Also when the first of two tries was written and its answer was lost: the caller reads the record again.
            except PreconditionError as error:
                raise moved(self._url) from error
            except BaseError as error:
                raise _silent(self._url, error) from error
            self.record, self._version = record, version_of(result)

    def close(self) -> None:
        """Nothing is held."""


def _check_conditions(store: obstore.store.ObjectStore, key: str, text: bytes, url: str) -> None:
    """Write with a condition that does not hold. Raises `Refused` (`settings.value`) when the store writes anyway."""
    probe = f"{key}.probe"
    try:
        obstore.put(store, probe, text, use_multipart=False)
        obstore.put(store, probe, text, mode={"e_tag": '"00000000000000000000000000000000"', "version": "0"}, use_multipart=False)
    except PreconditionError:
        obstore.delete(store, probe)
        return
    except NotImplementedError:
        pass  # obstore has no conditions for this kind of store
    except BaseError as error:
        raise _silent(url, error) from error
    raise Refused(
        SettingsCode.VALUE,
        f"The store of {url} ignores the condition of a write, so two nodes could sign two histories.",
        fix="Use a store with conditional writes (If-Match): S3, Google Cloud Storage, Azure, a current MinIO, Ceph or Garage.",
    )


def _silent(url: str, error: Exception) -> OSError:
    # An OSError, as that of a disk: the leader treats both alike.
    reason = str(error).partition("\n")[0][:300]
    return OSError(f"The object store of {shown(url)} does not answer as it must ({type(error).__name__}: {reason}).")
