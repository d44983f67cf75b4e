"""Find the versions before and after a version, and read the verdict on two of them.

The version before is the newest earlier one of the same name, of the same major number if there is one, that is in use and has a
handler of its own publisher that is in use. Strangers may attach handlers too; these say nothing of a version.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from treaty_consensus.handler import read_wheel
from treaty_consensus.handler.compatibility import Compatibility
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri

if TYPE_CHECKING:
    from asyncpg import Pool

MAX_VERSIONS = 1_000
"""Versions that are looked at, the newest leaves first."""

_WITH_HANDLER = """
select p.uri, h.filename, encode(h.wheel, 'hex') as wheel
from protocols p cross join lateral (
  select filename, wheel from handlers
  where uri = p.uri and publisher = p.publisher and state in ('active', 'deprecated') order by index desc limit 1
) h
where p.namespace = $1 and p.name = $2 and p.uri <> $3 and p.state in ('active', 'deprecated')
  and not exists (select from protocols own where own.uri = $3 and own.publisher <> $4)
order by p.index desc limit $5
"""


class Attached(msgspec.Struct, frozen=True):
    """A handler of a version's publisher. `wheel`: its SHA-256."""

    uri: str
    filename: str
    wheel: str


async def neighbours(pool: Pool, uri: ProtocolUri, publisher: str) -> tuple[Attached | None, Attached | None]:
    """Return the newest handlers of the version before `uri`, which may be about to be published, and of the version after it in
    its line. None where there is no such version, and if another DID than `publisher` has published `uri`.

    Raises `Unavailable` when PostgreSQL is down.
    """
    rows = await pool.fetch(_WITH_HANDLER, uri.namespace, uri.name, str(uri), publisher, MAX_VERSIONS)
    attached = [(parse_protocol_uri(row["uri"]), Attached(**row)) for row in rows]
    attached.sort(key=lambda pair: Version(pair[0].version))
    earlier = [pair for pair in attached if Version(pair[0].version) < Version(uri.version)]
    before = [handler for other, handler in earlier if uri.continues(other)] or [handler for _, handler in earlier]
    after = [handler for other, handler in attached[len(earlier) :] if other.continues(uri)]
    return before[-1] if before else None, after[0] if after else None


def read_compatibility(names: str, old: bytes, new: bytes) -> Compatibility:
    """Return the verdict on two wheels. `names`: their file names, with a space between. CPU-bound. Raises as `read_wheel`.

    No code of a handler runs here: this process has no sandbox. Those without code make the calls of their vectors.
    """
    # Imported here: a process that only checks statements needs no interpreter.
    from treaty_sandbox.compatibility.versions import compatibility
    from treaty_sandbox.pool import SandboxPool

    older, newer = (read_wheel(name, wheel) for name, wheel in zip(names.split(" "), (old, new), strict=True))
    before = older.manifest.protocol_uri
    versions = parse_protocol_uri(before).version, parse_protocol_uri(newer.manifest.protocol_uri).version
    return asyncio.run(compatibility(older, newer, versions, SandboxPool(size=0), before=before, runs_code=False))
