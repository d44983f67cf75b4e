"""Query the wheels of a namespace as a package index lists them.

A file is the first wheel of its name that a DID of the namespace attached (`log.wheel_names`). It is absent when its bytes were
withdrawn, or when its publisher revoked it or the protocol: no installer may take it. A yanked one stays for those who pin it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
from packaging.version import Version

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import ProtocolCode
from treaty_consensus.errors import NotFound
from treaty_consensus.protocol import owners_of

from ..storage.own_wheels import OwnWheel

if TYPE_CHECKING:
    from asyncpg import Pool
    from asyncpg import Record as Row

OWN = "treaty"
"""The namespace of the registry's own index."""
MAX_PROJECTS = 4_096
MAX_FILES = 1_024
"""Of one project: the first ones in the log."""

ProjectStatus: TypeAlias = Literal["active", "deprecated", "quarantined"]

# A walk from project to project on the index of file names: it costs as much as there are projects, not wheels. '.' follows '-'.
_PROJECTS = """
select distinct found.package from unnest($1::text[]) as owner (did) cross join lateral (
  with recursive walk as (
    (select split_part(filename, '-', 1) as package from handlers
     where publisher = owner.did order by filename collate "C" limit 1)
    union all
    select (select split_part(filename, '-', 1) from handlers
            where publisher = owner.did and filename collate "C" > walk.package || '.' order by filename collate "C" limit 1)
    from walk where walk.package is not null
  )
  select package from walk where package is not null limit $2
) found order by 1 limit $2
"""
_FILES = """
select h.*, p.state as protocol_state, p.successor, b.withdrawn is not null as is_withdrawn,
  (select issued from clock where clock.index <= h.index order by clock.index desc limit 1) as uploaded
from unnest($1::text[]) as owner (did) cross join lateral (
  select * from handlers where publisher = owner.did and filename collate "C" > $2 || '-' and filename collate "C" < $2 || '.'
  order by filename collate "C", index limit $3
) h join protocols p on p.uri = h.uri join blobs b on b.sha256 = h.wheel order by h.index limit $3
"""
_FILE = 'select 1 from handlers where publisher = any($1) and filename collate "C" = $2 and wheel = $3 limit 1'
_BUNDLE = "select publisher, bundle from handlers where publisher = any($1) and wheel = $2 order by index limit 1"


