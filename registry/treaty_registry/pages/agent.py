"""The page of an agent: its identity, its statements, its weight with the reasons, and its ballots."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from treaty_consensus.did import Did, parse_did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.kinds import NONE, Parameters

from ..catalogue.agents import MAX_BALLOTS, MAX_SPOKEN, MAX_STATEMENTS
from ..catalogue.resources import StandingView
from ..catalogue.standing import Principal
from . import charts, filters
from .charts import Bar, BarPart

if TYPE_CHECKING:
    from markupsafe import Markup

    from ..catalogue.agents import AgentQueries, StandingBallot
    from ..serving.history import TopicHistory
    from ..serving.views import Views

MAX_CREDITS = 12
MAX_VOUCHES = 20
MAX_GRANTS = 20
MAX_KEYS = 8
KINDS_OF_AGENTS = ("identity", "publish", "handler", "status", "report", "ballot", "vouch", "grant")
"""The kinds of statements that agents sign. The others are the operator's."""


async def context(
    views: Views, history: TopicHistory, agents: AgentQueries, did: str, kind: str | None, before: int | None
) -> Mapping[str, object]:
    """Return the values of the page of a DID. `kind`, `before`: which of its statements. Raises `NotFound`, `Malformed`."""
    # First: a DID that is not known costs no more than this.
    identity = await views.catalogue.identity(did)
    parsed, size = parse_did(did), views.registry.head.size
    (standing, principal), (log, vouches, grants), (statements, spoken, ballots) = await asyncio.gather(
        asyncio.gather(views.standings.standing(did, None), views.standings.principal(did)),
        asyncio.gather(
            views.elections.log(views.registry.head),
            views.elections.vouched(did, MAX_VOUCHES + 1),
            views.elections.grants(did, MAX_GRANTS + 1),
        ),
        asyncio.gather(agents.statements(did, kind, min(before or size, size)), agents.spoken(did), agents.ballots(did)),
    )
    parameters = await history.parameters(log.parameters) if log.parameters else None
    shown = ballots[:MAX_BALLOTS]
    named = await agents.names(sorted(_ranked(shown) | {credit.hash for credit in standing.credits[:MAX_CREDITS]}))
    return {
        "identity": identity,
        "did": did,
        "domain": _domain(parsed),
        "standing": standing,
        "credits": standing.credits[:MAX_CREDITS],
        "more_credits": len(standing.credits) > MAX_CREDITS,
        "credit_chart": _credit_chart(standing),
        "principal": principal,
        "why": why(parsed, standing, principal, parameters),
        "vouches": vouches[:MAX_VOUCHES],
        "more_vouches": len(vouches) > MAX_VOUCHES,
        "grants": grants.grants[:MAX_GRANTS],
        "more_grants": len(grants.grants) > MAX_GRANTS,
        "keys": [*identity.keys.items()][:MAX_KEYS],
        "more_keys": max(len(identity.keys) - MAX_KEYS, 0),
        "kinds": KINDS_OF_AGENTS,
        "kind": kind,
        "statements": statements[:MAX_STATEMENTS],
        "next": statements[MAX_STATEMENTS - 1].index if len(statements) > MAX_STATEMENTS else None,
        "spoken": spoken[:MAX_SPOKEN],
        "more_spoken": len(spoken) > MAX_SPOKEN,
        "ballots": shown,
        "more_ballots": len(ballots) > MAX_BALLOTS,
        "named": named,
        "no_consensus": NONE,
    }


def why(did: Did, standing: StandingView, principal: Principal | None, parameters: Parameters | None) -> list[str]:
    """Return the sentences that explain the weight of a DID at the end of the newest epoch."""
    if did.method == "key":
        return ["A did:key costs nothing to make, so it has no vote. Nothing that it signs counts in an election."]
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
    told = [
        f"It speaks for {principal.name}, which holds trust of {filters.weight(principal.trust)} that others lent to it.",
        f"It owes most of that to the side of {principal.cluster}."
        if principal.cluster != principal.name
        else "It is an anchor.",
    ]
    if principal.age < mature:
        told.append(f"It is {principal.age} of {mature} epochs old, so it weighs {principal.age}/{mature} of its trust's share.")
    if principal.weight >= ONE:
        told.append("It has a full voice.")
    told.append(
        f"In a topic it weighs its whole when it agreed there with {parameters.reputation.counterparties} other domains that "
        "have enough trust."
    )
    return told


def _domain(did: Did) -> str | None:
    return None if did.method == "key" else did.host


def _ranked(ballots: list[StandingBallot]) -> set[str]:
    return {choice for ballot in ballots for tier in ballot.tiers for choice in tier if choice != NONE}


def _credit_chart(standing: StandingView) -> Markup | None:
    credits = standing.credits[:MAX_CREDITS]
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
