"""The page of an agent: its identity, its statements, its weight with the reasons, and its ballots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from treaty_client.registries.replies import GrantInfo, VouchInfo
from treaty_consensus.did import Did, parse_did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.kinds import NONE, Parameters
from treaty_consensus.statement import KINDS

from ..catalogue.agents import (
    BALLOTS,
    MAX_BALLOTS,
    MAX_SPOKEN,
    MAX_STATEMENTS,
    SPOKEN,
    STATEMENTS,
    AuthoredStatement,
    Spoken,
    StandingBallot,
)
from ..catalogue.gathering import Gathering
from ..catalogue.queries import IDENTITY, key_identity, unknown_did
from ..catalogue.resources import IdentityView, StandingView
from ..catalogue.standing import CREDITS, ENTRY, PRINCIPAL, ROLL, Principal
from ..serving.topics import GRANTS, VOUCHES, namespace_of
from . import charts, filters
from .charts import Bar, BarPart
from .renderer import Gathered

if TYPE_CHECKING:
    from markupsafe import Markup

    from ..serving.views import Views

MAX_CREDITS = 12
MAX_VOUCHES = 20
MAX_GRANTS = 20
MAX_KEYS = 8
KINDS_OF_AGENTS = ("identity", "publish", "handler", "status", "report", "ballot", "vouch", "grant")
"""The kinds of statements that agents sign. The others are the operator's."""


# The first publication of each document in the rows of `CREDITS` and `BALLOTS`.
_NAMED = f"""
select distinct on (document) encode(document, 'hex') as hash, uri from protocols where document in (
  select decode(hash, 'hex') from ({CREDITS}) earned
  union
  select decode(choice, 'hex') from ({BALLOTS.replace("$2", "$3")}) cast_ballots,
    json_array_elements(tiers) tier, json_array_elements_text(tier) choice where choice <> '{NONE}'
) order by document, index
"""  # noqa: S608 (constants)
_QUERIES = {
    "identity": IDENTITY,
    "roll": ROLL,
    "principal": PRINCIPAL,
    "entry": ENTRY,
    "credits": CREDITS,
    "spoken": SPOKEN,
    "ballots": BALLOTS,
    "vouches": VOUCHES,
    "grants": GRANTS,
    "named": _NAMED,
}
_GATHERING = Gathering(**_QUERIES, statements=STATEMENTS)


class _Named(msgspec.Struct):
    hash: str
    uri: str


class _Rows(msgspec.Struct):
    """The rows of `_GATHERING`."""

    identity: list[IdentityView]
    roll: list[dict[str, Any]]
    principal: list[dict[str, Any]]
    entry: list[Principal]
    credits: list[dict[str, Any]]
    spoken: list[Spoken]
    ballots: list[StandingBallot]
    vouches: list[VouchInfo]
    grants: list[GrantInfo]
    named: list[_Named]
    statements: list[AuthoredStatement]


async def gather(views: Views, did: str, kind: str | None, before: int | None) -> Gathered:
    """Read the page of a DID. `kind`, `before`: which of its statements. Raises `NotFound`, `Malformed`."""
    parsed, size = parse_did(did), views.registry.head.size
    one = (did,)
    # One more of each than is shown, to tell whether there are more.
    read = await _GATHERING.read(
        views.registry.pool,
        identity=one,
        roll=(),
        principal=one,
        entry=one,
        credits=(did, MAX_CREDITS + 1),
        spoken=(did, MAX_SPOKEN + 1),
        ballots=(did, MAX_BALLOTS + 1),
        vouches=(did, MAX_VOUCHES + 1),
        grants=(namespace_of(parsed), did, MAX_GRANTS + 1),
        named=(did, MAX_CREDITS, MAX_BALLOTS),
        statements=(did, min(before or size, size), MAX_STATEMENTS + 1, [*KINDS] if kind is None else [kind]),
    )
    rows = msgspec.json.decode(read, type=_Rows)
    if parsed.method != "key" and not rows.identity:
        raise unknown_did(did)
    identity = key_identity(parsed) if parsed.method == "key" else rows.identity[0]
    roll = _first(rows.roll)
    standing = await views.standings.view(did, roll, _first(rows.principal), rows.credits, MAX_CREDITS)
    parameters = None if roll is None else await views.standings.parameters(roll["parameters"])
    return Gathered((did, kind, read), lambda: _context(parsed, kind, rows, identity, standing, parameters))


