"""Take the last part of step 10: compare a verified handler with treaty.lock, store its bytes, and record it in the lock."""

from __future__ import annotations

import msgspec

from treaty_consensus.protocol import ProtocolUri

from ..registries.trust import TrustedRegistries
from .store import LockedProtocol, LockedVersion, Lockfile, Store, line_of
from .verification.pins import lock_entry
from .verification.records import VerifiedProtocol
from .verification.steps import Step, taking
from .verification.ten_steps import check_handler


class Keeper:
    """Keep what was verified, in one home. The methods block on the disk."""

    def __init__(self, registries: TrustedRegistries, store: Store, lockfile: Lockfile) -> None:
        self._registries, self._store, self._lockfile = registries, store, lockfile

    def compare(self, uri: ProtocolUri, verified: VerifiedProtocol) -> None:
        """Compare a handler with treaty.lock and with the leaves that were seen. Raises `VerificationFailed`; changes nothing."""
        self._compare(uri, verified, self._lockfile.read().get(line_of(uri)))

    def keep(self, uri: ProtocolUri, verified: VerifiedProtocol, accept_change: bool) -> None:
        """Compare the handler, store the bytes, and record them in the lock. Durable on return. Raises `VerificationFailed` and
        OSError; then the lock is unchanged. `accept_change`: as in `Fetcher.fetch`."""
        line, found = line_of(uri), lock_entry(verified)
        with taking(Step.LOCK), self._lockfile.changing() as entries:
            locked = entries.get(line)
            if not accept_change:
                self._compare(uri, verified, locked)
            same = locked is not None and (locked.publisher, locked.tenure, locked.signer) == (
                found.publisher,
                found.tenure,
                found.signer,
            )
            versions = dict(locked.versions) if locked is not None else {}
            if not same:  # documents stay pinned; the handlers were the old publisher's
                versions = {
                    other: msgspec.structs.replace(kept, handler=None, handler_status=None) for other, kept in versions.items()
                }
            replaced = versions.get(uri.version)
            # Blobs before the lock entry that names them: a crash in between leaves only unused blobs.
            self._store.put(verified.wheel)
            versions[uri.version] = LockedVersion(
                bundle=self._store.put(verified.bundle),
                document=verified.hash,
                entry_point=str(verified.package.entry_point),
                filename=verified.package.filename,
                wheel=verified.package.digest,
                published=verified.evidence.published(verified.uri).index,
                handler=verified.handler_index,
                status=replaced.status if replaced is not None else None,
                handler_status=replaced.handler_status
                if replaced is not None and same and replaced.wheel == verified.package.digest
                else None,
            )
            entries[line] = msgspec.structs.replace(found, versions=versions)
        if replaced is not None and replaced.bundle != versions[uri.version].bundle:
            self._store.discard(replaced.bundle)  # after the lock is written: a crash before leaves an unused blob

    def _compare(self, uri: ProtocolUri, verified: VerifiedProtocol, locked: LockedProtocol | None) -> None:
        with taking(Step.LOCK):
            check_handler(verified, uri, locked, self._registries.memory.about(uri.origin, {f"protocol/{uri}"}))
