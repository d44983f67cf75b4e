"""How long a chain of bases may be.

A bundle holds the publishes of all documents that a protocol's document is based on, and a reader takes 1,024 leaves at most. A
topic's bundle has 64 protocols, and anybody may publish in a topic. So without this bound strangers could make a topic's bundle
too large to be read.
"""

from __future__ import annotations

from treaty_consensus.errors import NotFound, Refused
from treaty_consensus.kinds import Base

from ..storage.postgres import Pool

MAX_BASES = 8
"""Of one document; 64 protocols with as many have 576 publishes."""

_DEPTH = """
with recursive chain (base, depth) as (
  select base, 1 from protocols where uri = $1
  union all
  select p.base, depth + 1 from chain join protocols p on p.uri = chain.base where depth <= $2
)
select max(depth) from chain
"""


async def check_base(pool: Pool, base: Base) -> None:
    """Check what a document is based on. The base has to be logged before: in one batch with it, its chain is not known yet.

    Raises `Refused` (`publish.base-chain`) and `NotFound` (`protocol.unknown`).
    """
    depth = await pool.fetchval(_DEPTH, base.uri, MAX_BASES)
    if depth is None:
        raise NotFound("protocol.unknown", f"{base.uri} is not published here.", fix="Publish the base first, then send this.")
    if depth > MAX_BASES:
        raise Refused(
            "publish.base-chain",
            f"The document would rest on more than {MAX_BASES} others.",
            fix="Publish the document as a whole, without a base.",
        )
