"""Keep a home at the protocols that its treaty.lock pins: install exactly these, and compare them with the newest."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from packaging.version import Version

from treaty_consensus.errors import NotFound
from treaty_consensus.kinds import NEGATIVE_STATES
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri
from treaty_io.codes import MemoryCode

from ..registries.api import RegistryClient
from .fetch import Fetcher
from .store import LockedProtocol, LockedVersion, Lockfile, line_of
from .verification.pins import Change, changes_of, lock_entry
from .verification.records import VerifiedProtocol


@dataclass(frozen=True)
class PinnedVersion:
    """A version that treaty.lock pins, with the entry of its protocol."""

    uri: ProtocolUri
    protocol: LockedProtocol
    version: LockedVersion


@dataclass(frozen=True)
class Upgrade:
    """A newer version of a pinned protocol, or a newer handler of the same version.

    `pinned`: the version in the lock. `uri`: of the newer one. `verified`: it, after all steps but the comparison with the lock.
    `changes`: of publisher, tenure and signer, as `changes_of` has them; each must be accepted.
    """

    pinned: PinnedVersion
    uri: str
    verified: VerifiedProtocol
    changes: tuple[tuple[Change, str, str, str], ...]

    @property
    def is_other_wheel(self) -> bool:
        """Whether other code would run."""
        return self.verified.package.digest != self.pinned.version.wheel


def pinned_versions(lockfile: Lockfile) -> list[PinnedVersion]:
    """Return all versions that a lock pins, in the order of the file. Raises `Malformed` (`system.state`)."""
    return [
        PinnedVersion(parse_protocol_uri(f"{line}/{number}"), protocol, version)
        for line, protocol in lockfile.read().items()
        for number, version in protocol.versions.items()
    ]


def newest_pinned(versions: list[PinnedVersion]) -> list[PinnedVersion]:
    """Return of each protocol the highest version (PEP 440)."""
    by_version = sorted(versions, key=lambda pinned: Version(pinned.uri.version))
    return list({line_of(pinned.uri): pinned for pinned in by_version}.values())


async def install(fetcher: Fetcher, uri: ProtocolUri) -> bool:
    """Have the bytes of a pinned version in the store. Return whether they had to be fetched; stored ones need no registry.

    The policy of `fetcher` is frozen, so another handler is refused. Raises as `Fetcher.fetch`.
    """
    if await asyncio.to_thread(fetcher.stored, uri) is not None:
        return False
    await fetcher.fetch(str(uri))
    return True


async def find_upgrade(fetcher: Fetcher, pinned: PinnedVersion) -> Upgrade | None:
    """Return the highest version of a pinned protocol that is in use, with its newest handler; None if it is the pinned one.

    The list of versions is the registry's word: it may hide one, which costs news. The highest one is verified. Raises as
    `Fetcher.preview`.
    """
    uri = await _newest_uri(fetcher.client(pinned.uri.origin), pinned.uri)
    verified = await fetcher.preview(uri)
    upgrade = Upgrade(pinned, uri, verified, tuple(changes_of(pinned.protocol, lock_entry(verified))))
    return upgrade if uri != str(pinned.uri) or upgrade.is_other_wheel else None


def unpin(lockfile: Lockfile, uris: list[ProtocolUri]) -> None:
    """Remove versions from a lock; a protocol goes with its last version. Raises `NotFound` (`memory.nothing`); then the lock is
    unchanged."""
    with lockfile.changing() as entries:
        for uri in uris:
            locked = entries.get(line_of(uri))
            if locked is None or uri.version not in locked.versions:
                raise NotFound(MemoryCode.NOTHING, f"treaty.lock does not pin {uri}.", fix="See what it pins: treaty lock")
            versions = {number: version for number, version in locked.versions.items() if number != uri.version}
            if versions:
                entries[line_of(uri)] = LockedProtocol(locked.publisher, locked.tenure, locked.signer, versions, locked.identity)
            else:
                del entries[line_of(uri)]


async def _newest_uri(client: RegistryClient, uri: ProtocolUri) -> str:
    """Return the highest version that was not taken back, never below the pinned one."""
    listed = [parse_protocol_uri(version.uri) for version in await client.versions(uri) if version.status not in NEGATIVE_STATES]
    # Those of the same protocol: a registry may list anything.
    versions = [uri, *(other for other in listed if line_of(other) == line_of(uri))]
    return str(max(versions, key=lambda other: Version(other.version)))
