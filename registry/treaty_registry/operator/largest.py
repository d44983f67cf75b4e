"""List the largest senders: who has signed most leaves, and who has used most of its quota now."""

from __future__ import annotations

from dataclasses import dataclass

from ..admission.intake import Intake
from ..admission.senders import Sender
from ..storage.postgres import connect

MAX_LISTED = 100

# Both tables are read from end to end: this is asked by people, and an index would cost each statement some bytes.
_LARGEST = """
with signed as (
  select did, count(*) as statements, max(index) as newest from authors where index >= $1
  group by did order by 2 desc, did limit $2
), published as (
  select publisher as did, sum(size)::bigint as bytes
  from (
    select publisher, size from protocols where index >= $1 union all select publisher, size from handlers where index >= $1
  ) as each
  group by publisher
)
select did, statements, coalesce(bytes, 0) as bytes, newest
from signed left join published using (did) order by statements desc, did
"""


@dataclass(frozen=True)
class LargestSender:
    """A DID, the statements that it signed, the bytes of its documents and wheels, and its newest leaf."""

    did: str
    statements: int
    bytes: int
    newest: int


@dataclass(frozen=True)
class SenderList:
    """The largest senders of the log; hosts and networks → the share of the quota that they have used at this process now; and
    what was decided about senders."""

    largest: list[LargestSender]
    hosts: dict[str, float]
    networks: dict[str, float]
    decided: list[Sender]


async def list_senders(database: str, intake: Intake, size: int, newest: int | None) -> SenderList:
    """Return the largest senders among the `newest` leaves of a log of `size` leaves; None for all leaves."""
    begin = 0 if newest is None else max(0, size - newest)
    # Not from the pool, whose statements have a limit.
    async with connect(database) as connection:
        largest = [LargestSender(**row) for row in await connection.fetch(_LARGEST, begin, MAX_LISTED)]
    hosts, networks = intake.quota.busiest(MAX_LISTED)
    return SenderList(largest, hosts, networks, await intake.senders.listed())
