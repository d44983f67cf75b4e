"""A crowd of clones that keeps a newcomer out of the field.

The adversary published and reported as many clones as the field has places, and ranks all of them over NONE. A share of the other
principals, drawn at random, speaks the newcomer and ranks it over NONE; all others are content with the incumbent. The field is
made by the product's own functions, so the newcomer may lack a place, or the weight of its reporters: the adversary's ballots
raise W.

    keep out/SHARE           the share of the honest that must be corrupted, by the share of the honest that speak the newcomer
    keep out/SHARE, places   the same if the reporters of the newcomer always had weight enough
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from treaty_consensus.election.ballot import Approval
from treaty_consensus.election.rule import DocumentState, Support, eligible_of, field_of, in_order

from .campaigns import lots
from .laboratory import EVERY, Laboratory, Row, Way, least_of
from .ours import PARAMETERS, Electors
from .search import least

SPOKEN = (0.06, 0.08, 0.1, 0.2)
GATED_SPOKEN = 0.1
PLACES = PARAMETERS.max_candidates
INCUMBENT, NEWCOMER = "a" * 64, "b" * 64
CLONES = tuple(f"{number:064x}" for number in range(PLACES))
"""Their digests are smaller than the newcomer's, and they are published before it: they win every tie."""


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What it takes."""
    size = lab.world.size
    for spoken in SPOKEN:
        for detail, reported in ((f"{spoken:g}", False), (f"{spoken:g}, places", True)):
            shares = [_least(lab, way, spoken, reported=reported) for way in EVERY]
            yield Row("flooding", size, "keep out", detail=detail), least_of(shares)


def _least(lab: Laboratory, way: Way, spoken: float, *, reported: bool) -> float | None:
    most = int(0.6 * lab.world.size) // lab.step
    number = least(partial(_kept_out, lab, way, spoken, reported), most)
    return None if number is None else number * lab.step / lab.world.size


def _kept_out(lab: Laboratory, way: Way, spoken: float, reported: bool, number: int) -> bool:
    return NEWCOMER not in _field(lab.weighed(number * lab.step, way), spoken, reported=reported)


def _field(electors: Electors, spoken: float, *, reported: bool = False) -> tuple[str, ...]:
    """Return the field when `spoken` of the honest speak the newcomer. `reported`: its reporters have weight enough."""
    world, hostile, weights = electors.attacked.world, electors.attacked.hostile, electors.weights
    honest = [number for number in lots(world.size, world.seed).tolist() if not hostile[number]]
    speakers = honest[: round(spoken * world.size)]
    bloc, total = int(weights[hostile].sum()), int(weights.sum())
    newcomer = int(weights[speakers].sum())
    approvals = [
        Approval(frozenset(CLONES), bloc),
        Approval(frozenset((NEWCOMER,)), newcomer),
        Approval(frozenset((INCUMBENT,)), total - bloc - newcomer),
    ]
    # The adversary meets every open endpoint, so all honest principals are reporters of its clones.
    supports = {clone: Support(number, 3, 3, total if bloc else 0, bloc) for number, clone in enumerate(CLONES, 1)}
    supports[INCUMBENT] = Support(0, 3, 3, total - bloc, total - bloc - newcomer)
    supports[NEWCOMER] = Support(PLACES + 1, 3, 3, total if reported else newcomer, newcomer)
    states = {INCUMBENT: DocumentState("consensus")}
    order = in_order(eligible_of(supports, states, total, PARAMETERS), supports, approvals, PLACES)
    return field_of(order, supports, INCUMBENT, PARAMETERS)
