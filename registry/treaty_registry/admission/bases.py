"""Limit the number of documents that a document is based on, directly and indirectly."""

from __future__ import annotations

from treaty_consensus.codes import ProtocolCode
from treaty_consensus.errors import NotFound, Refused
from treaty_consensus.kinds import Base

from ..codes import RegistryPublishCode
from ..storage.postgres import Pool

# A bundle contains the publish statement of every base, and a reader accepts at most 1,024 leaves. A topic's bundle
# has up to 64 protocols, and any agent can publish in a topic. Without this limit strangers could make that bundle
# too large to read.
MAX_BASES = 8
"""Base documents of one document. A topic's bundle then has at most 64 × 9 = 576 publishes."""

# The recursion stops one step beyond the limit, so the check of a long chain costs no more than that.
_DEPTH = """
with recursive chain (base, depth) as (
  select base, 1 from protocols where uri = $1
  union all
  select p.base, depth + 1 from chain join protocols p on p.uri = chain.base where depth <= $2
)
select max(depth) from chain
"""


async def check_base(pool: Pool, base: Base) -> None:
    """Check the chain of base documents that starts at `base`.

    The base must be logged already. A base in the same batch is refused because its chain is not known yet. Raises `NotFound`
    (`protocol.unknown`) when the base is not published here, and `Refused` (`publish.base-chain`) when the chain is too long.
    """
    depth = await pool.fetchval(_DEPTH, base.uri, MAX_BASES)
    if depth is None:
        raise NotFound(ProtocolCode.UNKNOWN, f"{base.uri} is not published here.", fix="Publish the base first, then send this.")
    if depth > MAX_BASES:
        raise Refused(
            RegistryPublishCode.BASE_CHAIN,
            f"The document would be based on more than {MAX_BASES} others.",
            fix="Publish the document as a whole, without a base.",
        )
