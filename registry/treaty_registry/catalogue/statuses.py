"""Query which documents their publishers withdrew, as the election judges it (`treaty_consensus.election.versions`).

A document is deprecated, yanked or revoked when every URI that counts for it is; of several states the mildest. The URIs of its
first publisher's namespace count, and those of authors with weight in the newest roll. Anybody can publish known bytes again, so
other URIs say nothing.
"""

from __future__ import annotations

from treaty_consensus.codes import BallotCode
from treaty_consensus.errors import Refused
from treaty_consensus.kinds import NEGATIVE_STATES, NONE, Ballot

from ..storage.postgres import Pool
from .standing import NAMED

# The oldest ones: anybody can publish a known document again, so the URIs of one are not bounded.
MAX_URIS = 100
_STATES = "array['active', 'deprecated', 'yanked', 'revoked']"


def status_of(topic: str, document: str) -> str:
    """Return the query of a document's status: one row of `status`, `successor` and `uri`.

    `topic`, `document`: SQL expressions. `successor`: that of the first URI that names one, or null. `uri`: the first one with
    that status. All three are null for a document that is not published in the topic.
    """
    return f"""
    select (array_agg(state order by array_position({_STATES}, state)))[1] as status,
           (array_agg(successor order by index) filter (where successor is not null))[1] as successor,
           (array_agg(uri order by array_position({_STATES}, state), index))[1] as uri
    from (
      select *, namespace = first_value(namespace) over (order by index) as is_own from (
        select uri, namespace, publisher, state, successor, index from protocols
        where topic = {topic} and document = {document} order by index limit {MAX_URIS}
      ) oldest
    ) known
    where is_own or (
      select weight from ({NAMED.format(did="(publisher)")} where p.principal is not null order by place limit 1) speaker
    ) > 0
    """  # noqa: S608 (constants)


_OF_CHOICES = f"""
select s.uri, s.status, s.successor from unnest($2::bytea[]) with ordinality as choice (document, place)
cross join lateral ({status_of("$1", "choice.document")}) s where s.status = any($3) order by place limit 1
"""  # noqa: S608 (constants)


async def check_choices(pool: Pool, ballot: Ballot) -> None:
    """Raise `Refused` (`ballot.tiers`) for a ballot that ranks a document which its publishers took back.

    Such a choice counts for nothing, so the voter should know. No rule of the log asks for this: a status that is logged
    meanwhile changes nothing.
    """
    documents = [bytes.fromhex(choice) for tier in ballot.tiers for choice in tier if choice != NONE]
    row = await pool.fetchrow(_OF_CHOICES, ballot.topic, documents, [*NEGATIVE_STATES]) if documents else None
    if row is not None:
        successor = f" Its publisher names {row['successor']} instead." if row["successor"] else ""
        raise Refused(
            BallotCode.TIERS,
            f"{row['uri']} was {row['status']} by its publisher, so a vote for it counts for nothing.{successor}",
            fix="Leave it off the ballot.",
        )