class IndexFile(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """A file of a project (PEP 691, 700, 714, 740, 592). `yanked`: the reason; absent for a file that is not."""

    filename: str
    url: str
    hashes: dict[str, str]
    size: int
    upload_time: str
    requires_python: str | None = None
    core_metadata: dict[str, str] | None = None
    yanked: str | None = None
    provenance: str | None = None


class StatusMarker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of a project (PEP 792)."""

    status: ProjectStatus
    reason: str | None = None


class IndexProject(NamedTuple):
    """A project with its files. `versions`: of all files that it has, in order."""

    name: str
    status: StatusMarker
    files: list[IndexFile]
    versions: list[str]


class PackageIndex:
    """Reads the index of one namespace. Safe for concurrent use on one event loop; raises `Unavailable` without PostgreSQL."""

    def __init__(self, pool: Pool, namespace: str) -> None:
        self.namespace = namespace
        self._pool = pool
        self.owners = owners_of(namespace)

    async def projects(self) -> list[str]:
        """Return the normalized names of the projects. A namespace without wheels has none."""
        rows = await self._pool.fetch(_PROJECTS, self.owners, MAX_PROJECTS)
        return [row["package"].replace("_", "-") for row in rows]

    async def project(self, name: str) -> IndexProject:
        """Return a project by its normalized name. Raises `NotFound` (`protocol.unknown`)."""
        rows = await self._pool.fetch(_FILES, self.owners, name.replace("-", "_"), MAX_FILES)
        if not rows:
            raise NotFound(ProtocolCode.UNKNOWN, f"{self.namespace} has published no wheel of {name} here.")
        first: dict[str, Row] = {}
        for row in rows:
            first.setdefault(row["filename"], row)
        offered = [row for row in first.values() if not row["is_withdrawn"] and "revoked" not in _states(row)]
        files = [self._file(row) for row in offered]
        versions = sorted({row["filename"].split("-")[1] for row in offered}, key=Version)
        return IndexProject(name, _status([*first.values()], offered), files, versions)

    async def holds(self, filename: str, digest: str) -> bool:
        """Tell whether a wheel of this name and digest was published in the namespace."""
        return await self._pool.fetchval(_FILE, self.owners, filename, bytes.fromhex(digest)) is not None

    async def bundle(self, digest: str) -> tuple[str, str]:
        """Return the DID that published a wheel that the index holds first, and the digest of the Sigstore bundle beside it."""
        row = await self._pool.fetchrow(_BUNDLE, self.owners, bytes.fromhex(digest))
        assert row is not None, "the index holds it"
        return row["publisher"], row["bundle"].hex()

    def _file(self, row: Row) -> IndexFile:
        digest, url = row["wheel"].hex(), f"/index/{self.namespace}/files/{row['wheel'].hex()}/{row['filename']}"
        return IndexFile(
            filename=row["filename"],
            url=url,
            hashes={"sha256": digest},
            size=row["size"],
            upload_time=_time(row["uploaded"]),
            requires_python=row["requires_python"],
            core_metadata={"sha256": row["metadata"].hex()} if row["metadata"] is not None else None,
            yanked=_yanked(row),
            # A bundle without a certificate says nothing that an installer can read.
            provenance=f"{url}.provenance" if row["signer"] is not None else None,
        )


def _states(row: Row) -> tuple[str, str]:
    return row["state"], row["protocol_state"]


def _yanked(row: Row) -> str | None:
    if row["state"] == "yanked":
        return "Its publisher took this handler back."
    if row["protocol_state"] == "yanked":
        successor = f" Its successor is {row['successor']}." if row["successor"] else ""
        return f"Its publisher took the protocol {row['uri']} back.{successor}"
    return None


def _status(rows: Sequence[Row], offered: Sequence[Row]) -> StatusMarker:
    """Return the status that follows from all wheels and those that are offered. The newest one says whether it is deprecated."""
    if not offered:
        is_withdrawn = any(row["is_withdrawn"] for row in rows)
        return StatusMarker(
            "quarantined", "Its files were withdrawn." if is_withdrawn else "Its publisher revoked it as harmful."
        )
    newest = max(offered, key=lambda row: row["index"])
    if "deprecated" in _states(newest):
        successor = f"Its successor is {newest['successor']}." if newest["successor"] else None
        return StatusMarker("deprecated", successor)
    return StatusMarker("active")


class OwnIndex:
    """The registry's own index, in the namespace `OWN`. No host has this name in an index of its own."""

    namespace = OWN

    def __init__(self, wheels: Sequence[OwnWheel]) -> None:
        self._wheels = wheels

    async def projects(self) -> list[str]:
        """Return the normalized names of the projects."""
        return sorted({wheel.project for wheel in self._wheels})

    async def project(self, name: str) -> IndexProject:
        """Return a project by its normalized name. Raises `NotFound` (`protocol.unknown`)."""
        wheels = [wheel for wheel in self._wheels if wheel.project == name]
        if not wheels:
            fix = "Its operator adds it: treaty-registry serve --wheels FOLDER"
            raise NotFound(ProtocolCode.UNKNOWN, f"This registry has no wheel of {name}.", fix=fix)
        versions = [str(version) for version in sorted({wheel.version for wheel in wheels})]
        return IndexProject(name, StatusMarker("active"), [*map(_own_file, wheels)], versions)


def _own_file(wheel: OwnWheel) -> IndexFile:
    return IndexFile(
        filename=wheel.filename,
        url=f"/index/{OWN}/files/{wheel.digest}/{wheel.filename}",
        hashes={"sha256": wheel.digest},
        size=len(wheel.data),
        upload_time=_time(wheel.changed),
        requires_python=wheel.requires_python,
        core_metadata={"sha256": hex_digest(wheel.metadata)},
    )


def _time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