def _context(
    did: Did, kind: str | None, rows: _Rows, identity: IdentityView, standing: StandingView, parameters: Parameters | None
) -> Mapping[str, object]:
    principal = rows.entry[0] if rows.entry else None
    statements = rows.statements
    return {
        "identity": identity,
        "did": did.text,
        # An account's host is none of its own.
        "domain": None if did.method == "key" else did.namespace if did.validated_by else did.host,
        "standing": standing,
        "credits": standing.credits,
        "more_credits": standing.next is not None,
        "credit_chart": _credit_chart(standing),
        "principal": principal,
        "why": why(did, standing, principal, parameters),
        "vouches": rows.vouches[:MAX_VOUCHES],
        "more_vouches": len(rows.vouches) > MAX_VOUCHES,
        "grants": rows.grants[:MAX_GRANTS],
        "more_grants": len(rows.grants) > MAX_GRANTS,
        "keys": [*identity.keys.items()][:MAX_KEYS],
        "more_keys": max(len(identity.keys) - MAX_KEYS, 0),
        "kinds": KINDS_OF_AGENTS,
        "kind": kind,
        "statements": statements[:MAX_STATEMENTS],
        "next": statements[MAX_STATEMENTS - 1].index if len(statements) > MAX_STATEMENTS else None,
        "spoken": rows.spoken[:MAX_SPOKEN],
        "more_spoken": len(rows.spoken) > MAX_SPOKEN,
        "ballots": rows.ballots[:MAX_BALLOTS],
        "more_ballots": len(rows.ballots) > MAX_BALLOTS,
        "named": {entry.hash: entry for entry in rows.named},
        "no_consensus": NONE,
    }


def _first(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return rows[0] if rows else None


def why(did: Did, standing: StandingView, principal: Principal | None, parameters: Parameters | None) -> list[str]:
    """Return the sentences that explain the weight of a DID at the end of the newest epoch."""
    if did.method == "key":
        return ["A did:key costs nothing to make, so it has no vote. Nothing that it signs counts in an election."]
    if did.validated_by is not None:
        return [f"Only the operator says who holds this name, {filters.validated(did.text)}, so it has no vote by itself."]
    if standing.epoch is None or parameters is None:
        return ["No epoch has closed yet. Weights are counted when the first one closes."]
    if principal is None:
        if parameters.reputation is None:
            return ["It was not in the newest count. Every DID of a domain weighs 1 there once its first statement is logged."]
        return [
            "No trust reached it by the end of the newest epoch, or it speaks for no registrable domain.",
            "Trust comes from the anchors, by vouches. A domain that is vouched for gets weight.",
        ]
    if parameters.reputation is None:
        return ["In a development electorate every DID of a domain weighs 1."]
    mature = parameters.reputation.mature_epochs
    sentences = [
        f"It speaks for {principal.name}, which holds trust of {filters.weight(principal.trust)} that others lent to it.",
        f"It owes most of that to the side of {principal.cluster}."
        if principal.cluster != principal.name
        else "It is an anchor.",
    ]
    if principal.age < mature:
        sentences.append(
            f"It is {principal.age} of {mature} epochs old, so it weighs {principal.age}/{mature} of its trust's share."
        )
    if principal.weight >= ONE:
        sentences.append("It has a full voice.")
    sentences.append(
        f"In a topic it weighs its whole when it agreed there with {parameters.reputation.counterparties} other domains that "
        "have enough trust."
    )
    return sentences


def _credit_chart(standing: StandingView) -> Markup | None:
    credits = standing.credits
    if not credits:
        return None
    rows = [
        Bar(
            f"epoch {credit.epoch}, {credit.reason}: {credit.topic}",
            [BarPart(int(credit.now), 0 if credit.reason == "elected" else 1, filters.weight(credit.now))],
        )
        for credit in credits
    ]
    return charts.bars(rows, max(*(int(credit.now) for credit in credits), 1), "What the newest credits are worth now")
